"""Boxes of object detectors: how a batch of them is kept in one array, and how much two boxes overlap.

A detector answers n images with (n, MAX_BOXES, 6) float32: for each box left, top, right and bottom in pixels of the view
(right and bottom are exclusive), its score in 0..1, and the id of its label; best score first. Rows without a box are
`NO_BOX`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.core.errors import AnswerError

MAX_BOXES = 100  # of one image; those with the highest scores are kept
MAX_LABEL = 2**24  # label ids are below this, so that float32 holds them exactly
NO_BOX = (0.0, 0.0, 0.0, 0.0, 0.0, -1.0)
_SCORE_ERROR = 1e-3  # how far rounding may take a score out of 0..1

Box = tuple[float, float, float, float]  # left, top, right, bottom
Detections = NDArray[np.float32]  # (n, MAX_BOXES, 6)


@dataclass(frozen=True)
class FoundBox:
    """One box that a detector found. box: left, top, right, bottom, in pixels."""

    box: Box
    score: float
    label_id: int


def pack_boxes(images: Sequence[tuple[Any, Any, Any]]) -> Detections:
    """The boxes of n images in one array, from the boxes (k, 4), scores (k,) and label ids (k,) of each.

    Boxes without an area, to which nothing can be compared, and boxes with a negative label, which some models fill up their
    output with, are left out. Raises AnswerError where the three do not fit together, or hold values that cannot be boxes,
    scores or label ids.
    """
    packed = np.empty((len(images), MAX_BOXES, 6), np.float32)
    packed[:] = NO_BOX
    for row, (boxes, scores, labels) in zip(packed, images, strict=True):
        try:
            corners, score, label = (np.asarray(part, np.float64) for part in (boxes, scores, labels))
        except (TypeError, ValueError):
            raise AnswerError("the model returned boxes that are not numbers") from None
        count = score.size
        if score.ndim != 1 or label.shape != (count,) or (corners.shape != (count, 4) and (count or corners.size)):
            shapes = ", ".join(str(part.shape) for part in (corners, score, label))
            raise AnswerError(f"the model returned boxes, scores and labels of shapes {shapes}; expected (k, 4), (k,), (k,)")
        with np.errstate(over="ignore"):  # what is too large becomes infinite
            table = np.column_stack([corners.reshape(-1, 4), score, label]).astype(np.float32)
        if not np.isfinite(table).all():
            raise AnswerError("the model returned boxes that are NaN or infinite")
        if count and (score.min() < -_SCORE_ERROR or score.max() > 1.0 + _SCORE_ERROR):
            raise AnswerError(f"the model returned box scores from {score.min():.3g} to {score.max():.3g}; expected 0 to 1")
        if (wrong := label[(label != np.rint(label)) | (label >= MAX_LABEL)]).size:
            raise AnswerError(f"the model returned the label id {wrong[0]:.9g}; expected whole numbers below {MAX_LABEL}")
        table[:, 4] = table[:, 4].clip(0.0, 1.0)
        table = table[(table[:, 2] > table[:, 0]) & (table[:, 3] > table[:, 1]) & (table[:, 5] >= 0)]
        table = table[np.argsort(-table[:, 4], kind="stable")[:MAX_BOXES]]
        row[: len(table)] = table
    return packed


def read_boxes(row: NDArray[Any], threshold: float = 0.0) -> list[FoundBox]:
    """The boxes of one image, (MAX_BOXES, 6), best score first: those at or above a score."""
    found = []
    for left, top, right, bottom, score, label in row.tolist():
        if label >= 0 and score >= threshold:
            found.append(FoundBox((left, top, right, bottom), score, int(label)))
    return found


def is_box(box: Sequence[float]) -> bool:
    """Whether four numbers are a box with an area."""
    return len(box) == 4 and bool(np.isfinite(box).all()) and box[2] > box[0] and box[3] > box[1]


def describe_far(box: Box | None, grid: Sequence[int]) -> tuple[str, ...]:
    """A note about a box that reaches further out of an image, (h, w), than the image is large; none for any other."""
    if box is None or all(-side <= at <= 2 * side for side, at in zip((grid[1], grid[0]) * 2, box, strict=True)):
        return ()
    corners = ", ".join(f"{at:.4g}" for at in box)
    size = f"{grid[1]} x {grid[0]} px"
    return (f"the box {corners} lies far outside of the image, {size}: are these pixels, as left, top, right, bottom?",)


def overlaps(boxes: NDArray[Any], box: Box) -> NDArray[np.float64]:
    """Intersection over union of boxes, (..., 4 or more), with one box; 0 for boxes without an area."""
    left, top, right, bottom = (boxes[..., side].astype(np.float64) for side in range(4))
    width = np.minimum(right, box[2]) - np.maximum(left, box[0])
    height = np.minimum(bottom, box[3]) - np.maximum(top, box[1])
    shared = np.maximum(width, 0.0) * np.maximum(height, 0.0)
    area = np.maximum(right - left, 0.0) * np.maximum(bottom - top, 0.0)
    union = area + (box[2] - box[0]) * (box[3] - box[1]) - shared
    return np.asarray(np.divide(shared, union, out=np.zeros_like(shared), where=union > 0.0))


def nearest_box(found: Sequence[FoundBox], box: Box) -> int:
    """The index of the box that overlaps a given one most; where none does, of the one with the nearest centre."""
    corners = np.array([one.box for one in found], np.float64)
    shared = overlaps(corners, box)
    if shared.max() > 0.0:
        return int(np.argmax(shared))
    centres = (corners[:, :2] + corners[:, 2:]) / 2 - [(box[0] + box[2]) / 2, (box[1] + box[3]) / 2]
    return int(np.argmin((centres**2).sum(axis=1)))


def check_boxes(answer: NDArray[Any], rows: int) -> NDArray[Any]:
    """The answer of a detector, if it is what it should be. Raises AnswerError if not."""
    if answer.shape != (rows, MAX_BOXES, 6):
        raise AnswerError(f"the detector returned an array of shape {answer.shape}; expected ({rows}, {MAX_BOXES}, 6)")
    if answer.dtype.kind != "f" or not np.isfinite(answer).all():
        raise AnswerError("the model returned boxes that are NaN, infinite or no numbers")
    return answer
