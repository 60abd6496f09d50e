"""`becausal serve`: the page and the HTTP API, one app with one queue, one guard and one set of limits."""
