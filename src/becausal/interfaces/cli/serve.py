"""`becausal serve`: a web page to explain images interactively."""

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from becausal.core.errors import OptionError
from becausal.interfaces.cli import options
from becausal.models import Loading, open_model

if TYPE_CHECKING:
    from becausal.core.contracts import Classifier

DEFAULT_PORT = 7860


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
            help="Address to listen on. Any other than a loopback address admits other machines, without a password.",
        ),
    ] = "127.0.0.1",
    max_upload: Annotated[int, typer.Option(metavar="MB", help="Maximum size of an uploaded image file.")] = 10,
    max_calls: Annotated[int, typer.Option(metavar="N", help="Maximum number of model calls per search.")] = 5000,
    searches: Annotated[int, typer.Option(metavar="N", help="Maximum number of concurrent searches; others wait.")] = 2,
    loading: options.LoadingOptions,
) -> None:
    """Serve a web page to explain images interactively.

    Drop an image, watch the explanation shrink, click a pixel to see why it is needed, compare two methods. Only this
    machine can open the page unless you change --host. The page loads nothing from elsewhere and stores nothing on disk.
    Press Ctrl-C to stop the server.

    **Examples**

    - `becausal serve`
    - `becausal serve --model net.onnx --labels names.txt --preprocess imagenet --port 8000`
    """
    from becausal.interfaces.web.limits import Limits
    from becausal.interfaces.web.server import LOOPBACK, listen, make_app, make_server

    _check_minimum("--max-upload", max_upload, 1)
    _check_minimum("--max-calls", max_calls, 100)
    _check_minimum("--searches", searches, 1)
    if not 0 <= port <= 65535:
        raise OptionError(f"--port must be 0 to 65535, not {port}")
    limits = Limits(upload_bytes=max_upload * 1_000_000, max_calls=max_calls, workers=searches)
    with listen(host, port) as bound:  # before a model is loaded, to fail at once if the port is in use
        app = make_app(load_models(model or [], loading), limits, hosts=LOOPBACK if host in LOOPBACK else None)
        bound.listen()  # connections made before the server is ready wait
        place = f"[{host}]" if ":" in host else host
        typer.echo(f"becausal: open http://{place}:{bound.getsockname()[1]} in a browser; press Ctrl-C to stop")
        with suppress(KeyboardInterrupt):
            make_server(app).run(sockets=[bound])


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
