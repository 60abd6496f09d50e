"""The HTTP API of `becausal serve --api`; it shares the guard, the limits and the queue with the page."""
