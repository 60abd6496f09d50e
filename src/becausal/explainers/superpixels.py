"""Superpixels: a view cut into patches of alike neighbours, of any dimension, by nothing but numpy.

k-means over position and colour, as in SLIC, started from an even lattice and therefore without chance.
"""

import numpy as np
from numpy.typing import NDArray

from becausal.contracts import Grid, Pixels

ROUNDS = 10
BLOCK = 1 << 22  # distances held at a time


def superpixels(view: Pixels, count: int, *, compactness: float = 0.2) -> NDArray[np.intp]:
    """The number of the patch each pixel lies in, (*grid,), about `count` patches numbered from 0 without gaps.

    view: (*grid, channels). compactness: how far colours may differ, as a share of their whole range, before they weigh
    as much as one patch's width of distance; higher makes patches squarer.
    """
    grid = view.shape[:-1]
    width = max(1.0, (np.prod(grid) / count) ** (1 / len(grid)))  # of a patch, in pixels
    features = np.concatenate([_positions(grid) / width, _colours(view) / compactness], axis=1)
    patch = _lattice(grid, width)
    for _ in range(ROUNDS):
        centres = _means(features, patch)
        nearest = _nearest(features, centres)
        if np.array_equal(nearest, patch):
            break
        patch = nearest
    return np.unique(patch, return_inverse=True)[1].reshape(grid)


def _positions(grid: Grid) -> NDArray[np.float64]:
    """The pixels' indices, (n, axes)."""
    return np.indices(grid).reshape(len(grid), -1).T.astype(np.float64)


def _colours(view: Pixels) -> NDArray[np.float64]:
    """The pixels' colours, (n, channels), each range 0..1."""
    flat = view.reshape(-1, view.shape[-1]).astype(np.float64)
    if view.dtype == np.uint8:
        return np.asarray(flat / 255, np.float64)
    low, high = flat.min(), flat.max()
    return np.asarray((flat - low) / max(high - low, 1e-12), np.float64)


def _lattice(grid: Grid, width: float) -> NDArray[np.intp]:
    """The even patches to start from, (n,)."""
    index = np.zeros(grid, np.intp)
    for axis, side in enumerate(grid):
        parts = max(1, round(side / width))
        shape = [1] * len(grid)
        shape[axis] = side
        index = index * parts + (np.arange(side) * parts // side).reshape(shape)
    return index.ravel()


def _means(features: NDArray[np.float64], patch: NDArray[np.intp]) -> NDArray[np.float64]:
    """The mean of each patch that has a pixel, (k, features)."""
    counts = np.bincount(patch)
    sums = np.stack([np.bincount(patch, column) for column in features.T], axis=1)
    return sums[counts > 0] / counts[counts > 0, None]


def _nearest(features: NDArray[np.float64], centres: NDArray[np.float64]) -> NDArray[np.intp]:
    """The nearest centre of each pixel, (n,), a block of pixels at a time."""
    rows = max(1, BLOCK // len(centres))
    half = (centres**2).sum(axis=1) / 2
    parts = [np.argmin(half - features[i : i + rows] @ centres.T, axis=1) for i in range(0, len(features), rows)]
    return np.concatenate(parts)
