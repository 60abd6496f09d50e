"""The front door: explain one image, many, or all boxes in one; verify, classify, detect."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from numbers import Integral, Real
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from becausal.api.explanation import Explanation
from becausal.api.jobs import ImageQueue, explain_here, view_of
from becausal.api.target_choice import number_boxes
from becausal.api.verifying import verify
from becausal.core.boxes import Box, read_boxes
from becausal.core.contracts import Classifier, ModelInfo
from becausal.core.errors import BecausalError, ModelError, OptionError
from becausal.core.explanation import ExplanationRecord
from becausal.core.problem import Explainer
from becausal.core.request import AUTO, Request, whole_number
from becausal.core.segments import measure_classes
from becausal.core.stats import Failure, Status
from becausal.engine.calls import ModelCalls
from becausal.engine.engine import Engine
from becausal.engine.pool import MIN_IMAGES, SearchPool, default_count
from becausal.engine.running import SharedAnswers
from becausal.images.backgrounds import BackgroundSpec
from becausal.images.loading import InputImage, View, load_image
from becausal.methods import METHODS
from becausal.models import as_classifier
from becausal.search.budget import Budget

__all__ = [
    "DetectedBox",
    "Explanation",
    "Failure",
    "Request",
    "Status",
    "classify",
    "detect",
    "explain",
    "explain_boxes",
    "explain_many",
    "explain_numbered",
    "find_failure",
    "not_a_detector",
    "verify",
]


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


def explain(
    image: Any,
    model: Any,
    *,
    method: str | Explainer = "causal",
    options: Mapping[str, Any] | None = None,
    target: int | str | None = None,
    against: int | str | None = None,
    box: int | str | None = None,
    at: str | tuple[int, int] | None = None,
    top: int = 1,
    confidence: float | None = None,
    smallest: bool = False,
    fills: str | float | Sequence[str] = AUTO,
    grain: int | None | Literal["default"] = "default",
    seed: int = 0,
    seeds: int = 1,
    max_calls: int | None = None,
    several: int = 1,
    contrast: bool = False,
    holds: float | None = None,
    backgrounds: BackgroundSpec = None,
    batch_size: int | None = None,
    progress: Callable[[Status], None] | None = None,
) -> Explanation:
    """Explain why a model gives an image its label.

    Finds two sets of pixels, one inside the other: `enough` keeps the label on a share of random backgrounds, and `core`
    inside it keeps most of the confidence with everything else in the plain fill.

    Args:
        image: A file's path, a PIL image or an array.
        model: A spec (see `load_model`), a Classifier, a torch module, a pipeline of transformers, a model of Keras or
            ultralytics, or a function from a batch of pixels to scores or labels.
        method: A method's name, or an explainer.
        options: Options of the method, by name.
        target: The label to explain, by name or id. Default: the top label.
        against: Only this other label must stay behind the target.
        box: Of an object detector: the box to explain, by its number, from 1 for the highest score (see `detect`), or the
            one nearest to "left,top,right,bottom" in pixels of the image. Default: the box with the highest score.
        at: Of a model that gives every pixel a class (`as_segmenter`): the pixel of the image to explain, (x, y) from its
            top left corner. Without it, the segment of the target is explained.
        top: It is enough that the target stays among the top k labels.
        confidence: Find one set, with everything else in one fill, that keeps this share of the confidence, e.g. 0.7.
            Default: two sets, `enough` and `core`; see `Explanation.levels`.
        smallest: Find one set, the smallest that keeps the label in one fill, whatever its confidence. Not with
            confidence; contrast and several keep the label at any confidence too, so beside them it changes nothing.
        fills: What masked pixels become: a fill's name, or a number, 0..255 for images and in the data's own units for
            signals and volumes. With a fill there is `core` only, for this fill; with several, for each of them. Default,
            "auto": the plain fill, one colour half way between black and white; where this colour alone has the label,
            the first fill that works, with a note.
        grain: Minimise down to cells of this side in pixels; None for not at all.
        seed: Random seed. Same seed, same answer.
        seeds: How many searches are run, with seeds from `seed` on; their maps are averaged.
        max_calls: Limit on model calls. When it is reached, or on Ctrl-C, the best result so far is returned, marked in
            `stopped_by`.
        several: How many disjoint explanations to look for; the further ones are in `others`.
        contrast: Find one set that is necessary as well as sufficient: the label is lost where it is masked.
        holds: The share of random backgrounds on which `enough` keeps the label. Default: 0.9, and no such set is looked
            for with smallest, confidence, fills, contrast and several. Its certificate says what was shown on fresh ones.
        backgrounds: Where they come from: a folder of images, or a function of the view and a random generator that
            returns pixels. Default: colours, fields of colours, blurs and noise.
        batch_size: Maximum number of rows evaluated at once; the answer does not depend on it.
        progress: Called with a `Status` after each batch.

    Returns:
        The explanation. If the model failed on the way, it holds the best result so far: `stopped_by` is then "failure",
        and the last of its notes says why.

    Raises:
        BecausalError: The image cannot be explained, see `becausal.core.errors`; e.g. AnswerError or NetworkError where
            the model failed before anything smaller than the whole view was known to be sufficient.
    """
    if isinstance(fills, Real) and not isinstance(fills, bool):
        fills = repr(int(fills) if isinstance(fills, Integral) else float(fills))
    if isinstance(fills, bytes) or not isinstance(fills, Iterable):
        raise OptionError(f"a fill is a name, a number or several names, not {fills!r}")
    fills = (fills,) if isinstance(fills, str) else tuple(fills)
    request = Request(
        method=method, options=options, target=target, against=against, box=box, at=at, top=top, confidence=confidence,
        smallest=smallest, fills=fills, grain=grain, seed=seed, seeds=seeds, max_calls=max_calls,
        several=several, contrast=contrast, holds=holds,
        backgrounds=os.fspath(backgrounds) if isinstance(backgrounds, os.PathLike) else backgrounds,
    )  # fmt: skip
    result = next(explain_many([image], model, request=request, batch_size=batch_size, progress=progress))
    if isinstance(result, Failure):
        raise result.error
    return result


def explain_many(
    images: Iterable[Any],
    model: Any,
    *,
    request: Request | None = None,
    batch_size: int | None = None,
    width: int | None = None,
    workers: int | None = None,
    progress: Callable[[Status], None] | None = None,
) -> Iterator[Explanation | Failure]:
    """Explain images and yield each answer as it comes.

    Images are drawn from the iterable as they are needed, and no more are kept in memory than are being explained.
    Answers do not depend on `width` or `workers`.

    Args:
        images: Paths, PIL images or arrays.
        model: As in `explain`.
        request: What is asked of every image.
        batch_size: Maximum number of rows evaluated at once.
        width: How many images are explained at a time. Default: as many as keep the model busy, which is one on a CPU,
            where answers then come in the order of the images, and many on a GPU.
        workers: Processes to search in, for a model on a GPU that answers faster than one process can ask. Default: three
            of four cores where there are many images; 0 for none.
        progress: Called with a `Status` after each batch.

    Yields:
        An Explanation, or a Failure for an image that cannot be explained. An image on which the model fails half-way
        gives its best result so far.

    Raises:
        NetworkError: The model cannot be reached any more. The best results so far of all images in progress are yielded
            first.
    """
    numbered = explain_numbered(
        images, model, request=request, batch_size=batch_size, width=width, workers=workers, progress=progress
    )
    return (answer for _, answer in numbered)


def explain_numbered(
    images: Iterable[Any],
    model: Any,
    *,
    request: Request | None = None,
    batch_size: int | None = None,
    width: int | None = None,
    workers: int | None = None,
    progress: Callable[[Status], None] | None = None,
    function: Callable[[Explanation | Failure], Any] | None = None,
) -> Iterator[tuple[int, Any]]:
    """The same as `explain_many`, each answer with the number of its image, from 0.

    function: applied to each answer, in the process that did the search, so that a model on a GPU does not wait for it; must
    be picklable. What it returns is yielded in place of the answer.
    """
    for name, number, least in (("width", width, 1), ("workers", workers, 0), ("batch_size", batch_size, 1)):
        if number is not None:
            whole_number(name, number, least)
    if request is not None and not isinstance(request, Request):
        raise OptionError(f"request must be a Request, not {request!r}")
    asked = request or Request()
    classifier = as_classifier(model)
    calls = ModelCalls(classifier, batch_size)
    source = iter(images)
    # A process without the model can neither take its gradients nor call functions of the user; and maps take long to send.
    has_own = callable(asked.backgrounds) or not isinstance(asked.method, str) or asked.method not in METHODS
    has_own = has_own or classifier.info.output == "segments"
    if workers != 0 and calls.is_async and width != 1 and not has_own and METHODS[str(asked.method)].needs != "gradients":
        first = list(islice(source, MIN_IMAGES))
        source = chain(first, source)
        count = workers or (default_count() if len(first) == MIN_IMAGES else 0)
        if count:
            # As many images at a time as one engine here would have (`run_many`), divided among the processes.
            pool = SearchPool(calls, count=count, width=width or calls.batch_size // 2, convert=load_image)
            return pool.explain(source, partial(explain_here, request=asked, function=function), progress)
    return explain_here(
        source, classifier, request=asked, function=function, batch_size=batch_size, width=width, progress=progress
    )


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
    # One at a time: the first one tells how many there are, and each finds the answers of those before in `shared`.
    for index, answer in ImageQueue(work(), engine, progress, shared).run(Budget.of(asked), width=1):
        if shared.whole is not None and shared.whole.ndim != 3:
            answer = Failure(source.name, not_a_detector(classifier.info))
        yield numbers()[index], answer


def find_failure(explanation: ExplanationRecord) -> str | None:
    """What the model failed with, where that ended the search; None where it did not."""
    return explanation.notes[-1] if explanation.stopped_by == "failure" else None


def classify(image: Any, model: Any, *, top: int = 5) -> list[tuple[int, str, float]]:
    """Classify an image.

    Args:
        image: As in `explain`.
        model: As in `explain`.
        top: How many labels to return.

    Returns:
        (id, name, probability) of the top labels; the probability is NaN for models that return labels only. Of a model that
        gives every pixel a class, the share of each in the image.
    """
    whole_number("top", top, 1)
    classifier, _, answer = _ask_whole(image, model)
    info, scores = classifier.info, answer[0]
    if answer.ndim == 3:
        raise ModelError(f"{info.spec} is an object detector: use detect, which returns its boxes")
    if answer.ndim == 4:
        scores = measure_classes(answer)[0]
    if answer.ndim == 1:
        return [(int(scores), info.name_of(int(scores)), float("nan"))]
    order = np.argsort(-scores, kind="stable")[:top]
    if answer.ndim == 4:
        order = order[scores[order] > 0.0]  # the classes that there are
    return [(int(i), info.name_of(int(i)), float(scores[i])) for i in order]


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
    classifier, view, answer = _ask_whole(image, model)
    info = classifier.info
    if answer.ndim != 3:
        raise not_a_detector(info)
    return [
        DetectedBox(number, info.name_of(one.label_id), one.label_id, one.score, view.frame.box_to_original(one.box))
        for number, one in enumerate(read_boxes(answer[0], info.threshold), start=1)
    ]


def not_a_detector(info: ModelInfo) -> ModelError:
    """The refusal of a classifier."""
    what = "gives every pixel a class" if info.output == "segments" else "is a classifier"
    return ModelError(f"{info.spec} {what}; boxes are found by an object detector, e.g. detect:yolo.onnx")


def _ask_whole(image: Any, model: Any) -> tuple[Classifier, View, NDArray[Any]]:
    """The model, the view of the image, and the model's answer to the whole of it."""
    classifier = as_classifier(model)
    view = view_of(image if isinstance(image, InputImage) else load_image(image), classifier)
    return classifier, view, ModelCalls(classifier).evaluate(view.pixels, view.pixels, np.ones((1, *view.grid), bool))
