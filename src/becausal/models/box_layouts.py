"""How boxes lie in a network's outputs: as three tensors, as one list of boxes, or raw, as those of DETR and of YOLO.

A layout recognises outputs by their names, shapes and values (`find`), and turns those for n images into boxes (k, 4),
scores (k,) and labels (k,) for each image (`read`), or into all boxes, whatever their scores, (n, k, 4) (`corners`). Boxes
are left, top, right, bottom, in the network's own units: fractions of the image, pixels, or what their values show
(`are_fractions` is None). `threshold` is the lowest score at which such models usually report a box. `has_batch_axis` is
False if outputs are those of a single image, `classes` None if their number is not known. All layouts are in `LAYOUTS`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from becausal.core.boxes import MAX_BOXES, Detections, overlaps, pack_boxes
from becausal.core.errors import AnswerError, ModelError
from becausal.models.outputs import sigmoid, softmax

LOWEST = 0.01  # boxes with lower scores are not looked at
_MOST_CANDIDATES = 1000  # of one image, before non-maximum suppression
_FRACTION = 1.5  # coordinates up to this are fractions of the image, larger ones are pixels
USUAL_THRESHOLD, YOLO_THRESHOLD = 0.5, 0.25  # lowest scores at which such models usually report a box

#: Names of outputs, in lower case.
BOXES = ("boxes", "bboxes", "detection_boxes", "det_boxes", "dets")
SCORES = ("scores", "detection_scores", "det_scores", "confidences")
LABELS = ("labels", "detection_classes", "det_classes", "classes", "class_ids")
QUERY_BOXES, QUERY_LOGITS = ("pred_boxes",), ("logits", "pred_logits")  # of DETR and its relatives
TENSORFLOW_BOXES = "detection_boxes"  # top, left, bottom, right

Outputs = Mapping[str, NDArray[Any]]
ImageBoxes = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]


@dataclass(frozen=True)
class Probes:
    """What a network returned for the probe images."""

    seen: Sequence[tuple[Outputs, int]]  # outputs by name, and the number of images they are for
    first: Outputs  # those of them that may be read, from the first one
    classes: int | None  # number of class names that are known

    def values(self, name: str) -> NDArray[Any]:
        """All values of an output, whatever its shape, (values,)."""
        return np.concatenate([outputs[name].reshape(-1) for outputs, _ in self.seen])


@dataclass(frozen=True)
class DetrTensors:
    """Logits (n, queries, classes) and boxes (n, queries, 4): centre x, centre y, width, height in 0..1, as in DETR.

    Either the last logit is that of "no object", and scores are a softmax, one label for each query; or scores are sigmoids,
    and a query may have several labels.
    """

    logits: str
    boxes: str
    classes: int  # without "no object"
    has_no_object: bool
    has_batch_axis: bool = True
    threshold: ClassVar[float] = USUAL_THRESHOLD
    are_fractions: ClassVar[bool | None] = True

    @staticmethod
    def find(probes: Probes) -> "tuple[DetrTensors, tuple[str, ...]] | None":
        first, classes = probes.first, probes.classes
        logits, boxes = find_named(first, QUERY_LOGITS), find_named(first, QUERY_BOXES)
        if logits is None or boxes is None or first[logits].ndim != 3 or first[boxes].shape != (*first[logits].shape[:2], 4):
            return None
        columns, reason = first[logits].shape[2], f"there are {classes} class names"
        has_no_object = classes == columns - 1
        if classes not in (columns - 1, columns):  # then the probe images tell: there is no object in most queries
            best = np.concatenate([outputs[logits].argmax(axis=2).reshape(-1) for outputs, _ in probes.seen])
            has_no_object = bool((best == columns - 1).mean() > 0.5) and columns > 1
            usually = "the highest" if has_no_object else "not the highest"
            reason = f"detected: the last logit is {usually} in most queries; give --labels"
        how = 'softmax, the last logit is "no object", as in DETR' if has_no_object else "sigmoid, as in RT-DETR"
        note = f"the output {logits} is read as logits of {columns - has_no_object} classes: {how} ({reason})"
        return DetrTensors(logits, boxes, columns - has_no_object, has_no_object), (note,)

    def corners(self, outputs: Outputs, rows: int) -> NDArray[Any]:
        boxes = _take(outputs, self.boxes, rows)
        if boxes.ndim != 3 or boxes.shape[2] != 4:
            raise AnswerError(f"the model returned {self.boxes} of shape {boxes.shape}; expected ({rows}, queries, 4)")
        return np.stack([_to_corners(table.T) for table in boxes])

    def read(self, outputs: Outputs, rows: int) -> Iterator[ImageBoxes]:
        corners, logits = self.corners(outputs, rows), _take(outputs, self.logits, rows)
        expected = (*corners.shape[:2], self.classes + self.has_no_object)
        if logits.shape != expected:
            raise AnswerError(f"the model returned {self.logits} of shape {logits.shape}; expected {expected}")
        if not np.isfinite(logits).all():
            raise AnswerError(f"the model returned {self.logits} that are NaN or infinite")
        for table, boxes in zip(logits.astype(np.float32), corners, strict=True):
            scores = softmax(table)[:, :-1] if self.has_no_object else sigmoid(table)
            is_kept = scores >= LOWEST
            if self.has_no_object:
                is_kept &= np.arange(self.classes) == scores.argmax(axis=1)[:, None]
            queries, labels = np.nonzero(is_kept)
            yield boxes[queries], scores[queries, labels], labels


@dataclass(frozen=True)
class SeparateTensors:
    """Boxes (n, k, 4), scores (n, k) and labels (n, k), each an output of its own, named here."""

    boxes: str
    scores: str | None  # None if they are the fifth column of the boxes
    labels: str | None  # None if there is only one class
    has_batch_axis: bool = True
    is_y_first: bool = False  # boxes are top, left, bottom, right
    classes: int | None = None
    threshold: ClassVar[float] = USUAL_THRESHOLD
    are_fractions: ClassVar[bool | None] = None

    @staticmethod
    def find(probes: Probes) -> "tuple[SeparateTensors, tuple[str, ...]] | None":
        first = probes.first
        shapes = [_squeezed(values) for values in first.values()]
        fitting = [name for name, values in first.items() if values.ndim in (2, 3) and values.shape[-1] in (4, 5)]
        with_others = [name for name in fitting if first[name].shape[:-1] in shapes]  # that have one number per box
        boxes = find_named(first, BOXES) or (with_others[0] if len(with_others) == 1 else None)
        if boxes is None or boxes not in fitting:
            return None
        per_box, has_scores = first[boxes].shape[:-1], first[boxes].shape[-1] == 5
        others = [name for name, values in first.items() if name != boxes and _squeezed(values) == per_box]
        labels = find_named(others, LABELS)
        scores = None if has_scores else find_named(others, SCORES)
        rest = [name for name in others if name not in (labels, scores)]
        if labels is None and rest and (has_scores or scores is not None or len(rest) > 1):
            # Labels are integers by their type, or at least as numbers.
            found = {name: probes.values(name) for name in rest}
            labels = max(rest, key=lambda name: (found[name].dtype.kind in "iu", _is_whole(found[name])))
            rest.remove(labels)
        if not has_scores and scores is None:
            if not rest:
                return None
            scores = rest[0]
        is_y_first = _plain_name(boxes) == TENSORFLOW_BOXES
        roles = [(boxes, BOXES, "boxes"), (scores, SCORES, "scores"), (labels, LABELS, "labels")]
        used = [(name, role) for name, names, role in roles if name is not None and _plain_name(name) not in names]
        notes = [f"the output {name} is read as {role}, by its shape" for name, role in used]
        if labels is None:
            notes.append("the model has no output with labels: all boxes are of class 0")
        if is_y_first:
            notes.append(f"the boxes in {boxes} are read as top, left, bottom, right, as TensorFlow writes them")
        return SeparateTensors(boxes, scores, labels, len(per_box) == 2, is_y_first), tuple(notes)

    def corners(self, outputs: Outputs, rows: int) -> NDArray[Any]:
        boxes = _take(outputs, self.boxes, rows, self.has_batch_axis)
        if boxes.ndim != 3 or boxes.shape[2] != (5 if self.scores is None else 4):
            raise AnswerError(f"the model returned boxes of shape {outputs[self.boxes].shape}; expected ({rows}, k, 4)")
        return boxes[..., [1, 0, 3, 2]] if self.is_y_first else boxes[..., :4]

    def read(self, outputs: Outputs, rows: int) -> Iterator[ImageBoxes]:
        def one_per_box(name: str) -> NDArray[Any]:
            values = _take(outputs, name, rows, self.has_batch_axis)
            return values[..., 0] if values.ndim == 3 and values.shape[2] == 1 else values

        corners = self.corners(outputs, rows)
        if self.scores is None:
            scores = _take(outputs, self.boxes, rows, self.has_batch_axis)[..., 4]
        else:
            scores = one_per_box(self.scores)
        labels = np.zeros(scores.shape) if self.labels is None else one_per_box(self.labels)
        return zip(corners, scores, labels, strict=True)


@dataclass(frozen=True)
class BoxList:
    """One output (n, k, 6): left, top, right, bottom, score, label; non-maximum suppression is done. As in YOLOv10."""

    name: str
    has_batch_axis: bool = True
    classes: int | None = None
    threshold: ClassVar[float] = YOLO_THRESHOLD
    are_fractions: ClassVar[bool | None] = None

    @staticmethod
    def find(probes: Probes) -> "tuple[BoxList, tuple[str, ...]] | None":
        name, notes = _find_single(probes.first)
        has_batch_axis = name is not None
        if name is None and len(probes.first) == 1:  # or that of one image, (k, 6)
            name = next((name for name, values in probes.first.items() if values.ndim == 2), None)
        if name is None or probes.first[name].shape[-1] != 6:
            return None
        table = probes.values(name).reshape(-1, 6).astype(np.float64)
        are_scores = (table[:, 4] >= 0.0).all() and (table[:, 4] <= 1.0).all()
        is_list = are_scores and _is_whole(table[:, 5])
        return (BoxList(name, has_batch_axis), notes) if is_list else None

    def corners(self, outputs: Outputs, rows: int) -> NDArray[Any]:
        return self._table(outputs, rows)[..., :4]

    def read(self, outputs: Outputs, rows: int) -> Iterator[ImageBoxes]:
        table = self._table(outputs, rows)
        return zip(table[..., :4], table[..., 4], table[..., 5], strict=True)

    def _table(self, outputs: Outputs, rows: int) -> NDArray[Any]:
        table = _take(outputs, self.name, rows, self.has_batch_axis)
        if table.ndim != 3 or table.shape[2] != 6:
            raise AnswerError(f"the model returned boxes of shape {outputs[self.name].shape}; expected ({rows}, k, 6)")
        return table


@dataclass(frozen=True)
class YoloTensor:
    """One output with a column for each candidate: centre x, centre y, width, height, then scores."""

    name: str
    classes: int
    columns_last: bool  # (n, numbers, candidates), as in YOLOv8; else (n, candidates, numbers), as in YOLOv5
    has_objectness: bool  # the fifth number says whether there is an object at all; class scores are multiplied with it
    max_overlap: float  # of non-maximum suppression
    has_batch_axis: bool = True
    threshold: ClassVar[float] = YOLO_THRESHOLD
    are_fractions: ClassVar[bool | None] = None

    @staticmethod
    def find(probes: Probes) -> "tuple[YoloTensor, tuple[str, ...]] | None":
        name, notes = _find_single(probes.first)
        if name is None:
            return None
        (a, b), classes = probes.first[name].shape[1:], probes.classes
        # What fits the number of class names, else what is usual for such a shape
        if classes is not None and classes in (a - 4, b - 4):
            layout = YoloTensor(name, classes, columns_last=classes == a - 4, has_objectness=False, max_overlap=0.7)
        elif b > 5 and (classes == b - 5 or b < a):
            layout = YoloTensor(name, b - 5, columns_last=False, has_objectness=True, max_overlap=0.45)
        elif 4 < a <= b:
            layout = YoloTensor(name, a - 4, columns_last=True, has_objectness=False, max_overlap=0.7)
        else:
            return None
        version, before = (5, "objectness and ") if layout.has_objectness else (8, "")
        parts = f"box, {before}{layout.classes} class scores, as in YOLOv{version}"
        suppression = f"non-maximum suppression within each class at an overlap of {layout.max_overlap:g}"
        return layout, (*notes, f"the output {name} is read as {parts}; {suppression}")

    def corners(self, outputs: Outputs, rows: int) -> NDArray[Any]:
        return np.stack([_to_corners(table[:4]) for table in self._tables(outputs, rows)])

    def read(self, outputs: Outputs, rows: int) -> Iterator[ImageBoxes]:
        for table in self._tables(outputs, rows):
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
            yield boxes[kept], best[chosen][kept], labels[kept]

    def _tables(self, outputs: Outputs, rows: int) -> NDArray[Any]:
        """The output as (n, numbers, candidates)."""
        values = _take(outputs, self.name, rows)
        tables = values if self.columns_last or values.ndim != 3 else values.transpose(0, 2, 1)
        numbers = 4 + self.has_objectness + self.classes
        if tables.ndim != 3 or tables.shape[1] != numbers:
            raise AnswerError(
                f"the model returned an output of shape {values.shape}; expected {numbers} numbers per candidate"
            )
        return tables


#: For mypy only; code takes what is in LAYOUTS.
BoxLayout = DetrTensors | SeparateTensors | BoxList | YoloTensor
#: Every layout; the first one that recognises the outputs reads them.
LAYOUTS: tuple[type[BoxLayout], ...] = (DetrTensors, SeparateTensors, BoxList, YoloTensor)
_EXPECTED = (
    "boxes, scores and labels, logits and pred_boxes of DETR, or one output of a YOLO model, e.g. [N,84,8400], "
    "[N,25200,85] or [N,300,6]"
)


@dataclass(frozen=True)
class BoxReader:
    """Reads outputs as boxes in pixels of the view."""

    layout: BoxLayout
    grid: tuple[int, int]
    is_fraction: bool | None  # whether coordinates are fractions of the image; None to decide for each image by its boxes

    def __call__(self, outputs: Outputs, rows: int) -> Detections:
        """The boxes of all images. Raises AnswerError where the outputs do not fit the layout."""
        (h, w), images = self.grid, []
        for boxes, scores, labels in self.layout.read(outputs, rows):
            is_fraction = _are_fractions(boxes) if self.is_fraction is None else self.is_fraction
            images.append((boxes.astype(np.float64) * ((w, h, w, h) if is_fraction else 1.0), scores, labels))
        return pack_boxes(images)


def choose_reader(
    seen: Sequence[tuple[Outputs, int]], grid: tuple[int, int], classes: int | None, output: str | None
) -> tuple[BoxReader, tuple[str, ...]]:
    """The way to read a network's outputs, and notes on what was assumed.

    seen, classes: see `Probes`. grid: (h, w) of the view. output: the one to use; None to choose.
    """
    first = seen[0][0]
    if output is not None:
        if output not in first:
            raise ModelError(f"the model has no output {output!r}; it has {', '.join(first)}")
        first = {output: first[output]}
    probes = Probes(seen, first, classes)
    found = next((found for kind in LAYOUTS if (found := kind.find(probes)) is not None), None)
    if found is None:
        shown = "; ".join(f"{name} {list(values.shape)}" for name, values in first.items())
        if all(sum(side > 1 for side in values.shape[1:]) <= 1 for values in first.values()):
            raise ModelError(f"the model returns scores per class, not boxes ({shown}): load it without detect:")
        raise ModelError(f"the outputs {shown} are not read as boxes; expected {_EXPECTED}")
    layout, notes = found
    if layout.are_fractions is not None:
        return BoxReader(layout, grid, layout.are_fractions), notes
    signs = [sign for o, n in seen if (sign := _are_fractions(layout.corners(o, n))) is not None]
    is_fraction = all(signs) if signs else None
    if is_fraction is None:
        notes += ("no boxes in the probe images: boxes with coordinates up to 1.5 will be read as fractions of the image",)
    elif is_fraction:
        notes += ("box coordinates are in 0..1: read as fractions of the image (detected)",)
    return BoxReader(layout, grid, is_fraction), notes


def has_boxes(names: Iterable[str]) -> bool:
    """Whether outputs with these names are those of an object detector."""
    known = tuple(names)
    is_detr = find_named(known, QUERY_BOXES) is not None and find_named(known, QUERY_LOGITS) is not None
    return is_detr or (find_named(known, BOXES) is not None and find_named(known, SCORES + LABELS) is not None)


def find_named(names: Iterable[str], wanted: tuple[str, ...]) -> str | None:
    """The first output with one of these names."""
    return next((name for name in names if _plain_name(name) in wanted), None)


def suppress(boxes: NDArray[np.float64], labels: NDArray[np.intp], max_overlap: float) -> NDArray[np.intp]:
    """Non-maximum suppression: the indices of the boxes, (k, 4), best score first, that are kept, at most MAX_BOXES.

    A box is dropped if it overlaps a kept one of its label by more than `max_overlap`, as intersection over union.
    """
    left, kept = np.arange(len(boxes)), list[int]()
    while left.size and len(kept) < MAX_BOXES:
        best, left = int(left[0]), left[1:]
        kept.append(best)
        shared = overlaps(boxes[left], tuple(boxes[best]))
        left = left[(labels[left] != labels[best]) | (shared <= max_overlap)]
    return np.array(kept, np.intp)


def _plain_name(name: str) -> str:
    return re.sub(r":\d+$", "", name.lower())  # without the number that TensorFlow appends


def _take(outputs: Outputs, name: str, rows: int, has_batch_axis: bool = True) -> NDArray[Any]:
    """The output of this name, a row per image. Raises AnswerError where there is none, or not one of so many images."""
    if name not in outputs:
        raise AnswerError(f"the model returned no output {name!r}, only {', '.join(outputs)}")
    values = outputs[name] if has_batch_axis else outputs[name][None]
    if values.ndim == 0 or len(values) != rows:
        raise AnswerError(f"the model returned {name} of shape {values.shape} for {rows} images; expected one row per image")
    return values


def _find_single(outputs: Outputs) -> tuple[str | None, tuple[str, ...]]:
    """The only output that can hold everything, a table per image, and a note where there are others beside it."""
    names = [
        name
        for name, values in outputs.items()
        if values.ndim == 3 and values.dtype.kind == "f" and (min(values.shape[1:]) > 1 or values.shape[2] == 6)
    ]
    if len(names) != 1:
        return None, ()
    return names[0], () if len(outputs) == 1 else (f"the model has the outputs {', '.join(outputs)}: {names[0]} is read",)


def _squeezed(values: NDArray[Any]) -> tuple[int, ...]:
    """The shape without a last axis of size one."""
    return values.shape[:-1] if values.ndim == 3 and values.shape[-1] == 1 else values.shape


def _is_whole(values: NDArray[Any]) -> bool:
    return bool((values == np.rint(values)).all())


def _are_fractions(corners: NDArray[Any]) -> bool | None:
    """Whether boxes are in fractions of the image; None if there is no box."""
    has_area = (corners[..., 2] > corners[..., 0]) & (corners[..., 3] > corners[..., 1])
    return bool(corners[has_area].max() <= _FRACTION) if has_area.any() else None


def _to_corners(table: NDArray[Any]) -> NDArray[np.float64]:
    """Boxes (k, 4) from (4, k): centre x, centre y, width, height."""
    x, y, w, h = table.astype(np.float64)
    return np.stack([x - w / 2, y - h / 2, x + w / 2, y + h / 2], axis=1)
