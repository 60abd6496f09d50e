"""Influence of the fill: the same images with eleven fills."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from becausal.api.explanation import Explanation
from becausal.api.transferring import measure_transfer
from becausal.core.contracts import Classifier
from becausal.core.metrics import HELD_OUT_COUNT, iou
from becausal.lab.bench.base import Bench, measure_occluder
from becausal.lab.bench.packing import unpack_set
from becausal.lab.bench.plan import Arm, BenchSettings, Subject, make_request
from becausal.lab.bench.plots import Plot, points_plot
from becausal.lab.bench.rows import Row, by_method, compare_rows, finite_values, group_rows, successful
from becausal.lab.bench.statistics import estimate
from becausal.lab.bench.tables import CALLS, SIZE, Column, Measure, Table, measure_table

GREYS = ("black", "#202020", "#404040", "#606060", "grey", "#a0a0a0", "#c0c0c0", "white")
FILLS = (*GREYS, "mean", "blur", "noise")

OVERLAP = Measure("overlap", "on occluder", "share", None, "share of the explanation on the occluder")
CLEAR = Measure("clear", "clear", "share", None, "explanations without any pixel of the occluder", is_flag=True)
BACKGROUNDS = Measure(
    "backgrounds", "backgrounds", "share", None, f"share of {HELD_OUT_COUNT} random backgrounds on which it keeps the label"
)
LIKE_GREY = Measure("like_grey", "IoU with grey", "share", None, "IoU with the explanation for the fill grey")


def make_arms(settings: BenchSettings) -> list[Arm]:
    """Every method with every fill."""
    return [Arm(m, make_request(settings, m, fills=(fill,)), {"fill": fill}) for m in settings.methods for fill in FILLS]


def measure(subject: Subject, explanation: Explanation, classifier: Classifier) -> Row:
    """The share of held-out backgrounds that keep the label; overlap of the explanation and the occluder, if it is known."""
    return {"backgrounds": measure_transfer(explanation, classifier).share} | measure_occluder(subject, explanation)


def compare_with_grey(rows: list[Row]) -> list[Row]:
    """Compare each explanation with that of the same image for the fill grey."""

    def compare(row: Row, grey: Row) -> Row:
        return {"like_grey": iou(unpack_set(row["_shown"]), unpack_set(grey["_shown"]))}

    return compare_rows(rows, (row for row in successful(rows) if row["fill"] == "grey"), compare)


def make_tables(rows: Sequence[Row]) -> list[Table]:
    """Means for each fill, and their range: between fills, and for a single image."""
    has_occluder = _has(rows, OVERLAP)
    more = (*((OVERLAP, CLEAR) if has_occluder else ()), *((BACKGROUNDS,) if _has(rows, BACKGROUNDS) else ()))
    note = "An image is missing for a fill if the fully masked image already has the label."
    by, measures = {"method": "method", "fill": "fill"}, (SIZE, *more, LIKE_GREY, CALLS)
    spread = _range_table(rows, (SIZE, OVERLAP) if has_occluder else (SIZE,))
    return [spread, measure_table("fills", "By fill", rows, measures, by=by, note=note)]


def make_plots(rows: Sequence[Row]) -> list[Plot]:
    """Means for each fill; what the paper asks comes first."""

    def plot(measure: Measure, name: str, title: str, y: str) -> Plot:
        return points_plot(name, title, "fill", y, rows, measure, "fill", FILLS)

    overlap = [plot(OVERLAP, "overlap", "Explanation on the occluder by fill", "share of the explanation")]
    size = [plot(SIZE, "size", "Size of the explanation by fill", "share of the view")]
    return overlap + size if _has(rows, OVERLAP) else size


def _has(rows: Sequence[Row], measure: Measure) -> bool:
    """Whether it was measured: occluders may be unknown, and older files have no backgrounds."""
    return any(row.get(measure.key) is not None for row in rows)


def _range_table(rows: Sequence[Row], measures: Sequence[Measure]) -> Table:
    lines: list[tuple[Any, ...]] = []
    for method, group in by_method(rows):
        whole = _explained_with_all(group)
        for m in measures:
            by_fill, by_name = (
                [values for part in group_rows(whole, key).values() if (values := finite_values(part, m.key))]
                for key in ("fill", "name")
            )
            between = float(np.ptp([np.mean(values) for values in by_fill])) if by_fill else None
            ranges = estimate([float(np.ptp(values)) for values in by_name])
            lines.append((method, m.name, len(group_rows(whole, "name")), between, ranges))
    columns = (
        Column("method"),
        Column("measure"),
        Column("n", "count", None, "images explained with all fills"),
        Column("range of means", "share", None, "largest minus smallest mean over the fills, in points"),
        Column("range per image", "share", None, "largest minus smallest value of an image, averaged, in points"),
    )
    return Table("spread", "Differences between fills", columns, tuple(lines))


def _explained_with_all(rows: Sequence[Row]) -> list[Row]:
    """The rows of images that were explained with all fills."""
    fills = {row["fill"] for row in rows}
    by_name = group_rows(rows, "name")
    return [row for part in by_name.values() if {r["fill"] for r in part} == fills for row in part]


BENCH = Bench(
    name="fills",
    question="Does the fill of masked pixels matter?",
    paper="The mean overlap with the occluder changes by less than 4 points between masking colours from black to white.",
    methods="causal,dc-causal",
    limit=50,
    arms=make_arms,
    measure=measure,
    postprocess=compare_with_grey,
    tables=make_tables,
    plots=make_plots,
    outline="occluder",
    sets=("fills",),
)
