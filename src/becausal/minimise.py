"""From a sufficient set to one from which no cell of a stated grain can be removed."""

from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from becausal.contracts import Answers, Grid, Saliency, Search, Stop, Visible
from becausal.regions import cells

COARSEST = 8  # cells along the longest side on the first scale
GROUP = 16  # the most cells that are tried together
ROW = 8  # removals asked at a time once most of them fail


@dataclass(frozen=True)
class Minimal:
    """A sufficient set, and the finest grain at which every removal of one of its cells was asked and lost the target.

    grain is None where minimality was not reached at any grain before the search was told to stop.
    """

    visible: Visible
    grain: int | None


def grains(grid: Grid, finest: int) -> list[int]:
    """The cell sides to go through, coarse to fine: finest times powers of two, down from about 1/8 of the view."""
    scale = [finest]
    while scale[-1] * 2 * COARSEST <= max(grid):
        scale.append(scale[-1] * 2)
    return scale[::-1]


def minimise(visible: Visible, saliency: Saliency, *, finest: int) -> Search[Minimal]:
    """Settle a sufficient set, cells of one grain after the other, until no cell of the finest grain can go.

    The least important by the map go first. The set is sufficient at every moment. Told to stop, it returns the set as
    it is.
    """
    current, reached = visible, None
    for grain in grains(visible.shape, finest):
        cell = cells(visible.shape, grain)
        importance = np.bincount(cell[current], saliency[current], minlength=int(cell.max()) + 1).astype(np.float64)
        settled = yield from settle(current, cell, importance)
        if not settled.finished:
            # What was shown of the coarser cells holds for the set it was shown of, and need not for a smaller one.
            same = settled.visible.sum() == current.sum()
            return Minimal(settled.visible, reached if same else None)
        current, reached = settled.visible, grain
    return Minimal(current, reached)


def present(visible: Visible, cell: NDArray[np.intp]) -> NDArray[np.intp]:
    """The numbers of the cells that have a visible pixel."""
    return np.flatnonzero(np.bincount(cell[visible], minlength=1))


@dataclass(frozen=True)
class Settled:
    """A sufficient set; `finished` says that every single removal of a cell was asked of it, and lost the target.

    harm: per cell number, how much margin its removal took when it was last asked; NaN where it never was.
    """

    visible: Visible
    finished: bool
    harm: NDArray[np.float64]


class _Queue:
    """Which cells to try next: those thought removable, then those never tried, then the others, oldest first.

    Every success makes the failures before it stale: a set is minimal once each of its cells has failed since the last.
    """

    def __init__(self, members: NDArray[np.intp], importance: NDArray[np.float64]) -> None:
        self.alive = np.zeros(len(importance), bool)
        self.alive[members] = True
        self.importance = importance
        self.harm = np.full(len(importance), np.nan)
        self.tried = np.full(len(importance), -1)  # the clock when it was last tried
        self.clock = 0
        self.success = 0  # the clock of the last success

    def order(self, margin: float) -> NDArray[np.intp]:
        """The cells in doubt, most promising first."""
        doubt = np.flatnonzero(self.alive & (self.tried < self.success))
        never = np.isnan(self.harm[doubt])
        easy = ~never & (self.harm[doubt] <= margin)
        rank = np.where(easy, 0, np.where(never, 1, 2))
        within = np.where(easy, self.harm[doubt], np.where(never, self.importance[doubt], self.tried[doubt]))
        return doubt[np.lexsort((within, rank))]

    def drop(self, gone: NDArray[np.intp]) -> None:
        self.alive[gone] = False
        self.clock += 1
        self.success = self.clock

    def keep(self, needed: NDArray[np.intp], harm: NDArray[np.float64]) -> None:
        self.harm[needed] = harm
        self.clock += 1
        self.tried[needed] = self.clock


def settle(
    visible: Visible, cell: NDArray[np.intp], importance: NDArray[np.float64], *, margin: float = inf
) -> Search[Settled]:
    """Remove cells until none can go, the least important first, several together while that works.

    A cell that proved needed is tried again once the set has changed; it ends when every cell has failed since the last
    success, which is the proof of minimality. cell: (*grid,) the number of each pixel's cell. importance: per cell
    number. margin: of the set as it is, where known. Told to stop, it returns the set as it is.
    """
    queue = _Queue(present(visible, cell), importance)
    queue.success = 0
    current, group, failures = visible, 2, 0
    try:
        while len(order := queue.order(margin)):
            if failures >= ROW:
                row = order[:ROW]
                answers = yield np.stack([current & (cell != c) for c in row])
                _learn(queue, row, answers, margin)
                if not answers.holds.any():
                    continue
                best = int(np.argmax(np.where(answers.holds, answers.margin, -inf)))
                current, margin = current & (cell != row[best]), float(answers.margin[best])
                queue.drop(row[best : best + 1])
                group, failures = min(2, int(answers.holds.sum())), 0
                continue
            together = order[:group]
            trial = current & ~np.isin(cell, together)
            answers = yield trial[None]
            if answers.holds[0]:
                current, margin = trial, float(answers.margin[0])
                queue.drop(together)
                group, failures = min(2 * group, GROUP), 0
            elif len(together) > 1:
                group = len(together) // 2
            else:
                _learn(queue, together, answers, margin)
                failures += 1
    except Stop:
        return Settled(current, False, queue.harm)
    return Settled(current, True, queue.harm)


def _learn(queue: _Queue, tried: NDArray[np.intp], answers: Answers, margin: float) -> None:
    """Note what each removal cost; those that may go are left in doubt, known to be easy."""
    before = margin if np.isfinite(margin) else float(answers.margin.max())
    harm = before - answers.margin
    queue.harm[tried] = harm
    needed = ~answers.holds
    queue.keep(tried[needed], harm[needed])
