"""What the page accepts: its own requests to gradio, and nothing else.

gradio can serve files, take uploads and fetch URLs. The page needs none of that: a request that is not listed here gets a
404. Events may carry plain values only, so none of them can name a file.
"""

import json
import re
from collections.abc import Collection
from typing import Any, final

from becausal.interfaces.web.access import SIGNED_IN, TOKEN_NEEDED, Access
from becausal.interfaces.web.guard import (
    BROWSER_HEADERS,
    App,
    Guard,
    GuardReply,
    Header,
    RequestRejected,
    Scope,
    check_origin,
)
from becausal.interfaces.web.limits import Limits

EVENT_PATH, UPLOAD_PATH = "/gradio_api/queue/join", "/image"
GET_PATHS = re.compile(
    r"/|/config|/theme\.css|/favicon\.ico|/robots\.txt|/(assets|static|svelte)/[\w./-]+|/(download|shown)/[\w-]{20,64}"
    r"|/gradio_api/(theme\.css|startup-events|app_id|queue/data|heartbeat/[\w-]{6,64})",
    re.ASCII,
)
POST_PATHS = (EVENT_PATH, UPLOAD_PATH)
SESSION_ID = re.compile(r"[\w-]{6,64}", re.ASCII)
MAX_CHARACTERS = 200  # of a value in an event
MAX_VALUES = 16

HEADERS: tuple[Header, ...] = (
    (
        b"content-security-policy",
        b"default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
        b"img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; worker-src 'self' blob:; "
        b"object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'",
    ),
    *BROWSER_HEADERS,
)


@final
class PageRules:
    """The rules of the page. token: needed by every request; None for no token."""

    headers = HEADERS

    def __init__(self, limits: Limits, token: str | None) -> None:
        self._limits = limits
        self._access = Access(token) if token is not None else None

    def ask_for_token(self, scope: Scope) -> GuardReply | None:
        """Set the cookie of a client that has the token, or ask for the token; None for a client that has the cookie."""
        if self._access is None or self._access.is_signed_in(scope):
            return None
        cookie = self._access.sign_in(scope)
        if cookie is not None:
            return GuardReply(200, SIGNED_IN, ((b"set-cookie", cookie),))
        if scope["path"] == "/" and scope["method"] == "GET":
            return GuardReply(401, TOKEN_NEEDED)
        return GuardReply.error(401, "the token is missing or wrong: open the address that becausal serve has printed")

    def check(self, scope: Scope) -> None:
        """Reject what the page does not request."""
        path, method = scope["path"], scope["method"]
        if method in ("GET", "HEAD"):
            if not GET_PATHS.fullmatch(path) or ".." in path or b"deep_link" in scope["query_string"]:
                raise RequestRejected(404, "not found")
        elif method == "POST" and path in POST_PATHS:
            check_origin(scope)
        else:
            raise RequestRejected(404 if method == "POST" else 405, "not found")

    def upload_limit(self, scope: Scope) -> int | None:
        """Maximum size of an image file; None for an event."""
        return self._limits.upload_bytes if scope["path"] == UPLOAD_PATH else None

    def rewrite(self, scope: Scope, body: bytes) -> bytes:
        """The body of an event with its allowed values only; the headers are adapted."""
        return rewrite_event(scope, body)


def guard_page(app: App, *, limits: Limits, hosts: frozenset[str] | None, token: str | None = None) -> Guard:
    """The guard of the page."""
    return Guard(app, limits=limits, hosts=hosts, rules=PageRules(limits, token))


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
