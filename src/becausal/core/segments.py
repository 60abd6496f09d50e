"""Answers of models that give every pixel a class: maps of logits, (n, classes, h, w), and what is read from them.

A place is a point of the view, (across, down), as shares of its width and height. A segment is where a map has one class,
written as text: height, width and, row by row, how many cells in turn are outside and inside, "2x3:1,2,3".
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Grid
from becausal.core.errors import TargetError

Place = tuple[float, float]
Maps = NDArray[np.float32]  # (n, classes, h, w) logits

KEPT = 0.5  # intersection over union from which on a segment counts as found again
ALIKE = 0.99  # the same, from which on two segments are one that was rounded in two ways
_MOST = 2**24  # cells of a map


def read_place(maps: Maps, place: Place) -> NDArray[np.float32]:
    """The probabilities of the classes at a place, (n, classes); logits are linear between the middles of two cells."""
    for axis, share in ((3, place[0]), (2, place[1])):
        side = maps.shape[axis]
        at = min(max(share * side - 0.5, 0.0), side - 1.0)
        before, weight = int(at), np.float32(at % 1.0)
        first, second = (maps.take([min(index, side - 1)], axis) for index in (before, before + 1))
        maps = first + (second - first) * weight
    logits = maps[:, :, 0, 0]
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True), np.float32)


def find_class(maps: Maps, label_id: int) -> NDArray[np.bool_]:
    """Where the maps have a class, (n, h, w); ties go to the lower one."""
    own = maps[:, label_id]
    before = maps[:, :label_id].max(axis=1, initial=-np.inf)
    return np.asarray((own > before) & (own >= maps[:, label_id + 1 :].max(axis=1, initial=-np.inf)))


def measure_classes(maps: Maps) -> NDArray[np.float32]:
    """The share of each class in the area of each map, (n, classes)."""
    count = maps.shape[1]
    return np.stack([np.bincount(row.ravel(), minlength=count) / row.size for row in maps.argmax(axis=1)]).astype(np.float32)


def measure_overlap(found: NDArray[np.bool_], segment: str) -> NDArray[np.float32]:
    """Intersection over union with a segment, (n,), of masks (n, h, w); 0 where those are of another size."""
    mask = read_segment(segment)
    if found.shape[1:] != mask.shape:
        return np.zeros(len(found), np.float32)
    shared, either = ((each.sum(axis=(1, 2))) for each in (found & mask, found | mask))
    return np.asarray(shared / either, np.float32)  # no segment is empty


def write_segment(mask: NDArray[np.bool_]) -> str:
    """A mask, (h, w), as text."""
    edges = np.flatnonzero(np.diff(mask.ravel().view(np.int8), prepend=0, append=-1))
    runs = np.diff(edges, prepend=0)
    return f"{mask.shape[0]}x{mask.shape[1]}:{','.join(map(str, runs.tolist()))}"


@lru_cache(maxsize=8)
def read_segment(text: str) -> NDArray[np.bool_]:
    """The mask, (h, w), behind such a text. Raises TargetError for any other."""
    sides, _, rest = text.partition(":")
    try:
        h, w = (int(side) for side in sides.split("x"))
        runs = [int(run) for run in rest.split(",")]
    except ValueError:
        h = w = 0
    if not 0 < h * w <= _MOST or sum(runs) != h * w or min(h, w, *runs) < 0 or not sum(runs[1::2]):
        raise TargetError(f"a segment is a height, a width and runs of cells, e.g. 2x3:1,2,3, not {text[:40]!r}")
    mask = np.repeat(np.arange(len(runs)) % 2 == 1, runs).reshape(h, w)
    mask.setflags(write=False)
    return mask


def choose_segment(found: str | None, stated: str | None) -> str | None:
    """The segment that was found, or the stated one where they are the same, rounded in two ways on two machines."""
    if found is None or stated is None or measure_overlap(read_segment(found)[None], stated)[0] < ALIKE:
        return found
    return stated


def stretch_segment(text: str, grid: Grid) -> NDArray[np.bool_]:
    """The mask of a segment over a view of this grid, by the nearest cell."""
    mask = read_segment(text)
    rows, columns = ((2 * np.arange(side) + 1) * own // (2 * side) for side, own in zip(grid, mask.shape, strict=True))
    return mask[np.ix_(rows, columns)]
