"""Non-maximum suppression: of boxes that show the same object, the one with the highest score is kept."""

import numpy as np
from numpy.typing import NDArray

from becausal.core.boxes import MAX_BOXES, overlaps


def suppress(boxes: NDArray[np.float64], labels: NDArray[np.intp], max_overlap: float) -> NDArray[np.intp]:
    """The indices of the boxes that are kept, at most MAX_BOXES.

    Args:
        boxes: (k, 4), best score first.
        labels: (k,); boxes of different labels do not suppress each other.
        max_overlap: A box is dropped if it overlaps a kept one of its label by more than this intersection over union.
    """
    left, kept = np.arange(len(boxes)), list[int]()
    while left.size and len(kept) < MAX_BOXES:
        best, left = int(left[0]), left[1:]
        kept.append(best)
        shared = overlaps(boxes[left], tuple(boxes[best]))
        left = left[(labels[left] != labels[best]) | (shared <= max_overlap)]
    return np.array(kept, np.intp)
