"""Images without truth, partly occluded ones say: size of explanations, and how much of a ranking keeps the label."""

from collections.abc import Sequence

import numpy as np

from becausal.api.explanation import Explanation
from becausal.bench.findings import (
    CALLS,
    SIZE,
    Column,
    Findings,
    Measure,
    Plot,
    Row,
    answered,
    groups,
    measure_table,
    paired_table,
    points_line,
    within_plot,
)
from becausal.bench.plan import Bench, Subject, plain_arms
from becausal.bench.pools import usual_pool
from becausal.core.contracts import Classifier
from becausal.core.metrics import top_pixels
from becausal.core.problem import Problem
from becausal.engine.engine import Engine

SHARES = (5, 10, 20, 50)  # per cent of the view
RIGHT = tuple(
    Measure(f"right_{share}", Column(f"at {share} %", "share", "high", f"label kept by the top {share} % of the map"), True)
    for share in SHARES
)


def measure(subject: Subject, explanation: Explanation, classifier: Classifier) -> Row:
    """Whether the map's first pixels alone keep the label."""
    grid = explanation.visible.shape
    counts = [round(share / 100 * explanation.visible.size) for share in SHARES]
    seed = explanation.origin.seed
    shown = np.stack([top_pixels(explanation.responsibility, count, np.random.default_rng(seed)) for count in counts])
    case = Problem(explanation.view, explanation.backgrounds, explanation.target)
    holds = Engine(classifier).ask_afresh(case, shown.reshape(-1, *grid)).holds
    return {m.key: int(kept) for m, kept in zip(RIGHT, holds, strict=True)}


def summarise(rows: Sequence[Row]) -> Findings:
    """Size and what the rankings keep, for all methods."""
    found = answered(rows)
    tables = (
        measure_table("methods", "All methods", found, (SIZE, *RIGHT, CALLS)),
        paired_table(found, SIZE),
        paired_table(found, RIGHT[2]),
    )
    lines = tuple(
        points_line(str(method), [share / 100 for share in SHARES], [m.of(group) for m in RIGHT])
        for (method,), group in groups(found, "method").items()
    )
    plots = (
        Plot("right", "Label kept by the first pixels of the ranking", "share of pixels shown", "share of images", lines),
        within_plot("size", "Size of the explanations", "at most this share of the view", found, "size"),
    )
    return Findings(tuple(t for t in tables if t is not None), plots)


BENCH = Bench(
    name="occlusion",
    question="How small are explanations, and how few of a ranking's first pixels keep the label?",
    paper="On occluded COCO images with a compositional net: under 13 % of the pixels for dc-causal against 37.8 % for "
    "SBFL, and 80 % of the labels right on the first 20 % of the pixels.",
    methods="all",
    limit=100,
    collect=usual_pool,
    arms=plain_arms,
    measure=measure,
    summarise=summarise,
)
