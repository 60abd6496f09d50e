"""Quality of the ranking of a map (insertion, deletion, pointing game), and its dependence on the seed."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from becausal.api.explanation import Explanation
from becausal.bench.findings import (
    CALLS,
    Column,
    Findings,
    Line,
    Measure,
    Plot,
    Row,
    finite_values,
    group_rows,
    measure_table,
    paired_table,
    successful,
)
from becausal.bench.packing import pack_map, unpack_map, unpack_set
from becausal.bench.plan import Arm, Bench, BenchSettings, Subject, make_request
from becausal.bench.selection import select_images
from becausal.core.contracts import Classifier
from becausal.core.metrics import STEPS, iou, points_inside, rank_agreement
from becausal.core.problem import Problem
from becausal.engine.engine import Engine
from becausal.search.extract import trace_curves

NOTE = "Areas and pointing are averaged over the seeds of each image; n is the number of images."
SEEDS = 3  # runs of each method, with consecutive seeds
MARKS = range(0, STEPS + 1, 5)  # steps whose confidence is stored, for the plotted curves

INSERTION = Measure(
    "insertion", Column("insertion", "number", "high", "area under the confidence curve as pixels are shown")
)
DELETION = Measure("deletion", Column("deletion", "number", "low", "area under the confidence curve as pixels are masked"))
POINTING = Measure("pointing", Column("pointing", "share", "high", "images with the maximum of the map on the object"))
SAME_SET = Measure("seed_iou", Column("IoU of seeds", "share", "high", "IoU of explanations with different seeds"))
SAME_MAP = Measure(
    "seed_rank", Column("correlation of seeds", "number", "high", "rank correlation of maps with different seeds")
)


def make_arms(settings: BenchSettings) -> list[Arm]:
    """Every method with three seeds."""
    seeds = range(settings.request.seed, settings.request.seed + SEEDS)
    return [Arm(m, make_request(settings, m, seed=seed), {"seed": seed}) for m in settings.methods for seed in seeds]


def measure(subject: Subject, explanation: Explanation, classifier: Classifier) -> Row:
    """Both curves, and the pointing game; the calls for the curves are not counted."""
    problem = Problem(explanation.view, explanation.backgrounds, explanation.target)
    search = trace_curves(explanation.responsibility, np.random.default_rng(explanation.origin.seed))
    curves = Engine(classifier).run(problem, search).result
    row: Row = {"insertion": curves.insertion_area, "deletion": curves.deletion_area}
    if (target := subject.masks.get("object")) is not None and target.any():
        row["pointing"] = points_inside(explanation.responsibility, target)
    row |= {f"in_{k}": float(curves.insertion[k]) for k in MARKS} | {f"out_{k}": float(curves.deletion[k]) for k in MARKS}
    return row | {"_map": pack_map(explanation.responsibility)}


def compare_rows(rows: list[Row]) -> list[Row]:
    """Add the agreement of different seeds to the first row of each image and method."""
    found: dict[int, Row] = {}
    for part in group_rows(successful(rows), "name", "method").values():
        pairs = list(combinations(part, 2))
        if pairs:
            sets = [iou(unpack_set(a["_shown"]), unpack_set(b["_shown"])) for a, b in pairs]
            maps = [rank_agreement(unpack_map(a["_map"]), unpack_map(b["_map"])) for a, b in pairs]
            known = [value for value in maps if value == value]
            extra = {"seed_iou": round(float(np.mean(sets)), 6)}
            found[id(part[0])] = extra | ({"seed_rank": round(float(np.mean(known)), 6)} if known else {})
    return [row | found.get(id(row), {}) for row in rows]


def summarise(rows: Sequence[Row]) -> Findings:
    """Areas for all methods, averaged over seeds, and the mean curves."""
    found = successful(rows)
    has_object = any(row.get("pointing") is not None for row in found)
    measures = (INSERTION, DELETION, *((POINTING,) if has_object else ()), SAME_SET, SAME_MAP, CALLS)
    once = [row for row in found if row.get("seed_iou") is not None]
    tables = (
        measure_table("methods", "All methods", _means(found, once), measures, note=NOTE),
        paired_table(found, INSERTION),
        paired_table(found, DELETION),
    )
    plots = tuple(
        Plot(f"{name}", title, x, "confidence of the label", _curves(found, prefix), "line", "x")
        for name, title, x, prefix in (
            ("insertion", "Insertion: pixels shown, highest first", "share of pixels shown", "in"),
            ("deletion", "Deletion: pixels masked, highest first", "share of pixels masked", "out"),
        )
    )
    return Findings(tuple(t for t in tables if t is not None), plots)


def _means(rows: Sequence[Row], once: Sequence[Row]) -> list[Row]:
    """One row for each image and method, with the means over its seeds."""
    agreement = {(row["name"], row["method"]): row for row in once}
    out = []
    for (name, method), part in group_rows(rows, "name", "method").items():
        row: Row = {"name": name, "method": method}
        for key in ("insertion", "deletion", "pointing", "calls"):
            if values := finite_values(part, key):
                row[key] = sum(values) / len(values)
        kept = agreement.get((name, method), {})
        out.append(row | {key: kept.get(key) for key in ("seed_iou", "seed_rank")})
    return out


def _curves(rows: Sequence[Row], prefix: str) -> tuple[Line, ...]:
    lines = []
    for (method,), group in group_rows(rows, "method").items():
        values = [finite_values(group, f"{prefix}_{k}") for k in MARKS]
        if all(values):
            x = tuple(k / STEPS for k in MARKS)
            lines.append(Line(str(method), x, tuple(float(np.mean(v)) for v in values)))
    return tuple(lines)


BENCH = Bench(
    name="faithfulness",
    question="How well does a map rank pixels, does it point at the object, and does it depend on the seed?",
    paper="Not in the paper; insertion and deletion are defined as for RISE.",
    methods="all",
    limit=50,
    select=select_images,
    arms=make_arms,
    measure=measure,
    postprocess=compare_rows,
    summarise=summarise,
    rank_by="insertion",
    lower_is_better=False,
    outline="object",
)
