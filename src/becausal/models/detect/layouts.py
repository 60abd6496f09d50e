"""How boxes lie in a network's output: as three tensors, as one list of boxes, or raw, as those of YOLO and of DETR.

A layout turns the outputs for n images, by name, into boxes (k, 4), scores (k,) and labels (k,) for each image; boxes are
left, top, right, bottom, in the network's own units.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from becausal.core.boxes import MAX_BOXES, Detections, pack_boxes
from becausal.core.errors import AnswerError
from becausal.models.detect.suppression import suppress
from becausal.models.outputs import sigmoid, softmax

LOWEST = 0.01  # boxes with lower scores are not looked at
_MOST_CANDIDATES = 1000  # of one image, before non-maximum suppression
_FRACTION = 1.5  # coordinates up to this are fractions of the image, larger ones are pixels

Outputs = Mapping[str, NDArray[Any]]
ImageBoxes = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]


class BoxLayout(Protocol):
    """A layout. has_batch_axis: False if outputs are those of a single image. classes: None if their number is not known."""

    @property
    def has_batch_axis(self) -> bool: ...

    @property
    def classes(self) -> int | None: ...

    def corners(self, outputs: Outputs, rows: int) -> NDArray[Any]:
        """All boxes of all images, whatever their scores, (n, k, 4)."""
        ...

    def read(self, outputs: Outputs, rows: int) -> Iterator[ImageBoxes]:
        """The boxes of each image."""
        ...


@dataclass(frozen=True)
class SeparateTensors:
    """Boxes (n, k, 4), scores (n, k) and labels (n, k), each an output of its own, named here.

    scores: None if they are the fifth column of the boxes. labels: None if there is only one class.
    is_y_first: boxes are top, left, bottom, right.
    """

    boxes: str
    scores: str | None
    labels: str | None
    has_batch_axis: bool = True
    is_y_first: bool = False
    classes: int | None = None

    def corners(self, outputs: Outputs, rows: int) -> NDArray[Any]:
        boxes = self._find(outputs, self.boxes, rows)
        if boxes.ndim != 3 or boxes.shape[2] != (5 if self.scores is None else 4):
            raise AnswerError(f"the model returned boxes of shape {outputs[self.boxes].shape}; expected ({rows}, k, 4)")
        return boxes[..., [1, 0, 3, 2]] if self.is_y_first else boxes[..., :4]

    def read(self, outputs: Outputs, rows: int) -> Iterator[ImageBoxes]:
        corners = self.corners(outputs, rows)
        if self.scores is None:
            scores = self._find(outputs, self.boxes, rows)[..., 4]
        else:
            scores = self._one_per_box(outputs, self.scores, rows)
        labels = np.zeros(scores.shape) if self.labels is None else self._one_per_box(outputs, self.labels, rows)
        return zip(corners, scores, labels, strict=True)

    def _one_per_box(self, outputs: Outputs, name: str, rows: int) -> NDArray[Any]:
        values = self._find(outputs, name, rows)
        return values[..., 0] if values.ndim == 3 and values.shape[2] == 1 else values

    def _find(self, outputs: Outputs, name: str, rows: int) -> NDArray[Any]:
        values = find_output(outputs, name)
        return check_rows(values if self.has_batch_axis else values[None], rows, name)


@dataclass(frozen=True)
class BoxList:
    """One output (n, k, 6): left, top, right, bottom, score, label; non-maximum suppression is done. As in YOLOv10."""

    name: str
    has_batch_axis: bool = True
    classes: int | None = None

    def corners(self, outputs: Outputs, rows: int) -> NDArray[Any]:
        return self._table(outputs, rows)[..., :4]

    def read(self, outputs: Outputs, rows: int) -> Iterator[ImageBoxes]:
        table = self._table(outputs, rows)
        return zip(table[..., :4], table[..., 4], table[..., 5], strict=True)

    def _table(self, outputs: Outputs, rows: int) -> NDArray[Any]:
        values = find_output(outputs, self.name)
        table = check_rows(values if self.has_batch_axis else values[None], rows, self.name)
        if table.ndim != 3 or table.shape[2] != 6:
            raise AnswerError(f"the model returned boxes of shape {values.shape}; expected ({rows}, k, 6)")
        return table


@dataclass(frozen=True)
class YoloTensor:
    """One output with a column for each candidate: centre x, centre y, width, height, then scores.

    columns_last: (n, numbers, candidates), as in YOLOv8; else (n, candidates, numbers), as in YOLOv5.
    has_objectness: the fifth number is the score that there is an object at all; it is multiplied with the class scores.
    max_overlap: of non-maximum suppression.
    """

    name: str
    classes: int
    columns_last: bool
    has_objectness: bool
    max_overlap: float
    has_batch_axis: bool = True

    def corners(self, outputs: Outputs, rows: int) -> NDArray[Any]:
        return np.stack([_to_corners(table[:4]) for table in self._tables(outputs, rows)])

    def read(self, outputs: Outputs, rows: int) -> Iterator[ImageBoxes]:
        return (self._read_image(table) for table in self._tables(outputs, rows))

    def _tables(self, outputs: Outputs, rows: int) -> NDArray[Any]:
        """The output as (n, numbers, candidates)."""
        values = check_rows(find_output(outputs, self.name), rows, self.name)
        tables = values if self.columns_last or values.ndim != 3 else values.transpose(0, 2, 1)
        numbers = 4 + self.has_objectness + self.classes
        if tables.ndim != 3 or tables.shape[1] != numbers:
            raise AnswerError(
                f"the model returned an output of shape {values.shape}; expected {numbers} numbers per candidate"
            )
        return tables

    def _read_image(self, table: NDArray[Any]) -> ImageBoxes:
        """The boxes in (numbers, candidates)."""
        by_class = table[4 + self.has_objectness :]
        with np.errstate(invalid="ignore", over="ignore"):
            best = by_class.max(axis=0).astype(np.float64) * (table[4] if self.has_objectness else 1.0)
        chosen = np.flatnonzero(~(best < LOWEST))  # NaN included
        if not np.isfinite(best[chosen]).all() or not np.isfinite(table[:4, chosen]).all():
            raise AnswerError("the model returned boxes that are NaN or infinite")
        chosen = chosen[(table[2, chosen] > 0) & (table[3, chosen] > 0)]
        chosen = chosen[np.argsort(-best[chosen], kind="stable")[:_MOST_CANDIDATES]]
        boxes, labels = _to_corners(table[:4, chosen]), by_class[:, chosen].argmax(axis=0)
        kept = suppress(boxes, labels, self.max_overlap)
        return boxes[kept], best[chosen][kept], labels[kept]


@dataclass(frozen=True)
class DetrTensors:
    """Logits (n, queries, classes) and boxes (n, queries, 4): centre x, centre y, width, height in 0..1, as in DETR.

    classes: without the class "no object". has_no_object: the last logit is that of "no object", and scores are a softmax,
    one label for each query; else scores are sigmoids, and a query may have several labels.
    """

    logits: str
    boxes: str
    classes: int
    has_no_object: bool
    has_batch_axis: bool = True

    def corners(self, outputs: Outputs, rows: int) -> NDArray[Any]:
        boxes = check_rows(find_output(outputs, self.boxes), rows, self.boxes)
        if boxes.ndim != 3 or boxes.shape[2] != 4:
            raise AnswerError(f"the model returned {self.boxes} of shape {boxes.shape}; expected ({rows}, queries, 4)")
        return np.stack([_to_corners(table.T) for table in boxes])

    def read(self, outputs: Outputs, rows: int) -> Iterator[ImageBoxes]:
        corners, logits = self.corners(outputs, rows), check_rows(find_output(outputs, self.logits), rows, self.logits)
        expected = (*corners.shape[:2], self.classes + self.has_no_object)
        if logits.shape != expected:
            raise AnswerError(f"the model returned {self.logits} of shape {logits.shape}; expected {expected}")
        if not np.isfinite(logits).all():
            raise AnswerError(f"the model returned {self.logits} that are NaN or infinite")
        return (self._read_image(table, boxes) for table, boxes in zip(logits.astype(np.float32), corners, strict=True))

    def _read_image(self, logits: NDArray[np.float32], boxes: NDArray[Any]) -> ImageBoxes:
        scores = softmax(logits)[:, :-1] if self.has_no_object else sigmoid(logits)
        is_kept = scores >= LOWEST
        if self.has_no_object:
            is_kept &= np.arange(self.classes) == scores.argmax(axis=1)[:, None]
        queries, labels = np.nonzero(is_kept)
        return boxes[queries], scores[queries, labels], labels


@dataclass(frozen=True)
class BoxReader:
    """Reads outputs as boxes in pixels of the view.

    is_fraction: whether coordinates are fractions of the image; None to decide for each image by its boxes.
    """

    layout: BoxLayout
    grid: tuple[int, int]
    is_fraction: bool | None

    def __call__(self, outputs: Outputs, rows: int) -> Detections:
        """The boxes of all images. Raises AnswerError where the outputs do not fit the layout."""
        images = self.layout.read(outputs, rows)
        return pack_boxes([(self._in_pixels(boxes), scores, labels) for boxes, scores, labels in images])

    def _in_pixels(self, boxes: NDArray[Any]) -> NDArray[np.float64]:
        is_fraction = are_fractions(boxes) if self.is_fraction is None else self.is_fraction
        h, w = self.grid
        return boxes.astype(np.float64) * ((w, h, w, h) if is_fraction else 1.0)


def are_fractions(corners: NDArray[Any]) -> bool | None:
    """Whether boxes are in fractions of the image; None if there is no box."""
    has_area = (corners[..., 2] > corners[..., 0]) & (corners[..., 3] > corners[..., 1])
    return bool(corners[has_area].max() <= _FRACTION) if has_area.any() else None


def find_output(outputs: Outputs, name: str) -> NDArray[Any]:
    """The output of this name. Raises AnswerError where there is none."""
    if name not in outputs:
        raise AnswerError(f"the model returned no output {name!r}, only {', '.join(outputs)}")
    return outputs[name]


def check_rows(values: NDArray[Any], rows: int, name: str) -> NDArray[Any]:
    """An output, if it is one of so many images. Raises AnswerError otherwise."""
    if values.ndim == 0 or len(values) != rows:
        raise AnswerError(f"the model returned {name} of shape {values.shape} for {rows} images; expected one row per image")
    return values


def placeholder(outputs: Outputs, rows: int) -> Detections:
    """An answer without boxes, of the shape that a `BoxReader` returns."""
    return np.zeros((rows, MAX_BOXES, 6), np.float32)


def _to_corners(table: NDArray[Any]) -> NDArray[np.float64]:
    """Boxes (k, 4) from (4, k): centre x, centre y, width, height."""
    x, y, w, h = table.astype(np.float64)
    return np.stack([x - w / 2, y - h / 2, x + w / 2, y + h / 2], axis=1)
