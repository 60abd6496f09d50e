"""How much clients of the page may use."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Upper bounds on what is accepted from clients and kept for them.

    Attributes:
        upload_bytes: Size of an image file.
        pixels: Pixels of an image.
        unresized_pixels: Pixels of an image for a model that takes images of any size as they are.
        body_bytes: Size of any other request.
        workers: Searches that run at once.
        waiting: Searches that wait in the queue.
        max_calls: Model calls of a search.
        seconds: Duration of a search; then the best result so far is kept.
        unwatched_seconds: Time after which a search that no client polls is stopped.
        sessions: Sessions that are kept.
        held_bytes: Size of the images of all sessions.
        idle_seconds: Time after which an unused session is dropped.
        closed_seconds: The same for a session whose tab was closed.
    """

    upload_bytes: int = 10_000_000
    pixels: int = 40_000_000
    unresized_pixels: int = 1_000_000
    body_bytes: int = 64_000
    workers: int = 2
    waiting: int = 60
    max_calls: int = 5_000
    seconds: float = 300.0
    unwatched_seconds: float = 30.0
    sessions: int = 200
    held_bytes: int = 500_000_000
    idle_seconds: float = 1_800.0
    closed_seconds: float = 120.0
