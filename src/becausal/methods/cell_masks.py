"""What `hsic` and `sobol` share: a coarse grid of cells over the view, balanced random sets of cells, interpolation."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Grid, Saliency, Visible


@dataclass(frozen=True)
class CoarseGrid:
    """A view of shape `grid`, divided into at most `cells` cells along each side; cells are numbered row by row."""

    grid: Grid
    cells: int

    @property
    def shape(self) -> Grid:
        """The number of cells along each axis: a short axis has one cell per pixel."""
        return tuple(min(side, self.cells) for side in self.grid)

    @property
    def count(self) -> int:
        """The number of cells."""
        return int(np.prod(self.shape))

    @cached_property
    def number(self) -> NDArray[np.intp]:
        """The number of the cell each pixel lies in, (*grid,)."""
        along = [np.arange(side) * parts // side for side, parts in zip(self.grid, self.shape, strict=True)]
        return np.asarray(np.ravel_multi_index(np.meshgrid(*along, indexing="ij"), self.shape), np.intp)

    def show(self, bits: NDArray[np.bool_]) -> Visible:
        """Visible sets, (n, *grid), from sets of cells, (n, cells)."""
        return bits.take(self.number, axis=1)

    def interpolate(self, values: NDArray[np.float64]) -> Saliency:
        """A map, (*grid,), from one value per cell, (cells,): linear between the centres of cells, constant outside."""
        found = values.reshape(self.shape)
        for side, parts in zip(self.grid, self.shape, strict=True):
            at = np.clip((np.arange(side) + 0.5) * parts / side - 0.5, 0, parts - 1)  # in cells, 0 is the first centre
            low = np.minimum(at.astype(np.intp), max(parts - 2, 0))
            weights = np.zeros((side, parts))
            weights[np.arange(side), low] = 1 - (at - low)
            weights[np.arange(side), np.minimum(low + 1, parts - 1)] += at - low
            found = np.tensordot(found, weights, axes=(0, 1))  # moves the axis to the end, so that each is treated once
        return found


def draw_points(samples: int, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """A Latin hypercube, (samples, count) in 0..1: each column has one point in every interval of length 1 / samples."""
    strata = rng.permuted(np.tile(np.arange(samples), (count, 1)), axis=1).T
    return np.asarray((strata + rng.random((samples, count))) / samples, np.float64)
