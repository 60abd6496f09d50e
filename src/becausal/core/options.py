"""What every option says about itself: one place for the help of the command line and of the page."""

from collections.abc import Callable
from dataclasses import dataclass, field
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
