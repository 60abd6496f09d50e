"""The metrics that ask the model: insertion and deletion, and transfer to other backgrounds (`core.metrics`)."""

import numpy as np

from becausal.core.contracts import Saliency, Search, Visible
from becausal.core.intervals import exact_interval
from becausal.core.metrics import STEPS, Curves, Transfer, prefixes
from becausal.search.certifying import count_kept


def trace_curves(saliency: Saliency, rng: np.random.Generator, *, steps: int = STEPS) -> Search[Curves]:
    """Evaluate the 2·(steps + 1) mutants of insertion and deletion."""
    shown = prefixes(saliency, rng, steps=steps)
    answers = yield np.concatenate([shown, ~shown])
    return Curves(answers.confidence[: steps + 1], answers.confidence[steps + 1 :])


def transfer(visible: Visible, *, first: int, count: int, confidence: float = 0.95) -> Search[Transfer]:
    """Evaluate a set, (*grid,), on the backgrounds `first` to `first + count - 1`; confidence: of the interval.

    The backgrounds must be held out: drawn neither by the search nor for a certificate of this set.
    """
    tally = yield from count_kept(visible, first=first, count=count)
    low, high = exact_interval(tally.kept, tally.asked, confidence) if tally.asked else (0.0, 1.0)
    return Transfer(tally.kept, tally.asked, low, high)
