"""From a sufficient set to one from which no cell of a stated grain can be removed."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from math import inf

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Answers, Grid, Saliency, Search, Stop, Visible, with_hints
from becausal.core.regions import cells

COARSEST = 8  # cells along the longest side on the first scale
GROUP = 16  # the most cells that are tried together
LEAST, MOST = 4, 32  # removals that are asked at a time: twice as many after each row in which none can go
SOLID = 1.0  # standard deviations of the expected cost that each visible neighbour of a cell adds to it
DIGITS = 6  # of what is compared, so that rounding decides nothing
TOGETHER = (2, 3, 4, 6, 8, 12, 16, 24, 32)  # of those that can go alone, then this many of the best are asked together


@dataclass(frozen=True)
class Minimal:
    """A sufficient set, and the finest grain at which every removal of one of its cells was asked and lost the target.

    grain is None where minimality was not reached at any grain before the search was stopped.
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

    The least important by the map go first. The set is sufficient at every moment. If stopped, it returns the set as
    it is.
    """
    current, reached = visible, None
    for grain in grains(visible.shape, finest):
        cell = cells(visible.shape, grain)
        importance = np.bincount(cell[current], saliency[current], minlength=int(cell.max()) + 1).astype(np.float64)
        settled = yield from settle(current, cell, importance, solid=True)
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

    cost: per cell number, how much margin its removal took when it was last asked; NaN where it never was. margin: of
    the set, where it is known, else inf.
    """

    visible: Visible
    finished: bool
    cost: NDArray[np.float64]
    margin: float


class _Queue:
    """Which cells to try next: those thought removable, then those never tried, then those whose removal cost least.

    Every success makes the failures before it stale: a set is minimal once each of its cells has failed since the last.
    """

    def __init__(self, members: NDArray[np.intp], importance: NDArray[np.float64], neighbours: "_Neighbours | None") -> None:
        self.alive = np.zeros(len(importance), bool)
        self.alive[members] = True
        self.importance = importance
        self.neighbours = neighbours
        self.cost = np.full(len(importance), np.nan)
        self.tried = np.full(len(importance), -1)  # the clock when it was last tried
        self.clock = 0
        self.success = 0  # the clock of the last success

    def order(self, margin: float) -> NDArray[np.intp]:
        """The cells in doubt, most promising first."""
        doubt = np.flatnonzero(self.alive & (self.tried < self.success))
        never = np.isnan(self.cost[doubt])
        easy = ~never & (self.cost[doubt] <= margin)
        rank = np.where(easy, 0, np.where(never, 1, 2))
        within = np.where(never, self.importance[doubt], self.cost[doubt])
        return doubt[np.lexsort((self.tried[doubt], within + self.support(doubt, within), rank))]

    def support(self, numbers: NDArray[np.intp], values: NDArray[np.float64]) -> NDArray[np.float64]:
        """What to add to the expected costs of some cells, so that cells with few visible neighbours go first."""
        if self.neighbours is None or len(numbers) < 2:
            return np.zeros(len(numbers))
        return np.round(SOLID * float(np.std(values)) * self.neighbours.count(self.alive)[numbers], DIGITS)

    def drop(self, gone: NDArray[np.intp]) -> None:
        self.alive[gone] = False
        self.clock += 1
        self.success = self.clock

    def keep(self, needed: NDArray[np.intp], cost: NDArray[np.float64]) -> None:
        self.cost[needed] = cost
        self.clock += 1
        self.tried[needed] = self.clock


def settle(
    visible: Visible,
    cell: NDArray[np.intp],
    importance: NDArray[np.float64],
    *,
    margin: float = inf,
    always: Visible | None = None,
    solid: bool = False,
    once: bool = False,
) -> Search[Settled]:
    """Remove cells until none can go, the least important first, several together while that works.

    A cell that proved needed is tried again once the set has changed; it ends when every cell has failed since the last
    success, which is the proof of minimality. cell: (*grid,) the number of each pixel's cell. importance: per cell
    number. margin: of the set as it is, where known. always: pixels of the set that stay. solid: prefer sets with few
    pieces and holes; the cells form a lattice. once: do not try a cell again, and prove nothing. If stopped, it returns the
    set as it is.
    """
    always = np.zeros_like(visible) if always is None else always
    current = visible & ~always
    neighbours = _Neighbours(cell, always) if solid and cell.max() else None
    queue = _Queue(present(current, cell), importance, neighbours)
    less = _Less(current, cell, always)
    group, row = 2, LEAST
    try:
        while len(order := queue.order(margin)):
            if once and not len(order := order[queue.tried[order] < 0]):
                break
            if group > 1 and len(order) > 1:
                together = order[:group]
                trials = less(current, [together])
                answers = yield with_hints(trials, lookahead=partial(_next_groups, less, current, order, group))
                if answers.holds[0]:
                    current, margin = trials[0] & ~always, float(answers.margin[0])
                    queue.drop(together)
                group = min(2 * group, GROUP) if answers.holds[0] else len(together) // 2
                continue
            tried = order[:row]
            trials = less(current, _singles(tried))
            answers = yield with_hints(trials, lookahead=partial(_next_singles, less, current, order, row))
            _learn(queue, tried, answers, margin)
            if not answers.holds.any():
                row = min(2 * row, MOST)
                continue
            able = np.flatnonzero(answers.holds)
            able = able[np.argsort(queue.support(tried[able], answers.margin[able]) - answers.margin[able], kind="stable")]
            count, current, margin = 1, trials[able[0]] & ~always, float(answers.margin[able[0]])
            counts = [count for count in TOGETHER if count <= len(able)]
            if counts:
                unions = less(current, [tried[able[1:most]] for most in counts])
                answers = yield unions
                if answers.holds.any():
                    last = int(np.flatnonzero(answers.holds)[-1])
                    count, current, margin = counts[last], unions[last] & ~always, float(answers.margin[last])
            queue.drop(tried[able[:count]])
            group, row = count if count == len(tried) else 1, LEAST
    except Stop:
        return Settled(current | always, False, queue.cost, margin)
    return Settled(current | always, not once, queue.cost, margin)


class _Neighbours:
    """Counts the visible neighbours of the cells of a lattice.

    cell: (*grid,) the number of each pixel's cell. always: pixels that stay; their cells count as visible.
    """

    def __init__(self, cell: NDArray[np.intp], always: Visible) -> None:
        lines = (np.moveaxis(cell, axis, 0).reshape(cell.shape[axis], -1)[:, 0] for axis in range(cell.ndim))
        self._shape = tuple(len(np.unique(line)) for line in lines)
        self._always = np.bincount(cell[always], minlength=int(cell.max()) + 1) > 0

    def count(self, alive: NDArray[np.bool_]) -> NDArray[np.intp]:
        """For each cell, how many of the cells next to it are visible."""
        shown = (alive | self._always).reshape(self._shape).astype(np.intp)
        found = np.zeros(self._shape, np.intp)
        for axis in range(shown.ndim):
            near, values = np.moveaxis(found, axis, 0), np.moveaxis(shown, axis, 0)
            near[1:] += values[:-1]
            near[:-1] += values[1:]
        return found.reshape(-1)


class _Less:
    """Takes cells out of a set of pixels and of its subsets.

    visible: (*grid,) the set. cell: (*grid,) the number of each pixel's cell. always: pixels that are shown whatever is
    taken out.
    """

    def __init__(self, visible: Visible, cell: NDArray[np.intp], always: Visible) -> None:
        self._always = always if always.any() else None
        pixels = np.flatnonzero(visible)
        number = cell.reshape(-1)[pixels]
        self._pixels = pixels[np.argsort(number, kind="stable")]  # cell by cell
        self._starts = np.concatenate([[0], np.cumsum(np.bincount(number))]).tolist()

    def __call__(self, visible: Visible, groups: Sequence[NDArray[np.intp]]) -> Visible:
        """The set, (*grid,), without each of these groups of cells, (groups, *grid)."""
        out = np.repeat(visible[None], len(groups), axis=0)
        for row, gone in zip(out.reshape(len(groups), visible.size), groups, strict=True):
            for number in gone.tolist():
                row[self._pixels[self._starts[number] : self._starts[number + 1]]] = False
        return out if self._always is None else out | self._always


def _singles(numbers: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    return [numbers[i : i + 1] for i in range(len(numbers))]


def _next_singles(less: _Less, current: Visible, order: NDArray[np.intp], row: int, count: int) -> Visible:
    """What is asked next: if no cell of the row can go, those after it; if some of a short row can, these together."""
    guesses, tried = _singles(order[row : row + count]), order[:row].tolist()
    if len(tried) <= LEAST:
        guesses[2 * row : 2 * row] = [np.array(some) for size in TOGETHER for some in combinations(tried, size)]
    return less(current, guesses[:count])


def _next_groups(less: _Less, current: Visible, order: NDArray[np.intp], group: int, count: int) -> Visible:
    """What is asked next: if the first cells together can go, as far as the order stays; if not, fewer, then single ones.

    A third of the guesses is on success.
    """
    groups: list[NDArray[np.intp]] = []
    size, gone = group, group
    while len(groups) < count // 3 and gone < len(order):
        size = min(2 * size, GROUP)
        groups.append(order[: gone + size])
        gone += size
    group //= 2
    while group > 1:
        groups.append(order[:group])
        group //= 2
    return less(current, (groups + _singles(order[:count]))[:count])


def _learn(queue: _Queue, tried: NDArray[np.intp], answers: Answers, margin: float) -> None:
    """Note what each removal cost; those that may go are left in doubt, known to be easy."""
    before = margin if np.isfinite(margin) else float(answers.margin.max())
    cost = before - answers.margin
    queue.cost[tried] = cost
    needed = ~answers.holds
    queue.keep(tried[needed], cost[needed])
