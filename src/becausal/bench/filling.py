"""Does it matter what hidden pixels become? The same images under eleven fills."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from becausal.api.explanation import Explanation
from becausal.bench.findings import (
    CALLS,
    SIZE,
    Column,
    Findings,
    Grouping,
    Measure,
    Plot,
    Row,
    Table,
    answered,
    groups,
    measure_table,
    numbers,
    points_line,
)
from becausal.bench.packing import unpack_set
from becausal.bench.plan import Arm, Bench, Settings, Subject, make_request
from becausal.bench.pools import usual_pool
from becausal.bench.statistics import estimate
from becausal.core.contracts import Classifier
from becausal.core.metrics import iou, overlap

GREYS = ("black", "#202020", "#404040", "#606060", "grey", "#a0a0a0", "#c0c0c0", "white")
FILLS = (*GREYS, "mean", "blur", "noise")

OVERLAP = Measure("overlap", Column("on occluder", "share", None, "share of the explanation on the occluder"))
CLEAR = Measure("clear", Column("clear", "share", None, "explanations without one pixel of the occluder"), True)
LIKE_GREY = Measure("like_grey", Column("IoU with grey's", "share", None, "of the explanation with that under grey"))


def make_arms(settings: Settings) -> list[Arm]:
    """Every method under every fill."""
    return [Arm(m, make_request(settings, m, fill=fill), {"fill": fill}) for m in settings.methods for fill in FILLS]


def measure(subject: Subject, explanation: Explanation, classifier: Classifier) -> Row:
    """How the explanation lies to the occluder, where that is known."""
    occluder = subject.truths.get("occluder")
    if occluder is None or not occluder.any():
        return {}
    visible = explanation.visible
    return {"overlap": overlap(visible, occluder), "clear": int(not (visible & occluder).any())}


def complete(rows: list[Row]) -> list[Row]:
    """Each explanation compared with that of the same image under grey."""
    greys = {(r["name"], r["method"]): r for r in answered(rows) if r["fill"] == "grey"}
    out = []
    for row in rows:
        grey = greys.get((row["name"], row["method"]))
        if row.get("error") or grey is None or row["fill"] == "grey":
            out.append(row)
        else:
            out.append(row | {"like_grey": round(iou(unpack_set(row["_shown"]), unpack_set(grey["_shown"])), 6)})
    return out


def summarise(rows: Sequence[Row]) -> Findings:
    """Means under each fill, and how far they lie apart: between fills, and for a single image."""
    found = answered(rows)
    has_truth = any(row.get("overlap") is not None for row in found)
    measures = (SIZE, *((OVERLAP, CLEAR) if has_truth else ()), LIKE_GREY, CALLS)
    by_fill = measure_table(
        "fills", "Under each fill", found, measures, by=Grouping(("method", "fill")),
        note="An image is missing under a fill where the empty image already has the label.",
    )  # fmt: skip
    tables = [_spread_table(found, (SIZE, OVERLAP) if has_truth else (SIZE,)), by_fill]
    plots = [_plot(found, SIZE, "size", "Size of the explanation under each fill", "share of the view")]
    if has_truth:
        plots.append(_plot(found, OVERLAP, "overlap", "Overlap with the occluder under each fill", "of the explanation"))
    return Findings(tuple(tables), tuple(plots))


def _spread_table(rows: Sequence[Row], measures: Sequence[Measure]) -> Table:
    lines: list[tuple[Any, ...]] = []
    for (method,), group in groups(rows, "method").items():
        whole = _under_all(group)
        for m in measures:
            means = [np.mean(numbers(part, m.key)) for part in groups(whole, "fill").values() if numbers(part, m.key)]
            each = [np.ptp(numbers(part, m.key)) for part in groups(whole, "name").values() if numbers(part, m.key)]
            between = float(np.ptp(means)) if means else None
            lines.append((method, m.column.name, len(groups(whole, "name")), between, estimate([float(v) for v in each])))
    columns = (
        Column("method"),
        Column("of"),
        Column("n", "count", None, "images explained under all fills"),
        Column("spread of the means", "share", None, "largest mean over the fills less the smallest, in points"),
        Column("spread per image", "share", None, "largest less smallest value of one image, averaged, in points"),
    )
    return Table("spread", "How far the fills lie apart", columns, tuple(lines))


def _under_all(rows: Sequence[Row]) -> list[Row]:
    """The rows of images that were explained under every fill that occurs."""
    fills = {row["fill"] for row in rows}
    by_name = groups(rows, "name")
    return [row for part in by_name.values() if {r["fill"] for r in part} == fills for row in part]


def _plot(rows: Sequence[Row], measure: Measure, name: str, title: str, y: str) -> Plot:
    lines = []
    for (method,), group in groups(rows, "method").items():
        by_fill = groups(group, "fill")
        present = [(i, by_fill[(fill,)]) for i, fill in enumerate(FILLS) if (fill,) in by_fill]
        lines.append(points_line(str(method), [i for i, _ in present], [measure.of(part) for _, part in present]))
    return Plot(name, title, "fill", y, tuple(lines), "points", "y", FILLS)


BENCH = Bench(
    name="fills",
    question="Does it matter what hidden pixels become?",
    paper="The mean overlap with the occluder changes by less than 4 points between masking colours from black to white.",
    methods="causal,dc-causal",
    limit=50,
    collect=usual_pool,
    arms=make_arms,
    measure=measure,
    complete=complete,
    summarise=summarise,
    judge="size",
    truth="occluder",
)
