"""What an explanation is about: the target that a request and the model's answer to the whole view determine."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.core.boxes import FoundBox, nearest_box, read_boxes
from becausal.core.contracts import ModelInfo
from becausal.core.errors import ModelError, OptionError, TargetError
from becausal.core.frames import Frame
from becausal.core.problem import Explainer
from becausal.core.request import Request
from becausal.core.targets import Target
from becausal.models.labels import find_label


def make_target(request: Request, info: ModelInfo, answer: NDArray[Any], frame: Frame) -> Target:
    """What must stay true, given the model's answer to the whole view: (1, classes), (1,), or boxes (1, MAX_BOXES, 6)."""
    if answer.ndim == 3:
        return _make_box_target(request, info, answer[0], frame)
    if request.box is not None:
        raise OptionError("box is for object detectors, and this model is a classifier: use target, or load it as detect:…")
    classes = answer.shape[1] if answer.ndim == 2 else None
    if request.target is None:
        label_id = int(np.argmax(answer[0])) if answer.ndim == 2 else int(answer[0])
    else:
        label_id = find_label(request.target, info.known_labels, classes)
    against = None if request.against is None else find_label(request.against, info.known_labels, classes)
    if answer.ndim == 1 and (request.confidence or request.top > 1 or against is not None):
        raise TargetError("this model returns labels only: confidence, top and against cannot be used with it")
    floor = 0.0 if request.confidence is None else request.confidence * float(answer[0, label_id])
    threshold = 0.5 if info.output == "multilabel" else None
    return Target(label_id, top=request.top, floor=floor, threshold=threshold, against=against)


def _make_box_target(request: Request, info: ModelInfo, row: NDArray[Any], frame: Frame) -> Target:
    """The box that is explained must still be found."""
    if request.top > 1 or request.against is not None:
        raise TargetError("top and against compare the labels of a classifier: they cannot be used with a detector")
    found = choose_box(request, info, row, frame)
    floor = 0.0 if request.confidence is None else request.confidence * found.score
    return Target(found.label_id, floor=floor, threshold=info.threshold, box=found.box)


def choose_box(request: Request, info: ModelInfo, row: NDArray[Any], frame: Frame) -> FoundBox:
    """The box that a request means, of the boxes in one image.

    Raises:
        TargetError: There is no such box; the message says which there are.
    """
    found = read_boxes(row, info.threshold)
    if not found:
        best = read_boxes(row)[:1]
        nearest = f"; the best candidate is {info.name_of(best[0].label_id)} ({best[0].score:.2f})" if best else ""
        raise TargetError(f"the detector finds no box with a score of at least {info.threshold:g} in this image{nearest}")
    if isinstance(request.box, int):
        if request.box > len(found):
            boxes = "1 box" if len(found) == 1 else f"{len(found)} boxes"
            raise TargetError(f"there is no box {request.box}: the detector finds {boxes} in this image")
        return _checked(found[request.box - 1], request, info)
    if request.target is not None:
        wanted = find_label(request.target, info.known_labels, None)
        own = [one for one in found if one.label_id == wanted]
        if not own:
            names = ", ".join(dict.fromkeys(info.name_of(one.label_id) for one in found))
            raise TargetError(f"the detector finds no {info.name_of(wanted)} in this image; it finds {names}")
        found = own
    if request.box is None:
        return found[0]
    left, top, right, bottom = (float(side) for side in request.box.split(","))
    return found[nearest_box(found, frame.box_from_original((left, top, right, bottom)))]


def number_boxes(request: Request, info: ModelInfo, row: NDArray[Any]) -> list[int]:
    """The numbers, from 1, of all boxes in one image that have the label of the request; of all where it has none."""
    label_id = None if request.target is None else find_label(request.target, info.known_labels, None)
    found = read_boxes(row, info.threshold)
    return [number for number, one in enumerate(found, start=1) if label_id in (None, one.label_id)]


def _checked(found: FoundBox, request: Request, info: ModelInfo) -> FoundBox:
    """The box, if it has the label that was asked for, too."""
    if request.target is not None and find_label(request.target, info.known_labels, None) != found.label_id:
        raise TargetError(f"box {request.box} is {info.name_of(found.label_id)}, not {request.target}: give one of the two")
    return found


def check_method(explainer: Explainer, info: ModelInfo) -> None:
    """Raise ModelError for a method that cannot explain this kind of model."""
    is_detector = info.output == "boxes"
    if explainer.needs == "boxes" and not is_detector:
        raise ModelError(f"the method {explainer.name} explains boxes of object detectors, and this model is a classifier")
    if explainer.needs == "gradients" and is_detector:
        raise ModelError(f"the method {explainer.name} needs the gradient of a class score, and this model is a detector")
    if explainer.needs == "scores" and info.output == "labels":
        raise ModelError(f"the method {explainer.name} needs scores, and this model returns labels only")


def score_of(target: Target, answer: NDArray[Any]) -> float:
    """The confidence in the target on the whole view; NaN without scores."""
    return float(target.judge(answer).confidence[0])
