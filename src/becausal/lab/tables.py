"""What rows add up to: estimates with intervals, paired comparisons, tables and plots of them; deterministic."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from becausal.core.intervals import wilson_interval
from becausal.lab.rows import Row, by_method, finite_values, group_rows

RESAMPLES = 2000  # of each bootstrap; Efron and Tibshirani (1993) advise 1,000 or more for percentiles
FLIPS = 10_000  # random signs of each test; the smallest p value is 1 in so many
LEVEL = 0.95  # of the intervals
CONTROLS = {"random", "centre"}  # methods that ignore the model
SEED = 0  # the same for all estimates, so that the same rows give the same tables

Floats = NDArray[np.float64]
Kind = Literal["text", "share", "points", "number", "count", "p"]
Best = Literal["low", "high"] | None


@dataclass(frozen=True)
class Estimate:
    """The mean of n values, or a share, with a 95 % interval; NaN without values."""

    mean: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Difference:
    """One method minus another on the images that both explained."""

    difference: Estimate  # the mean difference
    lower: int  # number of images on which the first method is lower
    higher: int  # number of images on which it is higher
    equal: int  # number of images on which both are equal
    p: float  # probability of a mean difference at least as large if the sign of each difference were random


Cell = str | int | float | Estimate | None
NONE = Estimate(float("nan"), float("nan"), float("nan"), 0)


@dataclass(frozen=True)
class Column:
    """A column of a table: its heading, how its cells are formatted, which values are better, and its definition."""

    name: str
    kind: Kind = "text"
    best: Best = None
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
class Measure:
    """A column with the mean of a value of the rows (`key`) or, for a flag, the share of rows in which it is true."""

    key: str
    name: str
    kind: Kind
    best: Best = None
    meaning: str = ""
    is_flag: bool = False

    @property
    def column(self) -> Column:
        return Column(self.name, self.kind, self.best, self.meaning)

    @property
    def unranked(self) -> "Measure":
        """The same where no value is better than another."""
        return replace(self, best=None)

    def estimate(self, rows: Sequence[Row]) -> Estimate:
        """The estimate over rows; rows without the value are skipped."""
        values = finite_values(rows, self.key)
        return estimate_share(values) if self.is_flag else estimate(values)


SIZE = Measure("size", "size", "share", "low", "share of the pixels of the view in the explanation")
CALLS = Measure("calls", "calls", "count", None, "model calls per image, including extraction")


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of values and its percentile bootstrap interval."""
    data = _clean(values)
    if not len(data):
        return NONE
    return Estimate(float(data.mean()), *_interval(data[_resampled(len(data))].mean(axis=1)), len(data))


def estimate_share(flags: Sequence[float]) -> Estimate:
    """The share of flags (0 or 1) that are 1, and its interval.

    The interval is a bootstrap interval or, where all flags are equal and resampling gives no interval, Wilson's.
    """
    data = _clean(flags)
    if len(data) and data.min() == data.max() and data[0] in (0.0, 1.0):
        return Estimate(float(data.mean()), *wilson_interval(int(data.sum()), len(data), LEVEL), len(data))
    return estimate(flags)


def compare_paired(one: Mapping[str, float], other: Mapping[str, float]) -> Difference:
    """`one` minus `other`, value by value, over their common names."""
    names = sorted(one.keys() & other.keys())
    gaps = _clean([one[name] - other[name] for name in names])
    lower, higher = int((gaps < 0).sum()), int((gaps > 0).sum())
    p = float("nan")
    if len(gaps):
        flipped = np.abs((_signs(len(gaps)) * gaps).mean(axis=1))
        p = float((1 + (flipped >= abs(gaps.mean()) - 1e-12).sum()) / (FLIPS + 1))
    return Difference(estimate(list(gaps)), lower, higher, len(gaps) - lower - higher, p)


def difference_of_means(one: Sequence[float], other: Sequence[float]) -> Estimate:
    """The mean of one group minus that of another, with a bootstrap interval; n is the size of the smaller group."""
    a, b = _clean(one), _clean(other)
    if not len(a) or not len(b):
        return NONE
    low, high = _interval(a[_resampled(len(a), 0)].mean(axis=1) - b[_resampled(len(b), 1)].mean(axis=1))
    return Estimate(float(a.mean() - b.mean()), low, high, min(len(a), len(b)))


def holm_adjust(ps: Sequence[float]) -> list[float]:
    """p values of several comparisons with Holm's correction, in the order given."""
    out = [float("nan")] * len(ps)
    known = sorted((p, i) for i, p in enumerate(ps) if p == p)
    largest = 0.0
    for rank, (p, i) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - rank) * p))
        out[i] = largest
    return out


def _clean(values: Sequence[float]) -> Floats:
    data = np.asarray(values, np.float64)
    return data[np.isfinite(data)]


@lru_cache(maxsize=4)
def _resampled(count: int, stream: int | None = None) -> NDArray[np.intp]:
    """The places of each resample of `count` values, (resamples, count): the same for all estimates of so many."""
    rng = np.random.default_rng(SEED)
    return (rng if stream is None else rng.spawn(2)[stream]).integers(0, count, (RESAMPLES, count))


@lru_cache(maxsize=4)
def _signs(count: int) -> NDArray[np.int8]:
    """Random signs, (flips, count)."""
    return np.random.default_rng(SEED).integers(0, 2, (FLIPS, count), dtype=np.int8) * 2 - 1


def _interval(means: Floats) -> tuple[float, float]:
    """The percentile interval of bootstrap means, (resamples,)."""
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def measure_table(
    name: str,
    title: str,
    rows: Sequence[Row],
    measures: Sequence[Measure],
    *,
    by: Mapping[str, str] | None = None,
    note: str = "",
    order: Callable[[tuple[Any, ...]], Any] | None = None,
) -> Table:
    """A table with a line for each group: the number of rows and the estimate of each measure.

    `by` has the keys that make groups, with the headings of their columns; by default the method.
    """
    by = by or {"method": "method"}
    found = group_rows(rows, *by)
    keys = sorted(found, key=order) if order is not None else list(found)
    lines = []
    for key in keys:
        heads = (k if isinstance(k, (str, int, float)) else str(k) for k in key)
        lines.append((*heads, len(found[key]), *(m.estimate(found[key]) for m in measures)))
    columns = (*(Column(name) for name in by.values()), Column("n", "count", None, "images"), *(m.column for m in measures))
    return Table(name, title, columns, tuple(lines), note)


def mean_by_name(rows: Sequence[Row], key: str) -> dict[str, float]:
    """The value of each image that has one, averaged over its rows."""
    found = {str(name): finite_values(part, key) for (name,), part in group_rows(rows, "name").items()}
    return {name: sum(values) / len(values) for name, values in found.items() if values}


def paired_table(rows: Sequence[Row], measure: Measure) -> Table | None:
    """Every method compared with the first on the images that both explained; None for one method."""
    found = {method: mean_by_name(group, measure.key) for method, group in by_method(rows)}
    if len(found) < 2:
        return None
    first, *others = found
    compared = [compare_paired(found[first], found[method]) for method in others]
    lines = [
        (method, c.difference.n, c.difference, c.lower, c.higher, c.equal, p)
        for method, c, p in zip(others, compared, holm_adjust([c.p for c in compared]), strict=True)
    ]
    is_share = measure.kind == "share"
    columns = (
        Column("compared with"),
        Column("pairs", "count", None, "images explained by both methods"),
        Column(
            f"difference{', points' if is_share else ''}", "points" if is_share else "number", None,
            f"mean of {first} minus the other method",
        ),
        Column("lower", "count", None, f"images on which {first} is lower"),
        Column("higher", "count", None, f"images on which {first} is higher"),
        Column("equal", "count"),
        Column("p", "p", None, "sign-flip test of the mean difference, Holm-corrected within this table"),
    )  # fmt: skip
    name = measure.name
    title = f"{name[0].upper()}{name[1:]}: {first} compared with each other method, paired by image"
    return Table(f"paired-{measure.key}", title, columns, tuple(lines))


def format_cell(cell: Cell, column: Column, *, interval: bool = True) -> str:
    """A cell as text, with the interval of an estimate in brackets."""
    if cell is None:
        return "–"
    if isinstance(cell, Estimate):
        if not cell.n or math.isnan(cell.mean):
            return "–"
        mean = _format_number(cell.mean, column)
        if not interval or column.kind == "count" or cell.n < 2:
            return mean
        low, high = (_format_number(bound, column).removesuffix(" %") for bound in (cell.low, cell.high))
        return f"{mean} ({low} to {high})"
    return cell if isinstance(cell, str) else _format_number(cell, column)


def _format_number(value: float, column: Column) -> str:
    match column.kind:
        case "share":
            return f"{100 * value:.{2 if 0 < abs(100 * value) < 1 else 1}f} %"
        case "points":
            return f"{100 * value:+.1f}"
        case "number":
            return f"{round(value, 3) + 0.0:.3f}"  # never -0.000
        case "count":
            return f"{value:,.0f}"
        case "p":
            return "<0.001" if value < 0.001 else f"{value:.3f}"
    return str(value)


def best_rows(table: Table, column: int) -> set[int]:
    """The rows with the best estimate in a column; controls are not considered."""
    wanted = table.columns[column].best
    if wanted is None or sum(c.kind == "text" for c in table.columns) > 1:
        return set()
    cells = {i: row[column] for i, row in enumerate(table.rows) if not {str(part) for part in row[:2]} & CONTROLS}
    values = {i: round(cell.mean, 6) for i, cell in cells.items() if isinstance(cell, Estimate) and cell.n}
    if len(values) < 2:
        return set()
    best = min(values.values()) if wanted == "low" else max(values.values())
    return {i for i, value in values.items() if value == best}


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
    """Lines over common axes, whose labels are `x` and `y`; `page` draws them."""

    name: str
    title: str
    x: str
    y: str
    lines: tuple[Line, ...]
    kind: Literal["line", "step", "points"] = "line"  # points have error bars
    shares: str = "xy"  # the axes ("x", "y" or both) whose values are shares, drawn in per cent
    ticks: tuple[str, ...] = ()  # names along x, where x is an index


def cumulative_plot(
    name: str, title: str, x: str, rows: Sequence[Row], key: str, *, first: float = 0.0, last: float = 1.0
) -> Plot:
    """For each method the share of images with a value of at most x."""
    bounds = np.linspace(first, last, 201)
    lines = []
    for method, group in by_method(rows):
        data = np.sort(finite_values(group, key))
        # A value that equals a bound counts, however it was rounded.
        shares = np.searchsorted(data, bounds + 1e-12, side="right") / max(1, len(data))
        lines.append(Line(method, tuple(bounds.tolist()), tuple(shares.tolist())))
    return Plot(name, title, x, "share of images", tuple(lines), "step", "xy" if last <= 1.0 else "y")


def size_plot(rows: Sequence[Row]) -> Plot:
    """For each method the share of images with an explanation of at most that size."""
    return cumulative_plot("size", "Size of the explanations", "share of the view, at most", rows, "size")


def points_plot(
    name: str, title: str, x: str, y: str, rows: Sequence[Row], measure: Measure, key: str, values: tuple[str, ...]
) -> Plot:
    """For each method the estimate at each of the values of a key, as points with error bars."""
    lines = []
    for method, group in by_method(rows):
        parts = group_rows(group, key)
        present = [(i, parts[(value,)]) for i, value in enumerate(values) if (value,) in parts]
        lines.append(line_of_estimates(method, [i for i, _ in present], [measure.estimate(part) for _, part in present]))
    return Plot(name, title, x, y, tuple(lines), "points", "y", values)


def line_of_estimates(label: str, x: Sequence[float], found: Sequence[Estimate]) -> Line:
    """Estimates along x as a line with an interval band."""
    mean, low, high = (tuple(getattr(e, bound) for e in found) for bound in ("mean", "low", "high"))
    return Line(label, tuple(float(v) for v in x), mean, low, high)
