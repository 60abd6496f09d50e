"""The page of `becausal serve`: one server, many browsers, searches in background threads."""
