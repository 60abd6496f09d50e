"""`becausal serve`: a page to explore, on this machine."""

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from becausal.core.errors import OptionError
from becausal.interfaces.cli import options, settings
from becausal.models import open_model

if TYPE_CHECKING:
    from becausal.core.contracts import Classifier

DEFAULT_PORT = 7860


@settings.expand_options
def serve(
    *,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            metavar="SPEC",
            rich_help_panel="The model",
            help=f"{options.SPEC_HELP} May be given several times; the bundled one is offered as well.",
        ),
    ] = None,
    port: Annotated[int, typer.Option(metavar="P", help="The port to listen on; 0 takes any that is free.")] = DEFAULT_PORT,
    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="The address to listen on. Anything but loopback lets other machines in, without a password.",
        ),
    ] = "127.0.0.1",
    max_upload: Annotated[int, typer.Option(metavar="MB", help="The largest image file that is taken.")] = 10,
    max_calls: Annotated[int, typer.Option(metavar="N", help="Most calls a client may ask for in one search.")] = 5000,
    searches: Annotated[int, typer.Option(metavar="N", help="How many searches run at once; others wait in line.")] = 2,
    loading: settings.LoadingOptions,
) -> None:
    """Open a page on which images are explained by hand.

    Drop an image, watch the explanation shrink, choose a pixel to see why it is needed, compare two methods. The page
    is for this machine alone unless --host says otherwise, calls nobody, and keeps nothing on disk. Ctrl-C ends it.

    **Examples**

    - `becausal serve`
    - `becausal serve --model net.onnx --labels names.txt --preprocess imagenet --port 8000`
    """
    from becausal.interfaces.web.limits import Limits
    from becausal.interfaces.web.server import LOOPBACK, listen, make_app, make_server

    for name, value, least in (
        ("--max-upload", max_upload, 1),
        ("--max-calls", max_calls, 100),
        ("--searches", searches, 1),
    ):
        if value < least:
            raise OptionError(f"{name} must be at least {least}, not {value}")
    if not 0 <= port <= 65535:
        raise OptionError(f"a port is a number up to 65535, not {port}")
    limits = Limits(upload_bytes=max_upload * 1_000_000, max_calls=max_calls, workers=searches)
    bound = listen(host, port)  # before a model is loaded: a port in use is said at once
    with bound:
        app = make_app(load_models(model or [], loading), limits, hosts=LOOPBACK if host in LOOPBACK else None)
        bound.listen()  # who comes before the server is up waits a moment
        place = f"[{host}]" if ":" in host else host
        typer.echo(f"becausal: open http://{place}:{bound.getsockname()[1]} in a browser; Ctrl-C ends it")
        with suppress(KeyboardInterrupt):  # the way it is meant to end
            make_server(app).run(sockets=[bound])


def load_models(specs: list[str], loading: settings.Loading) -> "dict[str, Classifier]":
    """The models by the names the page shows, in the operator's order; the bundled one is last unless it was given.

    The options of reading are for the operator's own.
    """
    from becausal.interfaces.web.questions import refuse_misfits

    models: dict[str, Classifier] = {}
    plain = settings.Loading(threads=loading.threads, batch_size=loading.batch_size)
    for spec in dict.fromkeys([*specs, "bundled"]):
        if spec == "bundled":
            models[spec] = open_model(spec, plain)
            continue
        classifier = open_model(spec, loading)
        refuse_misfits(classifier, spec)
        models[name_model(spec, models)] = classifier
    return models


def name_model(spec: str, taken: "dict[str, Classifier]") -> str:
    """A model's name on the page: its spec without folders, so that clients do not learn where it lies."""
    kind, colon, target = spec.partition(":")
    last = spec.rpartition("/")[2] if not colon else f"{kind}:{target.rpartition('/')[2]}"
    name, number = last, 2
    while name in (*taken, "bundled"):
        name, number = f"{last} ({number})", number + 1
    return name
