"""The engine: runs searches, packs their questions into batches, and calls the model."""
