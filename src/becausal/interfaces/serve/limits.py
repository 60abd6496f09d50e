"""How much clients of the server may use."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Upper bounds on what is accepted from clients and kept for them.

    Attributes:
        upload_bytes: Size of an image file.
        pixels: Pixels of an image.
        unresized_pixels: Pixels of an image for a model that takes images of any size as they are.
        decode_seconds: Processor time in which an uploaded file must be decoded.
        decode_bytes: Memory for decoding an uploaded file.
        body_bytes: Size of a request besides its image.
        body_seconds: Time in which the body of a request must arrive.
        header_seconds: Time in which the headers of a request must arrive; also for a client that stops reading.
        connections: Open connections.
        client_connections: Open connections of one client address.
        uploads: Uploads that are received at once.
        client_uploads: The same for one client address; one more replaces the slowest of them.
        receiving_bytes: Size of all uploads that are being received and checked.
        workers: Searches that run at once.
        waiting: Searches that wait in the queue.
        max_calls: Model calls of a search.
        seconds: Duration of a search; then the best result so far is kept.
        unwatched_seconds: Time after which a search of the page that no tab follows is stopped.
        results: Finished searches whose results are kept.
        held_bytes: Size of all these results.
        idle_seconds: Time after which one of them is dropped if it is not used.
        grace_seconds: Time that a search has to return its best result so far once it is stopped; then it is ended.
        method_bytes: Memory that the options of a method may make it take.
        method_numbers: Numbers that they may make it compute.
        behind_proxy: Whether all connections come from a proxy, which says in X-Forwarded-For who its clients are.
        closing_seconds: Time that searches have to finish when the server is shut down; then they are stopped.
    """

    upload_bytes: int = 10_000_000
    pixels: int = 40_000_000
    unresized_pixels: int = 1_000_000
    decode_seconds: int = 10
    decode_bytes: int = 2_000_000_000
    body_bytes: int = 64_000
    body_seconds: float = 60.0
    header_seconds: float = 15.0
    connections: int = 600
    client_connections: int = 200
    uploads: int = 64
    client_uploads: int = 32
    receiving_bytes: int = 200_000_000
    workers: int = 2
    waiting: int = 60
    max_calls: int = 5_000
    seconds: float = 300.0
    unwatched_seconds: float = 30.0
    results: int = 200
    held_bytes: int = 500_000_000
    idle_seconds: float = 1_800.0
    grace_seconds: float = 5.0
    closing_seconds: float = 1.0
    method_bytes: int = 500_000_000
    method_numbers: float = 1e10
    behind_proxy: bool = False
