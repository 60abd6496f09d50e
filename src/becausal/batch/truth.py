"""How much of an explanation lies on the object, where boxes say where that is: the shortcut detector."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from becausal.batch.records import Box, Item
from becausal.core.contracts import Visible
from becausal.core.frames import Frame


@dataclass(frozen=True)
class Placing:
    """Where an explanation lies, against the truth.

    inside: the share of its pixels whose centres lie in a box of the object; None where there is none to compare with.
    by_chance: the share of the whole view there, what a random explanation would have. note: why there is none.
    """

    inside: float | None = None
    by_chance: float | None = None
    note: str | None = None


def place(visible: Visible, frame: Frame, label: str, item: Item, categories: frozenset[str]) -> Placing:
    """Compare an explanation for `label`, over the view's grid, with the item's boxes, on the original image."""
    if item.boxes is None or visible.ndim != 2:
        return Placing()
    if item.size is not None and item.size != (frame.original[1], frame.original[0]):
        wide, high = item.size
        return Placing(
            note=f"the boxes are for an image of {wide} x {high}, this has {frame.original[1]} x {frame.original[0]}"
        )
    boxes = choose_boxes(item.boxes, label, categories)
    if not boxes:
        return Placing(note=f"the truth has no {label} here")
    shown = inside_boxes(boxes, frame)
    count = int(np.count_nonzero(visible))
    return Placing(float(np.count_nonzero(visible & shown)) / count if count else None, float(shown.mean()))


def choose_boxes(boxes: Sequence[Box], label: str, categories: frozenset[str]) -> list[Box]:
    """The boxes of the labelled object.

    Where the truth has a category of the label's name, its boxes count; an image without any has no object of that
    label. Where no category has that name, all boxes count.
    """
    if label.casefold() not in categories:
        return list(boxes)
    return [box for box in boxes if box[4].casefold() == label.casefold()]


def inside_boxes(boxes: Sequence[Box], frame: Frame) -> NDArray[np.bool_]:
    """Which pixels of the view have their centre, on the original, in one of the boxes: (h, w)."""
    (down, right), (top, left) = frame.scale, frame.offset
    rows = top + (np.arange(frame.grid[0]) + 0.5) * down
    columns = left + (np.arange(frame.grid[1]) + 0.5) * right
    inside = np.zeros(frame.grid, bool)
    for x, y, w, h, _ in boxes:
        inside |= np.outer((y <= rows) & (rows < y + h), (x <= columns) & (columns < x + w))
    return inside
