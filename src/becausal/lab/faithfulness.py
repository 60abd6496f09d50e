"""Quality of the ranking of a map (insertion, deletion, pointing game), and its dependence on the seed."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from becausal.api.explanation import Explanation
from becausal.core.contracts import Classifier
from becausal.core.metrics import STEPS, iou, points_inside, rank_agreement
from becausal.core.problem import Problem
from becausal.engine.engine import Engine
from becausal.lab.base import POINTING, Arm, Bench, BenchSettings, Subject, make_request
from becausal.lab.rows import Row, by_method, finite_values, group_rows, pack_map, successful, unpack_map, unpack_set
from becausal.lab.tables import CALLS, Line, Measure, Plot, Table, measure_table, paired_table
from becausal.search.pipeline import trace_curves

NOTE = "Areas and pointing are averaged over the seeds of each image; n is the number of images."
SEEDS = 3  # runs of each method, with consecutive seeds
MARKS = range(0, STEPS + 1, 5)  # steps whose confidence is stored, for the plotted curves

INSERTION = Measure("insertion", "insertion", "number", "high", "area under the confidence curve as pixels are shown")
DELETION = Measure("deletion", "deletion", "number", "low", "area under the confidence curve as pixels are masked")
SAME_SET = Measure("seed_iou", "IoU of seeds", "share", "high", "IoU of explanations with different seeds")
SAME_MAP = Measure("seed_rank", "correlation of seeds", "number", "high", "rank correlation of maps with different seeds")


def make_arms(settings: BenchSettings) -> list[Arm]:
    """Every method with three seeds."""
    seeds = range(settings.request.seed, settings.request.seed + SEEDS)
    return [Arm(m, make_request(settings, m, seed=seed), {"seed": seed}) for m in settings.methods for seed in seeds]


def measure(subject: Subject, explanation: Explanation, classifier: Classifier) -> Row:
    """Both curves, and the pointing game; the calls for the curves are not counted."""
    problem = Problem(explanation.view, explanation.backgrounds, explanation.target)
    search = trace_curves(explanation.responsibility, np.random.default_rng(explanation.origin.request.seed))
    curves = Engine(classifier).run(problem, search).result
    row: Row = {"insertion": curves.insertion_area, "deletion": curves.deletion_area}
    if (target := subject.masks.get("object")) is not None and target.any():
        row["pointing"] = points_inside(explanation.responsibility, target)
    row |= {f"in_{k}": float(curves.insertion[k]) for k in MARKS} | {f"out_{k}": float(curves.deletion[k]) for k in MARKS}
    return row | {"_map": pack_map(explanation.responsibility)}


def compare_seeds(rows: list[Row]) -> list[Row]:
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


def make_tables(rows: Sequence[Row]) -> list[Table | None]:
    """Areas for all methods, from one row for each image and method: means over its seeds, and their agreement."""
    means = []
    for (name, method), part in group_rows(rows, "name", "method").items():
        values = {key: finite_values(part, key) for key in ("insertion", "deletion", "pointing", "calls")}
        row = {"name": name, "method": method} | {key: sum(found) / len(found) for key, found in values.items() if found}
        kept = next((each for each in part if each.get("seed_iou") is not None), {})
        means.append(row | {key: kept.get(key) for key in ("seed_iou", "seed_rank")})
    pointing = [POINTING] if any(row.get("pointing") is not None for row in rows) else []
    measures = (INSERTION, DELETION, *pointing, SAME_SET, SAME_MAP, CALLS)
    methods = measure_table("methods", "All methods", means, measures, note=NOTE)
    return [methods, paired_table(rows, INSERTION), paired_table(rows, DELETION)]


def plot(name: str, title: str, x: str, rows: Sequence[Row], prefix: str) -> Plot:
    """The mean curve of each method."""
    lines = []
    for method, group in by_method(rows):
        values = [finite_values(group, f"{prefix}_{k}") for k in MARKS]
        if all(values):
            lines.append(Line(method, tuple(k / STEPS for k in MARKS), tuple(float(np.mean(v)) for v in values)))
    return Plot(name, title, x, "confidence of the label", tuple(lines), "line", "x")


BENCH = Bench(
    name="faithfulness",
    question="How well does a map rank pixels, does it point at the object, and does it depend on the seed?",
    paper="Not in the paper; insertion and deletion are defined as for RISE.",
    limit=50,
    arms=make_arms,
    measure=measure,
    postprocess=compare_seeds,
    tables=make_tables,
    plots=lambda rows: [
        plot("insertion", "Insertion: pixels shown, highest first", "share of pixels shown", rows, "in"),
        plot("deletion", "Deletion: pixels masked, highest first", "share of pixels masked", rows, "out"),
    ],
    rank_by="insertion",
    lower_is_better=False,
    outline="object",
)
