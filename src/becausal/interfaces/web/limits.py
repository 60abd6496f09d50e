"""What clients of the page may use up, all of it in one place."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much is taken from clients, and held for them, at most.

    upload_bytes: of an image's file. pixels: of an image; loose_pixels: the same for a model that takes images of any
    size as they are. body_bytes: of any other request. workers: searches at once. waiting: searches in line.
    max_calls: of a search. seconds: of a search, after which the best so far is kept. silence: seconds after which a
    search nobody watches is stopped. sessions: pages that are remembered; held_bytes: of all their images.
    idle: seconds after which an unused page is forgotten; gone: the same once its tab is closed.
    """

    upload_bytes: int = 10_000_000
    pixels: int = 40_000_000
    loose_pixels: int = 1_000_000
    body_bytes: int = 64_000
    workers: int = 2
    waiting: int = 60
    max_calls: int = 5_000
    seconds: float = 300.0
    silence: float = 30.0
    sessions: int = 200
    held_bytes: int = 500_000_000
    idle: float = 1_800.0
    gone: float = 120.0
