"""What an explanation is about: the target that a request and the model's answer to the whole view determine."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.core.boxes import nearest_box, read_boxes
from becausal.core.contracts import ModelInfo
from becausal.core.errors import ModelError, OptionError, TargetError
from becausal.core.frames import Frame
from becausal.core.problem import Explainer
from becausal.core.request import Request
from becausal.core.targets import Target
from becausal.models.labels import find_label

SHARE = 0.5  # of its own score, that a label below the threshold of a multi-label model keeps


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
    target = Target(label_id, top=request.top, against=against)
    if info.output != "multilabel" or request.top > 1 or against is not None:  # these compare it with other labels only
        return target
    score = float(answer[0, label_id])
    if score >= info.threshold or not score > 0.0:
        return replace(target, threshold=info.threshold)
    share = request.confidence or SHARE
    return replace(target, threshold=share * score, share=share)


def describe_low(target: Target, info: ModelInfo, confidence: float) -> tuple[str, ...]:
    """That a label is not present by the model's own threshold, and what counts as keeping it instead; empty elsewhere."""
    if target.share is None or target.threshold is None:
        return ()
    low = f"{info.name_of(target.label_id)} scores {confidence:.3g}, below the threshold of {info.threshold:g}"
    kept = f"it counts as kept from {100 * target.share:g} % of its own score on ({target.threshold:.3g})"
    return (f"{low}, so {kept}: set another share with --confidence, or the threshold with --threshold",)


def _make_box_target(request: Request, info: ModelInfo, row: NDArray[Any], frame: Frame) -> Target:
    """The box that a request means must still be found. Raises TargetError that says which boxes there are instead."""
    if request.top > 1 or request.against is not None:
        raise TargetError("top and against compare the labels of a classifier: they cannot be used with a detector")
    found = read_boxes(row, info.threshold)
    if not found:
        best = read_boxes(row)[:1]
        nearest = f"; the best candidate is {info.name_of(best[0].label_id)} ({best[0].score:.2f})" if best else ""
        raise TargetError(f"the detector finds no box with a score of at least {info.threshold:g} in this image{nearest}")
    wanted = None if request.target is None else find_label(request.target, info.known_labels, None)
    own = [one for one in found if wanted in (None, one.label_id)]
    if isinstance(request.box, int):
        if request.box > len(found):
            boxes = "1 box" if len(found) == 1 else f"{len(found)} boxes"
            raise TargetError(f"there is no box {request.box}: the detector finds {boxes} in this image")
        box = found[request.box - 1]
        if box not in own:
            name = info.name_of(box.label_id)
            raise TargetError(f"box {request.box} is {name}, not {request.target}: give one of the two")
    elif wanted is not None and not own:
        names = ", ".join(dict.fromkeys(info.name_of(one.label_id) for one in found))
        raise TargetError(f"the detector finds no {info.name_of(wanted)} in this image; it finds {names}")
    elif request.box is None:
        box = own[0]
    else:
        left, top, right, bottom = (float(side) for side in request.box.split(","))
        box = own[nearest_box(own, frame.box_from_original((left, top, right, bottom)))]
    return Target(box.label_id, threshold=info.threshold, box=box.box)


def number_boxes(request: Request, info: ModelInfo, row: NDArray[Any]) -> list[int]:
    """The numbers, from 1, of all boxes in one image that have the label of the request; of all where it has none."""
    label_id = None if request.target is None else find_label(request.target, info.known_labels, None)
    found = read_boxes(row, info.threshold)
    return [number for number, one in enumerate(found, start=1) if label_id in (None, one.label_id)]


def check_method(explainer: Explainer, info: ModelInfo) -> None:
    """Raise ModelError for a method that cannot explain this kind of model."""
    is_detector = info.output == "boxes"
    if explainer.needs == "boxes" and not is_detector:
        raise ModelError(f"the method {explainer.name} explains boxes of object detectors, and this model is a classifier")
    if explainer.needs == "gradients" and is_detector:
        raise ModelError(f"the method {explainer.name} needs the gradient of a class score, and this model is a detector")
    if explainer.needs == "scores" and info.output == "labels":
        raise ModelError(f"the method {explainer.name} needs scores, and this model returns labels only")
