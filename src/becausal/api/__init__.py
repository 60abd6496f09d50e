"""The front door: explain one image or many, verify, classify."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from numbers import Integral, Real
from typing import Any, Literal, TypeVar

import numpy as np

from becausal.api.boxes import DetectedBox, detect, explain_boxes
from becausal.api.explanation import Explanation
from becausal.api.jobs import explain_here, view_of
from becausal.api.verifying import verify
from becausal.core.errors import ModelError, OptionError
from becausal.core.explanation import ExplanationRecord
from becausal.core.problem import Explainer
from becausal.core.progress import Failure, Status
from becausal.core.request import Request, whole_number
from becausal.engine.calls import ModelCalls
from becausal.engine.pool import MIN_IMAGES, SearchPool, default_count
from becausal.images.backgrounds import BackgroundSpec
from becausal.images.loading import load_image
from becausal.methods import METHODS
from becausal.models import as_classifier

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
    "map_explanations",
    "verify",
]

R = TypeVar("R")


def explain(
    image: Any,
    model: Any,
    *,
    method: str | Explainer = "causal",
    options: Mapping[str, Any] | None = None,
    target: int | str | None = None,
    against: int | str | None = None,
    box: int | str | None = None,
    top: int = 1,
    confidence: float | None = None,
    smallest: bool = False,
    fill: str | float | Sequence[str] = "grey",
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

    Args:
        image: A file's path, a PIL image or an array.
        model: A spec (see `load_model`), a Classifier, a torch module, a Keras model, or a function from a batch of
            pixels to scores or labels.
        method: A method's name, or an explainer.
        options: Options of the method, by name.
        target: The label to explain, by name or id. Default: the top label.
        against: Only this other label must stay behind the target.
        box: Of an object detector: the box to explain, by its number, from 1 for the highest score (see `detect`), or the
            one nearest to "left,top,right,bottom" in pixels of the image. Default: the box with the highest score.
        top: It is enough that the target stays among the top k labels.
        confidence: Share of the original confidence to keep as well, e.g. 0.7. Default: three nested levels that keep the
            label, half of its confidence, and most of it (0.9); see `Explanation.levels`.
        smallest: Find the smallest set that keeps the label, whatever its confidence.
        fill: What masked pixels become: a fill's name, or a number, 0..255 for images and in the data's own units for
            signals and volumes. With several fills, the target must hold under all of them.
        grain: Minimise down to cells of this side in pixels; None for not at all.
        seed: Random seed. Same seed, same answer.
        seeds: How many searches are run, with seeds from `seed` on; their maps are averaged.
        max_calls: Limit on model calls. When it is reached, or on Ctrl-C, the best result so far is returned, marked in
            `stopped_by`.
        several: How many disjoint explanations to look for; the further ones are in `others`.
        contrast: Find a set that is necessary as well as sufficient.
        holds: Also find a set, the level "any", that keeps the label on at least this share of random backgrounds, e.g.
            0.9. The certificate of the level says what was shown on fresh ones.
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
    request = Request(
        method=method,
        options=options,
        target=target,
        against=against,
        box=box,
        top=top,
        confidence=confidence,
        smallest=smallest,
        fills=_as_fills(fill),
        grain=grain,
        seed=seed,
        seeds=seeds,
        max_calls=max_calls,
        several=several,
        contrast=contrast,
        holds=holds,
        backgrounds=os.fspath(backgrounds) if isinstance(backgrounds, os.PathLike) else backgrounds,
    )
    result = next(explain_many([image], model, request=request, batch_size=batch_size, progress=progress))
    if isinstance(result, Failure):
        raise result.error
    return result


def _as_fills(fill: Any) -> tuple[str, ...]:
    """One fill, or several, as a request has them."""
    if isinstance(fill, Real) and not isinstance(fill, bool):
        return (repr(int(fill) if isinstance(fill, Integral) else float(fill)),)
    if isinstance(fill, str):
        return (fill,)
    if isinstance(fill, Iterable) and not isinstance(fill, bytes):
        return tuple(fill)
    raise OptionError(f"a fill is a name, a number or several names, not {fill!r}")


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
) -> Iterator[tuple[int, Explanation | Failure]]:
    """The same as `explain_many`, each answer with the number of its image, from 0."""
    return map_explanations(
        _unchanged,
        images,
        model,
        request=request,
        batch_size=batch_size,
        width=width,
        workers=workers,
        progress=progress,
    )


def _unchanged(answer: Explanation | Failure) -> Explanation | Failure:
    return answer


def map_explanations(
    function: Callable[[Explanation | Failure], R],
    images: Iterable[Any],
    model: Any,
    *,
    request: Request | None = None,
    batch_size: int | None = None,
    width: int | None = None,
    workers: int | None = None,
    progress: Callable[[Status], None] | None = None,
) -> Iterator[tuple[int, R]]:
    """Apply a function to the answers of `explain_many`; yield each result with the number of its image, from 0.

    The function is called in the process that did the search, so that a model on a GPU does not wait for it. It must be
    picklable.
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
    if workers != 0 and calls.is_async and width != 1 and _runs_elsewhere(asked):
        first = list(islice(source, MIN_IMAGES))
        source = chain(first, source)
        count = workers or (default_count() if len(first) == MIN_IMAGES else 0)
        if count:
            pool = SearchPool(calls, count=count, width=width or calls.batch_size // 2, convert=load_image)
            return pool.explain(source, partial(explain_here, request=asked, function=function), progress)
    return explain_here(
        source, classifier, request=asked, function=function, batch_size=batch_size, width=width, progress=progress
    )


def _runs_elsewhere(request: Request) -> bool:
    """Whether a process without the model can do the search; a function of the user stays here."""
    if callable(request.backgrounds):
        return False
    return isinstance(request.method, str) and request.method in METHODS and METHODS[request.method].needs != "gradients"


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
        (id, name, probability) of the top labels; the probability is NaN for models that return labels only.
    """
    whole_number("top", top, 1)
    classifier = as_classifier(model)
    view = view_of(load_image(image), classifier)
    scores = ModelCalls(classifier).evaluate(view.pixels, view.pixels, np.ones((1, *view.grid), bool))
    info = classifier.info
    if scores.ndim == 3:
        raise ModelError(f"{info.spec} is an object detector: use detect, which returns its boxes")
    if scores.ndim == 1:
        return [(int(scores[0]), info.name_of(int(scores[0])), float("nan"))]
    order = np.argsort(-scores[0], kind="stable")[:top]
    return [(int(i), info.name_of(int(i)), float(scores[0, i])) for i in order]
