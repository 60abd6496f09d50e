"""Random parts of a set of cells that may be removed, drawn where the expected removal cost is low.

Weights are integers, so that their sums are exact and every machine draws the same parts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from becausal.search.descent.lattice import Cells, set_sizes

BLOCK = 0.35  # side of a block, relative to that of a box of the same size
STRETCH = 0.35  # standard deviation of the logarithm of a box's side ratios
RADII = 96  # number of candidate sizes of a box
WEIGHT = 1 << 16  # of a cell with mean expected cost


@dataclass(frozen=True)
class PartSampler:
    """Draws parts of a set of cells, each with about a given share of it.

    Attributes:
        cells: (*lattice,) the set.
        cost: (*lattice,) expected cost of removing each cell.
        rng: Source of randomness.
        trust: How strongly cells with a low expected cost are preferred; 0 draws cells uniformly.
    """

    cells: Cells
    cost: NDArray[np.float64]
    rng: np.random.Generator
    trust: float = 1.0

    def draw(self, kinds: Sequence[str], share: float) -> Cells:
        """One part of each of these kinds, (n, *lattice); empty parts and parts with all cells are left out."""
        count = len(self._members)
        wanted = max(1, round(share * count))
        drawn = [PART_KINDS[kind](self, kinds.count(kind), wanted) for kind in dict.fromkeys(kinds)]
        parts = np.concatenate(drawn)
        sizes = set_sizes(parts)
        return np.asarray(parts[(sizes > 0) & (sizes < count)])

    def boxes(self, count: int, wanted: int) -> Cells:
        """Boxes of random proportions around random cells, each just large enough to have the wanted number of cells."""
        sides = np.array(self.cells.shape)
        drawn = np.unravel_index(self._draw_cells(count), self.cells.shape)
        centres = np.stack(drawn, axis=1)[:, None, :] + 0.5
        stretch = np.exp(self.rng.normal(0.0, STRETCH, (count, 1, len(sides))))
        reach = _radii(max(self.cells.shape))[None, :, None] * stretch  # (boxes, radii, axes)
        low = np.maximum(np.floor(centres - reach), 0).astype(np.intp)
        high = np.minimum(low + np.maximum(np.rint(2 * reach), 1).astype(np.intp), sides)
        enough = self._count(low, high) >= wanted
        enough[:, -1] = True
        first = np.arange(count), np.argmax(enough, axis=1)
        return self._within(low[first], high[first])

    def strips(self, count: int, wanted: int) -> Cells:
        """Slabs along one side of the lattice, each just thick enough."""
        sides = self.cells.shape
        low, high = np.zeros((count, len(sides)), np.intp), np.tile(sides, (count, 1))
        axes, backwards = self.rng.integers(len(sides), size=count).tolist(), self.rng.integers(2, size=count).tolist()
        for i, axis in enumerate(axes):
            before = self._sums[tuple(slice(None) if a == axis else -1 for a in range(len(sides)))]
            if backwards[i]:
                low[i, axis] = np.searchsorted(before, before[-1] - wanted, side="right") - 1
            else:
                high[i, axis] = np.searchsorted(before, wanted)
        return self._within(low, high)

    def blocks(self, count: int, wanted: int) -> Cells:
        """Unions of just enough blocks of a coarser, randomly shifted lattice."""
        side = max(1, round(BLOCK * wanted ** (1 / self.cells.ndim)))
        parts = np.zeros((count, self.cells.size), bool)
        for part in parts:
            block = np.zeros(len(self._members), np.intp)
            shifts = self.rng.integers(0, side, self.cells.ndim).tolist()
            for at, along, shift in zip(self._places, self.cells.shape, shifts, strict=True):
                block = block * (along // side + 2) + (at + shift) // side
            sizes, weights = np.bincount(block), np.bincount(block, self._weights)
            order = np.flatnonzero(sizes)
            # Sorting by exponential times divided by weight is weighted sampling without replacement.
            order = order[np.argsort(self.rng.standard_exponential(len(order)) / weights[order])]
            enough = np.searchsorted(np.cumsum(sizes[order]), wanted) + 1
            chosen = np.zeros(len(sizes), bool)
            chosen[order[:enough]] = True
            part[self._members] = chosen[block]
        return parts.reshape(count, *self.cells.shape)

    @cached_property
    def _members(self) -> NDArray[np.intp]:
        """Flat indices of the cells in the set."""
        return np.flatnonzero(self.cells)

    @cached_property
    def _places(self) -> tuple[NDArray[np.intp], ...]:
        """Where the members lie along each axis."""
        return np.unravel_index(self._members, self.cells.shape)

    @cached_property
    def _weights(self) -> NDArray[np.int64]:
        """Sampling weight of each member."""
        expected = self.cost.reshape(-1)[self._members]
        centred = expected - expected.mean()
        deviation = float(np.sqrt((centred * centred).mean()))
        if not deviation > 0 or not self.trust > 0:
            return np.full(len(expected), WEIGHT)
        score = np.minimum(np.maximum(centred / deviation, -3), 3)
        return np.asarray(np.rint(WEIGHT * np.exp(-self.trust * score)).astype(np.int64) + 1, np.int64)

    def _draw_cells(self, count: int) -> NDArray[np.intp]:
        """Flat indices of random members, likelier where the expected cost is low."""
        sums = np.cumsum(self._weights)
        chosen = np.searchsorted(sums, self.rng.integers(0, sums[-1], count), side="right")
        return np.asarray(self._members[chosen], np.intp)

    @cached_property
    def _sums(self) -> NDArray[np.intp]:
        """Summed-area table: the number of members before each corner of the lattice."""
        sums = np.zeros([side + 1 for side in self.cells.shape], np.intp)
        inner = sums[(slice(1, None),) * sums.ndim]
        inner[...] = self.cells
        for axis in range(sums.ndim):
            np.cumsum(inner, axis=axis, out=inner)
        return sums

    def _count(self, low: NDArray[np.intp], high: NDArray[np.intp]) -> NDArray[np.intp]:
        """The number of members in each box; low and high: (..., axes)."""
        steps = [step // self._sums.itemsize for step in self._sums.strides]
        ends = [((low[..., axis] * step, -1), (high[..., axis] * step, 1)) for axis, step in enumerate(steps)]
        found = np.zeros(low.shape[:-1], np.intp)
        for corner in product(*ends):
            found += prod(sign for _, sign in corner) * self._sums.take(sum(at for at, _ in corner))
        return found

    def _within(self, low: NDArray[np.intp], high: NDArray[np.intp]) -> Cells:
        """The members in each box, (n, *lattice); low and high: (n, axes)."""
        parts = self.cells[None]
        for axis, side in enumerate(self.cells.shape):
            at = np.arange(side)
            inside = (at >= low[:, axis, None]) & (at < high[:, axis, None])
            shape = [len(low)] + [1] * self.cells.ndim
            shape[1 + axis] = side
            parts = parts & inside.reshape(shape)
        return parts


PART_KINDS: dict[str, Callable[[PartSampler, int, int], Cells]] = {
    "box": PartSampler.boxes,
    "strip": PartSampler.strips,
    "blocks": PartSampler.blocks,
}


@cache
def _radii(side: int) -> NDArray[np.float64]:
    return np.geomspace(0.5, 2.0 * side, RADII)
