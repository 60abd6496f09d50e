"""When is it enough? Maps and explanations for more and more partitions, or calls."""

from collections.abc import Sequence
from dataclasses import replace
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
    answered,
    groups,
    measure_table,
    numbers,
    points_line,
)
from becausal.bench.packing import pack_map, unpack_map, unpack_set
from becausal.bench.plan import Arm, Bench, Settings, Subject, make_request, split_method
from becausal.bench.pools import usual_pool
from becausal.core.contracts import Classifier
from becausal.core.metrics import iou, rank_agreement

PARTITIONS = (1, *range(10, 101, 10))
BUDGETS = (100, 200, 300, 400, 600, 800, 1000, 1400, 2000, 3000)
SHOWN = 2  # images drawn as a row each

PLAIN_SIZE = replace(SIZE, column=replace(SIZE.column, best=None))  # of steps of one method none is the best
STEPS = {"partitions": "partitions", "calls": "limit on calls"}
MAP = Measure("map_agreement", Column("map, rank with last", "number", None, "rank correlation with the last map"))
SETS = Measure("set_agreement", Column("IoU with last", "share", None, "of the explanation with the last one"))


def make_arms(settings: Settings) -> list[Arm]:
    """dc-causal by its number of partitions, every other method by a limit on calls."""
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
    """The map, kept to be compared with the last one."""
    return {"_map": pack_map(explanation.responsibility)}


def complete(rows: list[Row]) -> list[Row]:
    """Each map and explanation compared with the last of its image and method."""
    last = {(r["name"], r["method"]): r for r in sorted(answered(rows), key=lambda r: r["step"])}
    out = []
    for row in rows:
        end = last.get((row["name"], row["method"]))
        if row.get("error") or end is None:
            out.append(row)
            continue
        agreement = rank_agreement(unpack_map(row["_map"]), unpack_map(end["_map"]))
        alike = iou(unpack_set(row["_shown"]), unpack_set(end["_shown"]))
        known = {} if agreement != agreement else {"map_agreement": round(agreement, 6)}
        out.append(row | known | {"set_agreement": round(alike, 6)})
    return out


def summarise(rows: Sequence[Row]) -> Findings:
    """Size, calls and distance to the last, step by step."""
    found = answered(rows)
    tables = tuple(
        measure_table(
            f"steps-{method}", f"{method}, by {part[0]['by']}", part, (PLAIN_SIZE, SETS, MAP, CALLS),
            by=Grouping(("step",), (STEPS[part[0]["by"]],)), order=lambda key: key[0],
        )
        for (method,), part in groups(found, "method").items()
    )  # fmt: skip
    plots = (
        Plot("size", "Size of the explanation", "calls, mean", "share of the view", _lines(found, SIZE), "line", "y"),
        Plot("sets", "IoU with the last explanation", "calls, mean", "IoU", _lines(found, SETS), "line", "y"),
        Plot("maps", "Rank correlation with the last map", "calls, mean", "correlation", _lines(found, MAP), "line", ""),
    )
    return Findings(tables, plots)


def _lines(rows: Sequence[Row], measure: Measure) -> tuple[Any, ...]:
    lines = []
    for (method,), group in groups(rows, "method").items():
        steps = [part for _, part in sorted(groups(group, "step").items())]
        calls = [float(np.mean(numbers(part, "calls"))) for part in steps]
        lines.append(points_line(str(method), calls, [measure.of(part) for part in steps]))
    return tuple(lines)


def choose_pictures(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """A row of images for each method on the first images: every map and explanation on the way."""
    strips: list[dict[str, Any]] = []
    for (name, method), part in groups(answered(rows), "name", "method").items():
        if len({strip["name"] for strip in strips} | {name}) > SHOWN:
            continue
        steps = sorted(part, key=lambda row: row["step"])
        strips.append({"name": name, "title": f"{method}, by {steps[0]['by']}", "rows": steps, "caption": "step"})
    return strips


BENCH = Bench(
    name="convergence",
    question="How many partitions, or calls, are enough?",
    paper="A row of maps that settles as partitions are added; the paper takes 50.",
    methods="dc-causal,causal",
    limit=10,
    collect=usual_pool,
    arms=make_arms,
    measure=measure,
    complete=complete,
    summarise=summarise,
    truth="occluder",
    pictures=choose_pictures,
)
