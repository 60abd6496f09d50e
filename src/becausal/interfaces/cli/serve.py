"""`becausal serve`: a web page to explain images interactively, and an HTTP API."""

import math
import os
import secrets
import signal
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from ipaddress import ip_address
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from becausal.core.errors import InputError, OptionError
from becausal.core.files import open_regular
from becausal.core.options import option
from becausal.interfaces.cli import options
from becausal.models import Loading

if TYPE_CHECKING:
    from becausal.core.contracts import Classifier
    from becausal.interfaces.serve.jobs import ModelSource
    from becausal.interfaces.serve.limits import Limits

TOKEN_VARIABLE = "BECAUSAL_TOKEN"
MIN_TOKEN = 16  # characters
MAX_TOKEN_BYTES = 4096  # of a file with a token
WARNING = (
    "becausal: warning: other machines can reach this {}; everyone who has its token can use it, and nothing is "
    "encrypted: outside of a trusted network use an SSH tunnel or an HTTPS proxy"
)
END_SECONDS = 4.7  # after Ctrl-C or SIGTERM, at which a server ends whatever it is doing


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Where a server listens, who may use it, and how much."""

    api: bool = option(False, "Serve the HTTP API only, without the page.")
    port: int = option(7860, "Port to listen on; 0 for any free port.", metavar="P")
    host: str = option(
        "127.0.0.1",
        "Address to listen on. Any other than a loopback address admits other machines, with a token.",
        metavar="ADDRESS",
    )
    token_env: str | None = option(
        None,
        f"Require the token in this environment variable. Default: {TOKEN_VARIABLE}, if it is set. Without a token one is "
        "generated where it is needed; with --api the server does not start.",
        metavar="VARIABLE",
    )
    token_file: Path | None = option(None, "Require the token in this file, e.g. a mounted secret.", metavar="FILE")
    max_upload: int = option(10, "Maximum size of an uploaded image file.", metavar="MB")
    max_calls: int = option(5000, "Maximum number of model calls per search.", metavar="N")
    searches: int = option(2, "Maximum number of concurrent searches; others wait.", metavar="N")
    behind_proxy: bool = option(
        False,
        "All clients come through a proxy: take their addresses, for the limits per client, from the last entry of its "
        "header X-Forwarded-For.",
    )

    def __post_init__(self) -> None:
        for name, least in {"max_upload": 1, "max_calls": 100, "searches": 1}.items():
            if (value := getattr(self, name)) < least:
                raise OptionError(f"--{name.replace('_', '-')} must be at least {least}, not {value}")
        if not 0 <= self.port <= 65535:
            raise OptionError(f"--port must be 0 to 65535, not {self.port}")


@options.expand_options
def serve(
    *,
    model: Annotated[
        list[str] | None,
        options.model_option(f"{options.SPEC_HELP} Can be repeated. The bundled model is always offered too."),
    ] = None,
    given: Annotated[ServerOptions, options.group_of(ServerOptions, options.OWN)],
    loading: options.LoadingOptions,
) -> None:
    """Serve a web page to explain images interactively, and an HTTP API.

    Drop an image, watch the explanation shrink, click a pixel to see why it is needed, compare two methods. Only this
    machine can open the page unless you change --host; then the page needs a token, which is part of the printed address.
    The page loads nothing from elsewhere and stores nothing on disk. Press Ctrl-C to stop the server.

    Programs send images to the same address and get the same results as from `becausal explain`; /docs describes how. With
    --api there is no page.

    **Examples**

    - `becausal serve`
    - `becausal serve --model net.onnx --labels names.txt --preprocess imagenet --port 8000`
    - `becausal serve --host 0.0.0.0 --token-env MY_TOKEN`
    - `becausal serve --api --model net.onnx --labels names.txt --preprocess imagenet`
    """
    from becausal.interfaces.serve.limits import Limits

    limits = Limits(upload_bytes=given.max_upload * 1_000_000, max_calls=given.max_calls, workers=given.searches)
    if given.behind_proxy:
        limits = replace(limits, behind_proxy=True, client_connections=limits.connections)
    token = find_token(os.environ, given.token_env, given.token_file)
    run_service(model or [], loading, limits, given.host, given.port, token, has_page=not given.api)


def find_token(environment: Mapping[str, str], variable: str | None, file: Path | None) -> tuple[str, str] | None:
    """The token that the user has chosen, and the variable or file it is in; raises OptionError if it cannot be used."""
    if variable is not None and file is not None:
        raise OptionError("--token-env and --token-file both name a token: give only one of the two")
    if file is not None:
        try:
            with open_regular(file) as opened:
                token = opened.read(MAX_TOKEN_BYTES).decode("utf-8", errors="replace").strip()
        except (OSError, InputError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise OptionError(f"--token-file: {file} cannot be read: {reason}") from None
        place, option_name = str(file), f"--token-file: {file}"
    elif variable is not None or environment.get(TOKEN_VARIABLE):
        place = variable or TOKEN_VARIABLE
        token, option_name = environment.get(place, ""), f"--token-env: the variable {place}"
    else:
        return None
    # It stands in a header, in a cookie and in an address.
    if len(token) < MIN_TOKEN or not (token.isascii() and token.isprintable()) or set(token) & set(' ",;\\'):
        raise OptionError(f"{option_name} must hold a token of at least {MIN_TOKEN} letters and digits")
    return token, place


def run_service(
    specs: list[str],
    loading: Loading,
    limits: "Limits",
    host: str,
    port: int,
    token: tuple[str, str] | None,
    *,
    has_page: bool,
) -> None:
    """Serve until Ctrl-C is pressed. specs: of the models, which are loaded once the port is known to be free.

    Raises OptionError if other machines could reach the API without a token; where there is a page, one is generated.
    """
    from becausal.interfaces.serve.app import LOOPBACK, listen, make_app, make_server

    with listen(host, port) as bound:
        is_local = ip_address(bound.getsockname()[0].partition("%")[0]).is_loopback
        if token is None and not is_local and not has_page:
            raise OptionError(
                f"other machines can reach the API on {host}, so it needs a token: set {TOKEN_VARIABLE}, or use --token-env "
                "or --token-file"
            )
        value, place = token if token is not None else (None if is_local else secrets.token_urlsafe(24), None)
        hosts = LOOPBACK | {host.lower()} if is_local else None  # any, where a token is needed anyway
        models, sources = load_models(specs, loading)
        app = make_app(models, limits, has_page=has_page, sources=sources, hosts=hosts, token=value)
        if not is_local:
            typer.echo(WARNING.format("page" if has_page else "API"), err=True)
        address = join_address(host, bound.getsockname()[1])
        if not has_page:
            needed = "" if place is None else f" with the token in {place}"
            announcement = f"the API is at {address}{needed}, described at {address}/docs"
        elif place is not None:
            announcement = f"open {address} in a browser and enter the token in {place}"
        else:
            announcement = f"open {address}{f'/?token={value}' if value else ''} in a browser"
        bound.listen()  # connections made before the server is ready wait
        typer.echo(f"becausal: {announcement}; press Ctrl-C to stop")
        _run(make_server(app, shutdown_seconds=math.ceil(END_SECONDS)), bound)


def _run(server: Any, bound: socket.socket) -> None:
    """Serve until Ctrl-C is pressed or the process is asked to end."""
    signal.set_wakeup_fd(-1)  # commands listen for signals, to end in time; a server does so by itself
    close = server.handle_exit

    def close_in_time(number: int, frame: FrameType | None) -> None:
        timer = threading.Timer(END_SECONDS, os._exit, (0,))
        timer.daemon = True
        timer.start()
        close(number, frame)

    server.handle_exit = close_in_time
    # SIGTERM ends the server as Ctrl-C does, with exit status 0: uvicorn raises the signal again once it has shut down.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with suppress(KeyboardInterrupt):
            server.run(sockets=[bound])
    finally:
        signal.signal(signal.SIGTERM, before)


def join_address(host: str, port: int) -> str:
    """The address of the server; an unspecified one (0.0.0.0 or ::) is replaced by the name of this machine."""
    name = socket.gethostname() if host in ("0.0.0.0", "::") else host
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def load_models(specs: list[str], loading: Loading) -> "tuple[dict[str, Classifier], dict[str, ModelSource]]":
    """Load the models, in the given order and the bundled one last: by the name clients use, also how each is loaded.

    A name is the spec without folders, which clients should not see. loading: options of the given models; of these, the
    bundled one gets threads and batch size only. Raises BecausalError for a model that cannot be served.
    """
    from becausal.interfaces.serve.jobs import ModelSource

    models: dict[str, Classifier] = {}
    sources: dict[str, ModelSource] = {}
    for spec in dict.fromkeys([*specs, "bundled"]):
        source = ModelSource(spec, loading)
        if spec == "bundled":
            name, source = spec, ModelSource(spec, Loading(threads=loading.threads, batch_size=loading.batch_size))
        else:
            kind, colon, target = spec.partition(":")
            name = last = f"{kind}:{target.rpartition('/')[2]}" if colon else spec.rpartition("/")[2]
            number = 2
            while name in (*sources, "bundled"):
                name, number = f"{last} ({number})", number + 1
        models[name], sources[name] = source.open(), source
        info = models[name].info
        if (info.geometry is not None and len(info.geometry.grid) != 2) or info.channels not in (None, 3):
            raise OptionError(f"{spec} does not take colour images; becausal serve needs a model that does")
    return models, sources
