"""The front door: explain one picture or many, verify, classify."""

import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from itertools import chain, islice
from typing import Any, Literal

import numpy as np

from becausal.classifiers import as_classifier
from becausal.classifiers.labels import find_label
from becausal.contracts import (
    Answers,
    Classifier,
    Explainer,
    ModelInfo,
    Pixels,
    Problem,
    Search,
    Stop,
    Visible,
    say,
)
from becausal.engine import Case, Engine, Outcome
from becausal.errors import (
    AnswerError,
    BecausalError,
    ModelError,
    NetworkError,
    OptionError,
    TargetError,
    UnstableModelError,
)
from becausal.explainers import METHODS, make_explainer
from becausal.explanation import Explanation, Origin
from becausal.fills import make_background
from becausal.images import Picture, View, load_image, make_view
from becausal.minimise import Minimal
from becausal.pipeline import Plan, Trace, last_checks, pursue
from becausal.regions import default_grain
from becausal.searches import Course
from becausal.targets import Target
from becausal.verify import Claim, check, compare

STABLE, STABLE_HALF = 1e-3, 0.05  # how far a confidence may move between two askings, and in half precision


@dataclass(frozen=True)
class Status:
    """How far an explanation has come; `size` is the share of the view in the smallest sufficient set so far, `visible`."""

    image: str
    index: int
    stage: str
    calls: int
    max_calls: int | None
    size: float
    visible: Visible


@dataclass(frozen=True)
class Failure:
    """A picture that could not be explained, and why."""

    image: str
    error: BecausalError


@dataclass(frozen=True, kw_only=True)
class Request:
    """Everything that is asked of an explanation besides the picture and the model."""

    method: str | Explainer = "causal"
    options: dict[str, Any] | None = None
    target: int | str | None = None
    against: int | str | None = None
    top: int = 1
    confidence: float | None = None
    fills: tuple[str, ...] = ("grey",)
    grain: int | None | Literal["default"] = "default"
    seed: int = 0
    max_calls: int | None = None
    several: int = 1
    contrast: bool = False

    def __post_init__(self) -> None:
        if self.max_calls is not None and self.max_calls < 10:
            raise OptionError(f"max_calls must be at least 10, not {self.max_calls}")
        if self.confidence is not None and not 0.0 < self.confidence <= 1.0:
            raise OptionError(f"confidence is a share of the original one, above 0 and up to 1, not {self.confidence}")
        if isinstance(self.grain, int) and self.grain < 1:
            raise OptionError(f"grain is a side in pixels, at least 1, not {self.grain}")
        if not self.fills:
            raise OptionError("at least one fill is needed")
        if self.several < 1:
            raise OptionError(f"several must be at least 1, not {self.several}")

    @property
    def outer_calls(self) -> int:
        """What is asked outside of the search: the whole view for its label, and the explanation once more at the end."""
        return 1 + len(self.fills)

    @property
    def inner_limit(self) -> int | None:
        """The calls that are left for the search itself."""
        return None if self.max_calls is None else self.max_calls - self.outer_calls

    def plan(self, grid: tuple[int, ...]) -> Plan:
        """The request for a view of this grid: the method made, the grain decided, the opening call set aside."""
        explainer, grain = self.method, self.grain
        if isinstance(explainer, str):
            options = dict(self.options or {})
            if explainer == "causal":
                options.setdefault("several", self.several)
                if isinstance(grain, int):
                    options.setdefault("grain", grain)
            elif self.several > 1:
                raise OptionError(f"several explanations are for the method causal, not {explainer}")
            explainer = make_explainer(explainer, options)
        elif self.several > 1:
            raise OptionError("several is an option of the method: give it to the explainer itself")
        if grain == "default":
            own = getattr(explainer, "grain", None)
            grain = (own or default_grain(grid)) if explainer.name == "causal" else None
        return Plan(
            explainer=explainer,
            grain=grain,
            seed=self.seed,
            max_calls=self.inner_limit,
            fills=len(self.fills),
            contrast=self.contrast,
        )


@dataclass
class _Job:
    """One picture on its way."""

    number: int
    picture: Picture
    view: View
    case: Case
    problem: Problem
    plan: Plan
    course: Course
    label_id: int
    confidence: float


def explain(
    image: Any,
    model: Any,
    *,
    method: str | Explainer = "causal",
    options: dict[str, Any] | None = None,
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
    """Why does the model give this picture its label?

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
    """Explain pictures, `width` of them side by side, and yield each answer as it comes.

    width: None for as many as keep the model busy: one on a CPU, where answers then come in the order of the pictures,
    and many on a GPU. workers: processes to search in, beside a model on a GPU that answers faster than one process can
    ask; None for three of four cores where there are many pictures, 0 for none. Answers do not depend on `width` or
    `workers`. Pictures are taken from the iterable as they are needed, and no more are held than are under way.

    A picture that cannot be explained yields a Failure, one that breaks the model on the way its best so far, and the
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
    """The same, each answer with the number of its picture, from 0."""
    if (width is not None and width < 1) or (workers is not None and workers < 0):
        raise OptionError(f"width is at least 1 and workers at least 0, not {width} and {workers}")
    request = request or Request()
    classifier = as_classifier(model)
    engine = Engine(classifier, batch_size=batch_size)
    source = iter(images)
    if workers != 0 and engine.is_beside and width != 1 and _can_be_sent(request):
        from becausal.workers import WORTH, Pool, natural_count

        begun = list(islice(source, WORTH))
        source = chain(begun, source)
        count = workers or (natural_count() if len(begun) == WORTH else 0)
        if count:
            pool = Pool(classifier, request, count=count, width=width or engine.width, batch_size=engine.batch_size)
            return pool.explain(source, progress)
    return _explain_here(source, engine, request, width, progress)


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
    """The pictures, explained in this process."""
    classifier = engine.classifier
    jobs: dict[int, _Job] = {}
    failures: list[tuple[int, Failure]] = []

    def watch(index: int, calls: int) -> None:
        if progress is not None:
            job = jobs[index]
            share = job.course.pixels / job.course.visible.size
            course = job.course
            progress(Status(job.picture.name, job.number, course.stage, calls + 1, request.max_calls, share, course.visible))

    engine.watch = watch

    def items() -> Iterator[tuple[Case, Search[Trace | Failure]]]:
        index = 0
        at_once = max(1, min((width or engine.width) // 4, engine.at_once))  # the first need not wait for the last
        for number, found in _first_looks(images, engine, request, at_once):
            if isinstance(found, Failure):
                failures.append((number, found))
                continue
            jobs[index] = found
            index += 1
            yield found.case, _pursued(found, engine)

    try:
        for outcome in engine.run_many(items(), max_calls=request.inner_limit, width=width):
            yield from failures
            failures.clear()
            job = jobs.pop(outcome.index)
            if isinstance(outcome.result, Failure):
                yield job.number, outcome.result
            else:
                yield job.number, _finish(job, outcome.result, outcome, classifier, request)
    except NetworkError:
        yield from failures
        raise
    yield from failures


def _pursued(job: _Job, engine: Engine) -> Search[Trace | Failure]:
    """The whole search, its answer confirmed; a refusal becomes a Failure so that other pictures go on."""
    try:
        trace = yield from _best_known(job, engine)
        while True:
            try:
                _confirm(job, trace, (yield say(trace.visible[None], afresh=True)), engine.classifier.info.is_half)
                return trace
            except Stop as told:  # without a cause an interrupt just now: the answer is there, and this is still allowed
                if told.cause is not None:
                    return (yield from _save(job, trace, told.cause))
    except BecausalError as error:
        return Failure(job.picture.name, error)


def _save(job: _Job, trace: Trace, cause: Exception) -> Search[Trace]:
    """What there is of a search whose model has failed; the failure is raised where no part of the view was enough yet."""
    course = job.course
    if not trace.visible.all():
        return trace
    if course.visible.all():
        raise cause from cause.__cause__
    checks = yield from last_checks(Minimal(course.visible, None))
    return replace(trace, visible=course.visible, checks=checks)


def _best_known(job: _Job, engine: Engine) -> Search[Trace]:
    """The search; where a KeyboardInterrupt broke it off inside, the smallest sufficient set it had come to."""
    course = job.course
    try:
        return (yield from pursue(job.problem, job.plan, course))
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
    return Trace(course.visible.astype(np.float64), course.visible, checks, job.confidence, (), (note,))


def _name(image: Any) -> str:
    return str(image) if isinstance(image, str) or hasattr(image, "__fspath__") else "array"


@dataclass
class _Sight:
    """A picture that is about to be looked at."""

    number: int
    picture: Picture
    view: View
    backgrounds: tuple[Pixels, ...]
    staged: tuple[Any, ...]


def _first_looks(
    images: Iterable[Any], engine: Engine, request: Request, at_once: int
) -> Iterator[tuple[int, _Job | Failure]]:
    """The pictures, each with what the model says of it as a whole.

    at_once: how many are asked together. If that is more than one, the next ones are asked while these are explained.
    """
    source = enumerate(images)

    def begin() -> list[tuple[int, _Sight | Failure, Callable[[], Any]]]:
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
                raise  # it will not be reached for the next picture either
            except BecausalError as error:
                yield number, Failure(seen.picture.name, error)
        waiting = begin() if following is None else following


def _see(number: int, image: Any, engine: Engine, request: Request) -> tuple[int, _Sight | Failure]:
    """The picture read, its view and backgrounds made and brought to where the model lives."""
    classifier = engine.classifier
    try:
        picture = image if isinstance(image, Picture) else load_image(image)
        view = _view_of(picture, classifier)
        rng = np.random.default_rng([request.seed, 1])

        def read_image(path: str) -> Any:
            return _view_of(load_image(path), classifier).pixels

        backgrounds = tuple(make_background(f, view.pixels, rng=rng, read_image=read_image) for f in request.fills)
        staged = tuple(engine.stage(view.pixels, b) for b in backgrounds)
    except BecausalError as error:
        return number, Failure(_name(image), error)
    return number, _Sight(number, picture, view, backgrounds, staged)


def _begin_looks(
    group: list[tuple[int, _Sight | Failure]], engine: Engine
) -> list[tuple[int, _Sight | Failure, Callable[[], Any]]]:
    """Each picture with a way to what the model says of it; those of one shape are asked together."""
    looks: dict[int, Callable[[], Any]] = {}
    alike: dict[Any, list[_Sight]] = {}
    for _, seen in group:
        if isinstance(seen, _Sight):
            alike.setdefault((seen.view.pixels.shape, seen.view.pixels.dtype), []).append(seen)
    for sights in alike.values():
        together = _Together(engine, sights)
        for row, seen in enumerate(sights):
            looks[seen.number] = partial(together.of, row)
    return [(number, seen, looks.get(number, lambda: None)) for number, seen in group]


class _Together:
    """Several first looks in one batch; where that breaks the model, each alone."""

    def __init__(self, engine: Engine, sights: list[_Sight]) -> None:
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

    def _begin(self, sights: list[_Sight]) -> Callable[[], Any]:
        return self._engine.look([seen.staged[0] for seen in sights], sights[0].view.grid)


def _make_job(seen: _Sight, scores: Any, classifier: Classifier, request: Request) -> _Job:
    # Only now: what a function's output means, and its labels, may be known from its first answer on.
    target = _make_target(request, classifier.info, scores)
    view, backgrounds, label_id = seen.view, seen.backgrounds, target.label_id
    has_scores = scores.ndim == 2
    confidence = float(scores[0, label_id]) if has_scores else float("nan")
    case = Case(view.pixels, backgrounds, target, seen.staged)
    problem = Problem(view.grid, label_id, has_scores, view.pixels, backgrounds[0], classifier)
    plan = request.plan(view.grid)
    if plan.explainer.needs == "scores" and not has_scores:
        raise ModelError(f"the method {plan.explainer.name} needs scores, and this model gives labels only")
    course = Course(view.grid, price=plan.price)
    return _Job(seen.number, seen.picture, view, case, problem, plan, course, label_id, confidence)


def _view_of(picture: Picture, classifier: Classifier) -> View:
    return make_view(picture, classifier.info.geometry, channels=classifier.info.channels)


def _ask_plainly(classifier: Classifier, view: View) -> Any:
    """The scores, (1, classes), or the label, (1,), of the whole view."""
    return Engine(classifier).ask_plainly(view.pixels, view.pixels, np.ones((1, *view.grid), bool))


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


def _finish(job: _Job, trace: Trace, outcome: Outcome[Any], classifier: Classifier, request: Request) -> Explanation:
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
        method=job.plan.explainer.name,
        options=_options(job.plan.explainer),
        fills=request.fills,
        seed=request.seed,
        max_calls=request.max_calls,
        grain=job.plan.grain,
        contrast=job.plan.contrast,
        versions=versions(),
    )
    return Explanation(
        label=info.name_of(job.label_id),
        label_id=job.label_id,
        confidence=job.confidence,
        target=job.case.target,
        visible=trace.visible,
        responsibility=trace.saliency,
        checks=trace.checks,
        stopped_by=outcome.stopped_by if failed else job.course.stopped_by or outcome.stopped_by,
        stats=stats,
        origin=origin,
        view=job.view.pixels,
        backgrounds=job.case.backgrounds,
        frame=job.view.frame,
        others=trace.others,
        notes=(*job.picture.notes, *info.notes, *trace.notes, *failed),
    )


def find_failure(explanation: Explanation) -> str | None:
    """What the model failed with, where that cut the search short; None where it did not."""
    return explanation.notes[-1] if explanation.stopped_by == "failure" else None


def _confirm(job: _Job, trace: Trace, again: Answers, is_half: bool) -> None:
    """The explanation was asked once more, past the memo: a model that answers in two ways is found out here."""
    room = STABLE_HALF if is_half else STABLE
    moved = abs(float(again.confidence[0]) - trace.checks.confidence) > room
    drifted = job.problem.has_scores and abs(trace.confidence - job.confidence) > room
    if bool(again.holds[0]) != trace.checks.sufficient or moved or drifted:
        reason = "is dropout still on, or is there randomness in it?"
        if is_half:
            reason = "half precision may be too coarse for this picture, or there is randomness in the model"
        raise UnstableModelError(
            "the model answered the same question in two ways (confidence "
            f"{trace.checks.confidence:.4f}, then {float(again.confidence[0]):.4f}): {reason}"
        )


def _options(explainer: Explainer) -> dict[str, Any]:
    return {f.name: getattr(explainer, f.name) for f in fields(explainer)} if is_dataclass(explainer) else {}


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


def verify(explanation: Explanation, model: Any) -> list[Claim]:
    """Ask every claim of an explanation again and say which hold."""
    engine = Engine(as_classifier(model))
    case = Case(explanation.view, explanation.backgrounds, explanation.target)
    search = check(explanation.visible, grain=explanation.checks.minimal_grain, contrast=explanation.origin.contrast)
    claims = compare(explanation.checks, engine.run(case, search).result)
    if explanation.others:
        again = engine.ask_afresh(case, np.stack(explanation.others)).holds
        claims += [
            Claim(f"further explanation {i} sufficient", "yes", "yes" if holds else "no", bool(holds))
            for i, holds in enumerate(again, start=2)
        ]
    return claims


def classify(image: Any, model: Any, *, top: int = 5) -> list[tuple[int, str, float]]:
    """What the model says of a picture: (id, name, probability), the first `top` of them; NaN for label-only models."""
    classifier = as_classifier(model)
    scores = _ask_plainly(classifier, _view_of(load_image(image), classifier))
    info = classifier.info
    if scores.ndim == 1:
        return [(int(scores[0]), info.name_of(int(scores[0])), float("nan"))]
    order = np.argsort(-scores[0], kind="stable")[:top]
    return [(int(i), info.name_of(int(i)), float(scores[0, i])) for i in order]
