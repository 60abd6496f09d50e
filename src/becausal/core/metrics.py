"""Metrics of a map or an explanation: insertion, deletion, overlap, agreement, transfer.

Insertion and deletion (Petsiuk, Das and Saenko, 2018), as they are defined here: the pixels of the view are ranked by
the map, high to low, ties in seeded patches as in `extract`. Prefix k of s holds the first round(k·n/s) of all n
pixels, k = 0 … s. Insertion shows only the prefix; deletion masks it and shows the rest; masked pixels become the fill.
The curve is the label's probability at each k, and its area is that of the trapezes between, over an axis of length 1.
A good map has a high insertion and a low deletion.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Saliency, Visible
from becausal.core.regions import cells

STEPS = 50
HELD_OUT, HELD_OUT_COUNT = 2_000_000, 40  # random backgrounds of `transfer`: the number of the first, and how many


@dataclass(frozen=True, eq=False)
class Curves:
    """The label's probability along the ranking, each (steps + 1,); NaN from a model that returns labels only."""

    insertion: NDArray[np.float64]
    deletion: NDArray[np.float64]

    @property
    def insertion_area(self) -> float:
        return area_under(self.insertion)

    @property
    def deletion_area(self) -> float:
        return area_under(self.deletion)


@dataclass(frozen=True)
class Transfer:
    """On how many held-out backgrounds, of those asked, a set keeps its label; low, high: exact interval of the share."""

    kept: int
    asked: int
    low: float
    high: float

    @property
    def share(self) -> float:
        """The share of backgrounds on which the label was kept; NaN where none was evaluated."""
        return self.kept / self.asked if self.asked else float("nan")


def ranking(saliency: Saliency, rng: np.random.Generator) -> NDArray[np.intp]:
    """Pixel numbers, (n,), from high to low.

    Ties are broken cell by cell: cells of 1/32 of the longest side come in a seeded random order, the pixels of a cell
    in rows, so that a plateau of the map is revealed in patches and not as dust.
    """
    grid = saliency.shape
    cell = cells(grid, max(1, max(grid) // 32)).ravel()
    order = rng.permutation(int(cell.max()) + 1)
    return np.lexsort((order[cell], -saliency.ravel()))


def prefix(order: NDArray[np.intp], count: int, grid: tuple[int, ...]) -> Visible:
    """The set of the first `count` pixels of a ranking, (*grid,)."""
    visible = np.zeros(grid, bool)
    visible.reshape(-1)[order[:count]] = True
    return visible


def prefixes(saliency: Saliency, rng: np.random.Generator, *, steps: int = STEPS) -> Visible:
    """The growing prefixes of a map's ranking, (steps + 1, *grid): from nothing to the whole view."""
    order = ranking(saliency, rng)
    counts = np.linspace(0, len(order), steps + 1).round().astype(int)
    return np.stack([prefix(order, int(count), saliency.shape) for count in counts])


def area_under(curve: NDArray[np.float64]) -> float:
    """The area under equally spaced values, by trapezes, over an axis of length 1."""
    return float((curve[1:] + curve[:-1]).mean() / 2)


def overlap(visible: Visible, truth: Visible) -> float:
    """The share of the visible pixels that lie in the truth; 0 for a set without pixels."""
    return int(np.count_nonzero(visible & truth)) / max(1, int(np.count_nonzero(visible)))


def recall(visible: Visible, truth: Visible) -> float:
    """The share of the truth that is visible; 0 where there is no truth."""
    return int(np.count_nonzero(visible & truth)) / max(1, int(np.count_nonzero(truth)))


def iou(one: Visible, other: Visible) -> float:
    """Intersection over union of two sets; 1 where both are empty."""
    union = int(np.count_nonzero(one | other))
    return int(np.count_nonzero(one & other)) / union if union else 1.0


def top_pixels(saliency: Saliency, count: int, rng: np.random.Generator) -> Visible:
    """The `count` highest pixels of a map, ties in seeded patches as in `extract`, (*grid,)."""
    return prefix(ranking(saliency, rng), count, saliency.shape)


def points_inside(saliency: Saliency, truth: Visible) -> float:
    """The pointing game: 1 where the map is highest inside the truth, else 0; of several highest pixels, their share."""
    highest = saliency == saliency.max()
    return int(np.count_nonzero(highest & truth)) / int(np.count_nonzero(highest))


def ranks(values: NDArray[Any]) -> NDArray[np.float64]:
    """The rank of every value, (n,), from 1 on; equal values share the mean of their ranks."""
    _, place, counts = np.unique(np.ravel(values), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2.0)[place.ravel()], np.float64)


def rank_agreement(one: NDArray[Any], other: NDArray[Any]) -> float:
    """Spearman's rank correlation of two maps, -1 to 1; NaN where one of them is constant."""
    a, b = ranks(one), ranks(other)
    a, b = a - a.mean(), b - b.mean()
    size = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / size if size > 0 else float("nan")


def pieces_found(visible: Visible, numbered: NDArray[Any], count: int, *, least: float = 0.05) -> int:
    """How many of the pieces numbered 1 … count hold at least this share of the visible pixels."""
    held = np.bincount(numbered[visible].ravel(), minlength=count + 1)[1 : count + 1]
    return int(np.count_nonzero(held >= max(1.0, least * int(np.count_nonzero(visible)))))
