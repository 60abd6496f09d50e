"""The names that boxes, scores and labels have among a network's outputs."""

import re
from collections.abc import Iterable

BOXES = ("boxes", "bboxes", "detection_boxes", "det_boxes", "dets")
SCORES = ("scores", "detection_scores", "det_scores", "confidences")
LABELS = ("labels", "detection_classes", "det_classes", "classes", "class_ids")
QUERY_BOXES, QUERY_LOGITS = ("pred_boxes",), ("logits", "pred_logits")  # of DETR and its relatives
TENSORFLOW_BOXES = "detection_boxes"  # top, left, bottom, right


def plain_name(name: str) -> str:
    """The name of an output in lower case, without the number that TensorFlow appends."""
    return re.sub(r":\d+$", "", name.lower())


def find_named(names: Iterable[str], wanted: tuple[str, ...]) -> str | None:
    """The first output with one of these names."""
    return next((name for name in names if plain_name(name) in wanted), None)


def has_boxes(names: Iterable[str]) -> bool:
    """Whether outputs with these names are those of an object detector."""
    known = tuple(names)
    is_detr = find_named(known, QUERY_BOXES) is not None and find_named(known, QUERY_LOGITS) is not None
    return is_detr or (find_named(known, BOXES) is not None and find_named(known, SCORES + LABELS) is not None)
