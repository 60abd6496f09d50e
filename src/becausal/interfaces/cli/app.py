"""The command line: parse, call, print.

Exit status: 0 done; 1 a claim does not hold (`verify`); 2 something could not be used or written, said in one line on
stderr; 3 some images failed (`batch`); 130 interrupted. Nothing heavy is imported until a command needs it.
"""

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from becausal.core.errors import BecausalError
from becausal.interfaces.cli import (
    batch,
    bench,
    compare,
    data,
    demo,
    explain,
    inspect,
    report,
    scenes,
    serve,
    verify,
)
from becausal.interfaces.cli.console import complain

app = typer.Typer(
    name="becausal",
    no_args_is_help=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("explain")(explain.explain)
app.command("compare")(compare.compare)
app.command("demo")(demo.demo)
app.command("verify")(verify.verify)
app.command("batch")(batch.batch)
app.command("report")(report.report)
app.command("export")(report.export)
app.command("diff")(report.diff)
app.command("inspect")(inspect.inspect)
app.command("methods")(inspect.methods)
app.command("models")(inspect.models)
app.command("serve")(serve.serve)
app.add_typer(scenes.app, name="scenes")
app.command("bench")(bench.bench)
app.add_typer(data.app, name="data")

# Typer carries its own copy of click, or uses an installed one: this is the right root of its errors either way.
_UsageProblem: type[Exception] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException" and issubclass(kind, Exception)
)
_DEBUG = "BECAUSAL_DEBUG"


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(f"becausal {version('becausal')}")
        except PackageNotFoundError:
            typer.echo("becausal, not installed")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Say the version and stop.")
    ] = False,
    debug: Annotated[
        bool,
        typer.Option("--debug", help=f"Show the traceback of an error, as {_DEBUG}=1 in the environment does."),
    ] = False,
) -> None:
    """Ask an image classifier why.

    becausal hides parts of an image, asks the classifier again and again, and finds a small set of pixels that alone
    is enough for the label, with proof. Any model will do: it is only asked.

    Begin with: `becausal demo`
    """
    if debug:
        os.environ[_DEBUG] = "1"
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a label the terminal cannot write is no reason to fail
    try:
        status = app(args=None if arguments is None else list(arguments), prog_name="becausal", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        return _leave_quietly()
    except SystemExit as ended:
        if isinstance(ended.__context__, OSError):  # typer's own way out when the reader of our output has gone
            return 1
        complain(f"a model or a library ended the program: {ended.code}")
        return 2
    except (KeyboardInterrupt, typer.Abort):
        complain("interrupted", kind="stopped")
        return 130
    except Exception as error:
        if os.environ.get(_DEBUG, "") not in ("", "0"):
            traceback.print_exc()
        complain(_describe(error))
        return 2
    return status if isinstance(status, int) else 0


def _describe(error: Exception) -> str:
    """The error as one line, with what to do next."""
    if isinstance(error, BecausalError):
        return str(error)
    if isinstance(error, _UsageProblem):
        context = getattr(error, "ctx", None)
        hint = f" (see {context.command_path} --help)" if context is not None else ""
        return f"{error.format_message()}{hint}"  # type: ignore[attr-defined]
    if isinstance(error, MemoryError):
        return "out of memory: try a smaller --batch-size, or a smaller image"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return f"unexpected {type(error).__name__}: {error} (run becausal --debug … to see where)"


def _leave_quietly() -> int:
    """The reader of our output has gone: what is still in the buffers must not raise again at the very end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
