"""Records read from JSON: checked against the types of a dataclass, with the field's name in every message."""

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from becausal.core.errors import OptionError
from becausal.core.text import one_line

MOST_DEPTH = 32  # of lists and objects in each other
_MOST_INT = 2**53  # beyond this JSON readers disagree
_SHOWN = 40  # characters of a value in a message
_NAMES = {bool: "true or false", int: "an integer", float: "a number", str: "text", NoneType: "null"}


class _Mismatch(Exception):
    """The value at a place inside of another one, "" for itself, does not fit the type."""

    def __init__(self, place: str, value: Any, hint: Any) -> None:
        super().__init__(place)
        self.place, self.value, self.hint = place, value, hint


def read_fields(
    record_type: type, record: Any, where: str = "", *, complete: bool = False, ignore_others: bool = False
) -> dict[str, Any]:
    """The fields of a dataclass from a JSON object: lists become tuples, objects become dataclasses.

    Args:
        record_type: The dataclass; the types of its fields are the schema.
        record: What was read from JSON.
        where: The name of the record in messages, e.g. "origin.request".
        complete: Whether fields with defaults have to be there, too.
        ignore_others: Whether names that are not fields are ignored instead of refused.

    Raises:
        OptionError: The record, or one of its fields, is missing, unknown or of another type; the message names it.
    """
    if not isinstance(record, Mapping):
        raise OptionError(f"{where or 'the record'} is {show_value(record)}, expected an object")
    prefix, hints = (f"{where}." if where else ""), _hints(record_type)
    if not ignore_others and (unknown := sorted(set(map(str, record)) - set(hints))):
        raise OptionError(f"unknown field {prefix}{one_line(unknown[0], _SHOWN)}; expected {', '.join(sorted(hints))}")
    found = {}
    for item in fields(record_type):
        if item.name in record:
            found[item.name] = read_value(record[item.name], hints[item.name], f"{prefix}{item.name}")
        elif complete or (item.default is MISSING and item.default_factory is MISSING):
            raise OptionError(f"{prefix}{item.name} is missing")
    return found


def read_value(value: Any, hint: Any, where: str) -> Any:
    """A value from JSON as the type says. Raises OptionError that names the field."""
    if is_dataclass(hint) and isinstance(hint, type):
        return hint(**read_fields(hint, value, where))
    try:
        return _convert(value, hint)
    except _Mismatch as found:
        name = f"{where}{found.place}"
        raise OptionError(f"{name} is {show_value(found.value)}, expected {_describe(found.hint)}") from None


def check_depth(value: dict[str, Any]) -> None:
    """Raise OptionError for JSON that is nested so deeply that other code would fail on it."""
    level: list[Any] = [value]
    for _ in range(MOST_DEPTH):
        inner = (item for part in level for item in (part.values() if isinstance(part, dict) else part))
        level = [item for item in inner if isinstance(item, (dict, list))]
        if not level:
            return
    raise OptionError(f"lists and objects are nested more than {MOST_DEPTH} deep")


@cache
def _hints(record_type: type) -> dict[str, Any]:
    return get_type_hints(record_type)


def _convert(value: Any, hint: Any) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, UnionType):
        for part in arguments:
            try:
                return _convert(value, part)
            except _Mismatch as found:
                if found.place:  # a list or an object that was expected, with something else inside
                    raise
    elif origin is Literal:
        if any(value == choice and type(value) is type(choice) for choice in arguments):
            return value
    elif origin is tuple and isinstance(value, (list, tuple)):
        return tuple(_convert_inner(item, arguments[0], f"[{number}]") for number, item in enumerate(value))
    elif isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(value, Mapping):
        return {name: _convert_inner(item, arguments[1], f".{one_line(name, _SHOWN)}") for name, item in value.items()}
    elif _is_plain(value, hint):
        return value
    raise _Mismatch("", value, hint)


def _convert_inner(value: Any, hint: Any, place: str) -> Any:
    try:
        return _convert(value, hint)
    except _Mismatch as found:
        raise _Mismatch(place + found.place, found.value, found.hint) from None


def _is_plain(value: Any, hint: Any) -> bool:
    """Whether a value that is no list and no object has the type."""
    if hint is float:
        return type(value) in (int, float) and abs(value) <= 1e300  # false for NaN
    if hint is int:
        return type(value) is int and abs(value) <= _MOST_INT
    if hint is str:
        return isinstance(value, str)
    return hint in (bool, NoneType) and type(value) is hint


def _describe(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(_describe(part) for part in arguments if _describe(part)))
    if origin is Literal:
        return " or ".join(repr(choice) for choice in arguments)
    if origin is tuple:
        return f"a list ({_describe(arguments[0])})"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "an object"
    return _NAMES.get(hint, "an object" if is_dataclass(hint) else "")


def show_value(value: Any) -> str:
    """A value of a record in a message, in one short line."""
    if isinstance(value, (Mapping, list, tuple)):
        return "an object" if isinstance(value, Mapping) else "a list"
    text = one_line(json.dumps(value, default=str, ensure_ascii=False))
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
