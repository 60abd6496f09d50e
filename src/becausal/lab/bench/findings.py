"""Tables of estimates and plots, and how they are made from the rows of a bench."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import Any, Literal

import numpy as np

from becausal.lab.bench.statistics import (
    Estimate,
    compare_paired,
    cumulative_share,
    estimate,
    estimate_share,
    holm_adjust,
)

Row = dict[str, Any]
Cell = str | int | float | Estimate | None
Kind = Literal["text", "share", "points", "number", "count", "p"]


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: Its heading.
        kind: How its cells are formatted: a share in per cent, points for a difference of shares, and so on.
        best: Whether low or high values are better, None where neither is.
        meaning: Its definition.
    """

    name: str
    kind: Kind = "text"
    best: Literal["low", "high"] | None = None
    meaning: str = ""


@dataclass(frozen=True)
class Table:
    """A table with a title and a note."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""


@dataclass(frozen=True)
class Line:
    """A line of a plot; `low` and `high` are the bounds of a band around it, if there is one."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@dataclass(frozen=True)
class Plot:
    """Lines over common axes.

    Attributes:
        name: Name of its files.
        title: Its title.
        x: Label of the x axis.
        y: Label of the y axis.
        lines: The lines.
        kind: Lines, steps, or points with error bars.
        shares: The axes ("x", "y" or both) whose values are shares, drawn in per cent.
        ticks: Names along x, where x is an index.
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
    """The tables and plots of a run."""

    tables: tuple[Table, ...]
    plots: tuple[Plot, ...] = ()

    def record(self) -> dict[str, Any]:
        """Tables and plots in a form that JSON can hold; an estimate is written as mean, low, high and n."""
        found: dict[str, Any] = _json_numbers(
            {"tables": [asdict(t) for t in self.tables], "plots": [asdict(p) for p in self.plots]}
        )
        return found


@dataclass(frozen=True)
class Measure:
    """A column with the mean of a value of the rows or, for a flag, the share of rows in which it is true."""

    key: str
    column: Column
    is_flag: bool = False

    def estimate(self, rows: Sequence[Row]) -> Estimate:
        """The estimate over rows; rows without the value are skipped."""
        values = finite_values(rows, self.key)
        return estimate_share(values) if self.is_flag else estimate(values)


SIZE = Measure("size", Column("size", "share", "low", "share of the pixels of the view in the explanation"))
CALLS = Measure("calls", Column("calls", "count", None, "model calls per image, including extraction"))


@dataclass(frozen=True)
class Grouping:
    """How rows are grouped into the lines of a table: the keys, and the headings of their columns."""

    keys: tuple[str, ...] = ("method",)
    names: tuple[str, ...] = field(default=())

    @property
    def columns(self) -> tuple[Column, ...]:
        return tuple(Column(name) for name in (self.names or self.keys))


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
    """A table with a line for each group: the number of rows and the estimate of each measure."""
    by = by or Grouping()
    found = group_rows(rows, *by.keys)
    keys = sorted(found, key=order) if order is not None else list(found)
    lines = [(*(_plain(k) for k in key), len(found[key]), *(m.estimate(found[key]) for m in measures)) for key in keys]
    columns = (*by.columns, Column("n", "count", None, "images"), *(m.column for m in measures))
    return Table(name, title, columns, tuple(lines), note)


def paired_table(rows: Sequence[Row], measure: Measure, *, reference: str | None = None) -> Table | None:
    """Every method compared with the reference (the first) on the images that both explained; None for one method."""
    found = {str(key[0]): _by_name(group, measure.key) for key, group in group_rows(rows, "method").items()}
    if len(found) < 2:
        return None
    first = reference if reference in found else next(iter(found))
    others = [method for method in found if method != first]
    compared = [compare_paired(found[first], found[method]) for method in others]
    ps = holm_adjust([c.p for c in compared])
    lines = [
        (method, c.difference.n, c.difference, c.lower, c.higher, c.equal, p)
        for method, c, p in zip(others, compared, ps, strict=True)
    ]
    kind: Kind = "points" if measure.column.kind == "share" else "number"
    columns = (
        Column("compared with"),
        Column("pairs", "count", None, "images explained by both methods"),
        Column(
            "difference, points" if kind == "points" else "difference", kind, None, f"mean of {first} minus the other method"
        ),
        Column("lower", "count", None, f"images on which {first} is lower"),
        Column("higher", "count", None, f"images on which {first} is higher"),
        Column("equal", "count"),
        Column("p", "p", None, "sign-flip test of the mean difference, Holm-corrected within this table"),
    )
    name = measure.column.name
    title = f"{name[0].upper()}{name[1:]}: {first} compared with each other method, paired by image"
    return Table(f"paired-{measure.key}", title, columns, tuple(lines))


def cumulative_plot(
    name: str, title: str, x: str, rows: Sequence[Row], key: str, *, first: float = 0.0, last: float = 1.0
) -> Plot:
    """For each method the share of images with a value of at most x."""
    bounds = np.linspace(first, last, 201)
    lines = []
    for (method,), group in group_rows(rows, "method").items():
        shares = cumulative_share(finite_values(group, key), bounds)
        lines.append(Line(str(method), tuple(bounds.tolist()), tuple(shares.tolist())))
    return Plot(name, title, x, "share of images", tuple(lines), "step", "xy" if last <= 1.0 else "y")


def line_of_estimates(label: str, x: Sequence[float], found: Sequence[Estimate]) -> Line:
    """Estimates along x as a line with an interval band."""
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
        for value in finite_values([row], key):
            out.setdefault(str(row["name"]), []).append(value)
    return {name: sum(values) / len(values) for name, values in out.items()}


def _plain(value: Any) -> Cell:
    return value if isinstance(value, (int, float, str)) else str(value)


def _json_numbers(value: Any) -> Any:
    """The value with None in place of NaN and infinity, which JSON cannot represent."""
    if isinstance(value, dict):
        return {key: _json_numbers(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_numbers(each) for each in value]
    return None if isinstance(value, float) and not isfinite(value) else value
