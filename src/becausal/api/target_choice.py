"""What an explanation is about: the target that a request and the model's answer to the whole view determine."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.core.boxes import nearest_box, read_boxes
from becausal.core.contracts import BLIND, ModelInfo
from becausal.core.errors import ModelError, OptionError, TargetError
from becausal.core.frames import Frame
from becausal.core.problem import Explainer
from becausal.core.request import Request
from becausal.core.segments import Place, find_class, measure_classes, read_place, write_segment
from becausal.core.targets import FAINT, Target
from becausal.models.labels import find_label
from becausal.render.numbers import format_confidence

SHARE = 0.5  # of its own score, that a label below the threshold of a multi-label model keeps
LOWEST = 10  # rank of a label that may be asked about with top


def make_target(request: Request, info: ModelInfo, answer: NDArray[Any], frame: Frame) -> Target:
    """What must stay true, given the answer to the whole view: (1, classes), (1,), boxes (1, MAX_BOXES, 6), or maps."""
    if request.at is not None and answer.ndim != 4:
        raise OptionError("at is for models that give every pixel a class: load it as segment:…, see `becausal models`")
    if answer.ndim == 3:
        return _make_box_target(request, info, answer[0], frame)
    if request.box is not None and answer.ndim == 4:
        raise OptionError("box is for object detectors, and this model gives every pixel a class: use at, or target")
    if answer.ndim == 4:
        return _make_segment_target(request, info, answer, frame)
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
    if info.output == "similarity" and request.top > 1:
        raise TargetError("top compares labels, and a similarity is compared with none: remove it")
    if info.output not in ("multilabel", "similarity") or request.top > 1 or against is not None:
        return target  # compared with other labels only
    score, threshold = float(answer[0, label_id]), info.threshold
    if info.output == "similarity" and not score >= max(threshold, FAINT):
        name = info.name_of(label_id)
        other = repr(name.removeprefix("like ") if "like" in info.loading else name)
        unlike = f"the image is no more similar to {other} than an empty image is"
        if threshold:
            found = f"{score:.3f}" if score > 0.0 else "0 or less"
            unlike = f"the cosine similarity to {other} is {found}, below the {threshold:g} asked for"
        raise TargetError(f"{unlike}: there is nothing to explain")
    if threshold and (score >= threshold or not score > 0.0):
        return replace(target, threshold=threshold)
    share = request.confidence or SHARE
    return replace(target, threshold=share * score, share=share)


def check_target(target: Target, info: ModelInfo, answer: NDArray[Any]) -> None:
    """Raise TargetError, with what to ask instead, for a label that is behind another one in the answer to the whole view.

    answer: as in `make_target`.
    """
    scores = target.read(answer)
    if scores.ndim == 1 and scores[0] != target.label_id:
        own, other = (info.name_of(int(i)) for i in (target.label_id, scores[0]))
        raise TargetError(f"the model does not say {own} here, but {other}")
    if scores.ndim != 2 or target.threshold is not None or target.judge(scores).holds[0]:
        return
    order = np.argsort(-scores[0], kind="stable").tolist()
    first = order[0] if target.against is None else target.against
    (own, confidence), (other, best) = (
        (info.name_of(i), format_confidence(float(scores[0, i]))) for i in (target.label_id, first)
    )
    if target.against is not None:
        raise TargetError(f"{own} ({confidence}) is behind {other} ({best}) here: exchange the two, or leave out against")
    rank = order.index(target.label_id) + 1
    place = f"has rank {rank}" if rank < len(order) else "comes last"
    said = f"the model does not say {own} here: its top label is {other} ({best}), {own} {place} ({confidence})"
    if rank > LOWEST:
        raise TargetError(said)
    ask = f"with --top {rank} (top={rank})"
    if rank == len(order):  # the last one is always among as many
        ask = f"what its confidence is due to, with --top {rank} --confidence 0.9 (top={rank}, confidence=0.9)"
    raise TargetError(f"{said}: ask {ask}")


def describe_blank(target: Target, info: ModelInfo) -> tuple[str, ...]:
    """That the model's answer, which is explained, is also its answer to no image at all; empty where it is not."""
    is_same = info.blank == target.label_id and target.top == 1 and target.against is None
    return (f"{BLIND} {info.name_of(target.label_id)!r} as well",) if is_same else ()


def describe_low(target: Target, info: ModelInfo, confidence: float) -> tuple[str, ...]:
    """That a label is not present by the model's own threshold, and what counts as keeping it instead; empty elsewhere."""
    if target.share is None or target.threshold is None:
        return ()
    if info.output == "similarity":
        kept = f"{100 * target.share:g} % of the similarity counts as kept: set another share with --confidence"
        return (f"{kept}, or the lowest similarity with --threshold",) if target.share == SHARE else ()
    low = f"the confidence in {info.name_of(target.label_id)} is {confidence:.3g}, below the threshold of {info.threshold:g}"
    kept = f"it counts as kept if at least {100 * target.share:g} % of this is left ({target.threshold:.3g})"
    return (f"{low}, so {kept}: set another share with --confidence, or the threshold with --threshold",)


def _make_segment_target(request: Request, info: ModelInfo, maps: NDArray[Any], frame: Frame) -> Target:
    """The class of a pixel, or the segment of a class in the whole view, that must stay; maps: (1, classes, h, w)."""
    if len(frame.grid) != 2:
        raise TargetError(f"pixels and segments are parts of images: these data have {len(frame.grid)} axes, not 2")
    classes = maps.shape[1]
    wanted = None if request.target is None else find_label(request.target, info.known_labels, classes)
    if request.at is not None:
        place = find_place(request.at, frame)
        against = None if request.against is None else find_label(request.against, info.known_labels, classes)
        label_id = int(np.argmax(read_place(maps, place))) if wanted is None else wanted
        return Target(label_id, top=request.top, against=against, place=place)
    if request.top > 1 or request.against is not None:
        raise TargetError("top and against compare the classes of one pixel: say which with --at X,Y")
    shares = measure_classes(maps)[0]
    present = ", ".join(info.name_of(int(i)) for i in np.argsort(-shares, kind="stable") if shares[i] > 0.0)
    if wanted is None:
        raise TargetError(f"say which segment with --target, or which pixel with --at X,Y; the model sees {present}")
    if not shares[wanted] > 0.0:
        raise TargetError(f"the model sees no {info.name_of(wanted)} in this image; it sees {present}")
    return Target(wanted, threshold=info.threshold, segment=write_segment(find_class(maps, wanted)[0]))


def find_place(at: str | tuple[int, int], frame: Frame) -> Place:
    """Where a pixel of the image is in the view. Raises TargetError where the view does not show it."""
    x, y = (int(number) for number in str(at).split(","))
    height, width = frame.original
    if y >= height or x >= width:
        raise TargetError(f"there is no pixel {at} in an image of {width} x {height}")
    across, down, _, _ = frame.box_from_original((x + 0.5, y + 0.5, x + 1.5, y + 1.5))
    place = across / frame.grid[1], down / frame.grid[0]
    if not all(0.0 <= share < 1.0 for share in place):
        raise TargetError(f"the pixel {at} is cut off: the model sees the centre of the image; use --resize squash")
    return place


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
    if explainer.needs == "gradients" and info.output in ("boxes", "segments"):
        kind = "is a detector" if is_detector else "gives every pixel a class"
        raise ModelError(f"the method {explainer.name} needs the gradient of a class score, and this model {kind}")
    if explainer.needs == "scores" and info.output == "labels":
        raise ModelError(f"the method {explainer.name} needs scores, and this model returns labels only")
