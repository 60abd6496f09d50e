"""A grid seen in cells, and what hiding them has cost: pure, of any dimension."""

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Grid, Visible

Cells = NDArray[np.bool_]  # over the lattice: True = shown


@dataclass(frozen=True)
class Lattice:
    """A grid seen in cells of side `grain`; the last ones along an axis may be cut short.

    within: pixels outside of these, (*grid,), are never shown; a cell that crosses their border is cut there.
    """

    grid: Grid
    grain: int
    within: Visible | None = field(default=None, compare=False, repr=False)

    @property
    def shape(self) -> Grid:
        return tuple(-(-side // self.grain) for side in self.grid)

    def show(self, cells: Cells) -> Visible:
        """Sets of cells, (..., *lattice), as sets of pixels, (..., *grid)."""
        pixels = cells
        for axis in range(-1, -len(self.grid) - 1, -1):  # the last one first: the others then repeat whole rows
            pixels = np.repeat(pixels, self.grain, axis=axis)
        before = (slice(None),) * (cells.ndim - len(self.grid))
        pixels = pixels[before + tuple(slice(0, side) for side in self.grid)]
        return pixels if self.within is None else pixels & self.within

    def collect(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """One number per pixel, (*grid,), added up per cell."""
        for axis, side in enumerate(self.grid):
            values = np.add.reduceat(values, np.arange(0, side, self.grain), axis=axis)
        return values

    def enclose(self, within: Visible) -> tuple["Lattice", Cells]:
        """The lattice with nothing outside of these pixels, and the cells that have any of them."""
        return replace(self, within=within), self.collect(within.astype(np.float64)) > 0

    def spread(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """One number per cell as one per pixel, (*grid,)."""
        for axis in range(values.ndim):
            values = np.repeat(values, self.grain, axis=axis)
        return values[tuple(slice(0, side) for side in self.grid)]


@dataclass
class RemovalCost:
    """What hiding has cost so far, per cell: the loss of margin, shared among the cells that were hidden for it.

    Old experience fades as the set changes, since it was had in other company. expected: what was thought before, per
    cell; it counts as much as `weight` trials, and does not fade.
    """

    shape: Grid
    expected: NDArray[np.float64] | None = None
    weight: float = 0.0
    loss: NDArray[np.float64] = field(init=False)
    trials: NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        self.loss = np.zeros(self.shape)
        self.trials = np.zeros(self.shape)

    def learn(self, parts: Cells, losses: NDArray[np.float64]) -> None:
        """Note what the loss of each part, (n, *lattice), cost."""
        self.loss += add_up(parts, losses / np.maximum(sizes_of(parts), 1))
        self.trials += add_up(parts, np.ones(len(parts)))

    def fade(self, keep: float) -> None:
        self.loss *= keep
        self.trials *= keep

    def estimate(self) -> NDArray[np.float64]:
        """The expected loss per cell; cells never tried, of which nothing was thought before, get the mean."""
        if self.expected is not None:
            return np.asarray((self.loss + self.weight * self.expected) / (self.trials + self.weight), np.float64)
        total = self.trials.sum()
        mean = self.loss.sum() / total if total else 0.0
        return np.where(self.trials > 0, self.loss / np.maximum(self.trials, 1e-12), mean)


def sizes_of(sets: Cells) -> NDArray[np.intp]:
    """How many cells each of the sets, (n, *lattice), has."""
    return np.array([np.count_nonzero(one) for one in sets], np.intp)  # faster than a sum over bool


def add_up(sets: Cells, worths: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each cell's sum of the worths of the sets, (n, *lattice), it is in."""
    return np.asarray(np.einsum("i,i...->...", worths, sets), np.float64)  # a matrix product would call threads for it


def smooth(values: NDArray[np.float64], radius: int) -> NDArray[np.float64]:
    """Each cell's mean over the cells up to `radius` away along every axis; the border's values go on beyond it."""
    for axis in range(values.ndim):
        padding = [(0, 0)] * values.ndim
        padding[axis] = (radius + 1, radius)
        sums = np.cumsum(np.pad(values, padding, mode="edge"), axis=axis)
        along = np.moveaxis(sums, axis, 0)
        values = np.moveaxis(along[2 * radius + 1 :] - along[: -2 * radius - 1], 0, axis) / (2 * radius + 1)
    return values
