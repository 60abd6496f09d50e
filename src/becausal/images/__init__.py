"""Images: reading them, views of them, and what masked pixels become."""
