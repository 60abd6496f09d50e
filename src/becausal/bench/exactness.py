"""Against brute force: on tiny images every subset can be asked, so the smallest explanation is known."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from becausal.api import explain
from becausal.api.explanation import Explanation
from becausal.bench.datasets import Sample, Seen
from becausal.bench.findings import (
    CALLS,
    Column,
    Findings,
    Grouping,
    Measure,
    Row,
    answered,
    measure_table,
    paired_table,
    within_plot,
)
from becausal.bench.plan import Arm, Bench, Pool, Settings, plain_arms, rounded
from becausal.bench.pools import judged, see, take, usual_pool
from becausal.bench.tiny import exact_responsibilities, model_answers, random_answers, table_of, trained_answers
from becausal.core.contracts import Classifier, Scores
from becausal.core.errors import BecausalError
from becausal.core.metrics import rank_agreement
from becausal.images.fills import make_background
from becausal.methods.causal.exact import Table, is_explanation, smallest_size

KINDS = ("random", "trained", "model")
PER_MODEL = 50  # one image of the model itself for so many tiny classifiers: each costs 65,536 calls at side 4
TOGETHER = 10  # images per trained network
PREFIX = "model-"
TRIVIAL = "the empty image has the label already"

OPTIMAL = Measure("optimal", Column("optimal", "share", "high", "explanations as small as the smallest there is"), True)
MINIMAL = Measure("minimal_set", Column("minimal", "share", "high", "explanations of which no subset is enough"), True)
RATIO = Measure("ratio", Column("size ratio", "number", "low", "pixels over those of the smallest explanation"))
RANK = Measure("rank", Column("rank agreement", "number", "high", "rank correlation of map and exact responsibility"))


def collect(settings: Settings, classifier: Classifier) -> Pool:
    """Tiny classifiers, and the model on blocks of a few images; trivial ones are left out."""
    limit = settings.limit or 100
    pools = [take(_tiny(kind, settings), judged(settings, _refuse_trivial), limit, 10 * limit) for kind in KINDS[:2]]
    pools.append(Pool(_model_samples(settings, classifier, max(1, limit // PER_MODEL))))
    count = sum(pool.left_out.get(TRIVIAL, 0) for pool in pools)
    return Pool(tuple(s for pool in pools for s in pool.samples), {TRIVIAL: count} if count else {})


def _refuse_trivial(sample: Sample) -> str | None:
    return TRIVIAL if table_of(sample.read().pixels)[0] else None


def _tiny(kind: str, settings: Settings) -> Iterator[Sample]:
    number = 0
    while True:
        yield Sample(f"{kind}-{number}", _reads_tiny(kind, number, settings), None, {"kind": kind})
        number += 1


def _reads_tiny(kind: str, number: int, settings: Settings) -> Callable[[], Seen]:
    side, seed = settings.side, settings.seed

    def read() -> Seen:
        own = np.random.default_rng([seed, side, KINDS.index(kind), number])
        if kind == "random":
            return Seen(random_answers(side, own))
        return Seen(trained_answers(side, np.random.default_rng([seed, side, number // TOGETHER]), own))

    return read


def _model_samples(settings: Settings, classifier: Classifier, count: int) -> tuple[Sample, ...]:
    known = None if settings.known is None else frozenset(name.removeprefix(PREFIX) for name in settings.known)
    pool = usual_pool(replace(settings, limit=count, known=known), classifier)
    return tuple(_blocks(sample, settings, classifier) for sample in pool.samples)


def _blocks(sample: Sample, settings: Settings, classifier: Classifier) -> Sample:
    @cache  # asked once, whatever the number of methods
    def read() -> Seen:
        view = see(sample, classifier).view.pixels
        background = make_background(settings.fill, view, rng=np.random.default_rng([settings.seed, 1]))
        return Seen(model_answers(view, background, settings.side, classifier))

    return Sample(f"{PREFIX}{sample.name}", read, None, {"kind": "model"})


def perform(arm: Arm, samples: Sequence[Sample], classifier: Classifier, settings: Settings) -> Iterator[tuple[Sample, Row]]:
    """Every classifier in turn: search it, and look up what would have been best."""
    for sample in samples:
        answers: Scores = sample.read().pixels
        try:
            found = explain(
                np.full((settings.side, settings.side, 3), 255, np.uint8), _asked(answers), method=arm.request.method,
                options=arm.request.options, fill="black", grain=1, seed=arm.request.seed,
                max_calls=arm.request.max_calls,
            )  # fmt: skip
        except BecausalError as error:
            yield sample, {"error": f"{type(error).__name__}: {error}"}
        else:
            if found.stopped_by == "interrupt":
                raise KeyboardInterrupt
            yield sample, rounded(measure_against(found, table_of(answers)))


def _asked(answers: Scores) -> Callable[[NDArray[np.uint8]], Scores]:
    """A function from white and black pixels, shown and hidden, to what was answered."""
    bits = 1 << np.arange((len(answers) - 1).bit_length())

    def predict(batch: NDArray[np.uint8]) -> Scores:
        shown = batch[..., 0].reshape(len(batch), -1) > 127
        return np.asarray(answers[(shown * bits).sum(axis=1)], np.float32)

    return predict


def measure_against(found: Explanation, holds: Table) -> Row:
    """The explanation and the map next to the smallest explanation and the exact responsibilities."""
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


def summarise(rows: Sequence[Row]) -> Findings:
    """How often the best was found, by kind of classifier."""
    found = answered(rows)
    measures = (OPTIMAL, MINIMAL, RATIO, RANK, CALLS)
    kinds = Grouping(("kind", "method"), ("classifier", "method"))
    tables = (
        measure_table("methods", "All classifiers", found, measures),
        measure_table(
            "kinds", "By kind of classifier", found, measures, by=kinds, order=lambda key: KINDS.index(key[0]),
            note="random: random weights, random images; trained: small networks fitted to noisy patterns; model: the "
            "model that was given, on as many blocks of an image as the others have pixels. All minimised pixel by pixel.",
        ),
        paired_table(found, RATIO),
    )  # fmt: skip
    title = "How close to the smallest explanation"
    plot = within_plot("ratio", title, "at most so many times its pixels", found, "ratio", first=1.0, last=3.0)
    return Findings(tuple(t for t in tables if t is not None), (plot,))


BENCH = Bench(
    name="exact",
    question="On tiny images, where every subset can be asked: is the explanation the smallest there is?",
    paper="No counterpart: the paper calls the exact problem intractable and does not measure how close it comes.",
    methods="causal,dc-causal",
    limit=100,
    collect=collect,
    arms=plain_arms,
    summarise=summarise,
    judge="ratio",
    perform=perform,
)
