"""Who follows the events of a session: gradio keeps what it sends to a page in memory until the page has read it."""

import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

STALLED_SECONDS = 5.0  # a client that has not read its events for this time does not follow them

SendFunction = Callable[[Any], Awaitable[None]]


class Streams:
    """The open streams of events, by session."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open: defaultdict[str, set[EventStream]] = defaultdict(set)

    def is_followed(self, session_id: str) -> bool:
        """Whether a client reads the events of this session."""
        now = self._clock()
        return any(not stream.is_stalled(now) for stream in list(self._open.get(session_id, ())))

    @asynccontextmanager
    async def follow(self, session_id: str, send: SendFunction) -> AsyncIterator[SendFunction]:
        """Register a stream while it lasts; yields the function to send its events with."""
        stream = EventStream(send, self._clock)
        self._open[session_id].add(stream)
        try:
            yield stream.send
        finally:
            self._open[session_id].discard(stream)
            if not self._open[session_id]:
                del self._open[session_id]


class EventStream:
    """One stream of events to a client."""

    def __init__(self, send: SendFunction, clock: Callable[[], float]) -> None:
        self._send = send
        self._clock = clock
        self._sending_since: float | None = None

    async def send(self, message: Any) -> None:
        """Send a part of the stream; this takes as long as the client takes to read it."""
        self._sending_since = self._clock()
        try:
            await self._send(message)
        finally:
            self._sending_since = None

    def is_stalled(self, now: float) -> bool:
        """Whether the client has stopped reading."""
        return self._sending_since is not None and now - self._sending_since > STALLED_SECONDS
