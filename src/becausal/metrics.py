"""Numbers that judge a map or an explanation: insertion, deletion, overlap. Pure, or asked as searches.

Insertion and deletion (Petsiuk, Das and Saenko, 2018), as they are defined here: the pixels of the view are ranked by
the map, high to low, ties in seeded patches as in `extract`. Prefix k of s holds the first round(k·n/s) of all n
pixels, k = 0 … s. Insertion shows only the prefix; deletion hides it and shows the rest; hidden pixels become the fill.
The curve is the label's probability at each k, and its area is that of the trapezes between, over an axis of length 1.
A good map has a high insertion and a low deletion.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from becausal.contracts import Saliency, Search, Visible
from becausal.extract import prefix, ranking

STEPS = 50


@dataclass(frozen=True)
class Curves:
    """The label's probability along the ranking, each (steps + 1,); NaN from a model that gives labels only."""

    insertion: NDArray[np.float64]
    deletion: NDArray[np.float64]

    @property
    def insertion_area(self) -> float:
        return area_under(self.insertion)

    @property
    def deletion_area(self) -> float:
        return area_under(self.deletion)


def prefixes(saliency: Saliency, rng: np.random.Generator, *, steps: int = STEPS) -> Visible:
    """The growing prefixes of a map's ranking, (steps + 1, *grid): from nothing to the whole view."""
    order = ranking(saliency, rng)
    counts = np.linspace(0, len(order), steps + 1).round().astype(int)
    return np.stack([prefix(order, int(count), saliency.shape) for count in counts])


def trace_curves(saliency: Saliency, rng: np.random.Generator, *, steps: int = STEPS) -> Search[Curves]:
    """Ask the 2·(steps + 1) mutants of insertion and deletion."""
    shown = prefixes(saliency, rng, steps=steps)
    answers = yield np.concatenate([shown, ~shown])
    return Curves(answers.confidence[: steps + 1], answers.confidence[steps + 1 :])


def area_under(curve: NDArray[np.float64]) -> float:
    """The area under equally spaced values, by trapezes, over an axis of length 1."""
    return float((curve[1:] + curve[:-1]).mean() / 2)


def overlap(visible: Visible, truth: Visible) -> float:
    """The share of the visible pixels that lie in the truth; 0 for a set without pixels."""
    return int(np.count_nonzero(visible & truth)) / max(1, int(np.count_nonzero(visible)))
