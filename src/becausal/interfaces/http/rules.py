"""What the API accepts, for the guard: its paths and methods, the token in a header, images of limited size."""

from typing import final

from becausal.interfaces.web.access import Access
from becausal.interfaces.web.guard import BROWSER_HEADERS, GuardReply, Header, RequestRejected, Scope, check_origin
from becausal.interfaces.web.limits import Limits

EXPLAIN_PATH, JOBS_PATH, MODELS_PATH = "/v1/explain", "/v1/jobs", "/v1/models"
EXPLAIN_VERB = ":explain"  # after the name of a model
HEALTH_PATH, METRICS_PATH, DOCS_PATH, SCHEMA_PATH = "/healthz", "/metrics", "/docs", "/openapi.json"
OPEN_PATHS = frozenset({HEALTH_PATH, DOCS_PATH, SCHEMA_PATH})  # no token needed: they tell nothing about images or models
TOKEN_NEEDED = "the token is missing or wrong: send the header Authorization: Bearer TOKEN"

HEADERS: tuple[Header, ...] = (
    (
        b"content-security-policy",
        b"default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    *BROWSER_HEADERS,
)


@final
class ApiRules:
    """The rules of the API. token: needed by every request that is not for one of `OPEN_PATHS`; None for no token."""

    headers = HEADERS

    def __init__(self, limits: Limits, token: str | None) -> None:
        self._limits = limits
        self._access = Access(token) if token is not None else None

    def ask_for_token(self, scope: Scope) -> GuardReply | None:
        """A response with status 401; None if the request has the token or needs none."""
        if self._access is None or scope["path"] in OPEN_PATHS or self._access.has_bearer(scope):
            return None
        return GuardReply.error(401, TOKEN_NEEDED, (b"www-authenticate", b"Bearer"))

    def check(self, scope: Scope) -> None:
        """Reject other methods, requests from pages of other sites, and bodies for anything but an explanation."""
        path, method = scope["path"], scope["method"]
        if method not in ("GET", "POST", "DELETE"):
            raise RequestRejected(405, f"the method {method[:20]} is not offered: use GET, POST or DELETE")
        if method != "GET":
            check_origin(scope)
        if method == "POST" and name_route(path) not in (EXPLAIN_PATH, f"{MODELS_PATH}/NAME{EXPLAIN_VERB}"):
            raise RequestRejected(404, f"there is nothing to POST to at this address; {DOCS_PATH} lists all addresses")

    def upload_limit(self, scope: Scope) -> int | None:
        """Maximum size of a body: an image file in base64, and a request."""
        return -(-self._limits.upload_bytes * 4 // 3) + self._limits.body_bytes

    def rewrite(self, scope: Scope, body: bytes) -> bytes:
        """Every body is an upload, and the app reads it as it is."""
        return body


def name_route(path: str) -> str:
    """The address a path belongs to, as metrics count it: without the ids of jobs and the names of models."""
    if path.startswith(f"{JOBS_PATH}/"):
        return f"{JOBS_PATH}/ID"
    if path.startswith(f"{MODELS_PATH}/"):
        return f"{MODELS_PATH}/NAME{EXPLAIN_VERB if path.endswith(EXPLAIN_VERB) else ''}"
    known = (EXPLAIN_PATH, MODELS_PATH, HEALTH_PATH, METRICS_PATH, DOCS_PATH, SCHEMA_PATH)
    return path if path in known else "other"
