"""Who follows the events of a session: gradio keeps what it sends to a page in memory until the page has read it."""

import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs

from becausal.interfaces.web.guard import App, Receive, Scope

STREAM_PATH = "/gradio_api/queue/data"
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

    def watch(self, app: App) -> App:
        """The app with every stream of events registered while it lasts."""

        async def watched(scope: Scope, receive: Receive, send: SendFunction) -> None:
            if scope["type"] != "http" or scope["path"] != STREAM_PATH:
                await app(scope, receive, send)
                return
            query = parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=20)
            async with self.follow(query.get("session_hash", [""])[0], send) as watched_send:
                await app(scope, receive, watched_send)

        return watched


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
