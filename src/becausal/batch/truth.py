"""How much of an explanation lies on the object, where ground-truth boxes exist: finds explanations by a shortcut."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from becausal.batch.records import Box, InputItem
from becausal.core.contracts import Visible
from becausal.core.frames import Frame

NoteCode = Literal["label_without_box", "size_mismatch"]


@dataclass(frozen=True)
class BoxComparison:
    """An explanation compared with the ground-truth boxes of its label.

    inside: share of its pixels whose centre lies in a box; None where there is no box to compare with. by_chance: share
    of the view in the boxes, the expected value for a random explanation. note_code: why there is no comparison;
    `label_without_box` where the image has no box of its label, `size_mismatch` where the boxes are for an image of
    another size; None where there are no boxes at all. note: the same for people.
    """

    inside: float | None = None
    by_chance: float | None = None
    note_code: NoteCode | None = None
    note: str | None = None


def compare_with_boxes(
    visible: Visible, frame: Frame, label: str, item: InputItem, categories: frozenset[str]
) -> BoxComparison:
    """Compare an explanation for `label`, over the view's grid, with the item's boxes on the original image."""
    if item.boxes is None or visible.ndim != 2:
        return BoxComparison()
    height, width = frame.original
    if item.size is not None and item.size != (width, height):
        note = f"the boxes are for an image of {item.size[0]} x {item.size[1]}, this one is {width} x {height}"
        return BoxComparison(note_code="size_mismatch", note=note)
    boxes = boxes_for_label(item.boxes, label, categories)
    if not boxes:
        return BoxComparison(note_code="label_without_box", note=f"the ground truth has no box of {label} in this image")
    on_object = box_mask(boxes, frame)
    count = int(np.count_nonzero(visible))
    inside = float(np.count_nonzero(visible & on_object)) / count if count else None
    return BoxComparison(inside, float(on_object.mean()))


def boxes_for_label(boxes: Sequence[Box], label: str, categories: frozenset[str]) -> list[Box]:
    """The boxes of the labelled object.

    Where the ground truth has a category of the label's name, these are the boxes of that category, possibly none.
    Otherwise they are all boxes of the image.
    """
    if label.casefold() not in categories:
        return list(boxes)
    return [box for box in boxes if box[4].casefold() == label.casefold()]


def box_mask(boxes: Sequence[Box], frame: Frame) -> NDArray[np.bool_]:
    """(h, w), True for the pixels of the view whose centre, on the original image, lies in one of the boxes."""
    (down, right), (top, left) = frame.scale, frame.offset
    rows = top + (np.arange(frame.grid[0]) + 0.5) * down
    columns = left + (np.arange(frame.grid[1]) + 0.5) * right
    mask = np.zeros(frame.grid, bool)
    for x, y, w, h, _ in boxes:
        mask |= np.outer((y <= rows) & (rows < y + h), (x <= columns) & (columns < x + w))
    return mask
