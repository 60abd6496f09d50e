"""Requests to an endpoint over one kept connection: attempts, pauses, limits, and errors in words.

Only the standard library. A redirect is never followed: credentials go to the address that was given and nowhere else.
"""

import http.client
import json
import random
import socket
import ssl
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, final
from urllib.parse import urlsplit

from becausal.core.errors import AnswerError, NetworkError, OptionError
from becausal.models.endpoint.options import Address, EndpointOptions

RETRIED = (408, 425, 429, 502, 503, 504)
MAX_BYTES = 64 * 2**20  # of one answer: a thousand images of a thousand classes are half of it
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_PIECE = 2**16


@dataclass(frozen=True)
class Reply:
    """What came back: the status, the headers by their lower-case names, the body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class _Again(Exception):
    """An attempt that failed in a way that may pass."""


@final
class Transport:
    """One endpoint's connection.

    sleep, clock, rng: the world outside, handed in so that tests need not wait. max_bytes: of one answer.
    Not safe for threads: who asks takes turns.
    """

    def __init__(
        self,
        address: Address,
        options: EndpointOptions,
        headers: Mapping[str, str],
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._address = address
        self._options = options
        self._headers = {"User-Agent": "becausal", "Accept": "application/json, application/octet-stream", **headers}
        self._sleep, self._clock, self._rng = sleep, clock, rng or random.Random()
        words = {word for value in headers.values() for word in value.split() if len(word) > 3}
        self._secrets = [word.encode() for word in words - {"Bearer", "Basic"}]
        self._max_bytes = max_bytes
        self._next_turn = 0.0
        self._has_answered = False
        self._connection = _open(address, options)
        self.close = weakref.finalize(self, self._connection.close)

    def request(self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> Reply:
        """The reply to a request, after as many attempts as it takes.

        Raises NetworkError where none comes in time, where we are refused, or sent elsewhere; AnswerError for a reply
        that is too large. Any other status is the caller's to judge.
        """
        begun, attempt, options = self._clock(), 0, self._options
        while True:
            begun += self._wait_turn()  # the wait for our turn is no fault of the server's
            left = options.deadline - (self._clock() - begun)
            asked = 0.0
            try:
                reply = self._attempt(method, path, body, headers or {}, min(options.timeout, max(left, 0.001)))
                if reply.status not in RETRIED:
                    return self._admitted(reply)
                problem, asked = f"it answered {say_status(reply)}", _retry_after(reply)
            except _Again as error:
                problem = str(error)
            attempt += 1
            pause = max(asked, self._pause(attempt))
            if attempt > options.retries or self._clock() + pause - begun > options.deadline:
                waited = f", asking for {asked:g} s of patience" if asked > options.deadline else ""
                tries = "1 attempt" if attempt == 1 else f"{attempt} attempts"
                raise NetworkError(f"{self._address.url} cannot be asked: {problem}{waited} ({tries})")
            self._sleep(pause)

    def _pause(self, attempt: int) -> float:
        """Twice as long each time, and by chance up to half of it less, so that many askers do not come back at once."""
        return float(min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** (attempt - 1)) * (1 - 0.5 * self._rng.random()))

    def _wait_turn(self) -> float:
        """Wait until the rate allows another request, and say how long that took."""
        if self._options.rate is None:
            return 0.0
        now = self._clock()
        wait = max(0.0, self._next_turn - now)
        if wait:
            self._sleep(wait)
        self._next_turn = now + wait + 1 / self._options.rate
        return wait

    def _admitted(self, reply: Reply) -> Reply:
        """The reply, unless it is a refusal or leads elsewhere."""
        url = self._address.url
        if reply.status in (401, 403):
            has = "the credentials given" if "Authorization" in self._headers else "a request without credentials"
            raise NetworkError(f"{url} refuses {has} ({say_status(reply)}): give --endpoint token_env=VARIABLE, or a header")
        if 300 <= reply.status < 400:
            where = _say_place(reply.headers.get("location", ""))
            raise NetworkError(
                f"{url} sends us on to {where}, which is not followed: give that address if it is the right one"
            )
        return reply

    def _attempt(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str], timeout: float) -> Reply:
        """One request and its reply; what may pass raises _Again, what will not NetworkError."""
        kept = self._connection.sock is not None
        try:
            try:
                return self._exchange(method, path, body, headers, timeout)
            except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError, ConnectionAbortedError):
                if not kept:
                    raise
                self._connection.close()  # a kept connection that was closed meanwhile: no fault of anyone's
                return self._exchange(method, path, body, headers, timeout)
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            problem = _say_problem(error, self._address, timeout)
            is_final = isinstance(error, ssl.SSLCertVerificationError) or not self._has_answered
            if is_final and not isinstance(error, (ConnectionResetError, http.client.IncompleteRead)):
                raise NetworkError(f"{self._address.url} cannot be reached: {problem}") from None
            raise _Again(problem) from None
        except BaseException:
            self._connection.close()  # half of a reply may still be under way
            raise

    def _exchange(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str], timeout: float) -> Reply:
        connection = self._connection
        connection.timeout = timeout
        if connection.sock is not None:
            connection.sock.settimeout(timeout)
        until = self._clock() + timeout
        try:
            connection.request(method, path, body, {**self._headers, **headers})
        except BrokenPipeError:
            if connection.sock is None:
                raise
            # A server that refuses a large body may answer and close before all of it is sent: the answer counts.
        response = connection.getresponse()
        self._has_answered = True
        content = self._read(response, until)
        if response.status != 200:
            content = self._scrubbed(content)
        return Reply(response.status, {key.lower(): value for key, value in response.getheaders()}, content)

    def _scrubbed(self, content: bytes) -> bytes:
        """A server's words about an error, without what only it and we should know, should it repeat that."""
        for secret in self._secrets:
            content = content.replace(secret, b"***")
        return content

    def _read(self, response: http.client.HTTPResponse, until: float) -> bytes:
        """The body, as far as it may be long and late; whatever comes after it belongs to nobody."""
        promised = response.length  # None where the body ends with its last chunk, or with the connection
        pieces, size = [], 0
        while promised is None or size < promised:
            if max(size, promised or 0) > self._max_bytes:
                limit = f"{self._max_bytes / 2**20:.3g} MiB"
                raise AnswerError(f"{self._address.url} answered with more than {limit}: that is no list of scores")
            if self._clock() > until:
                raise TimeoutError
            piece = response.read1(_PIECE if promised is None else min(_PIECE, promised - size))
            if not piece:
                break
            pieces.append(piece)
            size += len(piece)
        if promised is not None and size < promised:
            raise http.client.IncompleteRead(b"", promised - size)
        response.close()  # the connection stays open for the next request
        return b"".join(pieces)


def say_status(reply: Reply) -> str:
    """A status in words, with what the server says of it: 503 Service Unavailable: model is loading."""
    name = http.client.responses.get(reply.status, "")
    return f"{reply.status} {name}".strip() + (f": {said}" if (said := _say_error(reply.body)) else "")


def _say_error(body: bytes) -> str:
    """The server's own words for an error, in one short line; empty where they are none for people."""
    try:
        said: Any = json.loads(body)
    except ValueError:
        return ""
    if isinstance(said, dict):
        said = said.get("error", said.get("message", said.get("detail", "")))
    return "".join(c if c.isprintable() else " " for c in said)[:200].strip() if isinstance(said, str) else ""


def _say_place(location: str) -> str:
    """Where a redirect leads, without what may be secret in it."""
    try:
        place = urlsplit(location)
    except ValueError:
        return "nowhere"
    return f"{place.scheme}://{place.hostname}{place.path}" if place.hostname else place.path or "nowhere"


def _say_problem(error: Exception, address: Address, timeout: float) -> str:
    match error:
        case socket.gaierror():
            return f"there is no host {address.host}"
        case ConnectionRefusedError():
            return f"nothing listens at {address.place}"
        case TimeoutError():
            return f"no answer within {timeout:.3g} s"
        case ssl.SSLCertVerificationError():
            return f"its certificate is not trusted ({error.verify_message}): --endpoint ca=FILE names one to trust"
        case ssl.SSLError():
            return f"no TLS connection ({error.reason or 'handshake failed'})"
        case http.client.RemoteDisconnected() | ConnectionResetError() | ConnectionAbortedError() | BrokenPipeError():
            return "the connection was cut"
        case http.client.IncompleteRead():
            return "the answer broke off"
        case http.client.HTTPException():
            return f"it does not speak HTTP ({type(error).__name__})"
        case OSError():
            return error.strerror or type(error).__name__
    return type(error).__name__


def _retry_after(reply: Reply) -> float:
    """The seconds a server asks us to wait; 0 where it does not."""
    text = reply.headers.get("retry-after", "").strip()
    if text.isdecimal():
        return float(text)
    try:
        when = parsedate_to_datetime(text)
    except ValueError:
        return 0.0
    return max(0.0, (when.replace(tzinfo=when.tzinfo or UTC) - datetime.now(UTC)).total_seconds())


def _open(address: Address, options: EndpointOptions) -> http.client.HTTPConnection:
    """A connection that opens with the first request, and again whenever it was closed."""
    if address.scheme == "http":
        return http.client.HTTPConnection(address.host, address.port or 80)
    context = ssl.create_default_context()
    if options.ca is not None:
        try:
            context.load_verify_locations(options.ca)
        except (OSError, ssl.SSLError):
            raise OptionError(f"{options.ca} holds no certificates in PEM form") from None
    return http.client.HTTPSConnection(address.host, address.port or 443, context=context)
