"""ASGI middleware that lets only the page's own requests through to gradio, with a token where one is needed, in limits.

gradio can serve files, take uploads and fetch URLs. The page needs none of that: a request that is not listed here gets a
404. Events may carry plain values only, so none of them can name a file.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

from becausal.interfaces.web.access import SIGNED_IN, TOKEN_NEEDED, Access
from becausal.interfaces.web.connections import Client, Connections, IncomingUpload, IncomingUploads, TooMany
from becausal.interfaces.web.limits import Limits
from becausal.interfaces.web.streams import Streams

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

EVENT_PATH, STREAM_PATH, UPLOAD_PATH = "/gradio_api/queue/join", "/gradio_api/queue/data", "/image"
GET_PATHS = re.compile(
    r"/|/config|/theme\.css|/favicon\.ico|/robots\.txt|/(assets|static|svelte)/[\w./-]+|/(download|shown)/[\w-]{20,64}"
    r"|/gradio_api/(theme\.css|startup-events|app_id|queue/data|heartbeat/[\w-]{6,64})",
    re.ASCII,
)
POST_PATHS = (EVENT_PATH, UPLOAD_PATH)
SESSION_ID = re.compile(r"[\w-]{6,64}", re.ASCII)
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
    site whose name was made to point here cannot talk to this server. token: needed by every request; None for no token.
    connections: of the server, for its protocol. streams: who follows the events of a session.
    """

    def __init__(
        self,
        app: App,
        *,
        limits: Limits,
        hosts: frozenset[str] | None,
        token: str | None = None,
        streams: Streams | None = None,
    ) -> None:
        self.connections = Connections(limits)
        self._app = app
        self._limits = limits
        self._hosts = hosts
        self._access = Access(token) if token is not None else None
        self._uploads = IncomingUploads(limits)
        self._streams = streams or Streams()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # the page uses no websockets
            await send({"type": "websocket.close", "code": 1008})
            return
        client: Client = scope.get("client") or ("", 0)
        self.connections.begin(client)
        try:
            await self._answer(scope, receive, self._wrap_send(scope, send))
        finally:
            self.connections.end(client)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it with an error."""
        try:
            self._check_host(scope)
            if self._access is not None and not self._access.is_signed_in(scope):
                await _send_sign_in(scope, send, self._access.sign_in(scope))
                return
            self._check(scope)
            if scope["method"] != "POST":
                await self._pass_on(scope, receive, send)
            elif scope["path"] == UPLOAD_PATH:
                await self._receive_upload(scope, receive, send)
            else:
                async with asyncio.timeout(self._limits.body_seconds):
                    body = rewrite_event(scope, await self._read_body(scope, receive))
                await self._app(scope, _replay(body, receive), send)
        except RequestRejected as rejected:
            await _send_error(send, rejected.status, rejected.reason)
        except TimeoutError:
            await _send_error(send, 408, "timed out while receiving the request")
        except TooMany:
            await _send_error(send, 503, "too many uploads at once: try again in a minute")

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request without a body on; a stream of events is registered while it lasts."""
        if scope["path"] != STREAM_PATH:
            await self._app(scope, receive, send)
            return
        query = parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=20)
        async with self._streams.follow(query.get("session_hash", [""])[0], send) as watched_send:
            await self._app(scope, receive, watched_send)

    async def _receive_upload(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Receive an upload and pass it on; it counts until it has been checked."""
        upload = None
        try:
            async with asyncio.timeout(self._limits.body_seconds) as deadline:
                upload = self._uploads.admit((scope.get("client") or ("",))[0], deadline)
                body = await self._read_body(scope, receive, upload)
            upload.deadline = None
            await self._app(scope, _replay(body, receive), send)
        finally:
            if upload is not None:
                self._uploads.remove(upload)

    def _wrap_send(self, scope: Scope, send: Send) -> Send:
        """Add the headers to every response, and close the connection if the client does not read it."""
        client: Client = scope.get("client") or ("", 0)

        async def wrapped(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *HEADERS]
            await self.connections.watch_send(client, send(message))

        return wrapped

    def _check_host(self, scope: Scope) -> None:
        """Reject other host names."""
        host = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
        if self._hosts is not None and strip_port(host) not in self._hosts:
            raise RequestRejected(421, "unknown host name")

    def _check(self, scope: Scope) -> None:
        """Reject what the page does not request."""
        headers = dict(scope["headers"])
        path, method = scope["path"], scope["method"]
        if method in ("GET", "HEAD"):
            if not GET_PATHS.fullmatch(path) or ".." in path or b"deep_link" in scope["query_string"]:
                raise RequestRejected(404, "not found")
        elif method == "POST" and path in POST_PATHS:
            origin, host = headers.get(b"origin"), headers.get(b"host", b"").decode("latin-1")
            if origin is not None and urlsplit(origin.decode("latin-1")).netloc != host:
                raise RequestRejected(403, "requests from other sites are not allowed")
        else:
            raise RequestRejected(404 if method == "POST" else 405, "not found")

    async def _read_body(self, scope: Scope, receive: Receive, upload: IncomingUpload | None = None) -> bytes:
        """The body, within its size limit."""
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
            if upload is not None:
                self._uploads.add_bytes(upload, len(parts[-1]))
            if length > limit:
                raise too_large
            if not message.get("more_body", False):
                break
        return b"".join(parts)


def strip_port(host: str) -> str:
    """The name in a Host header, e.g. example.org:80 or [::1]:80."""
    return host.partition("]")[0].lstrip("[").lower() if host.startswith("[") else host.partition(":")[0].lower()


def rewrite_event(scope: Scope, body: bytes) -> bytes:
    """The body of an event with its allowed values only; the headers are adapted."""
    body = json.dumps(parse_event(body)).encode()
    scope["headers"] = [(k, v) for k, v in scope["headers"] if k not in (b"content-length", b"content-type")]
    scope["headers"] += [(b"content-length", str(len(body)).encode()), (b"content-type", b"application/json")]
    return body


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


async def _send_sign_in(scope: Scope, send: Send, cookie: bytes | None) -> None:
    """Set the cookie of a client that has the token, or ask for the token."""
    if cookie is not None:
        await _send_reply(send, 200, SIGNED_IN, (b"set-cookie", cookie))
    elif scope["path"] == "/" and scope["method"] == "GET":
        await _send_reply(send, 401, TOKEN_NEEDED)
    else:
        await _send_error(send, 401, "the token is missing or wrong: open the address that becausal serve has printed")


async def _send_error(send: Send, status: int, reason: str) -> None:
    await _send_reply(send, status, json.dumps({"error": reason}), media_type=b"application/json")


async def _send_reply(
    send: Send, status: int, text: str, *headers: tuple[bytes, bytes], media_type: bytes = b"text/html; charset=utf-8"
) -> None:
    """A short response; after a timeout the connection is closed, since the rest of the request is not wanted."""
    body = text.encode()
    lines = [(b"content-type", media_type), (b"content-length", str(len(body)).encode()), (b"cache-control", b"no-store")]
    closing = [(b"connection", b"close")] if status == 408 else []
    await send({"type": "http.response.start", "status": status, "headers": [*lines, *closing, *headers]})
    await send({"type": "http.response.body", "body": body})
