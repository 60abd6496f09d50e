"""ASGI middleware in front of the app: host names, the token, methods, sizes and times, and headers for browsers."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from becausal.interfaces.serve.access import SIGNED_IN, TOKEN_NEEDED, Access
from becausal.interfaces.serve.addresses import DOCS_PATH, OPEN_PATHS, PAGE_PATH, POSTED, is_for_programs, name_route
from becausal.interfaces.serve.connections import Client, Connections, IncomingUpload, IncomingUploads, TooMany
from becausal.interfaces.serve.limits import Limits

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Header = tuple[bytes, bytes]

HOST = re.compile(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^:\[\]]+))(?::\d*)?", re.ASCII)  # an address in brackets or a name, a port
RELEASE = "becausal.release_upload"  # key of the scope: a function for the app to call when it has checked an upload

TOKEN_MISSING = "the token is missing or wrong: send the header Authorization: Bearer TOKEN"

#: Of every response; the page has a content security policy of its own.
HEADERS: tuple[Header, ...] = (
    (
        b"content-security-policy",
        b"default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
)


@dataclass(frozen=True)
class GuardReply:
    """A short response of the guard itself."""

    status: int
    text: str
    headers: tuple[Header, ...] = ()
    media_type: bytes = b"text/html; charset=utf-8"

    @staticmethod
    def error(status: int, reason: str, *headers: Header) -> "GuardReply":
        """A response that says in one sentence what is wrong."""
        return GuardReply(status, json.dumps({"error": reason}), headers, b"application/json")


class RequestRejected(Exception):
    """A request that is answered with an error status and a reason instead of being passed on."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class Guard:
    """Checks every request before the app sees it.

    hosts: accepted host names, without a port; None for any. On loopback they prevent DNS rebinding: a page of another
    site whose name was made to point here cannot talk to this server. token: what clients must send, if any. has_page:
    whether there is a page, which moves the token from its address into a cookie. connections: of the server, for its
    protocol. observe: called with the path and the status of every response.
    """

    def __init__(
        self,
        app: App,
        *,
        limits: Limits,
        hosts: frozenset[str] | None,
        token: str | None = None,
        has_page: bool = False,
        connections: Connections | None = None,
        observe: Callable[[str, int], None] | None = None,
    ) -> None:
        self.connections = connections if connections is not None else Connections(limits)
        self._app = app
        self._limits = limits
        self._hosts = hosts
        self._access = Access(token) if token is not None else None
        self._has_page = has_page
        self._observe = observe
        self._uploads = IncomingUploads(limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # no part of the server uses websockets
            await send({"type": "websocket.close", "code": 1008})
            return
        client: Client = scope.get("client") or ("", 0)
        self.connections.begin(client)
        if self._limits.behind_proxy:
            scope["client"] = forwarded_client(scope) or client
        try:
            await self._answer(scope, receive, self._wrap_send(scope, client, send))
        finally:
            self.connections.end(client)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it with an error."""
        try:
            self._check_host(scope)
            if (reply := self._ask_for_token(scope)) is not None:
                await _send_reply(send, reply)
                return
            self._check_method(scope)
            if scope["method"] == "POST":
                await self._receive_upload(scope, receive, send)
            else:
                await self._app(scope, receive, send)
        except RequestRejected as rejected:
            await _send_reply(send, GuardReply.error(rejected.status, rejected.reason))
        except TimeoutError:
            # The rest of the request is not wanted.
            closing = (b"connection", b"close")
            await _send_reply(send, GuardReply.error(408, "timed out while receiving the request", closing))
        except TooMany:
            await _send_reply(send, GuardReply.error(503, "too many uploads at once: try again in a minute"))

    def _ask_for_token(self, scope: Scope) -> GuardReply | None:
        """The response to a request without the token, or to the one that brings it to the page; else None."""
        access, path = self._access, scope["path"]
        if access is None or path in OPEN_PATHS or access.has_bearer(scope):
            return None
        if not self._has_page or is_for_programs(path):
            return GuardReply.error(401, TOKEN_MISSING, (b"www-authenticate", b"Bearer"))
        if access.is_signed_in(scope):
            return None
        if (cookie := access.sign_in(scope)) is not None:
            return GuardReply(200, SIGNED_IN, ((b"set-cookie", cookie),))
        if path == PAGE_PATH and scope["method"] == "GET":
            return GuardReply(401, TOKEN_NEEDED)
        return GuardReply.error(401, "the token is missing or wrong: open the address that becausal serve has printed")

    def _check_method(self, scope: Scope) -> None:
        """Reject other methods, requests from pages of other sites, and bodies for addresses that take none."""
        method = scope["method"]
        if method not in ("GET", "POST", "DELETE"):
            raise RequestRejected(405, f"the method {method[:20]} is not offered: use GET, POST or DELETE")
        if method != "GET":
            check_origin(scope)
        if method == "POST" and name_route(scope["path"]) not in POSTED:
            raise RequestRejected(404, f"there is nothing to POST to at this address; {DOCS_PATH} lists all addresses")

    async def _receive_upload(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Receive a body and pass it on; it counts until the app has answered, or has called `scope[RELEASE]`."""
        upload = None
        try:
            async with asyncio.timeout(self._limits.body_seconds) as deadline:
                upload = self._uploads.admit((scope.get("client") or ("",))[0], deadline)
                body = await self._read_body(scope, receive, upload)
            upload.deadline = None
            scope[RELEASE] = partial(self._uploads.remove, upload)
            await self._app(scope, _replay(body, receive), send)
        finally:
            if upload is not None:
                self._uploads.remove(upload)

    def _wrap_send(self, scope: Scope, client: Client, send: Send) -> Send:
        """Add the headers to every response, and close the connection if the client does not read it."""

        async def wrapped(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = list(message.get("headers", ()))
                names = {name for name, _ in given}
                message["headers"] = [*given, *(line for line in HEADERS if line[0] not in names)]
                if self._observe is not None:
                    self._observe(scope["path"], message["status"])
            await self.connections.watch_send(client, send(message))

        return wrapped

    def _check_host(self, scope: Scope) -> None:
        """Reject other host names."""
        host = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
        if self._hosts is not None and strip_port(host) not in self._hosts:
            raise RequestRejected(421, "unknown host name")

    async def _read_body(self, scope: Scope, receive: Receive, upload: IncomingUpload) -> bytes:
        """The body: an image file in base64, and a request, within the limits of the two."""
        limit = -(-self._limits.upload_bytes * 4 // 3) + self._limits.body_bytes
        too_large = RequestRejected(413, f"too large: the limit is {limit / 1e6:.3g} MB")
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
            self._uploads.add_bytes(upload, len(parts[-1]))
            if length > limit:
                raise too_large
            if not message.get("more_body", False):
                break
        return b"".join(parts)


def strip_port(host: str) -> str:
    """The name in a Host header, e.g. example.org:80 or [::1]:80; empty for what is neither."""
    found = HOST.fullmatch(host)
    return (found[1] or found[2]).lower() if found is not None else ""


def forwarded_client(scope: Scope) -> Client | None:
    """The client of a request as the proxy in front of the server says; None where it does not say an address.

    The last address of X-Forwarded-For is the one that the proxy has seen; before it a client can write what it likes.
    """
    lines = [value for key, value in scope["headers"] if key == b"x-forwarded-for"]
    last = lines[-1].decode("latin-1").rpartition(",")[2].strip() if lines else ""
    try:
        return str(ip_address(last)), 0
    except ValueError:
        return None


def check_origin(scope: Scope) -> None:
    """Reject a request that a page of another site has made."""
    headers = dict(scope["headers"])
    origin, host = headers.get(b"origin"), headers.get(b"host", b"").decode("latin-1")
    try:
        is_ours = origin is None or urlsplit(origin.decode("latin-1")).netloc == host
    except ValueError:  # e.g. http://[
        is_ours = False
    if not is_ours:
        raise RequestRejected(403, "requests from other sites are not allowed")


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the whole body, then the messages after it (the client's disconnect)."""
    given: list[bytes] = [body]
    del body  # it is not kept once it was given

    async def replayed() -> Message:
        return {"type": "http.request", "body": given.pop(), "more_body": False} if given else await receive()

    return replayed


async def _send_reply(send: Send, reply: GuardReply) -> None:
    body = reply.text.encode()
    lines = [
        (b"content-type", reply.media_type),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": reply.status, "headers": [*lines, *reply.headers]})
    await send({"type": "http.response.body", "body": body})
