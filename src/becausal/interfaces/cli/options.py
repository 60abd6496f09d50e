"""How commands are made: the options that several share, their help, and the check of what was given.

What to explain and how the model is loaded are defined once, by the fields of `Request` and `Loading`. A command takes
such a record whole, e.g. `loading: LoadingOptions`; `expand_options` replaces that parameter by one command-line option
for each field. An option that was not given is None on the way, so that the record alone knows the default.
"""

import inspect
import math
import re
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from becausal.core.errors import AnswerError, OptionError
from becausal.core.options import Option, list_options
from becausal.core.request import Request
from becausal.core.text import one_line
from becausal.images.fills import FILLS, with_fills
from becausal.interfaces.cli.console import print_documents_only
from becausal.models.loading import Loading

DEFAULT_OUT = Path("becausal-out")
#: Headings in the help; OWN is typer's.
OWN, MODEL, TARGET, SEARCH, FURTHER = "Options", "Model", "What to explain", "How to search", "Further options"
#: By heading, the fields of `Request` and `Loading` that most people need; all others are at the end of the help.
_COMMON = {
    TARGET: ("target", "box", "at", "confidence", "smallest", "fills", "holds"),
    SEARCH: ("method", "options", "grain", "seed", "max_calls"),
    MODEL: ("labels", "preprocess", "resize", "returns", "device"),
}
_MOST = 2**53  # larger integers are not read back from JSON everywhere

SPEC_HELP = (
    "Model to explain: FILE.onnx, torch:FILE.py:BUILD, python:FILE.py:PREDICT, hf:NAME, timm:NAME, torchvision:NAME, "
    "keras:FILE, oip:URL or bundled; for object detectors detect:FILE.onnx and others. See `becausal models`."
)


def model_option(help: str) -> Any:
    """How --model is declared."""
    return typer.Option("--model", "-m", metavar="SPEC", help=help, rich_help_panel=MODEL)


def out_option(help: str, metavar: str = "DIR") -> Any:
    """How --out is declared."""
    return typer.Option("--out", "-o", metavar=metavar, help=help)


Model = Annotated[str, model_option(SPEC_HELP)]
OptionalModel = Annotated[str | None, model_option(SPEC_HELP)]
Out = Annotated[Path, out_option("Folder to write to.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, and nothing else.")]
EveryBox = Annotated[
    bool, typer.Option("--all", help="Object detectors: explain every box that is found.", rich_help_panel=TARGET)
]


def check_every_box(request: Request) -> None:
    """Raise OptionError where --all and --box are given."""
    if request.box is not None:
        raise OptionError("--all explains every box: leave out --box")


@dataclass(frozen=True)
class OptionGroup:
    """Marks a parameter of a command as a record that is built from options."""

    build: Callable[[dict[str, Any]], Any]  # from the values of the options, by name
    parameters: tuple[inspect.Parameter, ...]  # the options, in the order of the help


def expand_options(command: Callable[..., int | None]) -> Callable[..., int | None]:
    """Return the command with every parameter marked by an `OptionGroup` replaced by the options of that group."""
    groups: dict[str, OptionGroup] = {}
    expanded: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        for mark in getattr(parameter.annotation, "__metadata__", ()):
            if isinstance(mark, OptionGroup):
                groups[name] = mark
        own = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        expanded += groups[name].parameters if name in groups else [own]

    @wraps(command, assigned=("__module__", "__name__", "__qualname__", "__doc__"))
    def run(**given: Any) -> int | None:
        records = {
            name: group.build({p.name: given.pop(p.name) for p in group.parameters}) for name, group in groups.items()
        }
        return command(**given, **records)

    run.__signature__ = inspect.Signature(expanded)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in expanded}
    return run


def group_of(
    record: type, panel: str = "", *, without: tuple[str, ...] = (), helps: Mapping[str, str] | None = None
) -> OptionGroup:
    """One command-line option for each field of a record that was made with `core.options.option`.

    record: a dataclass; of `Request` and `Loading` there are further checks. panel: the heading in the help;
    by default, of `Request` and `Loading` only, that of `_COMMON`. without: fields that the command does not offer. helps:
    help texts of fields that mean something else to the command, by name.
    """
    offered = [option for option in list_options(record) if option.name not in without]
    parameters = [_make_parameter(option, panel, (helps or {}).get(option.name)) for option in offered]
    build = _build_request if issubclass(record, Request) else _build
    return OptionGroup(partial(build, record), tuple(parameters))


def _make_parameter(option: Option, panel: str, own_help: str | None) -> inspect.Parameter:
    kind: Any = option.types[0] if option.types in ((bool,), (int,), (float,), (Path,)) else str
    if option.takes_many and str not in option.types:
        kind = list[str]
    help, default = with_fills(option.help), option.default
    if "Default:" not in help and not isinstance(default, bool) and default not in (None, ()):
        help += f" Default: {', '.join(default) if isinstance(default, tuple) else default}."
    choices = tuple(FILLS) if option.name == "fills" else option.choices

    def complete(incomplete: str) -> list[str]:
        from becausal.methods import METHODS

        return [name for name in (METHODS if option.name == "method" else choices) if name.startswith(incomplete)]

    declared = typer.Option(
        *option.flag.split(),
        metavar=option.metavar or None,
        rich_help_panel=panel or next((name for name, common in _COMMON.items() if option.name in common), FURTHER),
        autocompletion=complete if choices or option.name == "method" else None,
        help=own_help or help,
        show_default=False,
    )
    annotation: Any = Annotated[bool, declared] if kind is bool else Annotated[kind | None, declared]
    default = False if kind is bool else None
    return inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _build(record: type, given: Mapping[str, Any]) -> Any:
    """Build a record from the values of its options; those not given keep the record's defaults. Raises OptionError."""
    values = {}
    for option in list_options(record):
        value = given.get(option.name)
        if value is not None and value != []:
            try:
                values[option.name] = option.parse(value) if option.parse is not None else value
            except ValueError as error:  # e.g. a number with thousands of digits
                raise OptionError(f"{option.flag} cannot be used: {one_line(error, 200)}") from None
    built = record(**values)
    if isinstance(built, Loading) and not re.fullmatch(r"cpu|mps|cuda(:\d+)?", built.device):
        raise OptionError(f"unknown device {built.device!r}: use cpu or cuda, or cuda:1 for the second GPU")
    return built


def _build_request(record: type[Request], given: dict[str, Any]) -> Request:
    """Build a request from its options; raises OptionError before a model is loaded."""
    from becausal.methods import make_explainer

    request: Request = _build(record, given)
    if isinstance(request.method, str):
        make_explainer(request.method, request.options)
    return request


# What the commands use as types of their parameters.
LoadingOptions = Annotated[Loading, group_of(Loading)]
RequestOptions = Annotated[Request, group_of(Request)]
SimilarLoading = Annotated[Loading, group_of(Loading, without=("labels", "returns", "threshold", "text", "ask", "like"))]
SimilarRequest = Annotated[Request, group_of(Request, without=("target", "against", "box", "at", "top"))]
ComparisonRequest = Annotated[Request, group_of(Request, without=("method", "options", "several"))]
_BENCH_CONFIDENCE = (
    "Keep the label and this share of its confidence, e.g. 0.7. Default: the smallest set that keeps the label, as in the "
    "paper (--smallest)."
)
BenchRequest = Annotated[
    Request, group_of(Request, without=("method", "options", "box", "at"), helps={"confidence": _BENCH_CONFIDENCE})
]


class _PlainHelp:
    """Help without what typer prints for the type of a flag (<bool>) and of an argument (<path>, <list[Path]>)."""

    def format_help(self: Any, ctx: Any, formatter: Any) -> None:
        for parameter in self.get_params(ctx):
            if parameter.param_type_name == "argument":
                parameter.display_type_rich = lambda ctx: None
            elif parameter.is_flag:
                parameter.metavar = ""
        super().format_help(ctx, formatter)  # type: ignore[misc]


class PlainCommand(_PlainHelp, TyperCommand):
    """A command whose help shows names and metavars only, and whose values are checked before it runs.

    With `--json`, nothing but the document gets to stdout.
    """

    def get_params(self, ctx: Any) -> Any:
        return sorted(super().get_params(ctx), key=lambda each: getattr(each, "rich_help_panel", None) == FURTHER)

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


class PlainGroup(_PlainHelp, TyperGroup):
    """A group of commands whose help shows names and metavars only."""


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


def add_command(app: typer.Typer, name: str, function: Callable[..., int | None], *, panel: str | None = None) -> None:
    """Add a command to a group; its result is the exit status. panel: its heading in the help."""
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
