"""`becausal serve`: a web page to explain images interactively, and an HTTP API."""

import math
import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from becausal.core.errors import OptionError
from becausal.interfaces.cli import options
from becausal.interfaces.cli.ending import end_by_itself
from becausal.models import Loading

if TYPE_CHECKING:
    from becausal.core.contracts import Classifier
    from becausal.interfaces.serve.guard import Guard
    from becausal.interfaces.serve.job_processes import ModelSource
    from becausal.interfaces.serve.limits import Limits

DEFAULT_PORT = 7860
TOKEN_VARIABLE = "BECAUSAL_TOKEN"
WARNING = (
    "becausal: warning: other machines can reach this {}; everyone who has its token can use it, and nothing is "
    "encrypted: outside of a trusted network use an SSH tunnel or an HTTPS proxy"
)
END_SECONDS = 4.7  # after Ctrl-C or SIGTERM, at which a server ends whatever it is doing


@dataclass(frozen=True)
class GivenToken:
    """A token that the user has chosen. source: the variable or the file it is in."""

    value: str
    source: str


TokenVariable = Annotated[
    str | None,
    typer.Option(
        "--token-env",
        metavar="VARIABLE",
        help=f"Require the token in this environment variable. Default: {TOKEN_VARIABLE}, if it is set. Without a token "
        "one is generated where it is needed; with --api the server does not start.",
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option("--token-file", metavar="FILE", help="Require the token in this file, e.g. a mounted secret."),
]
BehindProxy = Annotated[
    bool,
    typer.Option(
        "--behind-proxy",
        help="All clients come through a proxy: take their addresses, for the limits per client, from the last entry of "
        "its header X-Forwarded-For.",
    ),
]


@options.expand_options
def serve(
    *,
    api: Annotated[bool, typer.Option("--api", help="Serve the HTTP API only, without the page.")] = False,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            metavar="SPEC",
            rich_help_panel=options.MODEL,
            help=f"{options.SPEC_HELP} Can be repeated. The bundled model is always offered too.",
        ),
    ] = None,
    port: Annotated[int, typer.Option(metavar="P", help="Port to listen on; 0 for any free port.")] = DEFAULT_PORT,
    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="Address to listen on. Any other than a loopback address admits other machines, with a token.",
        ),
    ] = "127.0.0.1",
    token_env: TokenVariable = None,
    token_file: TokenFile = None,
    max_upload: Annotated[int, typer.Option(metavar="MB", help="Maximum size of an uploaded image file.")] = 10,
    max_calls: Annotated[int, typer.Option(metavar="N", help="Maximum number of model calls per search.")] = 5000,
    searches: Annotated[int, typer.Option(metavar="N", help="Maximum number of concurrent searches; others wait.")] = 2,
    behind_proxy: BehindProxy = False,
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

    _check_minimum("--max-upload", max_upload, 1)
    _check_minimum("--max-calls", max_calls, 100)
    _check_minimum("--searches", searches, 1)
    if not 0 <= port <= 65535:
        raise OptionError(f"--port must be 0 to 65535, not {port}")
    limits = Limits(upload_bytes=max_upload * 1_000_000, max_calls=max_calls, workers=searches)
    if behind_proxy:
        limits = replace(limits, behind_proxy=True, client_connections=limits.connections)
    token = find_token(os.environ, token_env, token_file)
    run_service(list_sources(model or [], loading), limits, host, port, token, has_page=not api)


def find_token(environment: Mapping[str, str], variable: str | None, file: Path | None) -> GivenToken | None:
    """The token that the user has chosen; raises OptionError if it cannot be used."""
    from becausal.interfaces.serve.access import read_token, read_token_file

    if variable is not None and file is not None:
        raise OptionError("--token-env and --token-file both name a token: give only one of the two")
    if file is not None:
        return GivenToken(read_token_file(file), str(file))
    if variable is None and not environment.get(TOKEN_VARIABLE):
        return None
    name = variable or TOKEN_VARIABLE
    return GivenToken(read_token(environment, name), name)


def run_service(
    sources: "Mapping[str, ModelSource]", limits: "Limits", host: str, port: int, token: GivenToken | None, *, has_page: bool
) -> None:
    """Serve until Ctrl-C is pressed. sources: of the models, which are loaded once the port is known to be free.

    Raises OptionError if other machines could reach the API without a token; where there is a page, one is generated.
    """
    from becausal.interfaces.serve.access import make_token
    from becausal.interfaces.serve.app import make_app
    from becausal.interfaces.serve.listening import is_loopback, listen

    with listen(host, port) as bound:
        is_local = is_loopback(bound)
        if token is None and not is_local and not has_page:
            raise OptionError(
                f"other machines can reach the API on {host}, so it needs a token: set {TOKEN_VARIABLE}, or use --token-env "
                "or --token-file"
            )
        value = token.value if token is not None else (None if is_local else make_token())
        hosts = list_hosts(host, is_local)
        app = make_app(load_models(sources), limits, has_page=has_page, sources=sources, hosts=hosts, token=value)
        if not is_local:
            typer.echo(WARNING.format("page" if has_page else "API"), err=True)
        bound_port, source = bound.getsockname()[1], token.source if token is not None else None
        address, needed = join_address(host, bound_port), f" with the token in {source}" if source is not None else ""
        api = f"the API is at {address}{needed}, described at {address}/docs"
        run_server(app, bound, f"open {format_address(host, bound_port, value, source)}" if has_page else api)


def run_server(app: "Guard", bound: socket.socket, announcement: str) -> None:
    """Serve until Ctrl-C is pressed or the process is asked to end."""
    from becausal.interfaces.serve.listening import make_server

    bound.listen()  # connections made before the server is ready wait
    typer.echo(f"becausal: {announcement}; press Ctrl-C to stop")
    end_by_itself()
    server = make_server(app, shutdown_seconds=math.ceil(END_SECONDS))
    close = server.handle_exit

    def close_in_time(number: int, frame: FrameType | None) -> None:
        timer = threading.Timer(END_SECONDS, os._exit, (0,))
        timer.daemon = True
        timer.start()
        close(number, frame)

    server.handle_exit = close_in_time
    with suppress(KeyboardInterrupt), _ending_like_ctrl_c():
        server.run(sockets=[bound])


@contextmanager
def _ending_like_ctrl_c() -> Iterator[None]:
    """SIGTERM ends the server as Ctrl-C does, with exit status 0: uvicorn raises the signal again once it has shut down."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def list_hosts(host: str, is_local: bool) -> frozenset[str] | None:
    """The host names that are accepted; None for any, where a token is needed anyway."""
    from becausal.interfaces.serve.listening import LOOPBACK

    return LOOPBACK | {host.lower()} if is_local else None


def format_address(host: str, port: int, token: str | None, source: str | None) -> str:
    """What to open in a browser. source: the variable or file with the token; None if the token is to be printed."""
    address = join_address(host, port)
    if source is not None:
        return f"{address} in a browser and enter the token in {source}"
    return f"{address}{f'/?token={token}' if token else ''} in a browser"


def join_address(host: str, port: int) -> str:
    """The address of the server; an unspecified one (0.0.0.0 or ::) is replaced by the name of this machine."""
    name = socket.gethostname() if host in ("0.0.0.0", "::") else host
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def _check_minimum(flag: str, value: int, minimum: int) -> None:
    if value < minimum:
        raise OptionError(f"{flag} must be at least {minimum}, not {value}")


def list_sources(specs: list[str], loading: Loading) -> "dict[str, ModelSource]":
    """The models by the name clients use, in the given order; the bundled model is last unless it was given.

    loading: options of the given models; of these, the bundled one gets threads and batch size only.
    """
    from becausal.interfaces.serve.job_processes import ModelSource

    sources: dict[str, ModelSource] = {}
    plain = Loading(threads=loading.threads, batch_size=loading.batch_size)
    for spec in dict.fromkeys([*specs, "bundled"]):
        is_bundled = spec == "bundled"
        sources[spec if is_bundled else name_model(spec, sources)] = ModelSource(spec, plain if is_bundled else loading)
    return sources


def load_models(sources: "Mapping[str, ModelSource]") -> "dict[str, Classifier]":
    """Load the models, by the name clients use. Raises BecausalError for one that cannot be served."""
    from becausal.interfaces.serve.offers import check_colour_model

    models: dict[str, Classifier] = {}
    for name, source in sources.items():
        models[name] = source.open()
        check_colour_model(models[name], source.spec)
    return models


def name_model(spec: str, taken: "Mapping[str, object]") -> str:
    """A unique name for a model: its spec without folders, which clients should not see."""
    kind, colon, target = spec.partition(":")
    last = spec.rpartition("/")[2] if not colon else f"{kind}:{target.rpartition('/')[2]}"
    name, number = last, 2
    while name in (*taken, "bundled"):
        name, number = f"{last} ({number})", number + 1
    return name
