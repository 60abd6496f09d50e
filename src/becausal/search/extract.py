"""The prefixes of a map's ranking: the first one that keeps the target, and the curves of insertion and deletion."""

import numpy as np

from becausal.core.contracts import Saliency, Search, Stop, Visible
from becausal.core.metrics import STEPS, Curves, prefix, prefixes, ranking

COARSE = 64  # prefixes on the first, coarse scale
WAVE = 4  # prefixes asked at a time on it


def extract(saliency: Saliency, rng: np.random.Generator) -> Search[Visible | None]:
    """The smallest prefix of the ranking that keeps the target, in coarse steps and then fine ones.

    The coarse steps go up in 64ths of the view until one holds; bisection then closes in on a prefix that holds while
    the one with a pixel less does not. None if stopped before any prefix was seen to hold.
    """
    grid = saliency.shape
    order = ranking(saliency, rng)
    steps = np.unique(np.linspace(0, len(order), min(COARSE, len(order)) + 1).round().astype(int))[1:]
    low, high = 0, 0
    try:
        for start in range(0, len(steps), WAVE):
            counts = steps[start : start + WAVE]
            answers = yield np.stack([prefix(order, int(c), grid) for c in counts])
            if answers.holds.any():
                first = int(np.argmax(answers.holds))
                high = int(counts[first])
                low = int(counts[first - 1]) if first else low
                break
            low = int(counts[-1])
        while high - low > 1:
            middle = (low + high) // 2
            answers = yield prefix(order, middle, grid)[None]
            low, high = (low, middle) if answers.holds[0] else (middle, high)
    except Stop:
        pass
    return prefix(order, high, grid) if high else None


def trace_curves(saliency: Saliency, rng: np.random.Generator, *, steps: int = STEPS) -> Search[Curves]:
    """Evaluate the 2·(steps + 1) mutants of insertion and deletion."""
    shown = prefixes(saliency, rng, steps=steps)
    answers = yield np.concatenate([shown, ~shown])
    return Curves(answers.confidence[: steps + 1], answers.confidence[steps + 1 :])
