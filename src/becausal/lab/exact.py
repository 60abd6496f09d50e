"""Comparison with brute force: for tiny images all subsets can be evaluated, so the smallest explanation is known.

A classifier of a tiny image is its scores for all subsets of the n pixels, (2^n, classes) probabilities; row m is for the
subset that contains pixel i if bit i of m is set, as in `becausal.methods.causal.exact`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import count

import numpy as np
from numpy.typing import NDArray

from becausal.api import Failure, explain_many
from becausal.core.contracts import Classifier, Scores
from becausal.core.errors import OptionError
from becausal.core.metrics import rank_agreement
from becausal.engine.engine import Engine
from becausal.images.fills import make_background
from becausal.lab.base import Arm, Bench, BenchSettings, ImageSelection
from becausal.lab.datasets import AnnotatedImage, Sample
from becausal.lab.rows import Row, error_row, rounded
from becausal.lab.selection import load_subject, select_images, take_first, unless_known
from becausal.lab.tables import CALLS, Measure, cumulative_plot, measure_table, paired_table
from becausal.methods.causal.exact import Table, all_visible, is_explanation, smallest_size
from becausal.models.outputs import softmax

KINDS = ("random", "trained", "model")
PER_MODEL = 50  # tiny classifiers for each image of the model itself, which costs 65,536 calls at side 4
TOGETHER = 10  # images per trained network
TRIVIAL = "the fully masked image already has the label"

HIDDEN_UNITS = 24
PATTERNS = 4
CLASSES = PATTERNS + 1  # the last one is "nothing"
BACKGROUND = 0.5  # value of masked pixels, in 0..1
STEPS, BATCH, RATE = 600, 64, 0.5  # gradient descent: steps, images per step, step size
LEAST = 0.45  # training images with a smaller share of visible pixels are labelled "nothing"

OPTIMAL = Measure("optimal", "optimal", "share", "high", "explanations of the smallest possible size", is_flag=True)
MINIMAL_MEANING = "explanations of which no proper subset is sufficient"
MINIMAL = Measure("minimal_set", "minimal", "share", "high", MINIMAL_MEANING, is_flag=True)
RATIO = Measure("ratio", "size ratio", "number", "low", "number of pixels divided by that of the smallest explanation")
RANK = Measure("rank", "rank correlation", "number", "high", "of the map and the exact responsibility")
MEASURES = (OPTIMAL, MINIMAL, RATIO, RANK, CALLS)
NOTE = (
    "random: random weights and images; trained: small networks fitted to noisy patterns; model: the given "
    "model on blocks of an image, as many as the tiny images have pixels. All are minimised to single pixels."
)

Floats = NDArray[np.float64]
Weights = tuple[Floats, Floats, Floats]  # inner (n, hidden), outer (hidden, classes), bias (classes,)


def select(settings: BenchSettings, classifier: Classifier) -> ImageSelection:
    """Tiny classifiers, and the model on blocks of a few images; trivial cases are excluded."""
    side, seed, fills = settings.side, settings.request.seed, settings.request.fills
    if len(fills) > 1:
        raise OptionError(f"the bench exact takes one fill, not {len(fills)}")

    def read_tiny(kind: str, number: int) -> AnnotatedImage:
        own = np.random.default_rng([seed, side, KINDS.index(kind), number])
        if kind == "random":
            return AnnotatedImage(random_scores(side, own))
        return AnnotatedImage(trained_scores(side, np.random.default_rng([seed, side, number // TOGETHER]), own))

    def read_model(sample: Sample) -> AnnotatedImage:
        """The model itself on side × side blocks of a view; a label counts as probability 1."""
        view = load_subject(sample, classifier).view.pixels
        background = make_background(fills[0], view, rng=np.random.default_rng([seed, 1]))
        h, w = view.shape[:2]
        down, across = np.arange(h) * side // h, np.arange(w) * side // w
        engine, subsets = Engine(classifier), all_visible((side, side))
        # In slices, since every subset becomes a mask of the whole view, (m, h, w).
        parts = (subsets[start : start + 1024][:, down][:, :, across] for start in range(0, len(subsets), 1024))
        scores = np.concatenate([engine.evaluate(view, background, shown) for shown in parts])
        if scores.ndim == 1:
            scores = np.equal.outer(scores, np.unique(scores))
        return AnnotatedImage(scores.astype(np.float32))

    reject = unless_known(settings, lambda sample: TRIVIAL if label_table(sample.read().pixels)[0] else None)
    limit = settings.limit or 100
    samples: list[Sample] = []
    trivial = 0
    for kind in KINDS[:2]:
        tiny = (Sample(f"{kind}-{n}", partial(read_tiny, kind, n), None, {"kind": kind}) for n in count())
        part = take_first(tiny, reject, limit, 10 * limit)
        samples += part.samples
        trivial += part.left_out.get(TRIVIAL, 0)
    known = None if settings.known is None else frozenset(name.removeprefix("model-") for name in settings.known)
    whole = select_images(replace(settings, limit=max(1, limit // PER_MODEL), known=known), classifier)
    for sample in whole.samples:
        read = cache(partial(read_model, sample))  # evaluated once for all methods
        samples.append(Sample(f"model-{sample.name}", read, None, {"kind": "model"}))
    return ImageSelection(tuple(samples), {TRIVIAL: trivial} if trivial else {})


def random_scores(side: int, rng: np.random.Generator) -> Scores:
    """A random image and a network with random weights; a bias against its label makes single pixels rarely sufficient."""
    image = rng.random((side, side))
    inner, outer = rng.normal(size=(side * side, HIDDEN_UNITS)), rng.normal(size=(HIDDEN_UNITS, CLASSES))
    logits = _forward(_mutants(image), (inner, outer, np.zeros(CLASSES)))
    second, first = np.sort(logits[-1])[-2:]
    logits[:, logits[-1].argmax()] -= rng.uniform(0.3, 0.9) * (first - second)
    return softmax(logits)


def trained_scores(side: int, network: np.random.Generator, image: np.random.Generator) -> Scores:
    """An image with a correct prediction by a trained network; each has its own random numbers."""
    patterns = network.random((PATTERNS, side * side)) < 0.4
    weights = _train(patterns, network)
    while True:
        label = image.integers(PATTERNS, size=1)
        pixels = _draw_patterns(patterns[label], image)
        if _forward(pixels, weights).argmax() == label[0]:
            return softmax(_forward(_mutants(pixels.reshape(side, side)), weights))


def _draw_patterns(patterns: NDArray[np.bool_], rng: np.random.Generator) -> Floats:
    """Noisy images of patterns with some pixels missing, (m, n)."""
    shown = patterns & (rng.random(patterns.shape) > 0.1)
    return np.clip(np.where(shown, 0.85, 0.15) + rng.normal(0, 0.1, patterns.shape), 0.0, 1.0)


def _forward(pixels: Floats, weights: Weights) -> Floats:
    """The logits, (m, classes), of images, (m, n)."""
    inner, outer, bias = weights
    return np.asarray(np.maximum((pixels - BACKGROUND) @ inner, 0.0) @ outer + bias, np.float64)


def _train(patterns: NDArray[np.bool_], rng: np.random.Generator) -> Weights:
    """A network with one hidden layer, trained by gradient descent on noisy, partly masked images of patterns."""
    n = patterns.shape[1]
    inner = rng.normal(size=(n, HIDDEN_UNITS)) * np.sqrt(2 / n)
    outer = rng.normal(size=(HIDDEN_UNITS, CLASSES)) * np.sqrt(1 / HIDDEN_UNITS)
    bias = np.zeros(CLASSES)
    for _ in range(STEPS):
        labels = rng.integers(PATTERNS, size=BATCH)
        is_shown = rng.random((BATCH, n)) < rng.random((BATCH, 1))
        x = (_draw_patterns(patterns[labels], rng) - BACKGROUND) * is_shown
        wanted = np.where(is_shown.mean(axis=1) < LEAST, PATTERNS, labels)
        hidden = np.maximum(x @ inner, 0.0)
        error = softmax(hidden @ outer + bias) - np.eye(CLASSES)[wanted]  # (batch, classes)
        back = (error @ outer.T) * (hidden > 0)
        outer, bias = outer - RATE * hidden.T @ error / BATCH, bias - RATE * error.mean(axis=0)
        inner = inner - RATE * x.T @ back / BATCH
    return inner, outer, bias


def _mutants(image: Floats) -> Floats:
    """All mutants of an image, (side, side), as rows of pixels, (2^n, n)."""
    visible = all_visible(image.shape).reshape(-1, image.size)
    return np.where(visible, image.ravel(), BACKGROUND)


def label_table(scores: Scores) -> Table:
    """For every subset, whether the top label is that of the whole image."""
    labels = scores.argmax(axis=1)
    return np.asarray(labels == labels[-1], bool)


def exact_responsibilities(holds: Table) -> Floats:
    """The responsibility of every pixel by definition 2, (n,), as in `becausal.methods.causal.exact`, but much faster.

    The target must hold when any subset of a witness is masked; this is propagated from smaller sets to larger ones.
    """
    n = (len(holds) - 1).bit_length()
    everything = len(holds) - 1
    masked = np.arange(len(holds))
    keeps = holds[everything & ~masked].copy()
    for bit in range(n):
        has = (masked >> bit & 1).astype(bool)
        keeps[has] &= keeps[masked[has] & ~(1 << bit)]
    sizes = np.array([int(m).bit_count() for m in masked])
    out = np.zeros(n)
    for pixel in range(n):
        is_witness = keeps & ~(masked >> pixel & 1).astype(bool) & ~holds[everything & ~(masked | 1 << pixel)]
        if is_witness.any():
            out[pixel] = 1.0 / (int(sizes[is_witness].min()) + 1)
    return out


def run_arm(
    arm: Arm, samples: Sequence[Sample], classifier: Classifier, settings: BenchSettings
) -> Iterator[tuple[Sample, Row]]:
    """Explain every tiny classifier as a function of images, in which visible pixels are white and masked ones black."""
    white = np.full((settings.side, settings.side, 3), 255, np.uint8)
    bits = 1 << np.arange(settings.side**2)
    request = replace(arm.request, fills=("black",), grain=1)
    for sample in samples:
        scores: Scores = sample.read().pixels

        def predict(batch: NDArray[np.uint8], scores: Scores = scores) -> Scores:
            shown = batch[..., 0].reshape(len(batch), -1) > 127
            return np.asarray(scores[(shown * bits).sum(axis=1)], np.float32)

        found = next(explain_many([white], predict, request=request))
        if isinstance(found, Failure):
            yield sample, error_row(found.error)
        elif found.stopped_by == "interrupt":
            raise KeyboardInterrupt
        else:
            holds, shown = label_table(scores), found.visible.ravel()
            pixels, best = int(shown.sum()), smallest_size(holds)
            row = {
                "pixels": pixels, "smallest": best, "optimal": int(pixels == best),
                "minimal_set": int(is_explanation(holds, int((shown * bits).sum()))), "ratio": pixels / best,
                "rank": rank_agreement(found.responsibility, exact_responsibilities(holds)), "calls": found.calls,
            }  # fmt: skip
            yield sample, rounded(row)


BENCH = Bench(
    name="exact",
    question="On tiny images, where all subsets can be evaluated: is the explanation the smallest possible?",
    paper="Section 4.3: compared with the exact computation for images of 4 × 4 pixels, the explanations of dc-causal are "
    "optimal in more than 96 % of the cases. Classifier, images, N and the meaning of optimal are on a website.",
    methods="causal,dc-causal",
    select=select,
    tables=lambda rows: [
        measure_table("methods", "All classifiers", rows, MEASURES),
        measure_table(
            "kinds", "By kind of classifier", rows, MEASURES, by={"kind": "classifier", "method": "method"},
            order=lambda key: KINDS.index(key[0]), note=NOTE,
        ),
        paired_table(rows, RATIO),
    ],
    plots=lambda rows: [
        cumulative_plot(
            "ratio", "Size compared with the smallest explanation", "size ratio, at most", rows, "ratio", first=1.0, last=3.0
        )
    ],
    rank_by="ratio",
    run_arm=run_arm,
    takes=("fills", "seed", "max_calls"),
)  # fmt: skip
