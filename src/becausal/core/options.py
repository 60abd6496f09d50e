"""What every option says about itself: one place for the command line, its help, the page and the commands in reports."""

from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class Option:
    """How an option is written and explained outside of Python.

    help: one sentence. metavar: what stands for its value. flag: its name on the command line, from the field's name
    where it is empty. choices: values to offer for completion; others are still allowed. parse: makes the field's value
    from text, or from a list of texts; None where it is taken as it is.
    """

    help: str
    metavar: str = ""
    flag: str = ""
    choices: tuple[str, ...] = ()
    parse: Callable[[Any], Any] | None = None


def option(
    default: Any,
    help: str,
    *,
    metavar: str = "",
    flag: str = "",
    choices: tuple[str, ...] = (),
    parse: Callable[[Any], Any] | None = None,
) -> Any:
    """A dataclass field that is an option; see `Option`."""
    return field(default=default, metadata={"option": Option(help, metavar, flag, choices, parse)})


def flag_of(described: "Field[Any]") -> str:
    """The name of an option on the command line."""
    option: Option = described.metadata["option"]
    return option.flag or f"--{described.name.replace('_', '-')}"


def as_words(record: type, values: Mapping[str, Any]) -> list[str]:
    """Options as words of the command line; defaults, and what only Python can give, are left out.

    Args:
        record: A dataclass whose fields are options.
        values: The values of its fields, by name, as JSON holds them.
    """
    words: list[str] = []
    for item in fields(record):
        value = values.get(item.name, item.default)
        value = tuple(value) if isinstance(value, list) else value
        if "option" in item.metadata and value != item.default:
            words += ["--" + item.name, "none"] if value is None else option_words(flag_of(item), value)
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
