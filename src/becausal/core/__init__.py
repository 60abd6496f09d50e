"""The core: what is asked, and what is found. Pure: it calls no model and reads no image; how to search is in `search`."""
