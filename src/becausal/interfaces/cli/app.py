"""The command line: parse, call, print.

Exit status: 0 success; 1 a claim (`verify`) or a rule (`check`) does not hold; 2 an input or option cannot be used, a rule
cannot be judged, or a file cannot be written (one line on stderr says why); 3 some images failed (`batch`); 130 interrupted.
Heavy libraries are imported only by the commands that need them.
"""

import io
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TextIO, final

import typer

from becausal.core.errors import BecausalError
from becausal.interfaces.cli import batch, experiments, explain, inspect, report, serve, similar, verify
from becausal.interfaces.cli.console import complain
from becausal.interfaces.cli.options import PlainGroup, add_command

app = typer.Typer(
    name="becausal",
    cls=PlainGroup,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_COMMANDS: dict[str, dict[str, Callable[..., int | None]]] = {  # by the heading in the help
    "Explain images": {
        "demo": explain.demo,
        "explain": explain.explain,
        "verify": verify.verify,
        "compare": explain.compare,
        "similar": similar.similar,
        "serve": serve.serve,
    },
    "Models and methods": {
        "inspect": inspect.inspect,
        "models": inspect.models,
        "methods": inspect.methods,
        "backgrounds": inspect.backgrounds,
    },
    "Many images": {
        "batch": batch.batch,
        "report": report.report,
        "export": report.export,
        "diff": report.diff,
        "check": report.check,
    },
    "Experiments": {"bench": experiments.bench},
}
for _panel, _functions in _COMMANDS.items():
    for _name, _function in _functions.items():
        add_command(app, _name, _function, panel=_panel)
app.add_typer(experiments.scenes, name="scenes", rich_help_panel="Experiments")
app.add_typer(experiments.data, name="data", rich_help_panel="Experiments")

# Typer has its own copy of click, or uses an installed one: this is the base of its usage errors in either case.
_UsageError: type[Exception] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException" and issubclass(kind, Exception)
)
_DEBUG = "BECAUSAL_DEBUG"


def _print_version(wanted: bool) -> None:
    if wanted:
        from becausal.core.version import __version__

        typer.echo(f"becausal {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show version and exit.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help=f"Show the traceback of an error. Same as {_DEBUG}=1 in the environment.")
    ] = False,
) -> None:
    """Explain the decisions of an image classifier.

    becausal masks parts of an image, evaluates the classifier on the result, and finds the pixels that are enough for the
    label. Every claim is checked. Black-box: only predictions are needed.

    Start with: `becausal demo`
    """
    if debug:
        os.environ[_DEBUG] = "1"
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit


@final
class _Outlet(io.FileIO):
    """A file descriptor that we print to. Once it is no longer read (`| head -1`), what is printed is discarded."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())  # what is in the buffers must not fail again at exit
            if not isinstance(error, BrokenPipeError):
                raise
            return super().write(data)


def _print_patiently(stream: TextIO, number: int) -> TextIO:
    """The stream with this file descriptor, so that a command whose output is no longer read still does its work."""
    if stream not in (sys.__stdout__, sys.__stderr__) or stream.fileno() != number:  # the caller's own
        return stream
    stream.flush()
    outlet = io.BufferedWriter(_Outlet(number, "w", closefd=False))
    is_by_line = getattr(stream, "line_buffering", True)
    return io.TextIOWrapper(outlet, encoding=stream.encoding, errors="replace", line_buffering=is_by_line)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 (None if the caller has closed it)
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    sys.stdout, sys.stderr = _print_patiently(sys.stdout, 1), _print_patiently(sys.stderr, 2)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a label the terminal cannot show must not end the program
    try:
        status = app(args=None if arguments is None else list(arguments), prog_name="becausal", standalone_mode=False)
        sys.stdout.flush()
    except SystemExit as ended:
        if isinstance(ended.__context__, OSError):  # rich exits like this when it cannot print
            return 1
        complain(f"a model or a library ended the program: {ended.code}")
        return 2
    except (KeyboardInterrupt, typer.Abort):
        complain("interrupted", kind="stopped")
        return 130
    except BaseException as error:  # a model may raise anything
        if os.environ.get(_DEBUG, "") not in ("", "0"):
            traceback.print_exc()
        complain(_describe(error))
        return 2
    return status if isinstance(status, int) else 0


def _describe(error: BaseException) -> str:
    """The error as one line, with what to do next."""
    if isinstance(error, BecausalError):
        return str(error)
    if isinstance(error, _UsageError):
        context = getattr(error, "ctx", None)
        hint = f" (see {context.command_path} --help)" if context is not None else ""
        return f"{error.format_message()}{hint}"  # type: ignore[attr-defined]
    if isinstance(error, MemoryError):
        return "out of memory: try a smaller --batch-size, or a smaller image"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    try:
        text = str(error)
    except Exception:  # an exception of a model's own class
        text = "no message"
    if not isinstance(error, Exception):
        return f"a model or a library raised {type(error).__name__}: {text}"
    return f"unexpected {type(error).__name__}: {text} (run becausal --debug … to see the traceback)"
