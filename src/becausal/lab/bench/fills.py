"""Influence of the fill: the same images with eleven fills."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from becausal.api.explanation import Explanation
from becausal.api.transferring import measure_transfer
from becausal.core.contracts import Classifier
from becausal.core.metrics import HELD_OUT_COUNT, iou, overlap
from becausal.lab.bench.findings import (
    CALLS,
    SIZE,
    Column,
    Findings,
    Grouping,
    Measure,
    Plot,
    Row,
    Table,
    finite_values,
    group_rows,
    line_of_estimates,
    measure_table,
    successful,
)
from becausal.lab.bench.packing import unpack_set
from becausal.lab.bench.plan import Arm, Bench, BenchSettings, Subject, make_request
from becausal.lab.bench.selection import select_images
from becausal.lab.bench.statistics import estimate

GREYS = ("black", "#202020", "#404040", "#606060", "grey", "#a0a0a0", "#c0c0c0", "white")
FILLS = (*GREYS, "mean", "blur", "noise")

OVERLAP = Measure("overlap", Column("on occluder", "share", None, "share of the explanation on the occluder"))
CLEAR = Measure("clear", Column("clear", "share", None, "explanations without any pixel of the occluder"), True)
BACKGROUNDS = Measure(
    "backgrounds",
    Column("backgrounds", "share", None, f"share of {HELD_OUT_COUNT} random backgrounds on which it keeps the label"),
)
LIKE_GREY = Measure("like_grey", Column("IoU with grey", "share", None, "IoU with the explanation for the fill grey"))


def make_arms(settings: BenchSettings) -> list[Arm]:
    """Every method with every fill."""
    return [Arm(m, make_request(settings, m, fills=(fill,)), {"fill": fill}) for m in settings.methods for fill in FILLS]


def measure(subject: Subject, explanation: Explanation, classifier: Classifier) -> Row:
    """The share of held-out backgrounds that keep the label; overlap of the explanation and the occluder, if it is known."""
    found: Row = {"backgrounds": measure_transfer(explanation, classifier).share}
    occluder, visible = subject.masks.get("occluder"), explanation.visible
    if occluder is None or not occluder.any():
        return found
    return found | {"overlap": overlap(visible, occluder), "clear": int(not (visible & occluder).any())}


def compare_rows(rows: list[Row]) -> list[Row]:
    """Compare each explanation with that of the same image for the fill grey."""
    greys = {(r["name"], r["method"]): r for r in successful(rows) if r["fill"] == "grey"}
    out = []
    for row in rows:
        grey = greys.get((row["name"], row["method"]))
        if row.get("error") or grey is None or row["fill"] == "grey":
            out.append(row)
        else:
            out.append(row | {"like_grey": round(iou(unpack_set(row["_shown"]), unpack_set(grey["_shown"])), 6)})
    return out


def summarise(rows: Sequence[Row]) -> Findings:
    """Means for each fill, and their range: between fills, and for a single image."""
    found = successful(rows)
    has_occluder = any(row.get("overlap") is not None for row in found)
    has_transfer = any(row.get("backgrounds") is not None for row in found)  # not in older files
    more = (*((OVERLAP, CLEAR) if has_occluder else ()), *((BACKGROUNDS,) if has_transfer else ()))
    measures = (SIZE, *more, LIKE_GREY, CALLS)
    by_fill = measure_table(
        "fills", "By fill", found, measures, by=Grouping(("method", "fill")),
        note="An image is missing for a fill if the fully masked image already has the label.",
    )  # fmt: skip
    tables = [_range_table(found, (SIZE, OVERLAP) if has_occluder else (SIZE,)), by_fill]
    plots = [_plot(found, SIZE, "size", "Size of the explanation by fill", "share of the view")]
    if has_occluder:  # what the paper asks comes first
        plots.insert(0, _plot(found, OVERLAP, "overlap", "Explanation on the occluder by fill", "share of the explanation"))
    return Findings(tuple(tables), tuple(plots))


def _range_table(rows: Sequence[Row], measures: Sequence[Measure]) -> Table:
    lines: list[tuple[Any, ...]] = []
    for (method,), group in group_rows(rows, "method").items():
        whole = _explained_with_all(group)
        for m in measures:
            by_fill, by_name = (
                [values for part in group_rows(whole, key).values() if (values := finite_values(part, m.key))]
                for key in ("fill", "name")
            )
            between = float(np.ptp([np.mean(values) for values in by_fill])) if by_fill else None
            ranges = estimate([float(np.ptp(values)) for values in by_name])
            lines.append((method, m.column.name, len(group_rows(whole, "name")), between, ranges))
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


def _plot(rows: Sequence[Row], measure: Measure, name: str, title: str, y: str) -> Plot:
    lines = []
    for (method,), group in group_rows(rows, "method").items():
        by_fill = group_rows(group, "fill")
        present = [(i, by_fill[(fill,)]) for i, fill in enumerate(FILLS) if (fill,) in by_fill]
        estimates = [measure.estimate(part) for _, part in present]
        lines.append(line_of_estimates(str(method), [i for i, _ in present], estimates))
    return Plot(name, title, "fill", y, tuple(lines), "points", "y", FILLS)


BENCH = Bench(
    name="fills",
    question="Does the fill of masked pixels matter?",
    paper="The mean overlap with the occluder changes by less than 4 points between masking colours from black to white.",
    methods="causal,dc-causal",
    limit=50,
    select=select_images,
    arms=make_arms,
    measure=measure,
    postprocess=compare_rows,
    summarise=summarise,
    rank_by="size",
    outline="occluder",
    sets=("fills",),
)
