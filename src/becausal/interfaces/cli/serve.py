"""`becausal serve`: a web page to explain images interactively."""

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from becausal.core.errors import OptionError
from becausal.interfaces.cli import options
from becausal.models import Loading, open_model

if TYPE_CHECKING:
    from becausal.core.contracts import Classifier
    from becausal.interfaces.web.limits import Limits

DEFAULT_PORT = 7860
WARNING = (
    "becausal: warning: other machines can reach this page; everyone who has its token can use it, and nothing is "
    "encrypted: outside of a trusted network use an SSH tunnel or an HTTPS proxy"
)


@options.expand_options
def serve(
    *,
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
    token_env: Annotated[
        str | None,
        typer.Option(
            metavar="VARIABLE",
            help="Require the token in this environment variable. Without it a token is generated where one is needed.",
        ),
    ] = None,
    max_upload: Annotated[int, typer.Option(metavar="MB", help="Maximum size of an uploaded image file.")] = 10,
    max_calls: Annotated[int, typer.Option(metavar="N", help="Maximum number of model calls per search.")] = 5000,
    searches: Annotated[int, typer.Option(metavar="N", help="Maximum number of concurrent searches; others wait.")] = 2,
    loading: options.LoadingOptions,
) -> None:
    """Serve a web page to explain images interactively.

    Drop an image, watch the explanation shrink, click a pixel to see why it is needed, compare two methods. Only this
    machine can open the page unless you change --host; then the page needs a token, which is part of the printed address.
    The page loads nothing from elsewhere and stores nothing on disk. Press Ctrl-C to stop the server.

    **Examples**

    - `becausal serve`
    - `becausal serve --model net.onnx --labels names.txt --preprocess imagenet --port 8000`
    - `becausal serve --host 0.0.0.0 --token-env BECAUSAL_TOKEN`
    """
    from becausal.interfaces.web.limits import Limits

    _check_minimum("--max-upload", max_upload, 1)
    _check_minimum("--max-calls", max_calls, 100)
    _check_minimum("--searches", searches, 1)
    if not 0 <= port <= 65535:
        raise OptionError(f"--port must be 0 to 65535, not {port}")
    limits = Limits(upload_bytes=max_upload * 1_000_000, max_calls=max_calls, workers=searches)
    run_server(lambda: load_models(model or [], loading), limits, host, port, token_env)


def run_server(
    load: "Callable[[], dict[str, Classifier]]", limits: "Limits", host: str, port: int, token_env: str | None
) -> None:
    """Serve the page until Ctrl-C is pressed. load: loads the models, once the port is known to be free."""
    from becausal.interfaces.web.access import make_token, read_token
    from becausal.interfaces.web.server import LOOPBACK, is_loopback, listen, make_app, make_server

    token = read_token(os.environ, token_env) if token_env is not None else None
    with listen(host, port) as bound:
        is_local = is_loopback(bound)
        if not is_local and token is None:
            token = make_token()
        app = make_app(load(), limits, hosts=LOOPBACK | {host.lower()} if is_local else None, token=token)
        bound.listen()  # connections made before the server is ready wait
        if not is_local:
            typer.echo(WARNING, err=True)
        address = format_address(host, bound.getsockname()[1], token, token_env)
        typer.echo(f"becausal: open {address}; press Ctrl-C to stop")
        with suppress(KeyboardInterrupt):
            make_server(app).run(sockets=[bound])


def format_address(host: str, port: int, token: str | None, token_env: str | None) -> str:
    """What to open; an unspecified address (0.0.0.0 or ::) is replaced by the name of this machine."""
    name = socket.gethostname() if host in ("0.0.0.0", "::") else host
    address = f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"
    if token_env is not None:
        return f"{address} in a browser and enter the token in {token_env}"
    return f"{address}{f'/?token={token}' if token else ''} in a browser"


def _check_minimum(flag: str, value: int, minimum: int) -> None:
    if value < minimum:
        raise OptionError(f"{flag} must be at least {minimum}, not {value}")


def load_models(specs: list[str], loading: Loading) -> "dict[str, Classifier]":
    """Load the models, by the name the page shows, in the given order; the bundled model is last unless it was given.

    loading: options of the given models; of these, the bundled one gets threads and batch size only.
    """
    from becausal.interfaces.web.tasks import check_colour_model

    models: dict[str, Classifier] = {}
    plain = Loading(threads=loading.threads, batch_size=loading.batch_size)
    for spec in dict.fromkeys([*specs, "bundled"]):
        if spec == "bundled":
            models[spec] = open_model(spec, plain)
            continue
        classifier = open_model(spec, loading)
        check_colour_model(classifier, spec)
        models[name_model(spec, models)] = classifier
    return models


def name_model(spec: str, taken: "dict[str, Classifier]") -> str:
    """A unique name for a model on the page: its spec without folders, which clients should not see."""
    kind, colon, target = spec.partition(":")
    last = spec.rpartition("/")[2] if not colon else f"{kind}:{target.rpartition('/')[2]}"
    name, number = last, 2
    while name in (*taken, "bundled"):
        name, number = f"{last} ({number})", number + 1
    return name
