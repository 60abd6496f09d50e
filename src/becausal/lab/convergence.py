"""Maps and explanations for an increasing number of partitions or model calls."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from becausal.core.metrics import iou, rank_agreement
from becausal.lab.base import Arm, Bench, BenchSettings, make_request, split_method
from becausal.lab.rows import (
    Row,
    by_method,
    compare_rows,
    finite_values,
    group_rows,
    pack_map,
    successful,
    unpack_map,
    unpack_set,
)
from becausal.lab.tables import CALLS, SIZE, Measure, Plot, line_of_estimates, measure_table

PARTITIONS = (1, *range(10, 101, 10))  # the paper uses 50
BUDGETS = (100, 200, 300, 400, 600, 800, 1000, 1400, 2000, 3000)  # model calls
SHOWN = 2  # images drawn, with a strip for each method

STEPS = {"partitions": "partitions", "calls": "limit on calls"}
MAP = Measure("map_agreement", "rank correlation", "number", None, "of the map with the last map")
SETS = Measure("set_agreement", "IoU with last", "share", None, "IoU of the explanation and the last one")


def make_arms(settings: BenchSettings) -> list[Arm]:
    """dc-causal with increasing numbers of partitions, all other methods with increasing limits on calls."""
    arms = []
    for method in settings.methods:
        if split_method(method)[0] == "dc-causal":
            requests = {("partitions", n): make_request(settings, method, options={"partitions": n}) for n in PARTITIONS}
        else:
            requests = {("calls", n): make_request(settings, method, max_calls=n) for n in BUDGETS}
        arms += [Arm(method, request, {"by": by, "step": n}) for (by, n), request in requests.items()]
    return arms


def compare_with_last(rows: list[Row]) -> list[Row]:
    """Compare each map and explanation with the last one of its image and method."""

    def compare(row: Row, end: Row) -> Row:
        correlation = rank_agreement(unpack_map(row["_map"]), unpack_map(end["_map"]))
        known = {} if correlation != correlation else {"map_agreement": correlation}
        return known | {"set_agreement": iou(unpack_set(row["_shown"]), unpack_set(end["_shown"]))}

    last = sorted(successful(rows), key=lambda row: row["step"])  # of several references, the last one counts
    return compare_rows(rows, last, compare, with_itself=True)


def plot(name: str, title: str, y: str, rows: Sequence[Row], measure: Measure, shares: str) -> Plot:
    """A measure against the mean number of calls of each step."""
    lines = []
    for method, group in by_method(rows):
        steps = [part for _, part in sorted(group_rows(group, "step").items())]
        calls = [float(np.mean(finite_values(part, "calls"))) for part in steps]
        lines.append(line_of_estimates(method, calls, [measure.estimate(part) for part in steps]))
    return Plot(name, title, "mean calls", y, tuple(lines), "line", shares)


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
    paper="Eight maps of one image, for N from 1 to 100: the result quickly converges. No figures; the paper uses N = 50.",
    methods="dc-causal,causal",
    limit=10,
    arms=make_arms,
    measure=lambda subject, explanation, classifier: {"_map": pack_map(explanation.responsibility)},
    postprocess=compare_with_last,
    tables=lambda rows: [
        measure_table(
            f"steps-{method}", f"{method}, by {part[0]['by']}", part, (SIZE.unranked, SETS, MAP, CALLS),
            by={"step": STEPS[part[0]["by"]]}, order=lambda key: key[0],
        )
        for method, part in by_method(rows)
    ],
    plots=lambda rows: [
        plot("size", "Size of the explanation", "share of the view", rows, SIZE, "y"),
        plot("sets", "IoU with the last explanation", "IoU", rows, SETS, "y"),
        plot("maps", "Rank correlation with the last map", "correlation", rows, MAP, ""),
    ],
    outline="occluder",
    choose_steps=choose_steps,
    sets=("max_calls",),
)  # fmt: skip
