"""Command-line options made from the records they fill: `Loading` and `Request` say each option once.

A command asks for a whole record, e.g. `loading: settings.LoadingOptions`, and `expand_options` puts the options it is
made of in its place.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from functools import wraps
from types import NoneType
from typing import Annotated, Any, get_args, get_type_hints

import typer

from becausal.core.errors import OptionError
from becausal.core.options import Option
from becausal.core.request import Request
from becausal.interfaces.cli import options
from becausal.models.loading import Loading

__all__ = ["BatchRequest", "Loading", "LoadingOptions", "Request", "RequestOptions", "expand_options", "parameters_of"]

MODEL, QUESTION, SEARCH = "The model", "The question", "The search"
_SEARCH_FIELDS = ("method", "options", "grain", "seed", "max_calls")


@dataclass(frozen=True)
class MadeOf:
    """Marks a command's parameter as a record made of options.

    make: builds the record from the options' values, by name. parameters: the options, in the order of the help.
    """

    make: Callable[[dict[str, Any]], Any]
    parameters: tuple[inspect.Parameter, ...]


def expand_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command as typer is to see it: each parameter that is `MadeOf` options is replaced by those options."""
    made: dict[str, MadeOf] = {}
    shown: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        for note in getattr(parameter.annotation, "__metadata__", ()):
            if isinstance(note, MadeOf):
                made[name] = note
        shown += made[name].parameters if name in made else [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)]

    @wraps(command, assigned=("__module__", "__name__", "__qualname__", "__doc__"))
    def run(**given: Any) -> None:
        records = {name: note.make({p.name: given.pop(p.name) for p in note.parameters}) for name, note in made.items()}
        command(**given, **records)

    run.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return run


def parameters_of(
    record: type, panel: Callable[[str], str], *, without: tuple[str, ...] = (), defaults: Mapping[str, Any] | None = None
) -> tuple[inspect.Parameter, ...]:
    """One command-line option for each field of a record that describes itself as one.

    Args:
        record: A dataclass whose fields were made with `option`.
        panel: The heading in the help, by the field's name.
        without: Fields that this command does not offer.
        defaults: Defaults of this command that differ from the record's.
    """
    hints = get_type_hints(record)
    changed = defaults or {}
    return tuple(
        _parameter(f, hints[f.name], panel(f.name), changed.get(f.name, MISSING))
        for f in fields(record)
        if "option" in f.metadata and f.name not in without
    )


def _parameter(described: "Field[Any]", hint: Any, panel: str, default: Any) -> inspect.Parameter:
    said: Option = described.metadata["option"]
    kind = _text_type(hint)
    default = described.default if default is MISSING else default
    if kind == list[str]:
        default = list(default or ())
    shown = typer.Option(
        said.flag or f"--{described.name.replace('_', '-')}",
        metavar=said.metavar or None,
        rich_help_panel=panel,
        autocompletion=options.matching(said.choices) if said.choices else options.COMPLETIONS.get(described.name),
        help=said.help,
    )
    wanted: Any = kind | None if default is None else kind
    annotation: Any = Annotated[wanted, shown]
    return inspect.Parameter(described.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _text_type(hint: Any) -> Any:
    """The type in which the command line takes a value: a plain one where the field has no other, else text."""
    parts = set(get_args(hint)) - {NoneType} if NoneType in get_args(hint) else {hint}
    for plain in (bool, int, float):
        if parts == {plain}:
            return plain
    is_list = any(getattr(part, "__origin__", None) in (tuple, Mapping) for part in parts)
    return list[str] if is_list and str not in parts else str


def fill_record(record: type, given: Mapping[str, Any]) -> Any:
    """The record behind the values of its options; texts are parsed as the fields say."""
    values = {}
    for f in fields(record):
        if f.name in given:
            said: Option = f.metadata["option"]
            value = given[f.name]
            values[f.name] = said.parse(value) if said.parse is not None else value
    return record(**values)


def _request_panel(name: str) -> str:
    return SEARCH if name in _SEARCH_FIELDS else QUESTION


def make_request(given: dict[str, Any]) -> Request:
    """The request behind the options, the short forms `--robust`, `--complete` and `--partitions` included.

    A method, or an option of it, that does not exist is refused here, before a model is loaded.
    """
    from becausal.methods import make_explainer

    if given.pop("robust", False):
        if given["fills"] != list(_default("fills")):
            raise OptionError("--robust stands for several fills: leave out --fill, or list all fills with --fill")
        given["fills"] = list(options.ROBUST)
    if given.pop("complete", False):
        if given["confidence"] is not None:
            raise OptionError("--complete is short for --confidence 1: give one of them")
        given["confidence"] = 1.0
    if (partitions := given.pop("partitions", None)) is not None:
        given["options"] = [*given["options"], f"partitions={partitions}"]
    request: Request = fill_record(Request, given)
    if isinstance(request.method, str):
        make_explainer(request.method, request.options)
    return request


def _default(name: str) -> Any:
    return next(f.default for f in fields(Request) if f.name == name)


def _made_request(*, short: bool, without: tuple[str, ...] = (), defaults: Mapping[str, Any] | None = None) -> MadeOf:
    own = parameters_of(Request, _request_panel, without=without, defaults=defaults)
    return MadeOf(make_request, (*own, *(options.SHORT_FORMS if short else options.ROBUST_ONLY)))


def _make_loading(given: dict[str, Any]) -> Loading:
    loading: Loading = fill_record(Loading, given)
    options.check_device(loading.device)
    return loading


# What commands ask for.
LoadingOptions = Annotated[Loading, MadeOf(_make_loading, parameters_of(Loading, lambda name: MODEL))]
ShortLoading = Annotated[
    Loading,
    MadeOf(_make_loading, parameters_of(Loading, lambda name: MODEL, without=("batch_size", "threads", "half"))),
]
RequestOptions = Annotated[Request, _made_request(short=True)]
BatchRequest = Annotated[Request, _made_request(short=False)]
ComparisonRequest = Annotated[
    Request, _made_request(short=False, without=("method", "options", "several"), defaults={"grain": "none"})
]
BenchRequest = Annotated[
    Request, _made_request(short=False, without=("method", "options", "several", "target", "against", "top"))
]
