"""What every option says about itself: one place for the command line, its help, the page and the commands in reports."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class Option:
    """How an option is written and explained outside of Python; `list_options` adds what its field says.

    help: one sentence. metavar: what stands for its value. flag: its name on the command line, from the field's name
    where it is empty. choices: values to offer for completion; others are still allowed. parse: makes the field's value
    from text, or from a list of texts; None where it is taken as it is.
    name: of the field. default: its default. types: what its value may be, None left out.
    """

    help: str
    metavar: str = ""
    flag: str = ""
    choices: tuple[str, ...] = ()
    parse: Callable[[Any], Any] | None = None
    name: str = ""
    default: Any = None
    types: tuple[Any, ...] = ()

    @property
    def takes_many(self) -> bool:
        """Whether its value is a list or a mapping, so that the option can be repeated."""
        return any(get_origin(kind) in (tuple, Mapping) for kind in self.types)


def option(
    default: Any, help: str, *, metavar: str = "", flag: str = "", choices: tuple[str, ...] = (),
    parse: Callable[[Any], Any] | None = None,
) -> Any:  # fmt: skip
    """A dataclass field that is an option; see `Option`."""
    return field(default=default, metadata={"option": Option(help, metavar, flag, choices, parse)})


def list_options(record: type) -> tuple[Option, ...]:
    """The options of a dataclass, in the order of its fields. Every interface takes them from here."""
    hints, found = get_type_hints(record), []
    for item in fields(record):
        if "option" in item.metadata:
            given, hint = item.metadata["option"], hints[item.name]
            types = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
            flag = given.flag or f"--{item.name.replace('_', '-')}"
            types = tuple(kind for kind in types if kind is not NoneType)
            found.append(replace(given, flag=flag, name=item.name, default=item.default, types=types))
    return tuple(found)


def as_words(record: type, values: Mapping[str, Any]) -> list[str]:
    """The options of a dataclass as words of the command line; defaults, and what only Python can give, are left out.

    values: of its fields, by name, as JSON holds them.
    """
    words: list[str] = []
    for each in list_options(record):
        value = values.get(each.name, each.default)
        value = tuple(value) if isinstance(value, list) else value
        if value != each.default:
            words += [each.flag, "none"] if value is None else option_words(each.flag, value)
    return words


def option_words(flag: str, value: Any) -> list[str]:
    """One option with its value: repeated for a list, as KEY=VALUE for an object; empty for what only Python can give."""
    if isinstance(value, Mapping):
        value = [f"{name}={each}" for name, each in value.items() if not isinstance(each, Mapping)]
    if isinstance(value, bool):
        return [flag] if value else []
    if isinstance(value, (list, tuple)):
        return [word for each in value for word in (flag, str(each))]
    if not isinstance(value, (str, int, float)):
        return []
    return [flag, f"{value:.6g}" if isinstance(value, float) else str(value)]
