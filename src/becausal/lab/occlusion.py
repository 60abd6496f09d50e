"""Images without ground truth, e.g. partly occluded ones: size of explanations, and how few pixels keep the label."""

from collections.abc import Sequence

import numpy as np

from becausal.api.explanation import Explanation
from becausal.core.contracts import Classifier
from becausal.core.metrics import top_pixels
from becausal.core.problem import Problem
from becausal.engine.engine import Engine
from becausal.lab.base import Bench, Subject
from becausal.lab.rows import Row, by_method
from becausal.lab.tables import CALLS, SIZE, Measure, Plot, line_of_estimates, measure_table, paired_table, size_plot

SHARES = (5, 10, 20, 50)  # per cent of the view
MEANING = "images whose label the top {} % of the map keep"
KEPT = tuple(Measure(f"right_{s}", f"kept at {s} %", "share", "high", MEANING.format(s), is_flag=True) for s in SHARES)


def measure(subject: Subject, explanation: Explanation, classifier: Classifier) -> Row:
    """Whether the highest pixels of the map alone keep the label."""
    grid = explanation.visible.shape
    counts = [round(share / 100 * explanation.visible.size) for share in SHARES]
    seed = explanation.origin.request.seed
    shown = np.stack([top_pixels(explanation.responsibility, count, np.random.default_rng(seed)) for count in counts])
    problem = Problem(explanation.view, explanation.backgrounds, explanation.target)
    holds = Engine(classifier).ask_uncached(problem, shown.reshape(-1, *grid)).holds
    return {m.key: int(kept) for m, kept in zip(KEPT, holds, strict=True)}


def make_plots(rows: Sequence[Row]) -> list[Plot]:
    """The share of labels kept by more and more pixels, and sizes."""
    shares = [share / 100 for share in SHARES]
    lines = [line_of_estimates(method, shares, [m.estimate(group) for m in KEPT]) for method, group in by_method(rows)]
    title = "Label kept by the highest pixels of the map"
    return [Plot("right", title, "share of visible pixels", "share of images", tuple(lines)), size_plot(rows)]


BENCH = Bench(
    name="occlusion",
    question="How small are explanations, and how few of the highest pixels of a map keep the label?",
    paper="On partly occluded COCO images with a compositional net: on average less than 13 % of the pixels for dc-causal, "
    "37.8 % for SBFL; with the first 20 % of the pixels 80 % of the labels are correct, more than 20 % better than SBFL.",
    measure=measure,
    tables=lambda rows: [
        measure_table("methods", "All methods", rows, (SIZE, *KEPT, CALLS)),
        paired_table(rows, SIZE),
        paired_table(rows, KEPT[2]),
    ],
    plots=make_plots,
)
