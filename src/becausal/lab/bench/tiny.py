"""Classifiers of tiny images, for which all subsets of pixels can be evaluated: random, trained, or the model itself.

Each is represented by its scores for all subsets of the n pixels of one image, (2^n, classes) probabilities; row m is for
the subset that contains pixel i if bit i of m is set, as in `becausal.methods.causal.exact`.
"""

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Classifier, Pixels, Scores, Visible
from becausal.methods.causal.exact import Table, all_visible

HIDDEN_UNITS = 24
PATTERNS = 4
CLASSES = PATTERNS + 1  # the last one is "nothing"
BACKGROUND = 0.5  # value of masked pixels, in 0..1
STEPS, BATCH, RATE = 600, 64, 0.5  # gradient descent: steps, images per step, step size
LEAST = 0.45  # training images with a smaller share of visible pixels are labelled "nothing"

Floats = NDArray[np.float64]
Weights = tuple[Floats, Floats, Floats]  # inner (n, hidden), outer (hidden, classes), bias (classes,)


def random_scores(side: int, rng: np.random.Generator) -> Scores:
    """A random image and a network with random weights; a bias against its label makes single pixels rarely sufficient."""
    image = rng.random((side, side))
    inner, outer = rng.normal(size=(side * side, HIDDEN_UNITS)), rng.normal(size=(HIDDEN_UNITS, CLASSES))
    logits = forward(_mutants(image), (inner, outer, np.zeros(CLASSES)))
    second, first = np.sort(logits[-1])[-2:]
    logits[:, logits[-1].argmax()] -= rng.uniform(0.3, 0.9) * (first - second)
    return _softmax(logits)


def trained_scores(side: int, network: np.random.Generator, image: np.random.Generator) -> Scores:
    """An image with a correct prediction by a trained network; each has its own random numbers."""
    patterns = network.random((PATTERNS, side * side)) < 0.4
    weights = train(patterns, network)
    while True:
        label = image.integers(PATTERNS, size=1)
        pixels = draw_patterns(patterns[label], image)
        if forward(pixels, weights).argmax() == label[0]:
            return _softmax(forward(_mutants(pixels.reshape(side, side)), weights))


def draw_patterns(patterns: NDArray[np.bool_], rng: np.random.Generator) -> Floats:
    """Noisy images of patterns with some pixels missing, (m, n)."""
    shown = patterns & (rng.random(patterns.shape) > 0.1)
    return np.clip(np.where(shown, 0.85, 0.15) + rng.normal(0, 0.1, patterns.shape), 0.0, 1.0)


def forward(pixels: Floats, weights: Weights) -> Floats:
    """The logits, (m, classes), of images, (m, n)."""
    inner, outer, bias = weights
    return np.asarray(np.maximum((pixels - BACKGROUND) @ inner, 0.0) @ outer + bias, np.float64)


def train(patterns: NDArray[np.bool_], rng: np.random.Generator) -> Weights:
    """A network with one hidden layer, trained by gradient descent on noisy, partly masked images of patterns."""
    n = patterns.shape[1]
    inner = rng.normal(size=(n, HIDDEN_UNITS)) * np.sqrt(2 / n)
    outer = rng.normal(size=(HIDDEN_UNITS, CLASSES)) * np.sqrt(1 / HIDDEN_UNITS)
    bias = np.zeros(CLASSES)
    for _ in range(STEPS):
        labels = rng.integers(PATTERNS, size=BATCH)
        is_shown = rng.random((BATCH, n)) < rng.random((BATCH, 1))
        x = (draw_patterns(patterns[labels], rng) - BACKGROUND) * is_shown
        wanted = np.where(is_shown.mean(axis=1) < LEAST, PATTERNS, labels)
        hidden = np.maximum(x @ inner, 0.0)
        error = _softmax(hidden @ outer + bias) - np.eye(CLASSES)[wanted]  # (batch, classes)
        back = (error @ outer.T) * (hidden > 0)
        outer, bias = outer - RATE * hidden.T @ error / BATCH, bias - RATE * error.mean(axis=0)
        inner = inner - RATE * x.T @ back / BATCH
    return inner, outer, bias


def model_scores(view: Pixels, background: Pixels, side: int, classifier: Classifier) -> Scores:
    """The model itself on side × side blocks of a view; a label counts as probability 1."""
    from becausal.engine.engine import Engine

    h, w = view.shape[:2]
    down, across = np.arange(h) * side // h, np.arange(w) * side // w
    engine, parts = Engine(classifier), []
    subsets: Visible = all_visible((side, side))
    for start in range(0, len(subsets), 1024):
        shown = subsets[start : start + 1024][:, down][:, :, across]  # (m, h, w)
        parts.append(engine.evaluate(view, background, shown))
    scores = np.concatenate(parts)
    if scores.ndim == 1:
        scores = np.equal.outer(scores, np.unique(scores))
    return scores.astype(np.float32)


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


def _mutants(image: Floats) -> Floats:
    """All mutants of an image, (side, side), as rows of pixels, (2^n, n)."""
    visible = all_visible(image.shape).reshape(-1, image.size)
    return np.where(visible, image.ravel(), BACKGROUND)


def _softmax(logits: Floats) -> Scores:
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(odds / odds.sum(axis=1, keepdims=True), np.float32)
