"""The last step of the search `causal`: single cells, until none can be removed."""

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Search, Visible
from becausal.core.regions import cells
from becausal.search.drive import BudgetedRun, Terms
from becausal.search.minimise import Settled, settle

Result = tuple[Settled, int | None]  # a settled set, and the grain at which it is minimal


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

    Args:
        visible: (*grid,) a sufficient set.
        grain: Side of a cell in pixels.
        expected: (*lattice,) expected cost of removing each cell.
        run: Counts the calls.
        limit: Number of calls, in all, after which the cells are made twice as large; None for no limit.
        margin: Margin of the set, where it is known.
        always: (*grid,) pixels of the set that stay.
        floor: Confidence to keep.
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
