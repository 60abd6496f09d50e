"""TODO images."""
