"""Connected components of arrays of any dimension."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray


def components(values: NDArray[Any], *, corners: bool = False) -> NDArray[np.intp]:
    """The component of each pixel, (*grid,), numbered with gaps in the order of their first pixels.

    Args:
        values: (*grid,); pixels are connected where they touch and have the same value.
        corners: Whether pixels that touch only at a corner or an edge are connected too.
    """
    run, label, _ = _join_runs(values, corners)
    return np.asarray(label[run], np.intp)


def count_components(mask: NDArray[np.bool_]) -> int:
    """How many connected components, touching by a side, the pixels that are True have."""
    _, label, begins = _join_runs(mask, corners=False)
    return int(np.count_nonzero(mask[begins] & (label == np.arange(len(label)))))


def _join_runs(values: NDArray[Any], corners: bool) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.bool_]]:
    """Runs of equal pixels along the last axis, joined to components.

    Returns:
        The run of each pixel, (*grid,); for each run, the first run of its component; the first pixels of runs, (*grid,).
    """
    begins = np.ones(values.shape, bool)
    begins[..., 1:] = values[..., 1:] != values[..., :-1]
    run = np.cumsum(begins).reshape(values.shape) - 1
    pairs = [np.zeros((2, 0), np.intp)]
    for here, there in _neighbours(values.shape, corners):
        alike = values[here] == values[there]
        if here[-1] == there[-1]:
            alike &= begins[here] | begins[there]  # once for each two runs that touch
        pairs.append(np.stack([run[here][alike], run[there][alike]]))
    first, second = np.concatenate(pairs, axis=1)
    label = np.arange(int(run.max()) + 1)
    while True:
        before = label.copy()
        low = np.minimum(label[first], label[second])
        np.minimum.at(label, first, low)
        np.minimum.at(label, second, low)
        label = label[label]
        if np.array_equal(label, before):
            return run, label, begins


def _neighbours(grid: tuple[int, ...], corners: bool) -> Iterator[tuple[tuple[slice, ...], tuple[slice, ...]]]:
    """Slices of the pixels that have a neighbour in one direction, and of those neighbours; each pair once.

    The last axis alone is left out: `components` joins pixels along it by itself.
    """
    for step in product((0, 1, -1), repeat=len(grid)):
        sides = sum(map(abs, step))
        is_first = next((s for s in step if s), 0) > 0
        if not is_first or (sides == 1 and step[-1]) or (sides > 1 and not corners):
            continue
        here = tuple(slice(max(0, -s), min(n, n - s)) for s, n in zip(step, grid, strict=True))
        there = tuple(slice(max(0, s), min(n, n + s)) for s, n in zip(step, grid, strict=True))
        yield here, there
