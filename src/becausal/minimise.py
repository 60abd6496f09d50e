"""From a sufficient set to one from which no cell of a stated grain can be removed."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from becausal.contracts import Answers, Grid, Saliency, Search, Stop, Visible
from becausal.regions import cells

COARSEST = 8  # cells along the longest side on the first scale


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
    """Shave a sufficient set, cells of one grain after the other, until no cell of the finest grain can go.

    The set is sufficient at every moment. Told to stop, it returns the set as it is.
    """
    current, reached = visible, None
    for grain in grains(visible.shape, finest):
        result = yield from shave(current, saliency, cells(visible.shape, grain))
        current = result.visible
        if not result.finished:
            return Minimal(current, reached)
        reached = grain
    return Minimal(current, reached)


@dataclass(frozen=True)
class Shaved:
    """A sufficient set; `finished` says that every single removal of a cell was asked of it, and lost the target."""

    visible: Visible
    finished: bool


def shave(visible: Visible, saliency: Saliency, cell: NDArray[np.intp], *, batch: int | None = None) -> Search[Shaved]:
    """Remove cells until none can go.

    Each round asks, of the cells in doubt, what is left without each. Those that can go alone are put in order, least
    harm first (by margin; by the map where there are only labels), and as many of the first as can go together go. A
    cell that was needed once is asked again only at the end, in the round that certifies the result.

    cell: (*grid,) the number of the cell each pixel lies in. batch: ask at most so many removals at a time.
    """
    current = visible
    doubt = present(current, cell)
    certifying = True  # the first round asks them all, so it may be the last
    importance = np.bincount(cell.ravel(), saliency.ravel())
    try:
        while len(doubt):
            removable, answers = yield from _single_removals(current, cell, doubt)
            if not len(removable):
                if certifying:
                    return Shaved(current, True)
                doubt, certifying = present(current, cell), True
                continue
            order = removable[np.lexsort((importance[removable], -answers.margin))]
            gone, current = yield from _remove_together(current, cell, order)
            doubt = order[gone:]
            if not len(doubt):
                doubt = present(current, cell)
                certifying = True
            else:
                certifying = False
    except Stop:
        return Shaved(current, False)
    return Shaved(current, True)


def present(visible: Visible, cell: NDArray[np.intp]) -> NDArray[np.intp]:
    """The numbers of the cells that have a visible pixel."""
    return np.flatnonzero(np.bincount(cell[visible], minlength=1))


def without(visible: Visible, cell: NDArray[np.intp], gone: NDArray[np.intp]) -> Visible:
    """The set less some cells."""
    return visible & ~np.isin(cell, gone)


def _single_removals(
    current: Visible, cell: NDArray[np.intp], doubt: NDArray[np.intp]
) -> Search[tuple[NDArray[np.intp], Answers]]:
    """Which of the cells can go alone, and the answers without each of those."""
    answers = yield np.stack([current & (cell != c) for c in doubt])
    rows = np.flatnonzero(answers.holds)
    return doubt[rows], answers.part(rows)


def _remove_together(
    current: Visible, cell: NDArray[np.intp], order: NDArray[np.intp]
) -> Search[tuple[int, Visible]]:
    """Remove as many of the first cells as can go together, by halving; the first alone is known to go."""
    good, count = 1, len(order)
    best = without(current, cell, order[:1])
    bad = len(order) + 1
    while good < count:
        trial = without(current, cell, order[:count])
        try:
            answers = yield trial[None]
        except Stop:
            return good, best
        if answers.holds[0]:
            good, best = count, trial
        else:
            bad = count
        count = (good + bad) // 2
    return good, best
