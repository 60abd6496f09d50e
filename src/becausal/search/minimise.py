"""From a sufficient set to one from which no cell of a stated grain can be removed."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Grid, Question, Saliency, Search, Stop, Visible
from becausal.core.regions import cells
from becausal.search.drive import BudgetedRun, Terms
from becausal.search.removals import Neighbours, Removals
from becausal.search.run_ahead import run_ahead

COARSEST = 8  # cells along the longest side on the first scale


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


Result = tuple[Settled, int | None]  # a settled set, and the grain at which it is minimal


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
    own, current = visible & ~always, visible | always
    neighbours = Neighbours(cell, always) if solid and cell.max() else None
    state = Removals(present(own, cell), importance, neighbours, margin=margin, once=once)
    less = _Less(own, cell)

    def look_ahead(count: int) -> Visible:
        return less(current, run_ahead(state, count))

    try:
        while groups := state.ask():
            trials = less(current, groups)
            answers = yield Question(trials, lookahead=look_ahead)
            removed = state.learn(answers.holds, answers.margin)
            if removed is not None:
                current = trials[removed]
    except Stop:
        return Settled(current, False, state.cost, state.margin)
    return Settled(current, not once, state.cost, state.margin)


def settle_within(
    visible: Visible,
    grain: int,
    expected: NDArray[np.float64],
    run: BudgetedRun,
    *,
    limit: int | None,
    margin: float = np.inf,
    always: Visible | None = None,
    floor: float = 0.0,
) -> Search[Result]:
    """Try cells one by one until none can be removed; past a limit on calls, prove it for larger cells instead.

    visible: (*grid,) a sufficient set. grain: side of a cell in pixels. expected: (*lattice,) expected cost of removing
    each cell. run: counts the calls. limit: on all calls, after which the cells are made twice as large. margin: of the
    set, where it is known. always: (*grid,) pixels of the set that stay. floor: confidence to keep.
    """
    grid, expected = visible.shape, expected.reshape(-1)
    cell = cells(grid, grain)
    search = settle(visible, cell, expected, margin=margin, always=always, solid=True)
    settled = yield from run.follow(search, Terms(floor=floor), limit=limit)
    while not settled.finished and 2 * grain <= max(grid):
        grain, finer = 2 * grain, cell
        cell = cells(grid, grain)
        known = np.where(np.isnan(settled.cost), expected, settled.cost)
        expected = _merge_costs(known, finer, cell, settled.visible)
        search = settle(settled.visible, cell, expected, margin=settled.margin, always=always, solid=True)
        settled = yield from run.follow(search, Terms(floor=floor))
    return settled, grain if settled.finished else None


def _merge_costs(
    costs: NDArray[np.float64], finer: NDArray[np.intp], cell: NDArray[np.intp], visible: Visible
) -> NDArray[np.float64]:
    """Removal costs of cells from those of finer cells; each finer cell's cost is shared by its visible pixels."""
    count, finer, cell = int(cell.max()) + 1, finer[visible], cell[visible]
    share = costs / np.maximum(np.bincount(finer, minlength=len(costs)), 1)
    return np.bincount(cell, share[finer], minlength=count).astype(np.float64)


class _Less:
    """Takes cells out of a set of pixels.

    visible: (*grid,) pixels that may be taken out. cell: (*grid,) the number of each pixel's cell.
    """

    def __init__(self, visible: Visible, cell: NDArray[np.intp]) -> None:
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
        return out
