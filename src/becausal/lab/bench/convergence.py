"""Maps and explanations for an increasing number of partitions or model calls."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from becausal.api.explanation import Explanation
from becausal.core.contracts import Classifier
from becausal.core.metrics import iou, rank_agreement
from becausal.lab.bench.base import Bench
from becausal.lab.bench.packing import pack_map, unpack_map, unpack_set
from becausal.lab.bench.plan import Arm, BenchSettings, Subject, make_request, split_method
from becausal.lab.bench.plots import Line, Plot, line_of_estimates
from becausal.lab.bench.rows import Row, by_method, compare_rows, finite_values, group_rows, successful
from becausal.lab.bench.tables import CALLS, SIZE, Measure, Table, measure_table

PARTITIONS = (1, *range(10, 101, 10))  # the paper uses 50
BUDGETS = (100, 200, 300, 400, 600, 800, 1000, 1400, 2000, 3000)  # model calls
SHOWN = 2  # images drawn, with a strip for each method

PLAIN_SIZE = replace(SIZE, best=None)  # no best value among the steps of one method
STEPS = {"partitions": "partitions", "calls": "limit on calls"}
MAP = Measure("map_agreement", "rank correlation", "number", None, "of the map with the last map")
SETS = Measure("set_agreement", "IoU with last", "share", None, "IoU of the explanation and the last one")


def make_arms(settings: BenchSettings) -> list[Arm]:
    """dc-causal with increasing numbers of partitions, all other methods with increasing limits on calls."""
    arms = []
    for method in settings.methods:
        if split_method(method)[0] == "dc-causal":
            for n in PARTITIONS:
                request = make_request(settings, method, options={"partitions": n})
                arms.append(Arm(method, request, {"by": "partitions", "step": n}))
        else:
            for n in BUDGETS:
                arms.append(Arm(method, make_request(settings, method, max_calls=n), {"by": "calls", "step": n}))
    return arms


def measure(subject: Subject, explanation: Explanation, classifier: Classifier) -> Row:
    """The map, which is compared with the last one later."""
    return {"_map": pack_map(explanation.responsibility)}


def compare_with_last(rows: list[Row]) -> list[Row]:
    """Compare each map and explanation with the last one of its image and method."""

    def compare(row: Row, end: Row) -> Row:
        correlation = rank_agreement(unpack_map(row["_map"]), unpack_map(end["_map"]))
        known = {} if correlation != correlation else {"map_agreement": correlation}
        return known | {"set_agreement": iou(unpack_set(row["_shown"]), unpack_set(end["_shown"]))}

    last = sorted(successful(rows), key=lambda row: row["step"])  # of several references, the last one counts
    return compare_rows(rows, last, compare, with_itself=True)


def make_tables(rows: Sequence[Row]) -> list[Table]:
    """Size, calls and agreement with the last step, for each step."""
    return [
        measure_table(
            f"steps-{method}", f"{method}, by {part[0]['by']}", part, (PLAIN_SIZE, SETS, MAP, CALLS),
            by={"step": STEPS[part[0]["by"]]}, order=lambda key: key[0],
        )
        for method, part in by_method(rows)
    ]  # fmt: skip


def make_plots(rows: Sequence[Row]) -> list[Plot]:
    """The same as curves."""
    return [
        Plot("size", "Size of the explanation", "mean calls", "share of the view", _lines(rows, SIZE), "line", "y"),
        Plot("sets", "IoU with the last explanation", "mean calls", "IoU", _lines(rows, SETS), "line", "y"),
        Plot("maps", "Rank correlation with the last map", "mean calls", "correlation", _lines(rows, MAP), "line", ""),
    ]


def _lines(rows: Sequence[Row], measure: Measure) -> tuple[Line, ...]:
    lines = []
    for method, group in by_method(rows):
        steps = [part for _, part in sorted(group_rows(group, "step").items())]
        calls = [float(np.mean(finite_values(part, "calls"))) for part in steps]
        lines.append(line_of_estimates(method, calls, [measure.estimate(part) for part in steps]))
    return tuple(lines)


def choose_steps(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """For the first images and each method: the rows of all steps."""
    strips: list[dict[str, Any]] = []
    for (name, method), part in group_rows(successful(rows), "name", "method").items():
        if len({strip["name"] for strip in strips} | {name}) > SHOWN:
            continue
        steps = sorted(part, key=lambda row: row["step"])
        strips.append({"name": name, "title": f"{method}, by {steps[0]['by']}", "rows": steps, "caption": "step"})
    return strips


BENCH = Bench(
    name="convergence",
    question="How many partitions or model calls are enough?",
    paper="A sequence of maps that converges as partitions are added; the paper uses 50.",
    methods="dc-causal,causal",
    limit=10,
    arms=make_arms,
    measure=measure,
    postprocess=compare_with_last,
    tables=make_tables,
    plots=make_plots,
    outline="occluder",
    choose_steps=choose_steps,
    sets=("max_calls",),
)
