"""The row of an explanation in the index, with its share on the object; the stamp of an image file; why images failed."""

import os
import stat
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from becausal.batch.records import Box, InputItem, Stamp
from becausal.core import boxes as core_boxes
from becausal.core.contracts import Visible, name_id
from becausal.core.explanation import ExplanationRecord
from becausal.core.frames import Frame
from becausal.core.text import replace_surrogates

NO_SIGN = 2**63 - 1  # SQLite has no larger numbers
CORNERS = ("box_left", "box_top", "box_right", "box_bottom")
NoteCode = Literal["label_without_box", "size_mismatch"]


def make_row(
    explanation: ExplanationRecord, item: InputItem, categories: frozenset[str], box: int | None = None
) -> dict[str, Any]:
    """The columns that a result fills in, see `index.RESULTS`.

    categories: of the ground truth, in lower case. box: number of the explained box, in runs of all boxes.
    """
    checks, summary, smallest = explanation.checks, explanation.summary(), explanation.levels[0]
    label = replace_surrogates(explanation.label)  # a record from elsewhere may hold anything
    boxes = compare_with_boxes(explanation.visible, explanation.frame, label, item, categories)
    return {
        "sha256": explanation.origin.image_sha256,
        "label": label,
        "label_id": label_id_of(explanation),
        "confidence": summary["confidence"],
        "box": box,
        **dict(zip(CORNERS, summary.get("box", [None] * 4), strict=True)),
        "level": explanation.level.name,
        "size": explanation.size,
        "label_size": smallest.size if smallest.share == 0 else None,
        "pixels": explanation.pixels,
        "pieces": explanation.pieces,
        "alone": summary["explanation"]["confidence"],
        "sufficient": checks.sufficient,
        "necessary": checks.necessary,
        "minimal_grain": checks.minimal_grain,
        "stopped_by": explanation.stopped_by,
        "calls": explanation.calls,
        "seconds": explanation.seconds,
        "inside": boxes.inside,
        "by_chance": boxes.by_chance,
        "note_code": boxes.note_code,
        "note": boxes.note,
    }


def corners_of(row: Mapping[str, Any]) -> core_boxes.Box | None:
    """The explained box of a row, (left, top, right, bottom) on the original image; None for a classifier."""
    left, top, right, bottom = corners = tuple(row[name] for name in CORNERS)
    return None if None in corners else (left, top, right, bottom)  # a damaged index may have some of them


def label_id_of(explanation: ExplanationRecord) -> int | None:
    """The id of the label; None where the model returns names, and only the name identifies the label."""
    ids = name_id(explanation.label), name_id(explanation.label, size=3)
    return None if explanation.label_id in ids else explanation.label_id


def stamp_of(path: str) -> Stamp | None:
    """What tells a file from one that has taken its place; None if there is no regular file.

    Whoever writes a file can set its modification time, but not the time of its last change.
    """
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino & NO_SIGN


def count_reasons(failed: Iterable[tuple[str, str]]) -> list[tuple[str, int]]:
    """Count (error, image) pairs by error, image names left out; the most frequent first."""
    counts = Counter(
        error.replace(f"there is no file {os.path.basename(image)}", "the file does not exist").replace(
            os.path.basename(image), "the image"
        )
        for error, image in failed
    )
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))


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
