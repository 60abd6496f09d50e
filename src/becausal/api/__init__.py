"""The front door: explain one image or many, verify, classify."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Literal

import numpy as np

from becausal.api.explanation import Explanation
from becausal.api.jobs import Job, finish, first_looks, search_and_confirm, versions, view_of
from becausal.api.verifying import verify
from becausal.core.contracts import Classifier, Search
from becausal.core.errors import NetworkError, OptionError
from becausal.core.pipeline import SearchResult
from becausal.core.problem import Explainer, Problem
from becausal.core.progress import Failure, Status
from becausal.core.request import Request
from becausal.engine.engine import Engine
from becausal.images.loading import View, load_image
from becausal.methods import METHODS
from becausal.models import as_classifier

__all__ = [
    "Failure",
    "Request",
    "Status",
    "classify",
    "explain",
    "explain_many",
    "explain_numbered",
    "find_failure",
    "verify",
    "versions",
]


def explain(
    image: Any,
    model: Any,
    *,
    method: str | Explainer = "causal",
    options: Mapping[str, Any] | None = None,
    target: int | str | None = None,
    against: int | str | None = None,
    top: int = 1,
    confidence: float | None = None,
    fill: str | Sequence[str] = "grey",
    grain: int | None | Literal["default"] = "default",
    seed: int = 0,
    max_calls: int | None = None,
    several: int = 1,
    contrast: bool = False,
    batch_size: int | None = None,
    progress: Callable[[Status], None] | None = None,
) -> Explanation:
    """Why does the model give this image its label?

    image: a file's path, a PIL image or an array. model: a spec (see `load_model`), a Classifier, a torch module or a
    function from a batch of pixels to scores or labels. method: a name or an explainer; options: its options. target: a
    label's name or id, the one on top by default; against: only this rival must be beaten; top: it is enough to stay
    among the first k. confidence: also keep this share of the original confidence. fill: what hidden pixels become;
    several must all keep the target. grain: minimise to cells of this side in pixels, None not at all. max_calls: a
    limit on model calls; when it is spent, or on Ctrl-C, the best so far comes back, marked in `stopped_by`. several: look
    for so many disjoint explanations; the further ones are in `others`. contrast: find a set that is necessary as well
    as sufficient.

    A model that fails on the way ends the search too: `stopped_by` is then "failure", and the last of the notes says why.
    Where nothing smaller than the whole view was known yet, the failure is raised: AnswerError, or NetworkError.
    """
    request = Request(
        method=method,
        options=options,
        target=target,
        against=against,
        top=top,
        confidence=confidence,
        fills=(fill,) if isinstance(fill, str) else tuple(fill),
        grain=grain,
        seed=seed,
        max_calls=max_calls,
        several=several,
        contrast=contrast,
    )
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
    """Explain images, `width` of them side by side, and yield each answer as it comes.

    width: None for as many as keep the model busy: one on a CPU, where answers then come in the order of the images,
    and many on a GPU. workers: processes to search in, beside a model on a GPU that answers faster than one process can
    ask; None for three of four cores where there are many images, 0 for none. Answers do not depend on `width` or
    `workers`. Images are taken from the iterable as they are needed, and no more are held than are under way.

    An image that cannot be explained yields a Failure, one that breaks the model on the way its best so far, and the
    others go on. A model that cannot be reached any more ends them all: the best so far of those under way is yielded,
    then NetworkError is raised.
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
    """The same, each answer with the number of its image, from 0."""
    if (width is not None and width < 1) or (workers is not None and workers < 0):
        raise OptionError(f"width is at least 1 and workers at least 0, not {width} and {workers}")
    request = request or Request()
    classifier = as_classifier(model)
    engine = Engine(classifier, batch_size=batch_size)
    source = iter(images)
    if workers != 0 and engine.is_async and width != 1 and _can_be_sent(request):
        from becausal.engine.workers import WORTH, Pool, natural_count

        begun = list(islice(source, WORTH))
        source = chain(begun, source)
        count = workers or (natural_count() if len(begun) == WORTH else 0)
        if count:
            pool = Pool(classifier, request, count=count, width=width or engine.width, batch_size=engine.batch_size)
            return pool.explain(source, progress)
    return _explain_here(source, engine, request, width, progress)


def inner_limit(request: Request) -> int | None:
    return None if request.max_calls is None else request.max_calls - 1 - len(request.fills)


def _can_be_sent(request: Request) -> bool:
    """Whether a process without the model can do the search."""
    return isinstance(request.method, str) and request.method in METHODS and METHODS[request.method].needs != "gradients"


def _explain_here(
    images: Iterable[Any],
    engine: Engine,
    request: Request,
    width: int | None,
    progress: Callable[[Status], None] | None,
) -> Iterator[tuple[int, Explanation | Failure]]:
    """The images, explained in this process."""
    classifier = engine.classifier
    jobs: dict[int, Job] = {}
    failures: list[tuple[int, Failure]] = []

    def watch(index: int, calls: int) -> None:
        if progress is not None:
            job = jobs[index]
            share = job.run.pixels / job.run.visible.size
            course = job.run
            progress(Status(job.picture.name, job.number, course.stage, calls + 1, request.max_calls, share, course.visible))

    engine.watch = watch

    def items() -> Iterator[tuple[Problem, Search[SearchResult | Failure]]]:
        index = 0
        at_once = max(1, min((width or engine.width) // 4, engine.at_once))  # the first need not wait for the last
        for number, found in first_looks(images, engine, request, at_once):
            if isinstance(found, Failure):
                failures.append((number, found))
                continue
            jobs[index] = found
            index += 1
            yield found.problem, search_and_confirm(found, engine)

    try:
        for outcome in engine.run_many(items(), max_calls=inner_limit(request), width=width):
            yield from failures
            failures.clear()
            job = jobs.pop(outcome.index)
            if isinstance(outcome.result, Failure):
                yield job.number, outcome.result
            else:
                yield job.number, finish(job, outcome.result, outcome, classifier, request)
    except NetworkError:
        yield from failures
        raise
    yield from failures


def _ask_plainly(classifier: Classifier, view: View) -> Any:
    """The scores, (1, classes), or the label, (1,), of the whole view."""
    return Engine(classifier).ask_plainly(view.pixels, view.pixels, np.ones((1, *view.grid), bool))


def find_failure(explanation: Explanation) -> str | None:
    """What the model failed with, where that cut the search short; None where it did not."""
    return explanation.notes[-1] if explanation.stopped_by == "failure" else None


def classify(image: Any, model: Any, *, top: int = 5) -> list[tuple[int, str, float]]:
    """What the model says of an image: (id, name, probability), the first `top` of them; NaN for label-only models."""
    classifier = as_classifier(model)
    scores = _ask_plainly(classifier, view_of(load_image(image), classifier))
    info = classifier.info
    if scores.ndim == 1:
        return [(int(scores[0]), info.name_of(int(scores[0])), float("nan"))]
    order = np.argsort(-scores[0], kind="stable")[:top]
    return [(int(i), info.name_of(int(i)), float(scores[0, i])) for i in order]
