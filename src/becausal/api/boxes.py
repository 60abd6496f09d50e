"""Object detectors: the boxes in an image, and explanations of all of them."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from becausal.api.explanation import Explanation
from becausal.api.jobs import ImageQueue, view_of
from becausal.api.target_choice import number_boxes
from becausal.core.boxes import Box, read_boxes
from becausal.core.contracts import ModelInfo
from becausal.core.errors import BecausalError, ModelError
from becausal.core.progress import Failure, Status
from becausal.core.request import Request
from becausal.engine.calls import ModelCalls
from becausal.engine.engine import Engine
from becausal.engine.running import SharedAnswers
from becausal.images.loading import InputImage, load_image
from becausal.models import as_classifier
from becausal.search.budget import Budget


@dataclass(frozen=True)
class DetectedBox:
    """A box that a detector reports.

    Attributes:
        number: Its number by score, from 1, as `explain` takes it.
        label: The name of its class.
        label_id: The id of its class.
        score: The detector's score, 0 to 1.
        box: Left, top, right and bottom, in pixels of the image.
    """

    number: int
    label: str
    label_id: int
    score: float
    box: Box


def detect(image: Any, model: Any) -> list[DetectedBox]:
    """Find the boxes in an image.

    Args:
        image: As in `explain`.
        model: A detector, e.g. "detect:yolo.onnx" or "bundled:detector".

    Returns:
        The boxes that the detector reports, highest score first.

    Raises:
        ModelError: The model is a classifier.
    """
    classifier = as_classifier(model)
    view = view_of(image if isinstance(image, InputImage) else load_image(image), classifier)
    answer = ModelCalls(classifier).evaluate(view.pixels, view.pixels, np.ones((1, *view.grid), bool))
    info = classifier.info
    if answer.ndim != 3:
        raise not_a_detector(info)
    return [
        DetectedBox(number, info.name_of(one.label_id), one.label_id, one.score, view.frame.box_to_original(one.box))
        for number, one in enumerate(read_boxes(answer[0], info.threshold), start=1)
    ]


def not_a_detector(info: ModelInfo) -> ModelError:
    """The refusal of a classifier."""
    return ModelError(f"{info.spec} is a classifier; boxes are found by an object detector, e.g. detect:yolo.onnx")


def explain_boxes(
    image: Any,
    model: Any,
    *,
    request: Request | None = None,
    batch_size: int | None = None,
    progress: Callable[[Status], None] | None = None,
) -> Iterator[tuple[int, Explanation | Failure]]:
    """Explain every box that a detector finds in an image.

    What the model answers for one box is used for all of them, so further boxes take fewer calls than the first. Each
    explanation is the same as that of the box alone.

    Args:
        image: As in `explain`.
        model: A detector, e.g. "detect:yolo.onnx" or "bundled:detector".
        request: What is asked of every box; with a target, boxes of this label only.
        batch_size: Maximum number of rows evaluated at once.
        progress: Called with a `Status` after each batch.

    Yields:
        The number of a box, from 1, and its Explanation, or a Failure where it cannot be explained.
    """
    asked, classifier = replace(request or Request(), box=None), as_classifier(model)
    source, shared = image if isinstance(image, InputImage) else load_image(image), SharedAnswers()

    def numbers() -> list[int]:
        """The numbers of the boxes to explain, as far as they are known: the first answer tells them."""
        with suppress(BecausalError):  # there is no such label: that is the answer for the first box
            if shared.whole is not None and shared.whole.ndim == 3:
                return number_boxes(asked, classifier.info, shared.whole[0]) or [1]
        return [1]

    def work() -> Iterator[tuple[Any, Request]]:
        yield source, asked  # the highest score
        for number in numbers()[1:]:
            yield source, replace(asked, box=number)

    engine = Engine(classifier, batch_size=batch_size)
    for index, answer in ImageQueue(work(), engine, progress, shared).run(Budget.of(asked), width=1):
        if shared.whole is not None and shared.whole.ndim != 3:
            answer = Failure(source.name, not_a_detector(classifier.info))
        yield numbers()[index], answer
