"""Questions in a form that can be looked up: sets packed to bits, and a hash of each."""

import sys
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Visible

Packed = NDArray[np.uint8]  # (n, bytes): visible sets, eight pixels to a byte
Key = int | bytes  # hash of a set, and of its random background if it has one; at least 64 bits
Draws = NDArray[np.intp]  # (n,) numbers of random backgrounds


def pack(visible: Visible) -> Packed:
    """Sets, (n, *grid), eight pixels to a byte, (n, bytes)."""
    return np.packbits(visible.reshape(len(visible), -1), axis=1)


def hash_rows(packed: Packed, draws: Draws | None = None, *, is_guided: bool = False) -> list[Key]:
    """A hash of each row, and of its draw: Python's own where it has 64 bits, as it is by far the fastest.

    is_guided: answers of a twin have keys of their own, so that none is taken for one of the model.
    """
    if is_guided:
        packed = np.hstack([packed, np.zeros((len(packed), 1), np.uint8)])
    if draws is not None:
        packed = np.hstack([packed, draws.astype(np.int64)[:, None].view(np.uint8)])
    if sys.hash_info.width < 64:
        return [blake2b(row, digest_size=16).digest() for row in np.ascontiguousarray(packed)]
    return [hash(row.tobytes()) for row in packed]
