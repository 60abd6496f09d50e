"""Commands and groups of commands with plain help: no types next to flags and arguments."""

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


class PlainCommand(TyperCommand):
    """A command whose help shows names and metavars only."""

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
