"""The address of an `oip:URL` model, and its `--endpoint key=value` options.

Secrets are left out of everything that is saved: user and password are removed from the address, and a header is
recorded only if its value is the name of an environment variable.
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
_HEADER = re.compile(r"(?P<name>[!#$%&'*+.^`|~\w-]+)\s*:\s*(?P<value>[ -~]*)", re.ASCII)
_VARIABLE = re.compile(r"\$\{(\w+)\}")
_RECORDED_HEADER = re.compile(r"[!#$%&'*+.^`|~\w-]+\s*:\s*(?:\w+ )?\$\{\w+\}\s*", re.ASCII)
_FORM = "oip:http://HOST:PORT/v2/models/NAME, or …/NAME/versions/VERSION"


@dataclass(frozen=True)
class Address:
    """The address of one model: `server` is the path that ends in /v2, `model` the model's path below it."""

    scheme: Literal["http", "https"]
    host: str
    port: int | None
    server: str
    model: str
    login: str | None = field(default=None, repr=False)  # user:password, never shown

    @property
    def location(self) -> str:
        """Host and port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"

    @property
    def root(self) -> str:
        """Scheme, host and port."""
        return f"{self.scheme}://{self.location}"

    @property
    def url(self) -> str:
        """The model's address, without user and password."""
        return self.root + self.model

    @property
    def is_local(self) -> bool:
        return self.host in ("localhost", "::1") or self.host.startswith("127.")


@dataclass(frozen=True, kw_only=True)
class EndpointOptions:
    """How a server is called.

    Attributes:
        header: Lines `Name: value`; ${VARIABLE} in a value is replaced from the environment.
        token_env: Environment variable that holds a bearer token.
        ca: PEM file of certificates to trust in addition to the system's.
        timeout: Seconds for one attempt.
        deadline: Seconds for one batch, including all attempts.
        retries: Attempts after the first.
        rate: Maximum number of requests per second.
        price: Price of one image, in any currency.
        cache: Folder of the answer cache, None for no cache, "default" for the user's cache folder.
        cache_mb: Maximum size of the cache.
        binary: Whether tensors are sent as bytes; `auto` if the server supports it.
        input: Input tensor to use. This and the rest are for what the server's metadata do not state.
        output: Output tensor to read.
        shape: Shape of the input.
        datatype: Type of the input.
        layout: Order of the input's axes.
    """

    header: tuple[str, ...] = field(default=(), repr=False)
    token_env: str | None = None
    ca: Path | None = None
    timeout: float = 30.0
    deadline: float = 300.0
    retries: int = 5
    rate: float | None = None
    price: float | None = None
    cache: Path | None | Literal["default"] = "default"
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
        raise ModelError(f"oip:{shown} is not a valid address; expected {_FORM}") from None
    path = _PATH.fullmatch(parts.path)
    if parts.scheme not in ("http", "https") or not host or path is None:
        raise ModelError(f"oip:{shown} is not the address of a model; expected {_FORM}")
    if parts.query or parts.fragment:
        raise ModelError(
            f"the address oip:{shown} must end with the model: give a key as --endpoint 'header=NAME: ${{VARIABLE}}'"
        )
    login = None
    if parts.username is not None:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    model = f"{path['server']}/models/{path['name']}" + (f"/versions/{path['version']}" if path["version"] else "")
    scheme: Literal["http", "https"] = "https" if parts.scheme == "https" else "http"
    return Address(scheme, host, port, _quote_path(path["server"]), _quote_path(model), login)


def as_pairs(endpoint: Mapping[str, Any] | Sequence[str] | None) -> tuple[str, ...]:
    """Options given in Python as `key=value` pairs, as on the command line."""
    if endpoint is None:
        return ()
    if isinstance(endpoint, str):
        return (endpoint,)
    if not isinstance(endpoint, Mapping):
        return tuple(str(pair) for pair in endpoint)
    pairs: list[str] = []
    for key, value in endpoint.items():
        values = value if isinstance(value, (list, tuple)) and key == "header" else [value]
        pairs += [f"{key}={_as_text(item)}" for item in values]
    return tuple(pairs)


def parse_endpoint(pairs: Sequence[str]) -> EndpointOptions:
    """The options in `key=value` pairs; the last value of a key counts, headers add up.

    Raises OptionError for an unknown key or an invalid value; it never repeats a header.
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        key, sign, value = _split_pair(pair)
        if not sign or key not in KEYS:
            which = f" {key!r}" if sign and key.isidentifier() else ""  # anything else may be a misplaced secret
            raise OptionError(f"unknown endpoint option{which}; expected key=value with one of {', '.join(KEYS)}")
        if key == "header":
            found["header"] = (*found.get("header", ()), _parse_header(value))
        else:
            found[key] = _PARSERS[key](key, value)
    return EndpointOptions(**found)


def without_secrets(pairs: Sequence[str]) -> list[str]:
    """The pairs that may be recorded: no secrets, and no folders of this machine."""
    recorded = []
    for key, _, value in map(_split_pair, pairs):
        if key not in ("cache", "cache_mb") and (key != "header" or _RECORDED_HEADER.fullmatch(value)):
            recorded.append(f"{key}={value}")
    return recorded


def make_headers(address: Address, options: EndpointOptions) -> dict[str, str]:
    """The headers of every request. Raises OptionError if an environment variable is missing."""
    headers = {}
    if address.login is not None:
        headers["Authorization"] = "Basic " + base64.b64encode(address.login.encode()).decode("ascii")
    if options.token_env is not None:
        headers["Authorization"] = f"Bearer {_read_variable(options.token_env)}"
    for line in options.header:
        name, _, text = line.partition(":")
        value = _VARIABLE.sub(lambda match: _read_variable(match[1]), text.strip())
        if not value.isascii() or not value.isprintable():
            raise OptionError(f"the value of the header {name.strip()} contains characters that headers cannot contain")
        headers[name.strip()] = value
    return headers


def _split_pair(pair: str) -> tuple[str, str, str]:
    key, sign, value = pair.partition("=")
    return key.strip().replace("-", "_"), sign, value.strip()


def _read_variable(name: str) -> str:
    value = os.environ.get(name, "").strip()
    if not value:
        raise OptionError(f"the environment variable {name}, which the endpoint's headers need, is not set")
    return value


def _quote_path(path: str) -> str:
    return quote(path, safe="/%:@+~,;=!$&'()*")


def _as_text(value: Any) -> str:
    if value is None or value is False:
        return "none"
    return "yes" if value is True else str(value)


def _parse_header(value: str) -> str:
    if _HEADER.fullmatch(value) is None:
        raise OptionError("a header is written NAME: VALUE, e.g. --endpoint 'header=X-Api-Key: ${API_KEY}'")
    return value


def _parse_text(key: str, value: str) -> str:
    if not value:
        raise OptionError(f"the endpoint option {key} needs a value: write {key}=…")
    return value


def _parse_positive(key: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not 0.0 < number < 1e9:
        raise OptionError(f"the endpoint option {key} is a number above 0, not {value!r}")
    return number


def _parse_count(key: str, value: str) -> int:
    smallest = 0 if key == "retries" else 1
    if not (value.isascii() and value.isdecimal()) or int(value) < smallest:
        raise OptionError(f"the endpoint option {key} is an integer of at least {smallest}, not {value!r}")
    return int(value)


def _parse_file(key: str, value: str) -> Path:
    path = Path(_parse_text(key, value)).expanduser()
    if not path.is_file():
        raise OptionError(f"there is no file {path}")
    return path


def _parse_folder(key: str, value: str) -> Path | None:
    return None if value.lower() in ("none", "no") else Path(_parse_text(key, value)).expanduser()


def _parse_shape(key: str, value: str) -> Shape:
    sides = value.strip("[]").replace("x", ",").split(",")
    read = [None if side.strip().upper() in ("N", "-1") else int(side) if side.strip().isdecimal() else 0 for side in sides]
    if 0 in read or len(read) not in (3, 4):
        raise OptionError(f"the endpoint option {key} is written N,3,224,224 (N: any number), not {value!r}")
    return tuple(read)


def _parse_datatype(key: str, value: str) -> str:
    return _parse_text(key, value).upper()


def _parse_binary(key: str, value: str) -> str:
    return _parse_choice(key, {"none": "no", "true": "yes", "false": "no"}.get(value.lower(), value), get_args(Binary))


def _parse_layout(key: str, value: str) -> str:
    return _parse_choice(key, value, get_args(Layout))


def _parse_choice(key: str, value: str, choices: tuple[str, ...]) -> str:
    if value.lower() not in choices:
        raise OptionError(f"the endpoint option {key} is one of {', '.join(choices)}, not {value!r}")
    return value.lower()


_PARSERS: dict[str, Callable[[str, str], Any]] = {
    "token_env": _parse_text,
    "ca": _parse_file,
    "timeout": _parse_positive,
    "deadline": _parse_positive,
    "retries": _parse_count,
    "rate": _parse_positive,
    "price": _parse_positive,
    "cache": _parse_folder,
    "cache_mb": _parse_count,
    "binary": _parse_binary,
    "input": _parse_text,
    "output": _parse_text,
    "shape": _parse_shape,
    "datatype": _parse_datatype,
    "layout": _parse_layout,
}
