"""The core: what is searched, how, and what is found. Pure: it calls no model and reads no image."""
