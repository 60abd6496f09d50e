"""TODO interfaces."""
