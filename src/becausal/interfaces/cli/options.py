"""Options that several commands share.

What to explain and how the model is loaded are defined once, by the fields of `Request` and `Loading`. A command takes
such a record whole, e.g. `loading: LoadingOptions`; `expand_options` replaces that parameter by one command-line option
for each field. An option that was not given is None on the way, so that the record alone knows the default.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, fields
from functools import partial, wraps
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_type_hints

import typer

from becausal.core.errors import OptionError
from becausal.core.options import Option
from becausal.core.request import Request
from becausal.core.text import one_line
from becausal.images.fills import FILLS, with_fills
from becausal.models.loading import Loading

DEFAULT_OUT = Path("becausal-out")
ROBUST_FILLS = ("grey", "black", "white", "blur")
MODEL, TARGET, SEARCH = "Model", "What to explain", "How to search"  # headings in the help
_SEARCH_FIELDS = ("method", "options", "grain", "seed", "max_calls")

SPEC_HELP = (
    "Model to explain: FILE.onnx, torch:FILE.py:BUILD, python:FILE.py:PREDICT, hf:NAME, timm:NAME, torchvision:NAME, "
    "keras:FILE, oip:URL or bundled; for object detectors detect:FILE.onnx and others. See `becausal models`."
)
Model = Annotated[str, typer.Option("--model", "-m", metavar="SPEC", help=SPEC_HELP, rich_help_panel=MODEL)]
Out = Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder to write to.")]
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
    """Marks a parameter of a command as a record that is built from options.

    build: makes the record from the values of its options, by name. parameters: the options, in the order of the help.
    """

    build: Callable[[dict[str, Any]], Any]
    parameters: tuple[inspect.Parameter, ...]


def expand_options(command: Callable[..., None]) -> Callable[..., None]:
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
    def run(**given: Any) -> None:
        records = {
            name: group.build({p.name: given.pop(p.name) for p in group.parameters}) for name, group in groups.items()
        }
        command(**given, **records)

    run.__signature__ = inspect.Signature(expanded)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in expanded}
    return run


def options_of(
    record: type, panel: str = "", *, without: tuple[str, ...] = (), helps: Mapping[str, str] | None = None
) -> tuple[inspect.Parameter, ...]:
    """Make one command-line option for each field of a record that was made with `core.options.option`.

    Args:
        record: A dataclass.
        panel: The heading in the help; by default the one that suits a field of `Request`.
        without: Fields that the command does not offer.
        helps: Help texts of fields that mean something else to the command, by name.
    """
    hints, helps = get_type_hints(record), helps or {}
    return tuple(
        _make_parameter(f, hints[f.name], panel or (SEARCH if f.name in _SEARCH_FIELDS else TARGET), helps.get(f.name))
        for f in fields(record)
        if "option" in f.metadata and f.name not in without
    )


def _make_parameter(described: "Field[Any]", hint: Any, panel: str, own_help: str | None) -> inspect.Parameter:
    option: Option = described.metadata["option"]
    kind = _command_line_type(hint)
    declared = typer.Option(
        option.flag or f"--{described.name.replace('_', '-')}",
        metavar=option.metavar or None,
        rich_help_panel=panel,
        autocompletion=_complete_from(option.choices) if option.choices else _COMPLETIONS.get(described.name),
        help=own_help or _with_default(with_fills(option.help), described.default),
        show_default=False,
    )
    annotation: Any = Annotated[bool, declared] if kind is bool else Annotated[kind | None, declared]
    default = False if kind is bool else None
    return inspect.Parameter(described.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _with_default(help: str, default: Any) -> str:
    """Append the default to a help text that does not mention it."""
    if "Default:" in help or isinstance(default, bool) or default is None or default == ():
        return help
    return f"{help} Default: {', '.join(default) if isinstance(default, tuple) else default}."


def _command_line_type(hint: Any) -> Any:
    """The type the command line converts a value to: a plain type if the field has only that one, else text."""
    parts = set(get_args(hint)) - {NoneType} if NoneType in get_args(hint) else {hint}
    for plain in (bool, int, float):
        if parts == {plain}:
            return plain
    is_list = any(getattr(part, "__origin__", None) in (tuple, Mapping) for part in parts)
    return list[str] if is_list and str not in parts else str


def build_record(record: type, given: Mapping[str, Any]) -> Any:
    """Build a record from the values of its options; those not given keep the record's defaults. Raises OptionError."""
    values = {}
    for f in fields(record):
        value = given.get(f.name)
        if value is not None and value != []:
            option: Option = f.metadata["option"]
            try:
                values[f.name] = option.parse(value) if option.parse is not None else value
            except ValueError as error:  # e.g. a number with thousands of digits
                raise OptionError(f"{option.flag or f'--{f.name}'} cannot be used: {one_line(error, 200)}") from None
    return record(**values)


def build_request(record: type[Request], given: dict[str, Any]) -> Request:
    """Build a request from its options and shortcuts.

    An unknown method, or an unknown option of it, is refused here, before a model is loaded.

    Raises:
        OptionError: A shortcut was given together with the option it stands for, or a value is not allowed.
    """
    from becausal.methods import make_explainer

    if given.pop("robust", False):
        if given["fills"]:
            raise OptionError("--robust stands for several fills: leave out --fill, or give every fill with --fill")
        given["fills"] = ROBUST_FILLS
    if given.pop("complete", False):
        if given["confidence"] is not None:
            raise OptionError("--complete is short for --confidence 1: give only one of the two")
        given["confidence"] = 1.0
    if (partitions := given.pop("partitions", None)) is not None:
        given["options"] = [*(given["options"] or ()), f"partitions={partitions}"]
    request: Request = build_record(record, given)
    if isinstance(request.method, str):
        make_explainer(request.method, request.options)
    return request


def build_loading(record: type[Loading], given: dict[str, Any]) -> Loading:
    """Build the loading options.

    Raises:
        OptionError: The device is of a kind that no model runs on.
    """
    loading: Loading = build_record(record, given)
    if not re.fullmatch(r"cpu|mps|cuda(:\d+)?", loading.device):
        raise OptionError(f"unknown device {loading.device!r}: use cpu or cuda, or cuda:1 for the second GPU")
    return loading


def _complete_from(choices: tuple[str, ...]) -> Any:
    return lambda incomplete: [choice for choice in choices if choice.startswith(incomplete)]


def _complete_method(incomplete: str) -> list[str]:
    from becausal.methods import METHODS

    return [name for name in METHODS if name.startswith(incomplete)]


_COMPLETIONS: dict[str, Any] = {"method": _complete_method, "fills": _complete_from(tuple(FILLS))}

Robust = Annotated[
    bool,
    typer.Option("--robust", rich_help_panel=TARGET, help=f"Shortcut for four fills: {', '.join(ROBUST_FILLS)}."),
]
Complete = Annotated[
    bool, typer.Option("--complete", rich_help_panel=TARGET, help="Keep the original confidence. Short for --confidence 1.")
]
Partitions = Annotated[
    int | None,
    typer.Option("--partitions", metavar="N", rich_help_panel=SEARCH, help="Short for --option partitions=N (dc-causal)."),
]
_SHORTCUTS: dict[str, tuple[str, Any, Any]] = {  # by the field of Request they set: name, type, default
    "fills": ("robust", Robust, False),
    "confidence": ("complete", Complete, False),
    "options": ("partitions", Partitions, None),
}


def request_options(
    record: type[Request] = Request, *, without: tuple[str, ...] = (), helps: Mapping[str, str] | None = None
) -> OptionGroup:
    """The options of a request, and a shortcut wherever the option it stands for is offered."""
    shortcuts = (
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for field, (name, annotation, default) in _SHORTCUTS.items()
        if field not in without
    )
    return OptionGroup(partial(build_request, record), (*options_of(record, without=without, helps=helps), *shortcuts))


def loading_options(record: type[Loading] = Loading) -> OptionGroup:
    """The options a model is loaded with."""
    return OptionGroup(partial(build_loading, record), options_of(record, MODEL))


# What the commands use as types of their parameters.
LoadingOptions = Annotated[Loading, loading_options()]
RequestOptions = Annotated[Request, request_options()]
ComparisonRequest = Annotated[Request, request_options(without=("method", "options", "several"))]
_BENCH_CONFIDENCE = (
    "Keep the label and this share of its confidence, e.g. 0.7. Default: the smallest set that keeps the label, as in the "
    "paper (--smallest)."
)
_NOT_IN_BENCHES = ("method", "options", "box")
BenchRequest = Annotated[Request, request_options(without=_NOT_IN_BENCHES, helps={"confidence": _BENCH_CONFIDENCE})]
