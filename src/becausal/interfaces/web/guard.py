"""What stands between the net and gradio: only what the page itself asks for comes through, and no more of it than fits.

gradio serves files, takes uploads and fetches addresses for pages that want it. This page does not, so none of those
doors is open: a request that is not on the list below gets a 404, whatever gradio would make of it. Events carry plain
values only, so none of them can name a file.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import nullcontext
from typing import Any
from urllib.parse import urlsplit

from becausal.interfaces.web.limits import Limits

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

JOIN, PICTURE = "/gradio_api/queue/join", "/picture"
READABLE = re.compile(
    r"/|/config|/theme\.css|/favicon\.ico|/robots\.txt|/(assets|static|svelte)/[\w./-]+|/download/[\w-]{20,64}"
    r"|/gradio_api/(theme\.css|startup-events|app_id|queue/data|heartbeat/[\w-]{6,64})",
    re.ASCII,
)
WRITABLE = (JOIN, PICTURE)
SESSION = re.compile(r"[\w-]{6,64}", re.ASCII)
UPLOADS = 16  # at once
PATIENCE = 60.0  # seconds a body may take to arrive
LONGEST = 200  # characters of a value
MOST_VALUES = 16

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


class Refusal(Exception):
    """A request that goes no further: its status and a reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class Guard:
    """Checks every request before the app sees it.

    hosts: the names the server may be called by, without a port; None for any. On loopback they keep a page of another
    site, whose name was made to point here, from talking to this one.
    """

    def __init__(self, app: App, *, limits: Limits, hosts: frozenset[str] | None) -> None:
        self._app = app
        self._limits = limits
        self._hosts = hosts
        self._uploading = asyncio.Semaphore(UPLOADS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # no part of the page speaks anything else
            await send({"type": "websocket.close", "code": 1008})
            return
        send = _with_headers(send)
        try:
            self._check(scope)
            if scope["method"] == "POST":
                turn = self._uploading if scope["path"] == PICTURE else nullcontext()
                async with turn, asyncio.timeout(PATIENCE):
                    body = await self._read(scope, receive)
                receive = _replay(body, receive)
        except Refusal as refusal:
            await _answer(send, refusal.status, refusal.reason)
        except TimeoutError:
            await _answer(send, 408, "the request took too long to arrive")
        else:
            await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        """Refuse what the page does not ask for."""
        headers = {key: value for key, value in scope["headers"] if key in (b"host", b"origin")}
        host = headers.get(b"host", b"").decode("latin-1")
        if self._hosts is not None and name_of(host) not in self._hosts:
            raise Refusal(421, "this server does not go by that name")
        path, method = scope["path"], scope["method"]
        if method in ("GET", "HEAD"):
            if not READABLE.fullmatch(path) or ".." in path or b"deep_link" in scope["query_string"]:
                raise Refusal(404, "there is nothing here")
        elif method == "POST" and path in WRITABLE:
            origin = headers.get(b"origin")
            if origin is not None and urlsplit(origin.decode("latin-1")).netloc != host:
                raise Refusal(403, "another site may not ask for this")
        else:
            raise Refusal(404 if method == "POST" else 405, "there is nothing here")

    async def _read(self, scope: Scope, receive: Receive) -> bytes:
        """The body, if it is no larger than allowed; an event is read, and written anew of what it may hold."""
        limit = self._limits.upload_bytes if scope["path"] == PICTURE else self._limits.body_bytes
        too_large = Refusal(413, f"too large: at most {limit / 1e6:g} MB are taken")
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if not declared.isdigit() or int(declared) > limit:
            raise too_large if declared.isdigit() else Refusal(400, "the length of the request is no number")
        parts, length = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Refusal(400, "the request ended early")
            parts.append(message.get("body", b""))
            length += len(parts[-1])
            if length > limit:
                raise too_large
            if not message.get("more_body", False):
                break
        body = b"".join(parts)
        if scope["path"] != JOIN:
            return body
        scope["headers"] = [(k, v) for k, v in scope["headers"] if k not in (b"content-length", b"content-type")]
        body = json.dumps(read_event(body)).encode()
        scope["headers"] += [(b"content-length", str(len(body)).encode()), (b"content-type", b"application/json")]
        return body


def name_of(host: str) -> str:
    """A Host header without its port: example.org:80, [::1]:80."""
    return host.partition("]")[0].lstrip("[").lower() if host.startswith("[") else host.partition(":")[0].lower()


def read_event(body: bytes) -> dict[str, Any]:
    """An event of the page with nothing in it but plain values. Raises Refusal for anything else."""
    try:
        event = json.loads(body)
    except (ValueError, RecursionError):
        raise Refusal(400, "the request is no JSON") from None
    if not isinstance(event, dict):
        raise Refusal(400, "an event is an object")
    session, number = event.get("session_hash"), event.get("fn_index")
    if not isinstance(session, str) or not SESSION.fullmatch(session):
        raise Refusal(400, "an event names its session")
    if type(number) is not int or not 0 <= number < 1000:
        raise Refusal(400, "an event has a number")
    data, extra, trigger = event.get("data"), event.get("event_data"), event.get("trigger_id")
    if not isinstance(data, list) or len(data) > MOST_VALUES or not all(is_plain(value) for value in data):
        raise Refusal(400, "the values of an event are plain")
    if extra is not None and (
        not isinstance(extra, dict) or len(extra) > MOST_VALUES or not all(is_plain(v) for v in (*extra, *extra.values()))
    ):
        raise Refusal(400, "what comes with an event is plain")
    kept = {"session_hash": session, "fn_index": number, "data": data, "event_data": extra}
    return kept | ({"trigger_id": trigger} if type(trigger) is int else {})


def is_plain(value: Any) -> bool:
    """Whether a value is nothing, a truth, a number or a short text."""
    return value is None or isinstance(value, (bool, int, float)) or (isinstance(value, str) and len(value) <= LONGEST)


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body as one message, then what comes after it: the client's leaving."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *HEADERS]
        await send(message)

    return sending


async def _answer(send: Send, status: int, reason: str) -> None:
    body = json.dumps({"error": reason}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
