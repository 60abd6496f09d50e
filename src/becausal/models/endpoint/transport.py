"""HTTP requests to one server, with httpx: retries, pauses, limits, and error messages without secrets.

A redirect is never followed: credentials are sent to the given address only. Proxies, .netrc and other settings of the
environment are ignored, and no cookies are kept.
"""

import json
import random
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import responses
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, final
from urllib.parse import urlsplit

from becausal.core.errors import AnswerError, MissingExtraError, NetworkError, OptionError
from becausal.core.text import one_line
from becausal.models.endpoint.options import Address, EndpointOptions, describe_exposure, make_headers

RETRIED = (408, 425, 429, 502, 503, 504)
MAX_BYTES = 64 * 2**20  # of one response: twice the scores of a thousand images of a thousand classes as JSON
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0  # seconds
_MAX_WAIT = 1e9  # seconds; longer than any deadline


@dataclass(frozen=True)
class Reply:
    """A response: the status, the headers by their lower-case names, the body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class _RetryableError(Exception):
    """An attempt that failed for a reason that may be temporary."""


class _ConnectionTrace(threading.local):
    """What happens on the connection during one request, reported by httpx; each thread, with one request, has its own.

    is_new: the connection was opened for this request. has_data: the server sent something. has_response: it sent the
    head of an HTTP response. Reading ends at the deadline, even if the server keeps sending a byte from time to time.
    """

    is_new = has_data = has_response = False

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until = 0.0

    def start(self, until: float) -> None:
        self.is_new = self.has_data = self.has_response = False
        self._until = until

    def report(self, event: str, info: Mapping[str, Any]) -> None:
        if event == "connection.connect_tcp.started":
            self.is_new = True
        elif event == "http11.receive_response_headers.complete":
            self.has_response = True
        elif event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            stream = info["return_value"]
            read = stream.read

            def watched_read(max_bytes: int, timeout: float | None = None) -> bytes:
                import httpx

                left = self._until - self._clock()
                if left <= 0:
                    raise httpx.ReadTimeout("the response took too long")
                data: bytes = read(max_bytes, left if timeout is None else min(timeout, left))
                self.has_data |= bool(data)
                return data

            stream.read = watched_read


@final
class Transport:
    """The connections to one server, opened when they are needed and kept alive: one for each thread that sends a request.

    The headers of the options are sent with every request, and their values are removed from error messages. notes: on who
    else can read them. sleep, clock, rng: replaced in tests.
    """

    def __init__(
        self,
        address: Address,
        options: EndpointOptions,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        headers = make_headers(address, options)
        self.notes = describe_exposure(address, headers)
        self._address = address
        self._options = options
        self._has_credentials = any(name.lower() == "authorization" for name in headers)
        self._sleep, self._clock, self._rng = sleep, clock, rng or random.Random()
        words = {word for value in headers.values() for word in value.split() if len(word) > 3}
        self._secrets = sorted(words - {"Bearer", "Basic"}, key=len, reverse=True)
        self._next_turn, self._turns = 0.0, threading.Lock()
        self._has_answered = False
        self._trace = _ConnectionTrace(clock)
        try:
            import httpx
        except ImportError:
            raise MissingExtraError("httpx", "endpoint", "a model on a server") from None
        context = ssl.create_default_context()
        if options.ca is not None:
            try:
                context.load_verify_locations(options.ca)
            except (OSError, ssl.SSLError):
                raise OptionError(f"{options.ca} contains no certificates in PEM format") from None
        accept = {"Accept": "application/json, application/octet-stream", "Accept-Encoding": "identity"}
        self._client = httpx.Client(
            headers={"User-Agent": "becausal", **accept, **headers},
            verify=context,
            trust_env=False,
            follow_redirects=False,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
            limits=httpx.Limits(max_connections=options.parallel, keepalive_expiry=None),
        )
        self.close = weakref.finalize(self, self._client.close)

    def request(self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> Reply:
        """The reply to a request, after as many attempts as needed and allowed.

        Raises NetworkError where none came in time, or the server refused the request or redirected it, AnswerError for one
        that is too large. Any other status is for the caller to judge.
        """
        start, attempt, options = self._clock(), 0, self._options
        while True:
            if wait := self._book_turn():
                self._sleep(wait)
                start += wait  # which does not count
            left = options.deadline - (self._clock() - start)
            wanted_pause = 0.0
            try:
                reply = self._attempt(method, path, body, headers or {}, min(options.timeout, max(left, 0.001)))
                if reply.status not in RETRIED:
                    self._check_status(reply)
                    return reply
                problem, wanted_pause = f"it answered {describe_status(reply)}", _read_retry_after(reply)
            except _RetryableError as error:
                problem = str(error)
            attempt += 1
            # Exponential backoff, shortened at random by up to half so that clients do not retry all at once
            backoff = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (attempt - 1)) * (1 - 0.5 * self._rng.random())
            pause = max(wanted_pause, backoff)
            if attempt > options.retries or self._clock() + pause - start > options.deadline:
                waited = f", and asked to wait for {wanted_pause:g} s" if wanted_pause > options.deadline else ""
                count = "1 attempt" if attempt == 1 else f"{attempt} attempts"
                raise NetworkError(f"the request to {self._address.url} failed: {problem}{waited} ({count})")
            self._sleep(pause)

    def _book_turn(self) -> float:
        """The seconds until the next turn at the rate that is allowed; the turn is taken."""
        if self._options.rate is None:
            return 0.0
        with self._turns:
            now = self._clock()
            wait = max(0.0, self._next_turn - now)
            self._next_turn = now + wait + 1 / self._options.rate
            return wait

    def _check_status(self, reply: Reply) -> None:
        """Raise NetworkError where the server refuses or redirects the request."""
        url = self._address.url
        if reply.status in (401, 403):
            what = "the given credentials" if self._has_credentials else "a request without credentials"
            advice = "give --endpoint token_env=VARIABLE, or a header"
            raise NetworkError(f"{url} refuses {what} ({describe_status(reply)}): {advice}")
        if 300 <= reply.status < 400:
            try:
                parts = urlsplit(reply.headers.get("location", ""))
                where = f"{parts.scheme}://{parts.hostname}{parts.path}" if parts.hostname else parts.path
            except ValueError:
                where = ""
            where = where or "an unknown address"  # never its login or query, which may be secret
            raise NetworkError(f"{url} redirects to {where}, which is not followed: give that address if it is correct")

    def _attempt(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str], timeout: float) -> Reply:
        """One request and its reply. Raises _RetryableError if another attempt may succeed, else NetworkError."""
        import httpx

        address, trace, until = self._address, self._trace, self._clock() + timeout
        trace.start(until)
        target, extensions = f"{address.scheme}://{address.location}{path}", {"trace": trace.report}
        own = dict(headers)
        try:
            with self._client.stream(
                method, target, content=body, headers=own, timeout=timeout, extensions=extensions
            ) as response:
                self._has_answered = True
                content = self._read(response, until, timeout)
        except (httpx.TransportError, httpx.InvalidURL, UnicodeError) as error:
            is_protocol_error = isinstance(error, httpx.RemoteProtocolError)
            is_cut = isinstance(error, httpx.ReadError) or (is_protocol_error and (trace.has_response or not trace.has_data))
            is_stale = is_cut and not trace.is_new and not trace.has_data
            cause: BaseException | None = error  # of the operating system or the TLS library, behind that of httpx
            while cause is not None and not isinstance(cause, OSError):
                cause = cause.__cause__ or cause.__context__
            problem = _describe_failure(error, cause, trace, address, timeout)
            if isinstance(cause, ssl.SSLCertVerificationError) or not (self._has_answered or is_cut):
                raise NetworkError(f"{address.url} cannot be reached: {problem}") from None
            if not is_stale:
                raise _RetryableError(problem) from None
        else:
            if response.status_code != 200:
                content = self.scrub(content.decode("utf-8", "replace")).encode()
            return Reply(response.status_code, dict(response.headers), content)
        return self._attempt(method, path, body, headers, timeout)  # the server had closed the idle connection

    def scrub(self, text: str) -> str:
        """A text from the server without the secrets that were sent to it."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    def _read(self, response: Any, until: float, timeout: float) -> bytes:
        """The body. Raises AnswerError if it is too large, _RetryableError if it takes too long."""
        length = response.headers.get("content-length", "")
        size = float(length) if length.isdecimal() else 0  # as announced; more is never read
        pieces, received = [], 0
        for piece in response.iter_raw() if size <= MAX_BYTES else ():
            pieces.append(piece)
            received += len(piece)
            if received > MAX_BYTES:
                break
            if self._clock() > until:
                raise _RetryableError(f"no answer within {timeout:.3g} s")
        if max(size, received) > MAX_BYTES:
            limit = f"{MAX_BYTES / 2**20:.3g} MiB"
            raise AnswerError(f"{self._address.url} answered with more than {limit}, which cannot be an answer")
        return b"".join(pieces)


def read_json(body: bytes, url: str) -> dict[str, Any]:
    """The JSON object in a response. Raises AnswerError for anything else."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        start = one_line(body[:40].decode("utf-8", "replace"))
        raise AnswerError(f"{url} sent a response that is not JSON: {start!r}") from None
    if not isinstance(content, dict):
        raise AnswerError(f"{url} sent a JSON {type(content).__name__}; expected an object")
    return content


def describe_status(reply: Reply) -> str:
    """A status with its name and the server's message in one short line, e.g. 503 Service Unavailable: model is loading."""
    try:
        message: Any = json.loads(reply.body)
    except (ValueError, RecursionError):
        message = ""
    if isinstance(message, dict):
        message = message.get("error", message.get("message", message.get("detail", "")))
        message = message.get("message", "") if isinstance(message, dict) else message  # as chat servers nest it
    text = one_line(message, 200) if isinstance(message, str) else ""
    return f"{reply.status} {responses.get(reply.status, '')}".strip() + (f": {text}" if text else "")


def _describe_failure(
    error: Exception, cause: BaseException | None, trace: _ConnectionTrace, address: Address, timeout: float
) -> str:
    import httpx

    if isinstance(error, (httpx.InvalidURL, UnicodeError)):
        return f"{address.host} is not a valid host name"
    if isinstance(error, httpx.TimeoutException):
        return f"no answer within {timeout:.3g} s"
    if isinstance(error, httpx.RemoteProtocolError):
        if trace.has_response:
            return "the response was incomplete"
        return "the response is not HTTP" if trace.has_data else "the connection was closed"
    match cause:
        case socket.gaierror():
            return f"there is no host {address.host}"
        case ConnectionRefusedError():
            return f"no server is listening at {address.location}"
        case ssl.SSLCertVerificationError():
            return f"its certificate is not trusted ({cause.verify_message}): add it with --endpoint ca=FILE"
        case ssl.SSLError():
            return f"no TLS connection ({cause.reason or 'handshake failed'})"
        case ConnectionResetError() | ConnectionAbortedError() | BrokenPipeError():
            return "the connection was closed"
        case OSError():
            return cause.strerror or type(cause).__name__
    return type(error).__name__


def _read_retry_after(reply: Reply) -> float:
    """The seconds that the server asks to wait; 0 if it does not."""
    text = reply.headers.get("retry-after", "").strip()
    if text.isdecimal():
        return min(float(text), _MAX_WAIT)
    try:
        when = parsedate_to_datetime(text)
        wait = (when.replace(tzinfo=when.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    except (ValueError, TypeError, IndexError, OverflowError):  # dates may be anything
        return 0.0
    return min(max(0.0, wait), _MAX_WAIT)
