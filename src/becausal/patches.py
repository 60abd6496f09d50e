"""A view cut into patches of alike neighbours, of any dimension, and a linear model over them; nothing but numpy.

k-means over position and colour, as in SLIC, started from an even lattice and therefore without chance. Positions, colours
and centres are whole numbers, so that distances are exact and every machine finds the same patches.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from becausal.contracts import Grid, Pixels

ROUNDS = 6
SAMPLE = 12_000  # pixels that the centres are found from, about; all are then given to the nearest
UNIT = 128  # steps to a patch's width
BLOCK = 1 << 16  # distances held at a time: few enough to stay in the cache
CRUMB = 1 / 8  # of a patch's pixels: what is smaller and lies apart is no superpixel


def superpixels(view: Pixels, count: int, *, compactness: float = 0.2) -> NDArray[np.intp]:
    """Clusters, each in one piece: what falls apart becomes patches of its own, except crumbs, which join a neighbour."""
    grid = view.shape[:-1]
    piece = _sweep_up(_pieces(clusters(view, count, compactness=compactness)), CRUMB * _width(grid, count) ** len(grid))
    return np.unique(piece, return_inverse=True)[1].reshape(grid)


def clusters(view: Pixels, count: int, *, compactness: float = 0.2) -> NDArray[np.intp]:
    """The number of the patch each pixel lies in, (*grid,), about `count` patches numbered from 0 without gaps.

    view: (*grid, channels). compactness: how far colours may differ, as a share of their whole range, before they weigh
    as much as one patch's width of distance; higher makes patches squarer.
    """
    grid = view.shape[:-1]
    width = _width(grid, count)
    features = np.concatenate([_positions(grid) / width, _colours(view) / compactness], axis=1)
    features = np.rint(features * UNIT)
    most = 2 * features.shape[1] * max(1.0, float(features.max())) ** 2
    features = features.astype(np.float32 if most < 2**24 else np.float64)  # both exact: no product is rounded
    stride = max(1, int((len(features) / SAMPLE) ** (1 / len(grid))))
    chosen = np.arange(len(features)).reshape(grid)[(slice(None, None, stride),) * len(grid)].ravel()
    sample, patch = features[chosen], _lattice(grid, width)[chosen]
    centres = _means(sample, patch)
    for _ in range(ROUNDS):
        nearest = _nearest(sample, centres)
        if np.array_equal(nearest, patch):
            break
        patch, centres = nearest, _means(sample, nearest)
    found = _nearest(features, centres)
    present = np.bincount(found) > 0
    return (np.cumsum(present) - 1)[found].reshape(grid)


def fit_ridge(
    shown: NDArray[np.bool_], values: NDArray[np.float64], weight: NDArray[np.float64], penalty: float
) -> NDArray[np.float64]:
    """The w that minimises Σ weight (value - b - shown·w)² + penalty |w|², the intercept b free."""
    if not len(values) or not weight.sum() > 0:
        return np.zeros(shown.shape[1])
    share, root = weight / weight.sum(), np.sqrt(weight)
    rows = root[:, None] * (shown - share @ shown)  # centred: the intercept drops out
    right = root * (values - share @ values)
    n, k = rows.shape
    if not penalty:
        return np.asarray(np.linalg.lstsq(rows, right, rcond=None)[0], np.float64)
    if n < k:  # the same solution from the smaller system
        return np.asarray(rows.T @ np.linalg.solve(rows @ rows.T + penalty * np.eye(n), right), np.float64)
    return np.asarray(np.linalg.solve(rows.T @ rows + penalty * np.eye(k), rows.T @ right), np.float64)


def _width(grid: Grid, count: int) -> float:
    """The width of a patch, in pixels."""
    return max(1.0, float((np.prod(grid) / count) ** (1 / len(grid))))


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


def _means(features: NDArray[np.floating], patch: NDArray[np.intp]) -> NDArray[np.floating]:
    """The mean of each patch that has a pixel, (k, features), to the whole number."""
    counts = np.bincount(patch)
    sums = np.stack([np.bincount(patch, column) for column in features.T], axis=1)
    return np.rint(sums[counts > 0] / counts[counts > 0, None]).astype(features.dtype)


def _nearest(features: NDArray[np.floating], centres: NDArray[np.floating]) -> NDArray[np.intp]:
    """The nearest centre of each pixel, (n,), a block of pixels at a time."""
    rows = max(1, BLOCK // len(centres))
    half = (centres**2).sum(axis=1) / 2
    parts = [np.argmin(half - features[i : i + rows] @ centres.T, axis=1) for i in range(0, len(features), rows)]
    return np.concatenate(parts)


def _neighbours(values: NDArray[np.intp]) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Views of all pixels that have a next one along an axis, and of the next ones, axis by axis."""
    for axis in range(values.ndim):
        along = np.moveaxis(values, axis, 0)
        yield along[:-1], along[1:]


def _pieces(patch: NDArray[np.intp]) -> NDArray[np.intp]:
    """The number of the connected piece of its patch each pixel lies in, (*grid,): that of the piece's first pixel."""
    piece = np.arange(patch.size).reshape(patch.shape)
    while True:
        before = piece.copy()
        for (a, b), (p, q) in zip(_neighbours(piece), _neighbours(patch), strict=True):
            low = np.minimum(a, b)
            np.copyto(a, low, where=p == q)
            low = np.minimum(a, b)  # a may have moved
            np.copyto(b, low, where=p == q)
        piece = piece.ravel()[piece]  # straight to where the number itself has got
        if np.array_equal(piece, before):
            return piece


def _sweep_up(piece: NDArray[np.intp], least: float) -> NDArray[np.intp]:
    """Pieces of fewer than `least` pixels joined to the larger neighbour they touch most, until there are none."""
    while True:
        piece = np.unique(piece, return_inverse=True)[1].reshape(piece.shape)
        counts = np.bincount(piece.ravel())
        if len(counts) == 1 or counts.min() >= least:
            return piece
        rank = np.empty(len(counts), np.intp)
        rank[np.lexsort((np.arange(len(counts)), counts))] = np.arange(len(counts))  # by size, no two alike
        touching = np.concatenate([np.stack([a[a != b], b[a != b]]) for a, b in _neighbours(piece)], axis=1)
        pairs, contact = np.unique(np.concatenate([touching, touching[::-1]], axis=1), axis=1, return_counts=True)
        joins = (counts[pairs[0]] < least) & (rank[pairs[1]] > rank[pairs[0]])
        pairs, contact = pairs[:, joins], contact[joins]
        into = np.arange(len(counts))
        order = np.lexsort((rank[pairs[1]], contact))  # the most touched last, so that it is the one that stays
        into[pairs[0, order]] = pairs[1, order]
        while not np.array_equal(into, into[into]):
            into = into[into]
        piece = into[piece]
