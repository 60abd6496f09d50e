"""TODO models/endpoint."""
