"""A view cut into patches of alike neighbours, of any dimension, and a linear model over them; nothing but numpy.

k-means over position and colour, as in SLIC, started from an even lattice and therefore without chance. Positions, colours
and centres are whole numbers, so that distances are exact and every machine finds the same patches.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Pixels
from becausal.core.regions import components

ROUNDS = 6  # of k-means, at most
SAMPLE = 3_000  # pixels that the centres are found from, about; all are then given to the nearest
UNIT = 128  # steps to a patch's width
BLOCK = 1 << 15  # distances held at a time: few enough to stay in the cache, and not to call threads for the product
CRUMB = 1 / 8  # of a patch's pixels: what is smaller and lies apart is no superpixel


def superpixels(view: Pixels, count: int, *, compactness: float = 0.2) -> NDArray[np.intp]:
    """The number of the patch each pixel lies in, (*grid,), about `count` patches numbered from 0 without gaps.

    Each is in one piece: clusters that fall apart become several patches, except for crumbs, which join a neighbour.
    view: (*grid, channels). compactness: how far colours may differ, as a share of their whole range, before they weigh as
    much as one patch's width of distance; higher makes patches squarer.
    """
    grid = view.shape[:-1]
    width = max(1.0, float((np.prod(grid) / count) ** (1 / len(grid))))  # of a patch, in pixels
    place = [np.rint(np.arange(side) * UNIT / width) for side in grid]
    position = [np.broadcast_to(along, grid).reshape(1, -1) for along in np.ix_(*place)]
    features = np.concatenate([*position, *_colours(view, UNIT / compactness)]).T
    most = 2 * features.shape[1] * max(1.0, float(features.max())) ** 2
    features = features.astype(np.float32 if most < 2**24 else np.float64, order="C")  # both exact: no product is rounded
    stride = max(1, int((len(features) / SAMPLE) ** (1 / len(grid))))
    chosen = np.arange(len(features)).reshape(grid)[(slice(None, None, stride),) * len(grid)].ravel()
    patch = np.zeros(grid, np.intp)  # the even lattice
    parts = [max(1, round(side / width)) for side in grid]
    for along, count in zip(np.ix_(*(np.arange(n) * k // n for n, k in zip(grid, parts, strict=True))), parts, strict=True):
        patch = patch * count + along
    sample, patch = features[chosen], patch.ravel()[chosen]
    centres = _means(sample, patch)
    for _ in range(ROUNDS):
        nearest = _nearest(sample, centres)
        if np.array_equal(nearest, patch):
            break
        patch, centres = nearest, _means(sample, nearest)
    cluster = _nearest(features, centres).reshape(grid)  # may fall apart
    return _sweep_up(components(cluster), CRUMB * width ** len(grid))


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


def _colours(view: Pixels, unit: float) -> list[NDArray[np.float64]]:
    """The pixels' colours, whose range is 0..1, times `unit`, to the whole number, one row (1, n) for each channel."""
    flat = view.reshape(-1, view.shape[-1])
    if view.dtype == np.uint8:
        table = np.rint(np.arange(256) / 255 * unit)
        return [table[column][None] for column in flat.T]
    values = flat.astype(np.float64)
    low, high = values.min(), values.max()
    return [np.rint((column - low) / max(high - low, 1e-12) * unit)[None] for column in values.T]


def _means(features: NDArray[np.floating], patch: NDArray[np.intp]) -> NDArray[np.floating]:
    """The mean of each patch that has a pixel, (k, features), to the whole number."""
    counts = np.bincount(patch)
    sums = np.stack([np.bincount(patch, column) for column in features.T], axis=1)
    return np.rint(sums[counts > 0] / counts[counts > 0, None]).astype(features.dtype)


def _nearest(features: NDArray[np.floating], centres: NDArray[np.floating]) -> NDArray[np.intp]:
    """The nearest centre of each pixel, (n,), a block of pixels at a time."""
    rows = max(1, BLOCK // len(centres))
    # Half of |x - c|², but for |x|²/2, as one product: of (x, 1) and (-c, |c|²/2).
    extended = np.concatenate([features, np.ones((len(features), 1), features.dtype)], axis=1)
    turned = np.concatenate([-centres, (centres**2).sum(axis=1, keepdims=True) / 2], axis=1).T
    parts = [np.argmin(extended[i : i + rows] @ turned, axis=1) for i in range(0, len(features), rows)]
    return np.concatenate(parts)


def _sweep_up(piece: NDArray[np.intp], least: float) -> NDArray[np.intp]:
    """Pieces of fewer than `least` pixels joined to the larger neighbour they touch most, numbered without gaps."""
    while True:
        piece = np.asarray((np.cumsum(np.bincount(piece.ravel()) > 0) - 1)[piece], np.intp)
        counts = np.bincount(piece.ravel())
        if len(counts) == 1 or counts.min() >= least:
            return piece
        rank = np.empty(len(counts), np.intp)
        rank[np.lexsort((np.arange(len(counts)), counts))] = np.arange(len(counts))  # by size, no two alike
        small, large = np.concatenate([_contacts(np.moveaxis(piece, axis, 0), rank) for axis in range(piece.ndim)], axis=1)
        joins = counts[small] < least
        pairs, contact = np.unique(small[joins] * len(counts) + large[joins], return_counts=True)
        small, large = np.divmod(pairs, len(counts))
        into = np.arange(len(counts))
        order = np.lexsort((rank[large], contact))  # the most touched last, so that it is the one that stays
        into[small[order]] = large[order]
        while not np.array_equal(into, into[into]):  # a crumb may join a crumb; ranks rise, so there is no circle
            into = into[into]
        piece = into[piece]


def _contacts(piece: NDArray[np.intp], rank: NDArray[Any]) -> NDArray[np.intp]:
    """The pieces that touch along the first axis, (2, contacts), the smaller one of each two first."""
    a, b = piece[:-1], piece[1:]
    differ = a != b
    a, b = a[differ], b[differ]
    swap = rank[a] > rank[b]
    return np.stack([np.where(swap, b, a), np.where(swap, a, b)])
