"""Maps and explanations for an increasing number of partitions or model calls."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from becausal.api.explanation import Explanation
from becausal.core.contracts import Classifier
from becausal.core.metrics import iou, rank_agreement
from becausal.lab.bench.findings import (
    CALLS,
    SIZE,
    Column,
    Findings,
    Grouping,
    Measure,
    Plot,
    Row,
    finite_values,
    group_rows,
    line_of_estimates,
    measure_table,
    successful,
)
from becausal.lab.bench.packing import pack_map, unpack_map, unpack_set
from becausal.lab.bench.plan import Arm, Bench, BenchSettings, Subject, make_request, split_method
from becausal.lab.bench.selection import select_images

PARTITIONS = (1, *range(10, 101, 10))
BUDGETS = (100, 200, 300, 400, 600, 800, 1000, 1400, 2000, 3000)
SHOWN = 2  # images drawn, with a strip for each method

PLAIN_SIZE = replace(SIZE, column=replace(SIZE.column, best=None))  # no best value among the steps of one method
STEPS = {"partitions": "partitions", "calls": "limit on calls"}
MAP = Measure("map_agreement", Column("rank correlation", "number", None, "of the map with the last map"))
SETS = Measure("set_agreement", Column("IoU with last", "share", None, "IoU of the explanation and the last one"))


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


def compare_rows(rows: list[Row]) -> list[Row]:
    """Compare each map and explanation with the last one of its image and method."""
    last = {(r["name"], r["method"]): r for r in sorted(successful(rows), key=lambda r: r["step"])}
    out = []
    for row in rows:
        end = last.get((row["name"], row["method"]))
        if row.get("error") or end is None:
            out.append(row)
            continue
        correlation = rank_agreement(unpack_map(row["_map"]), unpack_map(end["_map"]))
        alike = iou(unpack_set(row["_shown"]), unpack_set(end["_shown"]))
        known = {} if correlation != correlation else {"map_agreement": round(correlation, 6)}
        out.append(row | known | {"set_agreement": round(alike, 6)})
    return out


def summarise(rows: Sequence[Row]) -> Findings:
    """Size, calls and agreement with the last step, for each step."""
    found = successful(rows)
    tables = tuple(
        measure_table(
            f"steps-{method}", f"{method}, by {part[0]['by']}", part, (PLAIN_SIZE, SETS, MAP, CALLS),
            by=Grouping(("step",), (STEPS[part[0]["by"]],)), order=lambda key: key[0],
        )
        for (method,), part in group_rows(found, "method").items()
    )  # fmt: skip
    plots = (
        Plot("size", "Size of the explanation", "mean calls", "share of the view", _lines(found, SIZE), "line", "y"),
        Plot("sets", "IoU with the last explanation", "mean calls", "IoU", _lines(found, SETS), "line", "y"),
        Plot("maps", "Rank correlation with the last map", "mean calls", "correlation", _lines(found, MAP), "line", ""),
    )
    return Findings(tables, plots)


def _lines(rows: Sequence[Row], measure: Measure) -> tuple[Any, ...]:
    lines = []
    for (method,), group in group_rows(rows, "method").items():
        steps = [part for _, part in sorted(group_rows(group, "step").items())]
        calls = [float(np.mean(finite_values(part, "calls"))) for part in steps]
        lines.append(line_of_estimates(str(method), calls, [measure.estimate(part) for part in steps]))
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
    select=select_images,
    arms=make_arms,
    measure=measure,
    postprocess=compare_rows,
    summarise=summarise,
    outline="occluder",
    choose_steps=choose_steps,
    sets=("max_calls",),
)
