"""From a sufficient set to one from which no cell of a stated grain can be removed."""

from dataclasses import dataclass
from functools import partial
from math import inf

import numpy as np
from numpy.typing import NDArray

from becausal.contracts import Answers, Grid, Saliency, Search, Stop, Visible, say
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
    less = _Less(cell)
    current, group, failures = visible, 2, 0
    try:
        while len(order := queue.order(margin)):
            if failures >= ROW:
                row = order[:ROW]
                trials = np.stack([less(current, row[i : i + 1]) for i in range(len(row))])
                answers = yield say(trials, ahead=partial(_next_singles, less, current, order[ROW:]))
                _learn(queue, row, answers, margin)
                if not answers.holds.any():
                    continue
                best = int(np.argmax(np.where(answers.holds, answers.margin, -inf)))
                current, margin = trials[best], float(answers.margin[best])
                queue.drop(row[best : best + 1])
                group, failures = min(2, int(answers.holds.sum())), 0
                continue
            together = order[:group]
            trial = less(current, together)
            answers = yield say(trial[None], ahead=partial(_next_groups, less, current, order, group))
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


class _Less:
    """Takes cells out of sets of pixels; cell: (*grid,) the number of each pixel's cell."""

    def __init__(self, cell: NDArray[np.intp]) -> None:
        flat = cell.reshape(-1)
        self._pixels = np.argsort(flat, kind="stable")  # cell by cell
        self._starts = np.searchsorted(flat[self._pixels], np.arange(int(flat.max()) + 2))

    def __call__(self, visible: Visible, gone: NDArray[np.intp]) -> Visible:
        """A copy of the set, (*grid,), without these cells."""
        out = visible.copy()
        flat = out.reshape(-1)
        for number in gone.tolist():
            flat[self._pixels[self._starts[number] : self._starts[number + 1]]] = False
        return out


def _next_singles(less: _Less, current: Visible, order: NDArray[np.intp], count: int) -> list[Visible]:
    """What is asked next if every removal fails: the next cells, one by one."""
    return [less(current, order[i : i + 1]) for i in range(min(count, len(order)))]


def _next_groups(less: _Less, current: Visible, order: NDArray[np.intp], group: int, count: int) -> list[Visible]:
    """What is asked next: if the first cells together can go, as far as the order stays; if not, fewer, then single ones.

    A third of the guesses is on success.
    """
    guesses: list[Visible] = []
    size, gone = group, group
    while len(guesses) < count // 3 and gone < len(order):
        size = min(2 * size, GROUP)
        guesses.append(less(current, order[: gone + size]))
        gone += size
    group //= 2
    while group >= 1:
        guesses.append(less(current, order[:group]))
        group //= 2
    return guesses + _next_singles(less, current, order[1:], count - len(guesses))


def _learn(queue: _Queue, tried: NDArray[np.intp], answers: Answers, margin: float) -> None:
    """Note what each removal cost; those that may go are left in doubt, known to be easy."""
    before = margin if np.isfinite(margin) else float(answers.margin.max())
    harm = before - answers.margin
    queue.harm[tried] = harm
    needed = ~answers.holds
    queue.keep(tried[needed], harm[needed])
