"""ASGI middleware in front of the app: host names, the token, methods, sizes and times, and headers for browsers.

Of the page the token is part of the printed address. The first request moves it into a cookie that scripts cannot read and
that other sites cannot use, so that it does not stay in the address bar or in bookmarks. Clients of the API send it as a
header.
"""

import asyncio
import json
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from functools import partial
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from typing import Any
from urllib.parse import parse_qs, urlsplit

from becausal.interfaces.serve.limits import Client, Connections, IncomingUpload, IncomingUploads, Limits, TooMany
from becausal.interfaces.serve.rendering import render

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Header = tuple[bytes, bytes]

HOST = re.compile(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^:\[\]]+))(?::\d*)?", re.ASCII)  # an address in brackets or a name, a port
RELEASE = "becausal.release_upload"  # key of the scope: a function for the app to call when it has checked an upload

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

OPEN_PATHS = frozenset({"/healthz", "/docs", "/openapi.json"})  # no token needed: they tell nothing about images or models
POSTED = frozenset({"/v1/explain", "/page/labels", "/page/explain", "/page/compare"})
KNOWN = POSTED | OPEN_PATHS | {"/v1/models", "/metrics", "/"}


def name_route(path: str) -> str:
    """The address a path belongs to, as metrics count it: without the ids of jobs."""
    if path.startswith("/v1/jobs/"):
        return "/v1/jobs/ID"
    if found := re.fullmatch(r"/page/jobs/[^/]+(/(events|pixel|download))?", path):
        return f"/page/jobs/ID{found[1] or ''}"
    return path if path in KNOWN else "other"


class RequestRejected(Exception):
    """A request that is answered with an error status and a reason instead of being passed on."""

    def __init__(self, status: int, reason: str, *headers: Header) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.headers = headers


class Access:
    """Decides whether a request has the token; all comparisons take the same time."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()

    def has_bearer(self, scope: Mapping[str, Any]) -> bool:
        """Whether the request has the header `Authorization: Bearer TOKEN`."""
        scheme, _, token = read_header(scope, b"authorization").partition(" ")
        return scheme.lower() == "bearer" and self._matches(token.strip())

    def is_signed_in(self, scope: Mapping[str, Any]) -> bool:
        """Whether the request has the cookie."""
        found = False
        for key, value in scope["headers"]:
            if key == b"cookie":
                cookies: SimpleCookie = SimpleCookie()
                try:
                    cookies.load(value.decode("latin-1"))
                except CookieError:
                    continue
                cookie = cookies.get(self._cookie_name(scope))
                found |= cookie is not None and self._matches(cookie.value)
        return found

    def sign_in(self, scope: Mapping[str, Any]) -> bytes | None:
        """The Set-Cookie header for a request of the page whose address has the token; None for any other."""
        if scope["path"] != "/" or scope["method"] != "GET":
            return None
        given = parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=20).get("token", [""])
        if not self._matches(given[0]):
            return None
        return f"{self._cookie_name(scope)}={self._token.decode()}; Path=/; HttpOnly; SameSite=Strict".encode()

    def _matches(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(errors="replace"), self._token)

    @staticmethod
    def _cookie_name(scope: Mapping[str, Any]) -> str:
        """With the port, since cookies of a host are shared by all its ports."""
        return f"becausal-{(scope.get('server') or ('', 0))[1]}"


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
        observe: Callable[[str, int], None] = lambda path, status: None,
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

        async def send_watched(message: Message) -> None:
            """Add the headers to the response, and close the connection if the client does not read it."""
            if message["type"] == "http.response.start":
                given = list(message.get("headers", ()))
                names = {name for name, _ in given}
                message["headers"] = [*given, *(line for line in HEADERS if line[0] not in names)]
                self._observe(scope["path"], message["status"])
            await self.connections.watch_send(client, send(message))

        self.connections.begin(client)
        if self._limits.behind_proxy:
            scope["client"] = forwarded_client(scope) or client
        try:
            await self._answer(scope, receive, send_watched)
        finally:
            self.connections.end(client)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it with an error."""
        try:
            if self._hosts is not None and strip_port(read_header(scope, b"host")) not in self._hosts:
                raise RequestRejected(421, "unknown host name")
            if (reply := self._ask_for_token(scope)) is not None:
                await send_reply(send, *reply)
                return
            method = scope["method"]
            if method not in ("GET", "POST", "DELETE"):
                raise RequestRejected(405, f"the method {method[:20]} is not offered: use GET, POST or DELETE")
            if method != "GET":
                check_origin(scope)
            if method != "POST":
                await self._app(scope, receive, send)
                return
            if name_route(scope["path"]) not in POSTED:
                raise RequestRejected(404, "there is nothing to POST to at this address; /docs lists all addresses")
            await self._receive_upload(scope, receive, send)
            return
        except RequestRejected as error:
            rejected = error
        except TimeoutError:
            closing = (b"connection", b"close")  # the rest of the request is not wanted
            rejected = RequestRejected(408, "timed out while receiving the request", closing)
        except TooMany:
            rejected = RequestRejected(503, "too many uploads at once: try again in a minute")
        text = json.dumps({"error": rejected.reason})
        await send_reply(send, rejected.status, text, rejected.headers, b"application/json")

    def _ask_for_token(self, scope: Scope) -> tuple[int, str, tuple[Header, ...]] | None:
        """The page that asks for the token, or the one that brings it; None with the token. Raises RequestRejected."""
        access, path = self._access, scope["path"]
        if access is None or path in OPEN_PATHS or access.has_bearer(scope):
            return None
        if not self._has_page or path.startswith("/v1/") or path == "/metrics":
            reason = "the token is missing or wrong: send the header Authorization: Bearer TOKEN"
            raise RequestRejected(401, reason, (b"www-authenticate", b"Bearer"))
        if access.is_signed_in(scope):
            return None
        if (cookie := access.sign_in(scope)) is not None:
            return 200, render("token", is_signed_in=True), ((b"set-cookie", cookie),)
        if path == "/" and scope["method"] == "GET":
            return 401, render("token", is_signed_in=False), ()
        raise RequestRejected(401, "the token is missing or wrong: open the address that becausal serve has printed")

    async def _receive_upload(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Receive a body and pass it on; it counts until the app has answered, or has called `scope[RELEASE]`."""
        upload = None
        try:
            async with asyncio.timeout(self._limits.body_seconds) as deadline:
                upload = self._uploads.admit((scope.get("client") or ("",))[0], deadline)
                given = [await self._read_body(scope, receive, upload)]
            upload.deadline = None
            scope[RELEASE] = partial(self._uploads.remove, upload)

            async def replayed() -> Message:
                """The whole body, which is not kept once it was given, then the messages after it (a disconnect)."""
                return {"type": "http.request", "body": given.pop(), "more_body": False} if given else await receive()

            await self._app(scope, replayed, send)
        finally:
            if upload is not None:
                self._uploads.remove(upload)

    async def _read_body(self, scope: Scope, receive: Receive, upload: IncomingUpload) -> bytes:
        """The body: an image file in base64, and a request, within the limits of the two."""
        limit = -(-self._limits.upload_bytes * 4 // 3) + self._limits.body_bytes
        too_large = RequestRejected(413, f"too large: the limit is {limit / 1e6:.3g} MB")
        declared = read_header(scope, b"content-length") or "0"
        if not (declared.isascii() and declared.isdigit()):
            raise RequestRejected(400, "Content-Length is not a number")
        if int(declared) > limit:
            raise too_large
        parts: list[bytes] = []
        has_more = True
        while has_more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise RequestRejected(400, "the request is incomplete")
            parts.append(message.get("body", b""))
            self._uploads.add_bytes(upload, len(parts[-1]))
            if upload.received > limit:
                raise too_large
            has_more = message.get("more_body", False)
        return b"".join(parts)


def read_header(scope: Mapping[str, Any], name: bytes) -> str:
    """A header of a request; empty where it has none of that name."""
    value: bytes = dict(scope["headers"]).get(name, b"")
    return value.decode("latin-1")


def strip_port(host: str) -> str:
    """The name in a Host header, e.g. example.org:80 or [::1]:80; empty for what is neither."""
    found = HOST.fullmatch(host)
    return (found[1] or found[2]).lower() if found is not None else ""


def forwarded_client(scope: Scope) -> Client | None:
    """The client of a request as the proxy in front of the server says; None where it does not say an address.

    The last address of X-Forwarded-For is the one that the proxy has seen; before it a client can write what it likes.
    """
    try:
        return str(ip_address(read_header(scope, b"x-forwarded-for").rpartition(",")[2].strip())), 0
    except ValueError:
        return None


def check_origin(scope: Scope) -> None:
    """Reject a request that a page of another site has made."""
    try:
        origin = dict(scope["headers"]).get(b"origin")
        is_ours = origin is None or urlsplit(origin.decode("latin-1")).netloc == read_header(scope, b"host")
    except ValueError:  # e.g. http://[
        is_ours = False
    if not is_ours:
        raise RequestRejected(403, "requests from other sites are not allowed")


async def send_reply(
    send: Send, status: int, text: str, headers: tuple[Header, ...], media_type: bytes = b"text/html; charset=utf-8"
) -> None:
    """Send a short response of the guard itself."""
    body = text.encode()
    own = (b"content-type", media_type), (b"content-length", str(len(body)).encode()), (b"cache-control", b"no-store")
    await send({"type": "http.response.start", "status": status, "headers": [*own, *headers]})
    await send({"type": "http.response.body", "body": body})
