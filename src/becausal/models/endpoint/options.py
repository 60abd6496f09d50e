"""The address of an `oip:URL` or `chat:URL` model, and its `--endpoint key=value` options.

Secrets are left out of everything that is saved: user and password are removed from the address, and a header is
recorded only if its value is the name of an environment variable.
"""

import base64
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import quote, unquote, urlsplit

from becausal.core.errors import ModelError, OptionError
from becausal.core.options import Option, option
from becausal.models.array_model import Layout

Binary = Literal["auto", "yes", "no"]
Logprobs = Literal["auto", "no"]

_MOST_PARALLEL = 64  # each has a connection and a thread
_PATHS = {
    "oip": re.compile(r"(?P<server>.*/v2)(?P<model>/models/[^/\s]+(?:/versions/[^/\s]+)?)(?:/infer)?/?"),
    "chat": re.compile(r"(?P<server>/\S*?[^/\s])(?P<model>)(?:/chat/completions)?/?"),
}
_HEADER = re.compile(r"(?P<name>[!#$%&'*+.^`|~\w-]+)\s*:\s*(?P<value>[ -~]*)", re.ASCII)
_VARIABLE = re.compile(r"\$\{(\w+)\}")
_RECORDED_HEADER = re.compile(r"[!#$%&'*+.^`|~\w-]+\s*:\s*(?:\w+ )?\$\{\w+\}\s*", re.ASCII)
_FORMS = {
    "oip": "oip:http://HOST:PORT/v2/models/NAME, or …/NAME/versions/VERSION",
    "chat": "chat:http://HOST:PORT/v1",
}


@dataclass(frozen=True)
class Address:
    """The address of one model."""

    scheme: str  # http or https
    host: str
    port: int | None
    server: str  # the path that ends in /v2 (oip:), mostly in /v1 (chat:)
    model: str  # and the path of the model, which begins with it; of chat: models the same
    login: str | None = field(default=None, repr=False)  # user:password, never shown

    @property
    def location(self) -> str:
        """Host and port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The model's address, without user and password."""
        return f"{self.scheme}://{self.location}{self.model}"


@dataclass(frozen=True, kw_only=True)
class EndpointOptions:
    """How a server is called. `OWN` are the options that only one kind of server has."""

    header: tuple[str, ...] = field(
        default=(),
        repr=False,
        metadata={"option": Option("`${VARIABLE}` is replaced from the environment.", "'NAME: VALUE'")},
    )
    token_env: str | None = option(None, "Environment variable that holds a bearer token.", metavar="VARIABLE")
    ca: Path | None = option(None, "PEM file of certificates to trust besides the system's.", metavar="FILE")
    timeout: float = option(30.0, "Seconds for one attempt.", metavar="S")
    deadline: float = option(300.0, "Seconds for one batch, including all attempts.", metavar="S")
    retries: int = option(5, "Attempts after the first.", metavar="N")
    rate: float | None = option(None, "Most requests per second.", metavar="N (requests/s)")
    price: float | None = option(None, "Of one image, in any currency.", metavar="N (per image)")
    cache: Path | None | Literal["default"] = option("default", "Folder of the answer cache.", metavar="DIR|none")
    cache_mb: int = option(512, "Its largest size.", metavar="N")
    model: str | None = option(None, "Name of the model; default: the first that the server lists.", metavar="NAME")
    parallel: int = option(4, "Most requests at a time, up to 64.", metavar="N")
    logprobs: Logprobs = option("auto", "Whether log-probabilities are used as scores; auto: if they can be.", metavar="no")
    binary: Binary = option("auto", "Whether tensors are sent as bytes; auto: if the server supports it.", metavar="yes|no")
    input: str | None = option(None, "Name of the input.", metavar="NAME")
    output: str | None = option(None, "Name of the output.", metavar="NAME")
    shape: tuple[int | None, ...] | None = option(None, "Of the input.", metavar="SHAPE")
    datatype: str | None = option(None, "Of the input.", metavar="TYPE")
    layout: Layout | None = option(None, "Of the input.", metavar="nchw|nhwc")


OWN = {
    "oip": ("binary", "input", "output", "shape", "datatype", "layout"),
    "chat": ("model", "parallel", "logprobs"),
}


def parse_address(target: str, kind: str = "oip") -> Address:
    """The address in `oip:TARGET`, or another kind of them. Raises ModelError, which never repeats a password."""
    shown = re.sub(r"//.*@", "//", target).partition("?")[0]
    try:
        parts = urlsplit(target)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ModelError(f"{kind}:{shown} is not a valid address; expected {_FORMS[kind]}") from None
    path = _PATHS[kind].fullmatch(parts.path)
    if parts.scheme not in ("http", "https") or not host or path is None:
        raise ModelError(f"{kind}:{shown} is not the address of a model; expected {_FORMS[kind]}")
    if parts.query or parts.fragment:
        raise ModelError(
            f"the address {kind}:{shown} must end with the model: give a key as --endpoint 'header=NAME: ${{VARIABLE}}'"
        )
    login = None if parts.username is None else f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    server, model = (quote(part, safe="/%:@+~,;=!$&'()*") for part in (path["server"], path["server"] + path["model"]))
    return Address(parts.scheme, host, port, server, model, login)


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
        words = {True: "yes", False: "none", None: "none"}
        pairs += [f"{key}={words[item] if item is None or isinstance(item, bool) else item}" for item in values]
    return tuple(pairs)


def parse_endpoint(pairs: Sequence[str], kind: str = "oip") -> EndpointOptions:
    """The options in `key=value` pairs for a kind of server; the last value of a key counts, headers add up.

    Raises OptionError for an unknown key or an invalid value; it never repeats a header.
    """
    found: dict[str, Any] = {}
    others = {key: other for other, own in OWN.items() if other != kind for key in own}
    keys = [item.name for item in fields(EndpointOptions) if item.name not in others]
    for pair in pairs:
        key, sign, value = _split_pair(pair)
        if sign and key in others:
            raise OptionError(f"the endpoint option {key} is for {others[key]}: models, not for {kind}: remove it")
        if not sign or key not in keys:
            which = f" {key!r}" if sign and key.isidentifier() else ""  # anything else may be a misplaced secret
            raise OptionError(f"unknown endpoint option{which}; expected key=value with one of {', '.join(keys)}")
        if key != "header":
            found[key] = _parse_value(key, value)
        elif _HEADER.fullmatch(value) is None:
            raise OptionError("a header is written NAME: VALUE, e.g. --endpoint 'header=X-Api-Key: ${API_KEY}'")
        else:
            found["header"] = (*found.get("header", ()), value)
    return EndpointOptions(**found)


def without_secrets(pairs: Sequence[str]) -> list[str]:
    """The pairs that may be recorded: no secrets, and no folders of this machine."""
    split = [(key, value) for key, _, value in map(_split_pair, pairs) if key not in ("cache", "cache_mb")]
    return [f"{key}={value}" for key, value in split if key != "header" or _RECORDED_HEADER.fullmatch(value)]


def make_headers(address: Address, options: EndpointOptions) -> dict[str, str]:
    """The headers of every request. Raises OptionError if an environment variable is missing."""

    def read(name: str) -> str:
        value = os.environ.get(name, "").strip()
        if not value:
            raise OptionError(f"the environment variable {name}, which the endpoint's headers need, is not set")
        return value

    headers = {}
    if address.login is not None:
        headers["Authorization"] = "Basic " + base64.b64encode(address.login.encode()).decode("ascii")
    if options.token_env is not None:
        headers["Authorization"] = f"Bearer {read(options.token_env)}"
    for line in options.header:
        name, _, text = line.partition(":")
        value = _VARIABLE.sub(lambda match: read(match[1]), text.strip())
        if not value.isascii() or not value.isprintable():
            raise OptionError(f"the value of the header {name.strip()} contains characters that headers cannot contain")
        headers[name.strip()] = value
    return headers


def describe_exposure(address: Address, headers: Mapping[str, str]) -> tuple[str, ...]:
    """That others can read the headers which are sent; empty where they cannot."""
    is_local = address.host in ("localhost", "::1") or address.host.startswith("127.")
    is_exposed = address.scheme == "http" and headers and not is_local
    return ("headers and credentials are sent over plain http, which others can read: use https",) if is_exposed else ()


def _split_pair(pair: str) -> tuple[str, str, str]:
    key, sign, value = pair.partition("=")
    return key.strip().replace("-", "_"), sign, value.strip()


def _parse_value(key: str, value: str) -> Any:
    """The value of any option but `header`. Raises OptionError that says what is expected."""
    match key:
        case "timeout" | "deadline" | "rate" | "price":
            try:
                number = float(value)
            except ValueError:
                number = 0.0
            if not 0.0 < number < 1e9:
                raise OptionError(f"the endpoint option {key} is a number above 0, not {value!r}")
            return number
        case "retries" | "cache_mb" | "parallel":
            smallest = 0 if key == "retries" else 1
            most = _MOST_PARALLEL if key == "parallel" else math.inf
            if not (value.isascii() and value.isdecimal()) or not smallest <= int(value) <= most:
                limits = f"of at least {smallest}" if most == math.inf else f"from {smallest} to {most}"
                raise OptionError(f"the endpoint option {key} is an integer {limits}, not {value!r}")
            return int(value)
        case "shape":
            sides = [side.strip() for side in value.strip("[]").replace("x", ",").split(",")]
            read = [None if side.upper() in ("N", "-1") else int(side) if side.isdecimal() else 0 for side in sides]
            if 0 in read or len(read) not in (3, 4):
                raise OptionError(f"the endpoint option {key} is written N,3,224,224 (N: any number), not {value!r}")
            return tuple(read)
        case "binary" | "layout" | "logprobs":
            chosen = value.lower()
            if key != "layout":
                chosen = {"none": "no", "true": "yes", "false": "no"}.get(chosen, chosen)
            choices = get_args({"binary": Binary, "layout": Layout, "logprobs": Logprobs}[key])
            if chosen not in choices:
                raise OptionError(f"the endpoint option {key} is one of {', '.join(choices)}, not {value!r}")
            return chosen
    if key == "cache" and value.lower() in ("none", "no"):
        return None
    if not value:
        raise OptionError(f"the endpoint option {key} needs a value: write {key}=…")
    if key in ("cache", "ca"):
        path = Path(value).expanduser()
        if key == "ca" and not path.is_file():
            raise OptionError(f"there is no file {path}")
        return path
    return value.upper() if key == "datatype" else value
