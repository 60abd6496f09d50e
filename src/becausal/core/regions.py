"""Parts of a grid of any dimension: boxes, random partitions, cells of a stated side, connected components; and blur."""

from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Grid

Slices = tuple[slice, ...]


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
    def slices(self) -> Slices:
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

    The largest box left is cut across its longest side, between a quarter and three quarters of it, until there are enough.
    """
    boxes = [region]
    while len(boxes) < parts:
        i = max(range(len(boxes)), key=lambda j: boxes[j].size)
        axis = int(np.argmax(boxes[i].shape))
        side = boxes[i].shape[axis]
        if side < 2:
            break
        start, least = boxes[i].start[axis], max(1, side // 4)
        boxes[i : i + 1] = cut(boxes[i], axis, int(rng.integers(start + least, start + side - least + 1)))
    return tuple(boxes)


def cells(grid: Grid, grain: int) -> NDArray[np.intp]:
    """The number of the cell each pixel lies in, (*grid,), for square cells of side `grain`, row-major."""
    index = np.zeros(grid, np.intp)
    for along, side in zip(np.ix_(*(np.arange(side) // grain for side in grid)), grid, strict=True):
        index = index * -(-side // grain) + along
    return index


def default_grain(grid: Grid, parts: int = 28) -> int:
    """The side of the smallest cells by default: a 28th of the longest side, 8 px for a view of 224."""
    return max(1, round(max(grid) / parts))


def components(values: NDArray[Any], *, corners: bool = False) -> NDArray[np.intp]:
    """The connected component of each pixel, (*grid,), numbered with gaps in the order of their first pixels.

    values: (*grid,); pixels are connected where they touch and have the same value. corners: those that touch only at a
    corner or an edge as well.
    """
    run, label, _ = _join_runs(values, corners)
    return np.asarray(label[run], np.intp)


def count_components(mask: NDArray[np.bool_]) -> int:
    """How many connected components, touching by a side, the pixels that are True have."""
    _, label, begins = _join_runs(mask, corners=False)
    return int(np.count_nonzero(mask[begins] & (label == np.arange(len(label)))))


def _join_runs(values: NDArray[Any], corners: bool) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.bool_]]:
    """Runs of equal pixels along the last axis, joined to components.

    Returns the run of each pixel, (*grid,); for each run, the first run of its component; the first pixels of runs.
    """
    begins = np.ones(values.shape, bool)
    begins[..., 1:] = values[..., 1:] != values[..., :-1]
    run = np.cumsum(begins).reshape(values.shape) - 1
    pairs = [np.zeros((2, 0), np.intp)]
    for step in product((0, 1, -1), repeat=values.ndim):
        sides = sum(map(abs, step))
        is_first = next((s for s in step if s), 0) > 0  # of a direction and its opposite
        # Runs join pixels along the last axis already.
        if not is_first or (sides == 1 and step[-1]) or (sides > 1 and not corners):
            continue
        here = tuple(slice(max(0, -s), min(n, n - s)) for s, n in zip(step, values.shape, strict=True))
        there = tuple(slice(max(0, s), min(n, n + s)) for s, n in zip(step, values.shape, strict=True))
        alike = values[here] == values[there]
        if here[-1] == there[-1]:
            alike &= begins[here] | begins[there]  # once for each two runs that touch
        pairs.append(np.stack([run[here][alike], run[there][alike]]))
    first, second = np.concatenate(pairs, axis=1)
    # Every run takes the lowest label among those it touches, then that label's own label: the chains halve each time, so
    # that a few rounds of whole arrays do what a union-find would do run by run.
    label = np.arange(int(run.max()) + 1)
    while True:
        before = label.copy()
        low = np.minimum(label[first], label[second])
        np.minimum.at(label, first, low)
        np.minimum.at(label, second, low)
        label = label[label]
        if np.array_equal(label, before):
            return run, label, begins


def box_blur(values: NDArray[np.float64], radius: int, axis: int) -> NDArray[np.float64]:
    """The mean over the 2·radius + 1 nearest values along an axis; border values are repeated outside."""
    padding = [(0, 0)] * values.ndim
    padding[axis] = (radius + 1, radius)
    sums = np.moveaxis(np.cumsum(np.pad(values, padding, mode="edge"), axis=axis), axis, 0)
    width = 2 * radius + 1
    return np.asarray(np.moveaxis((sums[width:] - sums[:-width]) / width, 0, axis), np.float64)
