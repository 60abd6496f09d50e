"""Comparison with brute force: for tiny images all subsets can be evaluated, so the smallest explanation is known."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from becausal.api import Failure, explain_many
from becausal.api.explanation import Explanation
from becausal.core.contracts import Classifier, Scores
from becausal.core.errors import OptionError
from becausal.core.metrics import rank_agreement
from becausal.images.fills import make_background
from becausal.lab.bench.base import Bench
from becausal.lab.bench.datasets import AnnotatedImage, Sample
from becausal.lab.bench.execution import error_row
from becausal.lab.bench.plan import Arm, BenchSettings, ImageSelection
from becausal.lab.bench.plots import Plot, cumulative_plot
from becausal.lab.bench.rows import Row, rounded
from becausal.lab.bench.selection import load_subject, select_images, take_first, unless_known
from becausal.lab.bench.tables import CALLS, Measure, measure_table, paired_table
from becausal.lab.bench.tables import Table as ResultTable
from becausal.lab.bench.tiny import exact_responsibilities, label_table, model_scores, random_scores, trained_scores
from becausal.methods.causal.exact import Table, is_explanation, smallest_size

KINDS = ("random", "trained", "model")
PER_MODEL = 50  # tiny classifiers for each image of the model itself, which costs 65,536 calls at side 4
TOGETHER = 10  # images per trained network
PREFIX = "model-"
TRIVIAL = "the fully masked image already has the label"

OPTIMAL = Measure("optimal", "optimal", "share", "high", "explanations of the smallest possible size", is_flag=True)
MINIMAL = Measure(
    "minimal_set", "minimal", "share", "high", "explanations of which no proper subset is sufficient", is_flag=True
)
RATIO = Measure("ratio", "size ratio", "number", "low", "number of pixels divided by that of the smallest explanation")
RANK = Measure("rank", "rank correlation", "number", "high", "of the map and the exact responsibility")


def select(settings: BenchSettings, classifier: Classifier) -> ImageSelection:
    """Tiny classifiers, and the model on blocks of a few images; trivial cases are excluded."""
    if len(settings.request.fills) > 1:
        raise OptionError(f"the bench exact takes one fill, not {len(settings.request.fills)}")
    limit = settings.limit or 100
    parts = [
        take_first(_tiny_samples(kind, settings), unless_known(settings, _reject_trivial), limit, 10 * limit)
        for kind in KINDS[:2]
    ]
    parts.append(ImageSelection(_model_samples(settings, classifier, max(1, limit // PER_MODEL))))
    count = sum(part.left_out.get(TRIVIAL, 0) for part in parts)
    return ImageSelection(tuple(s for part in parts for s in part.samples), {TRIVIAL: count} if count else {})


def _reject_trivial(sample: Sample) -> str | None:
    return TRIVIAL if label_table(sample.read().pixels)[0] else None


def _tiny_samples(kind: str, settings: BenchSettings) -> Iterator[Sample]:
    number = 0
    while True:
        yield Sample(f"{kind}-{number}", _tiny_reader(kind, number, settings), None, {"kind": kind})
        number += 1


def _tiny_reader(kind: str, number: int, settings: BenchSettings) -> Callable[[], AnnotatedImage]:
    side, seed = settings.side, settings.request.seed

    def read() -> AnnotatedImage:
        own = np.random.default_rng([seed, side, KINDS.index(kind), number])
        if kind == "random":
            return AnnotatedImage(random_scores(side, own))
        return AnnotatedImage(trained_scores(side, np.random.default_rng([seed, side, number // TOGETHER]), own))

    return read


def _model_samples(settings: BenchSettings, classifier: Classifier, count: int) -> tuple[Sample, ...]:
    known = None if settings.known is None else frozenset(name.removeprefix(PREFIX) for name in settings.known)
    selection = select_images(replace(settings, limit=count, known=known), classifier)
    return tuple(_blocks(sample, settings, classifier) for sample in selection.samples)


def _blocks(sample: Sample, settings: BenchSettings, classifier: Classifier) -> Sample:
    request = settings.request

    @cache  # evaluated once for all methods
    def read() -> AnnotatedImage:
        view = load_subject(sample, classifier).view.pixels
        background = make_background(request.fills[0], view, rng=np.random.default_rng([request.seed, 1]))
        return AnnotatedImage(model_scores(view, background, settings.side, classifier))

    return Sample(f"{PREFIX}{sample.name}", read, None, {"kind": "model"})


def run_arm(
    arm: Arm, samples: Sequence[Sample], classifier: Classifier, settings: BenchSettings
) -> Iterator[tuple[Sample, Row]]:
    """Explain every classifier, and compare with the smallest explanation."""
    white = np.full((settings.side, settings.side, 3), 255, np.uint8)
    request = replace(arm.request, fills=("black",), grain=1)
    for sample in samples:
        scores: Scores = sample.read().pixels
        found = next(explain_many([white], _as_function(scores), request=request))
        if isinstance(found, Failure):
            yield sample, error_row(found.error)
        elif found.stopped_by == "interrupt":
            raise KeyboardInterrupt
        else:
            yield sample, rounded(measure_against(found, label_table(scores)))


def _as_function(scores: Scores) -> Callable[[NDArray[np.uint8]], Scores]:
    """The classifier as a function of images in which visible pixels are white and masked ones black."""
    bits = 1 << np.arange((len(scores) - 1).bit_length())

    def predict(batch: NDArray[np.uint8]) -> Scores:
        shown = batch[..., 0].reshape(len(batch), -1) > 127
        return np.asarray(scores[(shown * bits).sum(axis=1)], np.float32)

    return predict


def measure_against(found: Explanation, holds: Table) -> Row:
    """Compare the explanation with the smallest one, and the map with the exact responsibilities."""
    shown = found.visible.ravel()
    count, best = int(shown.sum()), smallest_size(holds)
    return {
        "pixels": count,
        "smallest": best,
        "optimal": int(count == best),
        "minimal_set": int(is_explanation(holds, int((shown * (1 << np.arange(len(shown)))).sum()))),
        "ratio": count / best,
        "rank": rank_agreement(found.responsibility, exact_responsibilities(holds)),
        "calls": found.calls,
    }


def make_tables(rows: Sequence[Row]) -> list[ResultTable | None]:
    """How often the smallest explanation was found, by kind of classifier."""
    measures = (OPTIMAL, MINIMAL, RATIO, RANK, CALLS)
    note = (
        "random: random weights and images; trained: small networks fitted to noisy patterns; model: the given "
        "model on blocks of an image, as many as the tiny images have pixels. All are minimised to single pixels."
    )
    by, title = {"kind": "classifier", "method": "method"}, "By kind of classifier"
    return [
        measure_table("methods", "All classifiers", rows, measures),
        measure_table("kinds", title, rows, measures, by=by, order=lambda key: KINDS.index(key[0]), note=note),
        paired_table(rows, RATIO),
    ]


def make_plots(rows: Sequence[Row]) -> list[Plot]:
    """How much larger explanations are than necessary."""
    title = "Size compared with the smallest explanation"
    return [cumulative_plot("ratio", title, "size ratio, at most", rows, "ratio", first=1.0, last=3.0)]


BENCH = Bench(
    name="exact",
    question="On tiny images, where all subsets can be evaluated: is the explanation the smallest possible?",
    paper="Not in the paper, which calls the exact problem intractable.",
    methods="causal,dc-causal",
    select=select,
    tables=make_tables,
    plots=make_plots,
    rank_by="ratio",
    run_arm=run_arm,
    takes=("fills", "seed", "max_calls"),
)
