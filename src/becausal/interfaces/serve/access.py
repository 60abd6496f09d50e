"""The token that clients need where other machines can reach the server.

Of the page it is part of the printed address. The first request moves it into a cookie that scripts cannot read and that
other sites cannot use, so that it does not stay in the address bar or in bookmarks. Clients of the API send it as a header.
"""

import secrets
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from becausal.core.errors import InputError, OptionError
from becausal.core.files import open_regular

MIN_CHARACTERS = 16
MAX_FILE_BYTES = 4096
PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>becausal</title>{head}<style>body {{ font: 1rem system-ui, sans-serif; margin: 3rem auto; max-width: 34rem;
padding: 0 1rem; color-scheme: light dark }}</style>{body}</html>"""
SIGNED_IN = PAGE.format(head='<meta http-equiv="refresh" content="0; url=./">', body='<p><a href="./">Open the page</a></p>')
TOKEN_NEEDED = PAGE.format(
    head="",
    body="<h1>This page needs a token</h1><p>Open the address that <code>becausal serve</code> has printed, or enter the "
    'token.</p><form><input type="password" name="token" aria-label="Token" required> <button>Open</button></form>',
)


def make_token() -> str:
    """A token that cannot be guessed."""
    return secrets.token_urlsafe(24)


def read_token(environment: Mapping[str, str], variable: str) -> str:
    """The token in an environment variable; raises OptionError if it is missing, too short or not printable ASCII."""
    return _check_token(environment.get(variable, ""), f"--token-env: the variable {variable}")


def read_token_file(path: Path) -> str:
    """The token in a file, without white space around it; raises OptionError as `read_token` does."""
    try:
        with open_regular(path) as file:
            text = file.read(MAX_FILE_BYTES).decode("utf-8", errors="replace")
    except (OSError, InputError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise OptionError(f"--token-file: {path} cannot be read: {reason}") from None
    return _check_token(text.strip(), f"--token-file: {path}")


def _check_token(token: str, source: str) -> str:
    if len(token) < MIN_CHARACTERS or not (token.isascii() and token.isprintable()) or set(token) & set(' ",;\\'):
        raise OptionError(f"{source} must hold a token of at least {MIN_CHARACTERS} letters and digits")
    return token


class Access:
    """Decides whether a request has the token; all comparisons take the same time."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()

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

    def has_bearer(self, scope: Mapping[str, Any]) -> bool:
        """Whether the request has the header `Authorization: Bearer TOKEN`."""
        given = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
        scheme, _, token = given.partition(" ")
        return scheme.lower() == "bearer" and self._matches(token.strip())

    def sign_in(self, scope: Mapping[str, Any]) -> bytes | None:
        """The Set-Cookie header for a request of the page whose address has the token; None for any other."""
        if scope["path"] != "/" or scope["method"] != "GET":
            return None
        given = parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=20).get("token", [""])
        if not self._matches(given[0]):
            return None
        token = self._token.decode()
        return f"{self._cookie_name(scope)}={token}; Path=/; HttpOnly; SameSite=Strict".encode()

    def _matches(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(errors="replace"), self._token)

    @staticmethod
    def _cookie_name(scope: Mapping[str, Any]) -> str:
        """With the port, since cookies of a host are shared by all its ports."""
        return f"becausal-{(scope.get('server') or ('', 0))[1]}"
