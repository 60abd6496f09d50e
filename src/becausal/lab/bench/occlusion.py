"""Images without ground truth, e.g. partly occluded ones: size of explanations, and how few pixels keep the label."""

from collections.abc import Sequence

import numpy as np

from becausal.api.explanation import Explanation
from becausal.core.contracts import Classifier
from becausal.core.metrics import top_pixels
from becausal.core.problem import Problem
from becausal.engine.engine import Engine
from becausal.lab.bench.findings import (
    CALLS,
    SIZE,
    Column,
    Findings,
    Measure,
    Plot,
    Row,
    cumulative_plot,
    group_rows,
    line_of_estimates,
    measure_table,
    paired_table,
    successful,
)
from becausal.lab.bench.plan import Bench, Subject, plain_arms
from becausal.lab.bench.selection import select_images

SHARES = (5, 10, 20, 50)  # per cent of the view
KEPT = tuple(
    Measure(
        f"right_{share}",
        Column(f"kept at {share} %", "share", "high", f"images whose label the top {share} % of the map keep"),
        True,
    )
    for share in SHARES
)


def measure(subject: Subject, explanation: Explanation, classifier: Classifier) -> Row:
    """Whether the highest pixels of the map alone keep the label."""
    grid = explanation.visible.shape
    counts = [round(share / 100 * explanation.visible.size) for share in SHARES]
    seed = explanation.origin.seed
    shown = np.stack([top_pixels(explanation.responsibility, count, np.random.default_rng(seed)) for count in counts])
    problem = Problem(explanation.view, explanation.backgrounds, explanation.target)
    holds = Engine(classifier).ask_uncached(problem, shown.reshape(-1, *grid)).holds
    return {m.key: int(kept) for m, kept in zip(KEPT, holds, strict=True)}


def summarise(rows: Sequence[Row]) -> Findings:
    """Size, and the share of labels kept, for all methods."""
    found = successful(rows)
    tables = (
        measure_table("methods", "All methods", found, (SIZE, *KEPT, CALLS)),
        paired_table(found, SIZE),
        paired_table(found, KEPT[2]),
    )
    lines = tuple(
        line_of_estimates(str(method), [share / 100 for share in SHARES], [m.estimate(group) for m in KEPT])
        for (method,), group in group_rows(found, "method").items()
    )
    plots = (
        Plot("right", "Label kept by the highest pixels of the map", "share of visible pixels", "share of images", lines),
        cumulative_plot("size", "Size of the explanations", "share of the view, at most", found, "size"),
    )
    return Findings(tuple(t for t in tables if t is not None), plots)


BENCH = Bench(
    name="occlusion",
    question="How small are explanations, and how few of the highest pixels of a map keep the label?",
    paper="On occluded COCO images with a compositional network: under 13 % of the pixels for dc-causal, 37.8 % for SBFL; "
    "80 % of the labels are correct with the first 20 % of the pixels.",
    methods="all",
    limit=100,
    select=select_images,
    arms=plain_arms,
    measure=measure,
    summarise=summarise,
)
