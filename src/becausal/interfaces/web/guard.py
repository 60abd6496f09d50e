"""ASGI middleware that lets only the page's own requests through to gradio, within size limits.

gradio can serve files, take uploads and fetch URLs. The page needs none of that: a request that is not listed here gets a
404. Events may carry plain values only, so none of them can name a file.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from contextlib import nullcontext
from typing import Any
from urllib.parse import urlsplit

from becausal.interfaces.web.limits import Limits

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

EVENT_PATH, UPLOAD_PATH = "/gradio_api/queue/join", "/image"
GET_PATHS = re.compile(
    r"/|/config|/theme\.css|/favicon\.ico|/robots\.txt|/(assets|static|svelte)/[\w./-]+|/download/[\w-]{20,64}"
    r"|/gradio_api/(theme\.css|startup-events|app_id|queue/data|heartbeat/[\w-]{6,64})",
    re.ASCII,
)
POST_PATHS = (EVENT_PATH, UPLOAD_PATH)
SESSION_ID = re.compile(r"[\w-]{6,64}", re.ASCII)
MAX_UPLOADS = 16  # at once
BODY_TIMEOUT = 60.0  # seconds
MAX_CHARACTERS = 200  # of a value in an event
MAX_VALUES = 16

HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
        b"img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; worker-src 'self' blob:; "
        b"object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
)


class RequestRejected(Exception):
    """A request that is answered with an error status and a reason instead of being passed on."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class Guard:
    """Checks every request before the app sees it.

    hosts: accepted host names, without a port; None for any. On loopback they prevent DNS rebinding: a page of another
    site whose name was made to point here cannot talk to this server.
    """

    def __init__(self, app: App, *, limits: Limits, hosts: frozenset[str] | None) -> None:
        self._app = app
        self._limits = limits
        self._hosts = hosts
        self._uploads = asyncio.Semaphore(MAX_UPLOADS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # the page uses no websockets
            await send({"type": "websocket.close", "code": 1008})
            return
        send = _add_headers(send)
        try:
            self._check(scope)
            if scope["method"] == "POST":
                slot = self._uploads if scope["path"] == UPLOAD_PATH else nullcontext()
                async with slot, asyncio.timeout(BODY_TIMEOUT):
                    body = await self._read_body(scope, receive)
                receive = _replay(body, receive)
        except RequestRejected as rejected:
            await _send_error(send, rejected.status, rejected.reason)
        except TimeoutError:
            await _send_error(send, 408, "timed out while receiving the request")
        else:
            await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        """Reject what the page does not request."""
        headers = {key: value for key, value in scope["headers"] if key in (b"host", b"origin")}
        host = headers.get(b"host", b"").decode("latin-1")
        if self._hosts is not None and strip_port(host) not in self._hosts:
            raise RequestRejected(421, "unknown host name")
        path, method = scope["path"], scope["method"]
        if method in ("GET", "HEAD"):
            if not GET_PATHS.fullmatch(path) or ".." in path or b"deep_link" in scope["query_string"]:
                raise RequestRejected(404, "not found")
        elif method == "POST" and path in POST_PATHS:
            origin = headers.get(b"origin")
            if origin is not None and urlsplit(origin.decode("latin-1")).netloc != host:
                raise RequestRejected(403, "requests from other sites are not allowed")
        else:
            raise RequestRejected(404 if method == "POST" else 405, "not found")

    async def _read_body(self, scope: Scope, receive: Receive) -> bytes:
        """The body, within its size limit; an event is parsed and rewritten with its allowed values only."""
        limit = self._limits.upload_bytes if scope["path"] == UPLOAD_PATH else self._limits.body_bytes
        too_large = RequestRejected(413, f"too large: the limit is {limit / 1e6:g} MB")
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if not declared.isdigit() or int(declared) > limit:
            raise too_large if declared.isdigit() else RequestRejected(400, "Content-Length is not a number")
        parts, length = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise RequestRejected(400, "the request is incomplete")
            parts.append(message.get("body", b""))
            length += len(parts[-1])
            if length > limit:
                raise too_large
            if not message.get("more_body", False):
                break
        body = b"".join(parts)
        if scope["path"] != EVENT_PATH:
            return body
        scope["headers"] = [(k, v) for k, v in scope["headers"] if k not in (b"content-length", b"content-type")]
        body = json.dumps(parse_event(body)).encode()
        scope["headers"] += [(b"content-length", str(len(body)).encode()), (b"content-type", b"application/json")]
        return body


def strip_port(host: str) -> str:
    """The name in a Host header, e.g. example.org:80 or [::1]:80."""
    return host.partition("]")[0].lstrip("[").lower() if host.startswith("[") else host.partition(":")[0].lower()


def parse_event(body: bytes) -> dict[str, Any]:
    """A gradio event, reduced to the fields the page uses; raises RequestRejected if it has other than plain values."""
    try:
        event = json.loads(body)
    except (ValueError, RecursionError):
        raise RequestRejected(400, "the request is not valid JSON") from None
    if not isinstance(event, dict):
        raise RequestRejected(400, "an event must be a JSON object")
    session, number = event.get("session_hash"), event.get("fn_index")
    if not isinstance(session, str) or not SESSION_ID.fullmatch(session):
        raise RequestRejected(400, "session_hash is missing or invalid")
    if type(number) is not int or not 0 <= number < 1000:
        raise RequestRejected(400, "fn_index is missing or invalid")
    data, extra, trigger = event.get("data"), event.get("event_data"), event.get("trigger_id")
    if not isinstance(data, list) or not are_plain(data):
        raise RequestRejected(400, "data must be a short list of plain values")
    if extra is not None and (not isinstance(extra, dict) or not are_plain(extra) or not are_plain(extra.values())):
        raise RequestRejected(400, "event_data must hold a few plain values")
    kept = {"session_hash": session, "fn_index": number, "data": data, "event_data": extra}
    return kept | ({"trigger_id": trigger} if type(trigger) is int else {})


def are_plain(values: Collection[Any]) -> bool:
    """Whether these are a few values, each None, a boolean, a number or a short text."""
    return len(values) <= MAX_VALUES and all(
        value is None or isinstance(value, (bool, int, float)) or (isinstance(value, str) and len(value) <= MAX_CHARACTERS)
        for value in values
    )


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the whole body, then the messages after it (the client's disconnect)."""
    was_given = False

    async def replayed() -> Message:
        nonlocal was_given
        if was_given:
            return await receive()
        was_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed


def _add_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *HEADERS]
        await send(message)

    return send_with_headers


async def _send_error(send: Send, status: int, reason: str) -> None:
    body = json.dumps({"error": reason}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
