"""Which layout a network's outputs have, by their names, shapes and values for the probe images."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.core.errors import ModelError
from becausal.models.detect.layouts import (
    BoxLayout,
    BoxList,
    BoxReader,
    DetrTensors,
    Outputs,
    SeparateTensors,
    YoloTensor,
    are_fractions,
)
from becausal.models.detect.names import (
    BOXES,
    LABELS,
    QUERY_BOXES,
    QUERY_LOGITS,
    SCORES,
    TENSORFLOW_BOXES,
    find_named,
    plain_name,
)

YOLO_THRESHOLD, OTHER_THRESHOLD = 0.25, 0.5  # default thresholds
_EXPECTED = (
    "boxes, scores and labels, logits and pred_boxes of DETR, or one output of a YOLO model, e.g. [N,84,8400], "
    "[N,25200,85] or [N,300,6]"
)


@dataclass(frozen=True)
class ChosenReader:
    """How outputs are read, the lowest score at which such models usually report a box, and what was assumed."""

    reader: BoxReader
    threshold: float
    notes: tuple[str, ...]


def choose_reader(
    probes: Sequence[tuple[Outputs, int]], grid: tuple[int, int], classes: int | None, output: str | None
) -> ChosenReader:
    """The way to read a network's outputs.

    Args:
        probes: Outputs by name, and the number of images they are for.
        grid: (h, w) of the view.
        classes: Number of class names that are known, None for none.
        output: The output to use; None to choose it.

    Raises:
        ModelError: The outputs are not those of a detector, or there is no output of that name.
    """
    first = probes[0][0]
    if output is not None:
        if output not in first:
            raise ModelError(f"the model has no output {output!r}; it has {', '.join(first)}")
        first = {output: first[output]}
    if (detr := _choose_detr(probes, first, classes)) is not None:
        return ChosenReader(BoxReader(detr[0], grid, is_fraction=True), OTHER_THRESHOLD, detr[1])
    layout, notes = _choose_separate(probes, first) or _choose_single(probes, first, classes) or (None, ())
    if layout is None:
        raise _describe_mismatch(first)
    found = [is_fraction for o, n in probes if (is_fraction := are_fractions(layout.corners(o, n))) is not None]
    is_fraction = all(found) if found else None
    if is_fraction is None:
        notes += ("no boxes in the probe images: boxes with coordinates up to 1.5 will be read as fractions of the image",)
    elif is_fraction:
        notes += ("box coordinates are in 0..1: read as fractions of the image (detected)",)
    threshold = YOLO_THRESHOLD if isinstance(layout, (YoloTensor, BoxList)) else OTHER_THRESHOLD
    return ChosenReader(BoxReader(layout, grid, is_fraction), threshold, notes)


def _choose_detr(
    probes: Sequence[tuple[Outputs, int]], first: Outputs, classes: int | None
) -> tuple[DetrTensors, tuple[str, ...]] | None:
    """Logits and boxes of queries, by their names; None if there are none.

    The number of class names tells whether the last logit is that of "no object". Without it, the probe images do: there is
    no object in most queries.
    """
    logits, boxes = find_named(first, QUERY_LOGITS), find_named(first, QUERY_BOXES)
    if logits is None or boxes is None or first[logits].ndim != 3 or first[boxes].shape != (*first[logits].shape[:2], 4):
        return None
    columns, reason = first[logits].shape[2], f"there are {classes} class names"
    has_no_object = classes == columns - 1
    if classes not in (columns - 1, columns):
        best = np.concatenate([outputs[logits].argmax(axis=2).reshape(-1) for outputs, _ in probes])
        has_no_object = bool((best == columns - 1).mean() > 0.5) and columns > 1
        reason = f"detected: the last logit is {'' if has_no_object else 'not '}the highest in most queries; give --labels"
    how = 'softmax, the last logit is "no object", as in DETR' if has_no_object else "sigmoid, as in RT-DETR"
    note = f"the output {logits} is read as logits of {columns - has_no_object} classes: {how} ({reason})"
    return DetrTensors(logits, boxes, columns - has_no_object, has_no_object), (note,)


def _choose_separate(
    probes: Sequence[tuple[Outputs, int]], first: Outputs
) -> tuple[SeparateTensors, tuple[str, ...]] | None:
    """Boxes, scores and labels as tensors of their own, by their names or else by their shapes; None if there are none."""
    boxes = find_named(first, BOXES) or _find_boxes(first)
    if boxes is None or first[boxes].ndim not in (2, 3) or first[boxes].shape[-1] not in (4, 5):
        return None
    per_box = first[boxes].shape[:-1]
    others = [name for name, values in first.items() if name != boxes and _squeezed(values) == per_box]
    has_scores = first[boxes].shape[-1] == 5
    labels = find_named(others, LABELS)
    scores = None if has_scores else find_named(others, SCORES)
    rest = [name for name in others if name not in (labels, scores)]
    if labels is None and rest and (has_scores or scores is not None or len(rest) > 1):
        labels = max(rest, key=lambda name: _is_whole(probes, name))
        rest.remove(labels)
    if not has_scores and scores is None:
        if not rest:
            return None
        scores = rest[0]
    is_y_first = plain_name(boxes) == TENSORFLOW_BOXES
    roles = [(boxes, BOXES, "boxes"), (scores, SCORES, "scores"), (labels, LABELS, "labels")]
    used = [(name, role) for name, names, role in roles if name is not None and plain_name(name) not in names]
    notes = [f"the output {name} is read as {role}, by its shape" for name, role in used]
    if labels is None:
        notes.append("the model has no output with labels: all boxes are of class 0")
    if is_y_first:
        notes.append(f"the boxes in {boxes} are read as top, left, bottom, right, as TensorFlow writes them")
    return SeparateTensors(boxes, scores, labels, len(per_box) == 2, is_y_first), tuple(notes)


def _find_boxes(outputs: Outputs) -> str | None:
    """The only output whose last axis is a box, if there are others with one number per box."""
    shapes = [_squeezed(values) for values in outputs.values()]
    found = [
        name
        for name, values in outputs.items()
        if values.ndim in (2, 3) and values.shape[-1] in (4, 5) and values.shape[:-1] in shapes
    ]
    return found[0] if len(found) == 1 else None


def _choose_single(
    probes: Sequence[tuple[Outputs, int]], first: Outputs, classes: int | None
) -> tuple[BoxLayout, tuple[str, ...]] | None:
    """One tensor with everything, None if there is none."""
    names = [name for name, values in first.items() if values.ndim == 3 and values.dtype.kind == "f" and _is_wide(values)]
    if not names:
        names = [name for name, values in first.items() if values.ndim == 2 and values.shape[1] == 6]
        return (BoxList(names[0], has_batch_axis=False), ()) if len(first) == 1 and _is_list(probes, names) else None
    if len(names) > 1:
        return None
    name, (a, b) = names[0], first[names[0]].shape[1:]
    notes = () if len(first) == 1 else (f"the model has the outputs {', '.join(first)}: {name} is read",)
    if b == 6 and _is_list(probes, names):
        return BoxList(name), notes
    layout = _choose_yolo(name, a, b, classes)
    if layout is None:
        return None
    is_like_5 = layout.has_objectness
    parts = f"box, {'objectness and ' if is_like_5 else ''}{layout.classes} class scores, as in YOLOv{5 if is_like_5 else 8}"
    suppression = f"non-maximum suppression within each class at an overlap of {layout.max_overlap:g}"
    return layout, (*notes, f"the output {name} is read as {parts}; {suppression}")


def _choose_yolo(name: str, a: int, b: int, classes: int | None) -> YoloTensor | None:
    """The layout of a YOLO output [N,a,b]: the one that fits the number of class names, else the usual one."""
    if classes in (a - 4, b - 4):
        return YoloTensor(name, classes, columns_last=classes == a - 4, has_objectness=False, max_overlap=0.7)
    if classes == b - 5:
        return YoloTensor(name, classes, columns_last=False, has_objectness=True, max_overlap=0.45)
    if a <= b and a > 4:
        return YoloTensor(name, a - 4, columns_last=True, has_objectness=False, max_overlap=0.7)
    if b < a and b > 5:
        return YoloTensor(name, b - 5, columns_last=False, has_objectness=True, max_overlap=0.45)
    return None


def _is_list(probes: Sequence[tuple[Outputs, int]], names: Sequence[str]) -> bool:
    """Whether the last column of an output holds labels, and the one before it scores."""
    if not names:
        return False
    tables = [outputs[names[0]].reshape(-1, 6) for outputs, _ in probes]
    table = np.concatenate(tables).astype(np.float64)
    is_score = (table[:, 4] >= 0.0) & (table[:, 4] <= 1.0)
    return bool(is_score.all() and (table[:, 5] == np.rint(table[:, 5])).all())


def _is_whole(probes: Sequence[tuple[Outputs, int]], name: str) -> tuple[bool, bool]:
    """Whether an output holds integers, by its type and by its values."""
    values = np.concatenate([outputs[name].reshape(-1) for outputs, _ in probes])
    return values.dtype.kind in "iu", bool((values == np.rint(values)).all())


def _squeezed(values: NDArray[Any]) -> tuple[int, ...]:
    """The shape without a last axis of size one."""
    return values.shape[:-1] if values.ndim == 3 and values.shape[-1] == 1 else values.shape


def _is_wide(values: NDArray[Any]) -> bool:
    return bool(min(values.shape[1:]) > 1 or values.shape[2] == 6)


def _describe_mismatch(outputs: Outputs) -> ModelError:
    """Why these outputs cannot be read."""
    shown = "; ".join(f"{name} {list(values.shape)}" for name, values in outputs.items())
    if all(sum(side > 1 for side in values.shape[1:]) <= 1 for values in outputs.values()):
        return ModelError(f"the model returns scores per class, not boxes ({shown}): load it without detect:")
    return ModelError(f"the outputs {shown} are not read as boxes; expected {_EXPECTED}")
