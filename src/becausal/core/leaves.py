"""JSON records, compared leaf by leaf. A leaf is named by its path, e.g. levels[1].share."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

UNKNOWN: Final = object()  # in the place of a value that could not be found


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
    elif _is_same(stated, found, tolerance(path)):
        result.same.update(list_leaves(stated, path))
    else:
        result.different[path] = (stated, found)


def _is_same(stated: Any, found: Any, tolerance: float) -> bool:
    if isinstance(stated, (int, float)) and isinstance(found, (int, float)):
        return isinstance(stated, bool) == isinstance(found, bool) and abs(stated - found) <= tolerance
    return bool(stated == found) or (not stated and not found and _is_list(stated) and _is_list(found))


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _children(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f"{path}.{name}" if path else str(name), child) for name, child in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((f"{path}[{number}]", child) for number, child in enumerate(value))
