"""TODO interfaces/cli."""
