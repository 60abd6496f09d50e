"""What a bench has found: tables of estimates, plots, and how they are put together from rows."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import Any, Literal

import numpy as np

from becausal.bench.statistics import (
    Estimate,
    adjust,
    compare_paired,
    estimate,
    estimate_share,
    share_within,
)

Row = dict[str, Any]
Cell = str | int | float | Estimate | None
Kind = Literal["text", "share", "points", "number", "count", "p"]


@dataclass(frozen=True)
class Column:
    """A column of a table: how its cells read (share: in per cent; points: a difference of shares), and which is best."""

    name: str
    kind: Kind = "text"
    best: Literal["low", "high"] | None = None
    meaning: str = ""


@dataclass(frozen=True)
class Table:
    """A table with its title; `note` says what a reader must know of it."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""


@dataclass(frozen=True)
class Line:
    """A line of a plot; low and high, where there are any, bound a band around it."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@dataclass(frozen=True)
class Plot:
    """Lines over common axes; `shares` tells of which axes ("x", "y") the numbers are shares, drawn in per cent.

    ticks: names along x where x counts them. kind: a line, steps, or points with bars.
    """

    name: str
    title: str
    x: str
    y: str
    lines: tuple[Line, ...]
    kind: Literal["line", "step", "points"] = "line"
    shares: str = "xy"
    ticks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Findings:
    """All of it."""

    tables: tuple[Table, ...]
    plots: tuple[Plot, ...] = ()

    def record(self) -> dict[str, Any]:
        """Tables and plots as JSON can hold them: an estimate as mean, low, high and n."""
        found: dict[str, Any] = _tidy({"tables": [asdict(t) for t in self.tables], "plots": [asdict(p) for p in self.plots]})
        return found


@dataclass(frozen=True)
class Measure:
    """A column made of a key of the rows: its mean, or the share of rows where it is true."""

    key: str
    column: Column
    is_flag: bool = False

    def of(self, rows: Sequence[Row]) -> Estimate:
        """The estimate over rows; those without the key are left aside."""
        values = numbers(rows, self.key)
        return estimate_share(values) if self.is_flag else estimate(values)


SIZE = Measure("size", Column("size", "share", "low", "share of the view's pixels in the explanation"))
CALLS = Measure("calls", Column("calls", "count", None, "model calls per image, extraction included"))


@dataclass(frozen=True)
class Grouping:
    """How rows fall into the lines of a table: the keys, and what the first columns are called."""

    keys: tuple[str, ...] = ("method",)
    names: tuple[str, ...] = field(default=())

    @property
    def columns(self) -> tuple[Column, ...]:
        return tuple(Column(name) for name in (self.names or self.keys))


def numbers(rows: Iterable[Row], key: str) -> list[float]:
    """The finite values of a key."""
    found = (row.get(key) for row in rows)
    return [float(value) for value in found if value is not None and value != "" and isfinite(float(value))]


def answered(rows: Iterable[Row]) -> list[Row]:
    """The rows of explanations that were found."""
    return [row for row in rows if not row.get("error")]


def groups(rows: Sequence[Row], *keys: str) -> dict[tuple[Any, ...], list[Row]]:
    """The rows by the values of some keys, in the order they come in."""
    out: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        out.setdefault(tuple(row.get(key) for key in keys), []).append(row)
    return out


def measure_table(
    name: str,
    title: str,
    rows: Sequence[Row],
    measures: Sequence[Measure],
    *,
    by: Grouping | None = None,
    note: str = "",
    order: Callable[[tuple[Any, ...]], Any] | None = None,
) -> Table:
    """A line per group with the estimate of each measure, and how many images are behind it."""
    by = by or Grouping()
    found = groups(rows, *by.keys)
    keys = sorted(found, key=order) if order is not None else list(found)
    lines = [(*(_plain(k) for k in key), len(found[key]), *(m.of(found[key]) for m in measures)) for key in keys]
    columns = (*by.columns, Column("n", "count", None, "pictures"), *(m.column for m in measures))
    return Table(name, title, columns, tuple(lines), note)


def paired_table(rows: Sequence[Row], measure: Measure, *, reference: str | None = None) -> Table | None:
    """Every method against the reference (the first), on the images both explained; None with one method only."""
    found = {str(key[0]): _by_name(group, measure.key) for key, group in groups(rows, "method").items()}
    if len(found) < 2:
        return None
    first = reference if reference in found else next(iter(found))
    others = [method for method in found if method != first]
    compared = [compare_paired(found[first], found[method]) for method in others]
    ps = adjust([c.p for c in compared])
    lines = [
        (method, c.difference.n, c.difference, c.lower, c.higher, c.equal, p)
        for method, c, p in zip(others, compared, ps, strict=True)
    ]
    kind: Kind = "points" if measure.column.kind == "share" else "number"
    columns = (
        Column("against"),
        Column("pairs", "count", None, "images both explained"),
        Column("difference, points" if kind == "points" else "difference", kind, None, f"{first} less the other, mean"),
        Column("lower", "count", None, f"images on which {first} is lower"),
        Column("higher", "count", None, f"images on which {first} is higher"),
        Column("equal", "count"),
        Column("p", "p", None, "sign-flip test on the mean difference, Holm-corrected within this table"),
    )
    named = measure.column.name
    title = f"{named[0].upper()}{named[1:]}: {first} against each other method, image by image"
    return Table(f"paired-{measure.key}", title, columns, tuple(lines))


def within_plot(
    name: str, title: str, x: str, rows: Sequence[Row], key: str, *, first: float = 0.0, last: float = 1.0
) -> Plot:
    """For each method the share of images whose value is at most x."""
    bounds = np.linspace(first, last, 201)
    lines = []
    for (method,), group in groups(rows, "method").items():
        shares = share_within(numbers(group, key), bounds)
        lines.append(Line(str(method), tuple(bounds.tolist()), tuple(shares.tolist())))
    return Plot(name, title, x, "share of images", tuple(lines), "step", "xy" if last <= 1.0 else "y")


def points_line(label: str, x: Sequence[float], found: Sequence[Estimate]) -> Line:
    """Estimates along x as a line with a band."""
    return Line(
        label,
        tuple(float(v) for v in x),
        tuple(e.mean for e in found),
        tuple(e.low for e in found),
        tuple(e.high for e in found),
    )


def _by_name(rows: Sequence[Row], key: str) -> dict[str, float]:
    out: dict[str, list[float]] = {}
    for row in rows:
        for value in numbers([row], key):
            out.setdefault(str(row["name"]), []).append(value)
    return {name: sum(values) / len(values) for name, values in out.items()}


def _plain(value: Any) -> Cell:
    return value if isinstance(value, (int, float, str)) else str(value)


def _tidy(value: Any) -> Any:
    """The value with None for every number JSON has no word for."""
    if isinstance(value, dict):
        return {key: _tidy(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_tidy(each) for each in value]
    return None if isinstance(value, float) and not isfinite(value) else value
