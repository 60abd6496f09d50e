"""Commands and groups of commands with plain help: no types next to flags and arguments."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from becausal.core.errors import AnswerError, OptionError
from becausal.core.text import one_line
from becausal.interfaces.cli.console import print_documents_only

_MOST = 2**53  # larger integers are not read back from JSON everywhere


class PlainCommand(TyperCommand):
    """A command whose help shows names and metavars only, and whose values are checked before it runs.

    With `--json`, nothing but the document gets to stdout.
    """

    def invoke(self, ctx: Any) -> Any:
        for parameter in self.params:
            check_value(parameter.opts[0], ctx.params.get(parameter.name))
        with print_documents_only() if ctx.params.get("as_json") else nullcontext():
            try:
                return super().invoke(ctx)
            except KeyboardInterrupt:  # typer would end without a message
                raise typer.Abort from None
            except EOFError as error:  # typer would take it for an interrupt
                raise AnswerError(f"a model or a library raised EOFError: {one_line(error)}") from error

    def format_help(self, ctx: Any, formatter: Any) -> None:
        hide_types(self.get_params(ctx))
        super().format_help(ctx, formatter)


class PlainGroup(TyperGroup):
    """A group of commands whose help shows names and metavars only."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        hide_types(self.get_params(ctx))
        super().format_help(ctx, formatter)


def hide_types(parameters: list[Any]) -> None:
    """Remove what typer prints for the type of a flag (<bool>) and of an argument (<path>, <list[Path]>)."""
    for parameter in parameters:
        if parameter.param_type_name == "argument":
            parameter.display_type_rich = lambda ctx: None
        elif parameter.is_flag:
            parameter.metavar = ""


def check_value(flag: str, value: Any) -> None:
    """Raise OptionError for a value that no option takes: infinity, NaN, huge numbers, texts with a null character."""
    if isinstance(value, (list, tuple)):
        for item in value:
            check_value(flag, item)
    elif isinstance(value, float) and not math.isfinite(value):
        raise OptionError(f"{flag} must be a finite number, not {value}")
    elif isinstance(value, int) and abs(value) > _MOST:
        limit = f"at most {_MOST}" if value > 0 else f"at least {-_MOST}"
        raise OptionError(f"{flag} must be {limit}, not {one_line(value, 40)}")
    elif isinstance(value, (str, Path)) and "\0" in str(value):
        raise OptionError(f"{flag} must not contain a null character, as {str(value)!r} does")


def add_command(app: typer.Typer, name: str, function: Callable[..., None], *, panel: str | None = None) -> None:
    """Add a command to a group; panel: its heading in the help."""
    app.command(name, cls=PlainCommand, rich_help_panel=panel)(function)


def make_group(help: str) -> typer.Typer:
    """Make a group of commands that prints its help when it is called without a command."""
    app = typer.Typer(cls=PlainGroup, rich_markup_mode="markdown", invoke_without_command=True, help=help)

    @app.callback(help=help)
    def print_help(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            typer.echo(context.get_help())
            raise typer.Exit

    return app
