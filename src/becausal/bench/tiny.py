"""Classifiers of tiny images, small enough that every subset of pixels can be asked: random, trained, or the model itself.

Each is given as what it says to all subsets of one image's n pixels: `answers`, (2^n, classes) probabilities, row m for
the subset with pixel i where bit i of m is set, as in `becausal.methods.causal.exact`.
"""

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Classifier, Pixels, Scores, Visible
from becausal.methods.causal.exact import Table, all_visible

HIDDEN_UNITS = 24
PATTERNS = 4
CLASSES = PATTERNS + 1  # the last is "nothing"
BACKGROUND = 0.5
LEAST = 0.45  # a training image that shows a smaller share of its pixels counts as nothing

Floats = NDArray[np.float64]
Weights = tuple[Floats, Floats, Floats]  # inner (n, hidden), outer (hidden, classes), bias (classes,)


def random_answers(side: int, rng: np.random.Generator) -> Scores:
    """A random image under a network of random weights; a bias against its label makes single pixels seldom enough."""
    picture = rng.random((side, side))
    inner, outer = rng.normal(size=(side * side, HIDDEN_UNITS)), rng.normal(size=(HIDDEN_UNITS, CLASSES))
    logits = forward(_mutants(picture), (inner, outer, np.zeros(CLASSES)))
    second, first = np.sort(logits[-1])[-2:]
    logits[:, logits[-1].argmax()] -= rng.uniform(0.3, 0.9) * (first - second)
    return _softmax(logits)


def trained_answers(side: int, network: np.random.Generator, picture: np.random.Generator) -> Scores:
    """An image that a trained network gets right. network, image: where either comes from."""
    patterns = network.random((PATTERNS, side * side)) < 0.4
    weights = train(patterns, network)
    while True:
        label = picture.integers(PATTERNS, size=1)
        pixels = draw_patterns(patterns[label], picture)
        if forward(pixels, weights).argmax() == label[0]:
            return _softmax(forward(_mutants(pixels.reshape(side, side)), weights))


def draw_patterns(patterns: NDArray[np.bool_], rng: np.random.Generator) -> Floats:
    """Noisy images of patterns, some of their pixels lost, (m, n)."""
    shown = patterns & (rng.random(patterns.shape) > 0.1)
    return np.clip(np.where(shown, 0.85, 0.15) + rng.normal(0, 0.1, patterns.shape), 0.0, 1.0)


def forward(pixels: Floats, weights: Weights) -> Floats:
    """The logits of images (m, n), (m, classes)."""
    inner, outer, bias = weights
    return np.asarray(np.maximum((pixels - BACKGROUND) @ inner, 0.0) @ outer + bias, np.float64)


def train(patterns: NDArray[np.bool_], rng: np.random.Generator, *, steps: int = 600, batch: int = 64) -> Weights:
    """A network of one hidden layer, fitted by gradient descent to noisy images of patterns, partly hidden."""
    n = patterns.shape[1]
    inner = rng.normal(size=(n, HIDDEN_UNITS)) * np.sqrt(2 / n)
    outer = rng.normal(size=(HIDDEN_UNITS, CLASSES)) * np.sqrt(1 / HIDDEN_UNITS)
    bias = np.zeros(CLASSES)
    for _ in range(steps):
        labels = rng.integers(PATTERNS, size=batch)
        is_shown = rng.random((batch, n)) < rng.random((batch, 1))
        x = (draw_patterns(patterns[labels], rng) - BACKGROUND) * is_shown
        wanted = np.where(is_shown.mean(axis=1) < LEAST, PATTERNS, labels)
        hidden = np.maximum(x @ inner, 0.0)
        error = _softmax(hidden @ outer + bias) - np.eye(CLASSES)[wanted]  # (batch, classes)
        back = (error @ outer.T) * (hidden > 0)
        outer, bias = outer - 0.5 * hidden.T @ error / batch, bias - 0.5 * error.mean(axis=0)
        inner = inner - 0.5 * x.T @ back / batch
    return inner, outer, bias


def model_answers(view: Pixels, background: Pixels, side: int, classifier: Classifier) -> Scores:
    """The model itself on side × side blocks of a view; labels count as certain."""
    from becausal.engine.engine import Engine

    h, w = view.shape[:2]
    down, across = np.arange(h) * side // h, np.arange(w) * side // w
    engine, found = Engine(classifier), []
    subsets: Visible = all_visible((side, side))
    for start in range(0, len(subsets), 1024):
        shown = subsets[start : start + 1024][:, down][:, :, across]  # (m, h, w)
        found.append(engine.ask_plainly(view, background, shown))
    answers = np.concatenate(found)
    if answers.ndim == 1:
        answers = np.equal.outer(answers, np.unique(answers))
    return answers.astype(np.float32)


def table_of(answers: Scores) -> Table:
    """Whether the label of the whole image is on top, for every subset."""
    labels = answers.argmax(axis=1)
    return np.asarray(labels == labels[-1], bool)


def exact_responsibilities(holds: Table) -> Floats:
    """Definition 2 for every pixel, (n,), as `becausal.methods.causal.exact.responsibilities` and much faster.

    A witness keeps the target with all its subsets hidden: that is passed up from smaller sets to larger ones.
    """
    n = (len(holds) - 1).bit_length()
    everything = len(holds) - 1
    hidden = np.arange(len(holds))
    keeps = holds[everything & ~hidden].copy()
    for bit in range(n):
        has = (hidden >> bit & 1).astype(bool)
        keeps[has] &= keeps[hidden[has] & ~(1 << bit)]
    sizes = np.array([int(m).bit_count() for m in hidden])
    out = np.zeros(n)
    for pixel in range(n):
        is_witness = keeps & ~(hidden >> pixel & 1).astype(bool) & ~holds[everything & ~(hidden | 1 << pixel)]
        if is_witness.any():
            out[pixel] = 1.0 / (int(sizes[is_witness].min()) + 1)
    return out


def _mutants(picture: Floats) -> Floats:
    """All mutants of an image (side, side), as rows of pixels, (2^n, n)."""
    visible = all_visible(picture.shape).reshape(-1, picture.size)
    return np.where(visible, picture.ravel(), BACKGROUND)


def _softmax(logits: Floats) -> Scores:
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(odds / odds.sum(axis=1, keepdims=True), np.float32)
