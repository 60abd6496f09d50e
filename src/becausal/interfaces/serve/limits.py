"""How much clients may use, and the open connections and uploads that are counted against it.

uvicorn itself waits forever for the headers of a request, and for a client to read its response.
"""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import Any

KEEP_ALIVE_SECONDS = 20  # for the next request on a connection

Client = tuple[str, int]  # address and port, unique among open connections


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Upper bounds on what is accepted from clients and kept for them, in bytes, seconds or a number of things."""

    upload_bytes: int = 10_000_000  # of an image file
    pixels: int = 40_000_000  # of an image
    unresized_pixels: int = 1_000_000  # the same for a model that takes images of any size as they are
    decode_seconds: int = 10  # processor time for decoding an uploaded file
    decode_bytes: int = 2_000_000_000  # memory for that
    body_bytes: int = 64_000  # of a request besides its image
    body_seconds: float = 60.0  # until the body of a request has arrived
    header_seconds: float = 15.0  # until the headers have arrived; also for a client that stops reading
    connections: int = 600  # open ones
    client_connections: int = 200  # of one client address
    uploads: int = 64  # that are received at once
    client_uploads: int = 32  # of one client address; one more replaces the slowest of them
    receiving_bytes: int = 200_000_000  # of all uploads that are being received and checked
    workers: int = 2  # searches that run at once
    waiting: int = 60  # searches in the queue
    max_calls: int = 5_000  # model calls of a search
    seconds: float = 300.0  # of a search; then the best result so far is kept
    unwatched_seconds: float = 30.0  # after which a search of the page that no tab follows is stopped
    results: int = 200  # finished searches whose results are kept
    held_bytes: int = 500_000_000  # of all these results
    idle_seconds: float = 1_800.0  # after which one of them is dropped if it is not used
    grace_seconds: float = 5.0  # to return the best result so far once a search is stopped; then it is ended
    closing_seconds: float = 1.0  # that searches have to finish when the server is shut down; then they are stopped
    method_bytes: int = 500_000_000  # of memory that the options of a method may make it take
    method_numbers: float = 1e10  # that they may make it compute
    behind_proxy: bool = False  # all connections come from a proxy, which says in X-Forwarded-For who its clients are


class TooMany(Exception):
    """There is no room for one more."""


def group_address(host: str) -> str:
    """The address by which clients are counted: of IPv6 the first 64 bits, since every machine has all the others."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Address(int(address) >> 64 << 64))


@dataclass(eq=False)
class Connection:
    """An open connection. timer: set while no request is being answered. unsent: bytes at the last look."""

    address: str
    transport: Any
    timer: asyncio.TimerHandle | None = None
    unsent: int = 0

    def wait(self, seconds: float) -> None:
        """Close the connection after so many seconds, unless its client is still reading a response."""
        self.stop_timer()
        self.timer = asyncio.get_running_loop().call_later(seconds, self._expire, seconds)

    def stop_timer(self) -> None:
        """The client has done what was waited for."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _expire(self, seconds: float) -> None:
        before, self.unsent = self.unsent, self.transport.get_write_buffer_size()
        if self.unsent > 0 and (before == 0 or self.unsent < before):
            self.wait(seconds)
        else:
            self.transport.abort()


class Connections:
    """All open connections, oldest first. is_closing: the server is shutting down; what is under way may be completed."""

    def __init__(self, limits: Limits) -> None:
        self.is_closing = False
        self._limits = limits
        self._idle_seconds = KEEP_ALIVE_SECONDS + limits.header_seconds
        self._open: dict[Client, Connection] = {}

    def add(self, client: Client, transport: Any) -> None:
        """A connection was made; one that is too many replaces the oldest without a request, or is closed itself."""
        connection = Connection(group_address(client[0]), transport)
        others = list(self._open.values())
        same = [other for other in others if other.address == connection.address]
        for rivals, limit in ((same, self._limits.client_connections), (others, self._limits.connections)):
            if len(rivals) >= limit:
                waiting = next((other for other in rivals if other.timer is not None), None)
                (waiting or connection).transport.abort()
                break
        self._open[client] = connection
        connection.wait(self._limits.header_seconds)

    def remove(self, client: Client) -> None:
        """A connection was closed."""
        connection = self._open.pop(client, None)
        if connection is not None:
            connection.stop_timer()

    def begin(self, client: Client) -> None:
        """The headers of a request have arrived."""
        if client in self._open:
            self._open[client].stop_timer()

    def end(self, client: Client) -> None:
        """A request has been answered; the next one may follow."""
        if client in self._open:
            self._open[client].wait(self._idle_seconds)

    async def watch_send(self, client: Client, sending: Awaitable[None]) -> None:
        """Await the sending of a part of a response, and close the connection if the client does not read."""
        connection = self._open.get(client)
        if connection is None:
            await sending
            return
        timer = asyncio.get_running_loop().call_later(self._idle_seconds, connection.transport.abort)
        try:
            await sending
        finally:
            timer.cancel()


@dataclass(eq=False)
class IncomingUpload:
    """An upload that is being received and checked. deadline: reached, it is ended; None once it has arrived."""

    address: str
    started: float
    deadline: asyncio.Timeout | None
    received: int = 0


class IncomingUploads:
    """All uploads that are being received and checked, with the bytes they hold."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._all: list[IncomingUpload] = []

    def admit(self, address: str, deadline: asyncio.Timeout) -> IncomingUpload:
        """Register an upload; one that is too many ends the slowest of the same client, or else raises TooMany."""
        now, limits = asyncio.get_running_loop().time(), self._limits
        upload = IncomingUpload(group_address(address), now, deadline)
        same = [other for other in self._all if other.address == upload.address]
        if len(same) >= limits.client_uploads or len(self._all) >= limits.uploads:
            rates = [(one.received / max(now - one.started, 1e-3), one, one.deadline) for one in same if one.deadline]
            if not rates:
                raise TooMany
            _, slowest, reached = min(rates, key=lambda row: row[0])
            self._all.remove(slowest)
            with suppress(RuntimeError):  # it is just timing out by itself
                reached.reschedule(now)
        self._all.append(upload)
        return upload

    def remove(self, upload: IncomingUpload) -> None:
        """The upload has been checked, or has failed."""
        if upload in self._all:
            self._all.remove(upload)

    def add_bytes(self, upload: IncomingUpload, count: int) -> None:
        """Count received bytes; raises TooMany if all uploads together hold too many."""
        upload.received += count
        if sum(other.received for other in self._all) > self._limits.receiving_bytes:
            raise TooMany
