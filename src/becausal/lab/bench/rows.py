"""Rows of a bench: what every table, plot and comparison is made from."""

from collections.abc import Callable, Iterable, Sequence
from math import isfinite
from typing import Any

#: What was measured on an image with a method, by the names of the columns; keys that begin with "_" are not in the table.
Row = dict[str, Any]


def finite_values(rows: Iterable[Row], key: str) -> list[float]:
    """The finite numbers under a key."""
    found = (row.get(key) for row in rows)
    return [float(value) for value in found if value is not None and value != "" and isfinite(float(value))]


def successful(rows: Iterable[Row]) -> list[Row]:
    """The rows without an error."""
    return [row for row in rows if not row.get("error")]


def group_rows(rows: Sequence[Row], *keys: str) -> dict[tuple[Any, ...], list[Row]]:
    """The rows grouped by the values of some keys, in the order of their first rows."""
    out: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        out.setdefault(tuple(row.get(key) for key in keys), []).append(row)
    return out


def by_method(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Each method and its rows."""
    return [(str(method), group) for (method,), group in group_rows(rows, "method").items()]


def rounded(row: Row) -> Row:
    """The row with floats rounded to six digits, and None for NaN."""
    return {key: round_number(value) if isinstance(value, float) else value for key, value in row.items()}


def round_number(value: float) -> float | None:
    return None if value != value else round(float(value), 6)


def compare_rows(
    rows: Sequence[Row], references: Iterable[Row], compare: Callable[[Row, Row], Row], *, with_itself: bool = False
) -> list[Row]:
    """All rows, with what `compare` adds where the image was explained and has a reference of the same method."""
    found = {(row["name"], row["method"]): row for row in references}
    out = []
    for row in rows:
        reference = found.get((row["name"], row["method"]))
        if row.get("error") or reference is None or (row is reference and not with_itself):
            out.append(row)
        else:
            out.append(row | rounded(compare(row, reference)))
    return out
