"""Connected pieces of a mask."""

import numpy as np
import numpy.typing as npt

from becausal.core.components import components
from becausal.lab.scenes.sketch import BoolArray


def pieces(mask: BoolArray) -> tuple[npt.NDArray[np.int32], list[int]]:
    """Number the connected pieces of a mask, the largest first and equally large ones by their first pixel.

    Args:
        mask: (h, w); pixels that touch at a corner are connected.

    Returns:
        The piece of every pixel, (h, w), 0 outside and 1 in the largest piece; and the sizes of the pieces in pixels.
    """
    _, piece, sizes = np.unique(components(mask, corners=True)[mask], return_inverse=True, return_counts=True)
    order = np.argsort(-sizes, kind="stable")
    number = np.empty(len(order), np.int32)
    number[order] = np.arange(1, len(order) + 1)
    numbered = np.zeros(mask.shape, np.int32)
    numbered[mask] = number[piece]
    return numbered, sizes[order].tolist()
