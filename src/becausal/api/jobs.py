"""One image's way: looked at, made a job, search_and_confirm, confirmed, finished as an Explanation."""

import platform
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from typing import Any

import numpy as np

from becausal.api.explanation import Explanation
from becausal.core.checks import check
from becausal.core.contracts import Answers, Classifier, ModelInfo, Pixels, Search, Stop, with_hints
from becausal.core.errors import AnswerError, BecausalError, ModelError, NetworkError, TargetError, UnstableModelError
from becausal.core.explanation import Origin
from becausal.core.minimise import Minimal
from becausal.core.pipeline import SearchResult, last_checks, run_pipeline
from becausal.core.problem import Explainer, Problem
from becausal.core.progress import Failure
from becausal.core.request import Request
from becausal.core.searches import BudgetedRun
from becausal.core.targets import Target
from becausal.engine.engine import Engine, Outcome
from becausal.images.fills import make_background
from becausal.images.loading import InputImage, View, load_image, make_view
from becausal.methods import make_explainer
from becausal.models.labels import find_label

STABLE, STABLE_HALF = 1e-3, 0.05  # how far a confidence may move between two askings, and in half precision


@dataclass
class Job:
    """One image on its way."""

    number: int
    picture: InputImage
    view: View
    problem: Problem
    explainer: Explainer
    request: Request
    run: BudgetedRun
    confidence: float


@dataclass
class Sight:
    """An image that is about to be looked at."""

    number: int
    picture: InputImage
    view: View
    backgrounds: tuple[Pixels, ...]
    staged: tuple[Any, ...]


def first_looks(
    images: Iterable[Any], engine: Engine, request: Request, at_once: int
) -> Iterator[tuple[int, Job | Failure]]:
    """The images, each with what the model says of it as a whole.

    at_once: how many are asked together. If that is more than one, the next ones are asked while these are explained.
    """
    source = enumerate(images)

    def begin() -> list[tuple[int, Sight | Failure, Callable[[], Any]]]:
        group = [_see(number, image, engine, request) for number, image in islice(source, at_once)]
        return _begin_looks(group, engine)

    waiting = begin()
    while waiting:
        following = begin() if at_once > 1 else None
        for number, seen, look in waiting:
            if isinstance(seen, Failure):
                yield number, seen
                continue
            try:
                yield number, _make_job(seen, look(), engine.classifier, request)
            except NetworkError:
                raise  # it will not be reached for the next image either
            except BecausalError as error:
                yield number, Failure(seen.picture.name, error)
        waiting = begin() if following is None else following


def _see(number: int, image: Any, engine: Engine, request: Request) -> tuple[int, Sight | Failure]:
    """The image read, its view and backgrounds made and brought to where the model lives."""
    classifier = engine.classifier
    try:
        picture = image if isinstance(image, InputImage) else load_image(image)
        view = view_of(picture, classifier)
        rng = np.random.default_rng([request.seed, 1])

        def read_image(path: str) -> Any:
            return view_of(load_image(path), classifier).pixels

        backgrounds = tuple(make_background(f, view.pixels, rng=rng, read_image=read_image) for f in request.fills)
        staged = tuple(engine.stage(view.pixels, b) for b in backgrounds)
    except BecausalError as error:
        return number, Failure(_name(image), error)
    return number, Sight(number, picture, view, backgrounds, staged)


def _begin_looks(
    group: list[tuple[int, Sight | Failure]], engine: Engine
) -> list[tuple[int, Sight | Failure, Callable[[], Any]]]:
    """Each image with a way to what the model says of it; those of one shape are asked together."""
    looks: dict[int, Callable[[], Any]] = {}
    alike: dict[Any, list[Sight]] = {}
    for _, seen in group:
        if isinstance(seen, Sight):
            alike.setdefault((seen.view.pixels.shape, seen.view.pixels.dtype), []).append(seen)
    for sights in alike.values():
        together = _Together(engine, sights)
        for row, seen in enumerate(sights):
            looks[seen.number] = partial(together.of, row)
    return [(number, seen, looks.get(number, lambda: None)) for number, seen in group]


class _Together:
    """Several first looks in one batch; where that breaks the model, each alone."""

    def __init__(self, engine: Engine, sights: list[Sight]) -> None:
        self._engine, self._sights = engine, sights
        self._scores: Any = None
        self._error: AnswerError | None = None
        self._look: Callable[[], Any] | None = None
        try:
            self._look = self._begin(sights)
        except AnswerError as error:
            self._error = error

    def of(self, row: int) -> Any:
        """The scores, (1, classes), or the label, (1,), of one of them."""
        if self._look is not None:
            try:
                self._scores = self._look()
            except AnswerError as error:
                self._error = error
            self._look = None
        if self._error is None:
            return self._scores[row : row + 1]
        if len(self._sights) == 1:
            raise self._error
        return self._begin(self._sights[row : row + 1])()

    def _begin(self, sights: list[Sight]) -> Callable[[], Any]:
        return self._engine.look([seen.staged[0] for seen in sights], sights[0].view.grid)


def _make_job(seen: Sight, scores: Any, classifier: Classifier, request: Request) -> Job:
    # Only now: what a function's output means, and its labels, may be known from its first answer on.
    target = _make_target(request, classifier.info, scores)
    view, backgrounds, label_id = seen.view, seen.backgrounds, target.label_id
    has_scores = scores.ndim == 2
    confidence = float(scores[0, label_id]) if has_scores else float("nan")
    problem = Problem(view.pixels, backgrounds, target, has_scores, classifier)
    explainer = request.method if not isinstance(request.method, str) else make_explainer(request.method, request.options)
    explainer = request.configure(explainer)
    if explainer.needs == "scores" and not has_scores:
        raise ModelError(f"the method {explainer.name} needs scores, and this model gives labels only")
    run = BudgetedRun(view.grid, price=request.price)
    return Job(seen.number, seen.picture, view, problem, explainer, request, run, confidence)


def view_of(picture: InputImage, classifier: Classifier) -> View:
    return make_view(picture, classifier.info.geometry, channels=classifier.info.channels)


def _make_target(request: Request, info: ModelInfo, scores: Any) -> Target:
    classes = scores.shape[1] if scores.ndim == 2 else None
    if request.target is None:
        label_id = int(np.argmax(scores[0])) if scores.ndim == 2 else int(scores[0])
    else:
        label_id = find_label(request.target, info.labels, classes)
    against = None if request.against is None else find_label(request.against, info.labels, classes)
    if scores.ndim == 1 and (request.confidence or request.top > 1 or against is not None):
        raise TargetError("this model gives labels only: no confidence, top k or rival can be asked of it")
    floor = 0.0 if request.confidence is None else request.confidence * float(scores[0, label_id])
    threshold = 0.5 if info.output == "multilabel" else None
    return Target(label_id, top=request.top, floor=floor, threshold=threshold, against=against)


def search_and_confirm(job: Job, engine: Engine) -> Search[SearchResult | Failure]:
    """The whole search, its answer confirmed; a refusal becomes a Failure so that other images go on."""
    try:
        trace = yield from _best_known(job, engine)
        while True:
            try:
                _confirm(job, trace, (yield with_hints(trace.visible[None], uncached=True)), engine.classifier.info.is_half)
                return trace
            except Stop as told:  # without a cause an interrupt just now: the answer is there, and this is still allowed
                if told.cause is not None:
                    return (yield from _save(job, trace, told.cause))
    except BecausalError as error:
        return Failure(job.picture.name, error)


def _save(job: Job, trace: SearchResult, cause: Exception) -> Search[SearchResult]:
    """What there is of a search whose model has failed; the failure is raised where no part of the view was enough yet."""
    course = job.run
    if not trace.visible.all():
        return trace
    if course.visible.all():
        raise cause from cause.__cause__
    checks = yield from last_checks(Minimal(course.visible, None))
    return replace(trace, visible=course.visible, checks=checks)


def _best_known(job: Job, engine: Engine) -> Search[SearchResult]:
    """The search; where a KeyboardInterrupt broke it off inside, the smallest sufficient set it had come to."""
    course = job.run
    try:
        return (yield from run_pipeline(job.problem, job.explainer, job.request, course))
    except KeyboardInterrupt:
        if course.pixels == course.visible.size:
            raise
        engine.interrupt()  # the others under way are to end as well
        course.stopped_by = "interrupt"
    try:
        checks = yield from check(course.visible, grain=None)
    except Stop:  # an interrupt just now: this is still allowed
        checks = yield from last_checks(Minimal(course.visible, None))
    note = "the search was broken off inside: its map is lost, the smallest set it had found is shown"
    return SearchResult(course.visible.astype(np.float64), course.visible, checks, job.confidence, (), (note,))


def _confirm(job: Job, trace: SearchResult, again: Answers, is_half: bool) -> None:
    """The explanation was asked once more, past the memo: a model that answers in two ways is found out here."""
    room = STABLE_HALF if is_half else STABLE
    moved = abs(float(again.confidence[0]) - trace.checks.confidence) > room
    drifted = job.problem.has_scores and abs(trace.confidence - job.confidence) > room
    if bool(again.holds[0]) != trace.checks.sufficient or moved or drifted:
        reason = "is dropout still on, or is there randomness in it?"
        if is_half:
            reason = "half precision may be too coarse for this image, or there is randomness in the model"
        raise UnstableModelError(
            "the model answered the same question in two ways (confidence "
            f"{trace.checks.confidence:.4f}, then {float(again.confidence[0]):.4f}): {reason}"
        )


def finish(job: Job, trace: SearchResult, outcome: Outcome[Any], classifier: Classifier, request: Request) -> Explanation:
    info = classifier.info
    failed = () if outcome.error is None else (" ".join(str(outcome.error).split()),)
    cost = outcome.stats
    stats = replace(cost, calls=cost.calls + 1, batches=cost.batches + 1, slots=cost.slots + 1)  # with the first look
    origin = Origin(
        image=job.picture.name,
        image_sha256=job.picture.sha256,
        model=info.spec,
        model_sha256=info.sha256,
        preprocess=f"{info.geometry or 'as it is'}; {info.numbers}",
        loading=dict(info.loading),
        request=request,
        method=job.explainer.name,
        options=_options(job.explainer),
        grain=request.grain_for(job.explainer, job.view.grid),
        versions=versions(),
    )
    return Explanation(
        label=info.name_of(job.problem.label_id),
        label_id=job.problem.label_id,
        confidence=job.confidence,
        target=job.problem.target,
        visible=trace.visible,
        responsibility=trace.saliency,
        checks=trace.checks,
        stopped_by=outcome.stopped_by if failed else job.run.stopped_by or outcome.stopped_by,
        stats=stats,
        origin=origin,
        view=job.view.pixels,
        backgrounds=job.problem.backgrounds,
        frame=job.view.frame,
        others=trace.others,
        notes=(*job.picture.notes, *info.notes, *trace.notes, *failed),
    )


def _options(explainer: Explainer) -> dict[str, Any]:
    return {f.name: getattr(explainer, f.name) for f in fields(explainer)} if is_dataclass(explainer) else {}


def _name(image: Any) -> str:
    return str(image) if isinstance(image, str) or hasattr(image, "__fspath__") else "array"


def versions() -> dict[str, str]:
    """The versions that may bear on an answer."""
    return dict(_versions())


@cache
def _versions() -> dict[str, str]:
    from becausal import __version__

    found = {"becausal": __version__, "python": platform.python_version()}
    for name in ("numpy", "pillow", "onnxruntime", "torch"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
