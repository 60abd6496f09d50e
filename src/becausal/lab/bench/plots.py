"""Plots of the rows of a bench; `figures` draws them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from becausal.lab.bench.rows import Row, by_method, finite_values, group_rows
from becausal.lab.bench.statistics import Estimate, cumulative_share
from becausal.lab.bench.tables import Measure


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


def cumulative_plot(
    name: str, title: str, x: str, rows: Sequence[Row], key: str, *, first: float = 0.0, last: float = 1.0
) -> Plot:
    """For each method the share of images with a value of at most x."""
    bounds = np.linspace(first, last, 201)
    lines = []
    for method, group in by_method(rows):
        shares = cumulative_share(finite_values(group, key), bounds)
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
        estimates = [measure.estimate(part) for _, part in present]
        lines.append(line_of_estimates(method, [i for i, _ in present], estimates))
    return Plot(name, title, x, y, tuple(lines), "points", "y", values)


def line_of_estimates(label: str, x: Sequence[float], found: Sequence[Estimate]) -> Line:
    """Estimates along x as a line with an interval band."""
    return Line(
        label,
        tuple(float(v) for v in x),
        tuple(e.mean for e in found),
        tuple(e.low for e in found),
        tuple(e.high for e in found),
    )
