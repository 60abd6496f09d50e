"""Open connections and uploads: how many there may be, and how long a client may take.

uvicorn itself waits forever for the headers of a request, and for a client to read its response.
"""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address
from typing import Any, cast

from becausal.interfaces.serve.limits import Limits

KEEP_ALIVE_SECONDS = 20  # for the next request on a connection

Client = tuple[str, int]  # address and port, unique among open connections


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

    def stop_timer(self) -> None:
        """The client has done what was waited for."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class Connections:
    """All open connections, oldest first. is_closing: the server is shutting down; what is under way may be completed."""

    def __init__(self, limits: Limits) -> None:
        self.is_closing = False
        self._limits = limits
        self._open: dict[Client, Connection] = {}

    def __len__(self) -> int:
        return len(self._open)

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
        self._wait(connection, self._limits.header_seconds)

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
            self._wait(self._open[client], KEEP_ALIVE_SECONDS + self._limits.header_seconds)

    async def watch_send(self, client: Client, sending: Awaitable[None]) -> None:
        """Await the sending of a part of a response, and close the connection if the client does not read."""
        connection = self._open.get(client)
        if connection is None:
            await sending
            return
        loop = asyncio.get_running_loop()
        timer = loop.call_later(KEEP_ALIVE_SECONDS + self._limits.header_seconds, connection.transport.abort)
        try:
            await sending
        finally:
            timer.cancel()

    def _wait(self, connection: Connection, seconds: float) -> None:
        connection.stop_timer()
        loop = asyncio.get_running_loop()
        connection.timer = loop.call_later(seconds, self._expire, connection, seconds)

    def _expire(self, connection: Connection, seconds: float) -> None:
        """Close the connection unless its client is still reading the response."""
        before, connection.unsent = connection.unsent, connection.transport.get_write_buffer_size()
        if connection.unsent > 0 and (before == 0 or connection.unsent < before):
            self._wait(connection, seconds)
        else:
            connection.transport.abort()


@dataclass(eq=False)
class IncomingUpload:
    """An upload that is being received and checked. deadline: reached, it is ended; None once it has arrived."""

    address: str
    started: float
    deadline: asyncio.Timeout | None
    received: int = 0

    def rate(self, now: float) -> float:
        """Bytes per second."""
        return self.received / max(now - self.started, 1e-3)


@dataclass
class IncomingUploads:
    """All uploads that are being received and checked, with the bytes they hold."""

    limits: Limits
    _all: list[IncomingUpload] = field(default_factory=list)

    def admit(self, address: str, deadline: asyncio.Timeout) -> IncomingUpload:
        """Register an upload; one that is too many ends the slowest of the same client, or else raises TooMany."""
        now, limits = asyncio.get_running_loop().time(), self.limits
        upload = IncomingUpload(group_address(address), now, deadline)
        same = [other for other in self._all if other.address == upload.address]
        if len(same) >= limits.client_uploads or len(self._all) >= limits.uploads:
            receiving = [other for other in same if other.deadline is not None]
            if not receiving:
                raise TooMany
            slowest = min(receiving, key=lambda other: other.rate(now))
            self._all.remove(slowest)
            with suppress(RuntimeError):  # it is just timing out by itself
                cast(asyncio.Timeout, slowest.deadline).reschedule(now)
        self._all.append(upload)
        return upload

    def remove(self, upload: IncomingUpload) -> None:
        """The upload has been checked, or has failed."""
        if upload in self._all:
            self._all.remove(upload)

    def add_bytes(self, upload: IncomingUpload, count: int) -> None:
        """Count received bytes; raises TooMany if all uploads together hold too many."""
        upload.received += count
        if sum(other.received for other in self._all) > self.limits.receiving_bytes:
            raise TooMany
