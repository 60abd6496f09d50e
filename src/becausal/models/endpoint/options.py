"""Where a served model is, and how it is asked: the address of `oip:URL` and the `--endpoint key=value` options.

Secrets stay out of everything that is kept: user and password are cut from the address, and of the headers only those
whose value is named by an environment variable are recorded, by that name.
"""

import base64
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import quote, unquote, urlsplit

from becausal.core.errors import ModelError, OptionError
from becausal.models.compose import Layout

Binary = Literal["auto", "yes", "no"]
Shape = tuple[int | None, ...]

_PATH = re.compile(r"(?P<server>.*/v2)/models/(?P<name>[^/\s]+)(?:/versions/(?P<version>[^/\s]+))?(?:/infer)?/?")
_HEADER = re.compile(r"(?P<name>[!#$%&'*+.^`|~\w-]+)\s*:\s*(?P<value>[ -~]*)")
_VARIABLE = re.compile(r"\$\{(\w+)\}")
_KEPT_HEADER = re.compile(r"[!#$%&'*+.^`|~\w-]+\s*:\s*(?:\w+ )?\$\{\w+\}\s*")
_FORM = "oip:http://HOST:PORT/v2/models/NAME, or …/NAME/versions/VERSION"


@dataclass(frozen=True)
class Address:
    """The place of one model: `server` is the path that ends in /v2, `model` that of the model below it."""

    scheme: Literal["http", "https"]
    host: str
    port: int | None
    server: str
    model: str
    login: str | None = field(default=None, repr=False)  # user:password, never shown

    @property
    def place(self) -> str:
        """Host and port, as they are written."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The address of the model, without user and password."""
        return f"{self.scheme}://{self.place}{self.model}"

    @property
    def is_local(self) -> bool:
        return self.host in ("localhost", "::1") or self.host.startswith("127.")


@dataclass(frozen=True, kw_only=True)
class EndpointOptions:
    """How an endpoint is asked.

    header: lines `Name: value`; ${VARIABLE} in a value is taken from the environment. token_env: the environment
    variable with a bearer token. ca: a PEM file of certificates to trust besides the system's. timeout: seconds for one
    attempt; deadline: for one batch with all its attempts; retries: attempts after the first. rate: most requests per
    second. price: of one image, in your own money. cache: the folder of kept answers, None for none; cache_mb: its
    size. binary: the binary form of tensors, `auto` where the server says it knows it. input, output, shape, datatype,
    layout: what the server's metadata leaves open.
    """

    header: tuple[str, ...] = field(default=(), repr=False)
    token_env: str | None = None
    ca: Path | None = None
    timeout: float = 30.0
    deadline: float = 300.0
    retries: int = 5
    rate: float | None = None
    price: float | None = None
    cache: Path | None | Literal["own"] = "own"
    cache_mb: int = 512
    binary: Binary = "auto"
    input: str | None = None
    output: str | None = None
    shape: Shape | None = None
    datatype: str | None = None
    layout: Layout | None = None


KEYS = tuple(item.name for item in fields(EndpointOptions))


def parse_address(target: str) -> Address:
    """The address in `oip:TARGET`. Raises ModelError, which never repeats a password."""
    shown = re.sub(r"//.*@", "//", target).partition("?")[0]
    try:
        parts = urlsplit(target)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ModelError(f"oip:{shown} is no address: write {_FORM}") from None
    path = _PATH.fullmatch(parts.path)
    if parts.scheme not in ("http", "https") or not host or path is None:
        raise ModelError(f"oip:{shown} names no served model: write {_FORM}")
    if parts.query or parts.fragment:
        raise ModelError(
            f"the address oip:{shown} must end with the model: give a key as --endpoint 'header=NAME: ${{VARIABLE}}'"
        )
    login = None
    if parts.username is not None:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    model = f"{path['server']}/models/{path['name']}" + (f"/versions/{path['version']}" if path["version"] else "")
    scheme: Literal["http", "https"] = "https" if parts.scheme == "https" else "http"
    return Address(scheme, host, port, _quoted(path["server"]), _quoted(model), login)


def as_words(endpoint: Mapping[str, Any] | Sequence[str] | None) -> tuple[str, ...]:
    """Options given in Python, as the command line has them: `key=value` words."""
    if endpoint is None:
        return ()
    if isinstance(endpoint, str):
        return (endpoint,)
    if not isinstance(endpoint, Mapping):
        return tuple(str(word) for word in endpoint)
    words: list[str] = []
    for key, value in endpoint.items():
        several = value if isinstance(value, (list, tuple)) and key == "header" else [value]
        words += [f"{key}={_plain(item)}" for item in several]
    return tuple(words)


def parse_endpoint(words: Sequence[str]) -> EndpointOptions:
    """The options in `key=value` words; of a key that comes twice the last counts, headers add up.

    Raises OptionError for what is unknown or makes no sense; it never repeats a header.
    """
    found: dict[str, Any] = {}
    for word in words:
        key, sign, value = word.partition("=")
        key, value = key.strip().replace("-", "_"), value.strip()
        if not sign or key not in KEYS:
            which = f" {key!r}" if sign and key.isidentifier() else ""  # anything else may be a secret gone astray
            raise OptionError(f"unknown option of an endpoint{which}: write key=value, with one of {', '.join(KEYS)}")
        if key == "header":
            found["header"] = (*found.get("header", ()), _header(value))
        else:
            found[key] = _PARSERS[key](key, value)
    return EndpointOptions(**found)


def kept_words(words: Sequence[str]) -> list[str]:
    """The words that may be recorded: no secret, and nothing that is of this machine only."""
    kept = []
    for word in words:
        key, _, value = word.partition("=")
        key, value = key.strip().replace("-", "_"), value.strip()
        if key not in ("cache", "cache_mb") and (key != "header" or _KEPT_HEADER.fullmatch(value)):
            kept.append(f"{key}={value}")
    return kept


def make_headers(address: Address, options: EndpointOptions) -> dict[str, str]:
    """The headers of every request, with what they take from the environment. Raises OptionError where that is missing."""
    headers = {}
    if address.login is not None:
        headers["Authorization"] = "Basic " + base64.b64encode(address.login.encode()).decode("ascii")
    if options.token_env is not None:
        headers["Authorization"] = f"Bearer {_from_environment(options.token_env)}"
    for line in options.header:
        name, _, value = line.partition(":")
        said = _VARIABLE.sub(lambda match: _from_environment(match[1]), value.strip())
        if not said.isascii() or not said.isprintable():
            raise OptionError(f"the value of the header {name.strip()} has characters that no header may have")
        headers[name.strip()] = said
    return headers


def _from_environment(name: str) -> str:
    value = os.environ.get(name, "").strip()
    if not value:
        raise OptionError(f"the environment has no variable {name}, which the endpoint's headers are to take")
    return value


def _quoted(path: str) -> str:
    return quote(path, safe="/%:@+~,;=!$&'()*")


def _plain(value: Any) -> str:
    if value is None or value is False:
        return "none"
    return "yes" if value is True else str(value)


def _header(value: str) -> str:
    if _HEADER.fullmatch(value) is None:
        raise OptionError("a header is written NAME: VALUE, as --endpoint 'header=X-Api-Key: ${API_KEY}'")
    return value


def _text(key: str, value: str) -> str:
    if not value:
        raise OptionError(f"{key} of an endpoint needs a value: write {key}=…")
    return value


def _seconds(key: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not 0.0 < number < 1e9:
        raise OptionError(f"{key} of an endpoint is a number above 0, not {value!r}")
    return number


def _count(key: str, value: str) -> int:
    smallest = 0 if key == "retries" else 1
    if not (value.isascii() and value.isdecimal()) or int(value) < smallest:
        raise OptionError(f"{key} of an endpoint is a whole number from {smallest}, not {value!r}")
    return int(value)


def _file(key: str, value: str) -> Path:
    path = Path(_text(key, value)).expanduser()
    if not path.is_file():
        raise OptionError(f"there is no file {path}")
    return path


def _folder(key: str, value: str) -> Path | None:
    return None if value.lower() in ("none", "no") else Path(_text(key, value)).expanduser()


def _shape(key: str, value: str) -> Shape:
    sides = value.strip("[]").replace("x", ",").split(",")
    read = [None if side.strip().upper() in ("N", "-1") else int(side) if side.strip().isdecimal() else 0 for side in sides]
    if 0 in read or len(read) not in (3, 4):
        raise OptionError(f"{key} of an endpoint is written N,3,224,224 (N: any number), not {value!r}")
    return tuple(read)


def _datatype(key: str, value: str) -> str:
    return _text(key, value).upper()


def _binary(key: str, value: str) -> str:
    value = {"none": "no", "true": "yes", "false": "no"}.get(value.lower(), value.lower())
    if value not in get_args(Binary):
        raise OptionError(f"{key} of an endpoint is auto, yes or no, not {value!r}")
    return value


def _layout(key: str, value: str) -> str:
    if value.lower() not in get_args(Layout):
        raise OptionError(f"{key} of an endpoint is nchw or nhwc, not {value!r}")
    return value.lower()


_PARSERS: dict[str, Callable[[str, str], Any]] = {
    "token_env": _text,
    "ca": _file,
    "timeout": _seconds,
    "deadline": _seconds,
    "retries": _count,
    "rate": _seconds,
    "price": _seconds,
    "cache": _folder,
    "cache_mb": _count,
    "binary": _binary,
    "input": _text,
    "output": _text,
    "shape": _shape,
    "datatype": _datatype,
    "layout": _layout,
}
