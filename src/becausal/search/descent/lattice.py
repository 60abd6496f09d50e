"""A grid divided into cells, what their removal costs, and how often they took part; for any number of dimensions."""

from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Answers, Grid, Saliency, Visible

Cells = NDArray[np.bool_]  # over the lattice: True = visible
Kind = TypeVar("Kind", bound=np.generic)


@dataclass(frozen=True)
class Lattice:
    """A grid divided into cells of side `grain`; the last cells along an axis may be shorter.

    Attributes:
        grid: Shape of the grid in pixels.
        grain: Side of a cell in pixels.
        within: (*grid,) pixels that may be visible, None for all; cells are cut off at their border.
    """

    grid: Grid
    grain: int
    within: Visible | None = field(default=None, compare=False, repr=False)

    @property
    def shape(self) -> Grid:
        return tuple(-(-side // self.grain) for side in self.grid)

    def expand(self, values: NDArray[Kind]) -> NDArray[Kind]:
        """One value per cell, (..., *lattice), as one per pixel, (..., *grid)."""
        before = (slice(None),) * (values.ndim - len(self.grid))
        for axis in range(-1, -len(self.grid) - 1, -1):  # last axis first: the others then repeat whole rows
            values = np.repeat(values, self.grain, axis=axis)
        return values[before + tuple(slice(0, side) for side in self.grid)]

    def show(self, cells: Cells) -> Visible:
        """Sets of cells, (..., *lattice), as sets of pixels, (..., *grid)."""
        pixels = self.expand(cells)
        return pixels if self.within is None else pixels & self.within

    def sum_cells(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """One value per pixel, (*grid,), summed per cell, (*lattice,)."""
        for axis, side in enumerate(self.grid):
            values = np.add.reduceat(values, np.arange(0, side, self.grain), axis=axis)
        return values

    def spread(self, values: NDArray[np.float64], finer: "Lattice") -> NDArray[np.float64]:
        """One value per cell, (*lattice,), divided among the cells of a finer lattice by their pixels, (*finer,)."""
        pixels = self.sum_cells(np.ones(self.grid))
        return finer.sum_cells(self.expand(values / pixels))

    def restrict(self, within: Visible) -> tuple["Lattice", Cells]:
        """The lattice limited to these pixels, and the cells that have at least one of them."""
        return replace(self, within=within), self.sum_cells(within.astype(np.float64)) > 0


@dataclass
class RemovalCost:
    """Estimated cost of removing each cell: the observed loss of margin, shared by the cells removed together.

    Observations decay while the set changes, since they were made with other cells visible.

    Attributes:
        shape: Shape of the lattice.
        expected: (*lattice,) prior estimate, None for none. It does not decay.
        weight: How many observations the prior estimate counts for.
    """

    shape: Grid
    expected: NDArray[np.float64] | None = None
    weight: float = 0.0
    loss: NDArray[np.float64] = field(init=False)
    trials: NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        self.loss = np.zeros(self.shape)
        self.trials = np.zeros(self.shape)

    def observe(self, parts: Cells, losses: NDArray[np.float64]) -> None:
        """Add the loss of margin, (n,), that the removal of each part, (n, *lattice), caused."""
        self.loss += weighted_sum(parts, losses / np.maximum(set_sizes(parts), 1))
        self.trials += weighted_sum(parts, np.ones(len(parts)))

    def decay(self, keep: float) -> None:
        self.loss *= keep
        self.trials *= keep

    def estimate(self) -> NDArray[np.float64]:
        """The expected loss per cell; the mean for cells without observations and prior."""
        if self.expected is not None:
            return np.asarray((self.loss + self.weight * self.expected) / (self.trials + self.weight), np.float64)
        total = self.trials.sum()
        mean = self.loss.sum() / total if total else 0.0
        return np.where(self.trials > 0, self.loss / np.maximum(self.trials, 1e-12), mean)


def set_sizes(sets: Cells) -> NDArray[np.intp]:
    """The number of cells in each of the sets, (n, *lattice)."""
    return np.array([np.count_nonzero(one) for one in sets], np.intp)  # faster than a sum over bool


def weighted_sum(sets: Cells, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each cell the summed weights of the sets, (n, *lattice), that contain it."""
    return np.asarray(np.einsum("i,i...->...", weights, sets), np.float64)  # a matrix product would start threads


class CoalitionIndex:
    """Deegan-Packel index over the sufficient sets (winning coalitions) evaluated by the search, weighted by confidence.

    Each set adds its confidence divided by its size to its cells; with a label-only classifier the confidence counts
    as 1. Cells in many sets, in small sets and in confident sets get high values.
    """

    def __init__(self, lattice: Lattice) -> None:
        self.lattice = lattice
        self.index = np.zeros(lattice.shape)

    def add(self, sets: Cells, answers: Answers) -> None:
        """Add those of the sets of cells, (n, *lattice), that are sufficient by their answers."""
        winning, confidence = sets[answers.holds], answers.confidence[answers.holds]
        weights = np.where(np.isnan(confidence), 1.0, confidence)
        self.index += weighted_sum(winning, weights / np.maximum(set_sizes(winning), 1))

    @property
    def saliency(self) -> Saliency:
        """The index of each pixel's cell, (*grid,)."""
        return self.lattice.expand(self.index)
