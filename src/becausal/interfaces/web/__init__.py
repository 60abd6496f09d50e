"""The page: one server, many clients, every search with a thread of its own. Only `becausal serve` loads it."""
