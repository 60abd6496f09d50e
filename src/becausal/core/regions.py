"""Boxes of a grid, their random partitions, and cells of a stated grain: pure, of any dimension."""

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Grid, Visible


@dataclass(frozen=True, order=True)
class Region:
    """A box of the grid: `start` inclusive, `stop` exclusive, one number per axis."""

    start: tuple[int, ...]
    stop: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(b - a for a, b in zip(self.start, self.stop, strict=True))

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def slices(self) -> tuple[slice, ...]:
        return tuple(slice(a, b) for a, b in zip(self.start, self.stop, strict=True))


def whole(grid: Grid) -> Region:
    """The region that is the whole grid."""
    return Region((0,) * len(grid), tuple(grid))


def cut(region: Region, axis: int, at: int) -> tuple[Region, Region]:
    """The region in two, `at` the first index of the second half on the axis."""
    stop, start = list(region.stop), list(region.start)
    stop[axis] = start[axis] = at
    return Region(region.start, tuple(stop)), Region(tuple(start), region.stop)


def split(region: Region, parts: int, rng: np.random.Generator) -> tuple[Region, ...]:
    """A random partition of the region into `parts` boxes, fewer if it has fewer pixels.

    The largest box left is cut across its longest side, between a quarter and three quarters of it, until there are
    enough.
    """
    boxes = [region]
    while len(boxes) < parts:
        i = max(range(len(boxes)), key=lambda j: boxes[j].size)
        box = boxes[i]
        axis = int(np.argmax(box.shape))
        side = box.shape[axis]
        if side < 2:
            break
        low = box.start[axis] + max(1, side // 4)
        high = box.start[axis] + side - max(1, side // 4)
        boxes[i : i + 1] = cut(box, axis, int(rng.integers(low, high + 1)))
    return tuple(boxes)


def shown_without(base: Visible, regions: tuple[Region, ...]) -> Visible:
    """A copy of one visible set, (*grid,), with the regions masked."""
    out = base.copy()
    for region in regions:
        out[region.slices] = False
    return out


def cells(grid: Grid, grain: int) -> NDArray[np.intp]:
    """The number of the cell each pixel lies in, (*grid,), for square cells of side `grain`, row-major."""
    counts = [-(-side // grain) for side in grid]
    index = np.zeros(grid, np.intp)
    for axis, side in enumerate(grid):
        along = np.arange(side) // grain
        shape = [1] * len(grid)
        shape[axis] = side
        index = index * counts[axis] + along.reshape(shape)
    return index


def default_grain(grid: Grid, parts: int = 28) -> int:
    """The side of the smallest cells by default: a 28th of the longest side, 8 px for a view of 224."""
    return max(1, round(max(grid) / parts))
