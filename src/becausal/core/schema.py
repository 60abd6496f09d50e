"""JSON records: read into the types of a dataclass, and compared leaf by leaf (levels[1].share is the path of one)."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from becausal.core.errors import OptionError
from becausal.core.text import one_line

MOST_DEPTH = 32  # of lists and objects in each other
_MOST_INT = 2**53  # beyond this JSON readers disagree
_SHOWN = 40  # characters of a value in a message
UNKNOWN: Final = object()  # in the place of a value that could not be found
_hints = cache(get_type_hints)
_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
#: How text becomes a value of each type; the first that fits counts, and it is left as it is where none does.
_READERS: dict[Any, Callable[[str], Any]] = {
    NoneType: lambda text: {"none": None}[text.lower()],
    str: str,
    bool: lambda text: _TRUTH[text.lower()],
    int: int,
    float: float,
}
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

    The types of the fields are the schema. where: the name of the record in messages, e.g. "origin.request". complete: those
    with defaults have to be there, too. ignore_others: names that are not fields are ignored instead of refused. Raises
    OptionError that names the field which is missing, unknown or of another type.
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
    record_type, *others = get_args(hint) or (hint,)
    if others == [NoneType] and is_dataclass(record_type) and value is not None:  # a record, or null
        hint = record_type
    if is_dataclass(hint) and isinstance(hint, type):
        return hint(**read_fields(hint, value, where))
    try:
        return _convert(value, hint)
    except _Mismatch as found:
        name = f"{where}{found.place}"
        raise OptionError(f"{name} is {show_value(found.value)}, expected {_describe(found.hint)}") from None


def read_text(text: str, hint: Any, where: str) -> Any:
    """A value from text, as a command line or a form has it, as the type says. Raises OptionError that names the field."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    for kind, read in _READERS.items():
        if kind in kinds:
            with suppress(KeyError, ValueError):
                return read_value(read(text), hint, where)
    return read_value(text, hint, where)


def check_depth(value: dict[str, Any]) -> None:
    """Raise OptionError for JSON that is nested so deeply that other code would fail on it."""
    level: list[Any] = [value]
    for _ in range(MOST_DEPTH):
        inner = (item for part in level for item in (part.values() if isinstance(part, dict) else part))
        level = [item for item in inner if isinstance(item, (dict, list))]
        if not level:
            return
    raise OptionError(f"lists and objects are nested more than {MOST_DEPTH} deep")


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
    elif hint is float:
        if type(value) in (int, float) and abs(value) <= 1e300:  # false for NaN
            return value
    elif hint is int:
        if type(value) is int and abs(value) <= _MOST_INT:
            return value
    elif isinstance(value, str) if hint is str else hint in (bool, NoneType) and type(value) is hint:
        return value
    raise _Mismatch("", value, hint)


def _convert_inner(value: Any, hint: Any, place: str) -> Any:
    try:
        return _convert(value, hint)
    except _Mismatch as found:
        raise _Mismatch(place + found.place, found.value, found.hint) from None


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


@dataclass
class Compared:
    """What is the same, by path; what differs, as stated and as found; and what was compared with nothing."""

    same: set[str] = field(default_factory=set)
    different: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    unchecked: set[str] = field(default_factory=set)


def list_leaves(value: Any, path: str = "") -> dict[str, Any]:
    """Every number, text, truth value, null, empty list and empty object of a record, by its path."""
    children = list(_children(value, path))
    if not children:
        return {path: value}
    return {name: leaf for inner, child in children for name, leaf in list_leaves(child, inner).items()}


def group_paths(value: Any, chosen: set[str], path: str = "") -> list[str]:
    """The chosen leaves of a record in few words: a part of which all leaves are chosen is named as a whole."""
    if path and all(leaf in chosen for leaf in list_leaves(value, path)):
        return [path]
    return [name for inner, child in _children(value, path) for name in group_paths(child, chosen, inner)]


def merge(first: Any, second: Any) -> Any:
    """Two records as one; where both have a leaf, the second counts."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        both = {key: merge(first[key], second[key]) for key in first.keys() & second.keys()}
        return {**first, **second, **both}
    if isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        return [merge(a, b) for a, b in zip(first, second, strict=True)]
    return second


def compare_leaves(stated: Any, found: Any, tolerance: Callable[[str], float]) -> Compared:
    """Compare a record with what was found. What has no place in `found`, or is UNKNOWN there, is not checked.

    tolerance: by how much the number at a path may differ.
    """
    result = Compared()
    _compare(stated, found, "", result, tolerance)
    return result


def _compare(stated: Any, found: Any, path: str, result: Compared, tolerance: Callable[[str], float]) -> None:
    if found is UNKNOWN or (stated == {} and isinstance(found, Mapping) and found):
        result.unchecked.update(list_leaves(stated, path))
    elif isinstance(stated, Mapping) and isinstance(found, Mapping) and stated:
        for (inner, child), key in zip(_children(stated, path), stated, strict=True):
            _compare(child, found.get(key, UNKNOWN), inner, result, tolerance)
    elif isinstance(stated, (list, tuple)) and isinstance(found, (list, tuple)) and len(stated) == len(found) > 0:
        for (inner, child), other in zip(_children(stated, path), found, strict=True):
            _compare(child, other, inner, result, tolerance)
    elif (
        isinstance(stated, bool) == isinstance(found, bool) and abs(stated - found) <= tolerance(path)
        if isinstance(stated, (int, float)) and isinstance(found, (int, float))
        else stated == found or (stated in ([], ()) and found in ([], ()))
    ):
        result.same.update(list_leaves(stated, path))
    else:
        result.different[path] = (stated, found)


def _children(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f"{path}.{name}" if path else str(name), child) for name, child in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((f"{path}[{number}]", child) for number, child in enumerate(value))
