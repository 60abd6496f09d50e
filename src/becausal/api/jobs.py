"""One image on its way: read, viewed, classified, searched, confirmed, made an Explanation."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from os import PathLike
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from becausal.api.any_level import add_any_level, reserve_calls
from becausal.api.confirming import Company, ask_company, confirm, tolerance_of
from becausal.api.explanation import Explanation
from becausal.api.fill_advice import suggest_fills
from becausal.api.origins import make_origin
from becausal.api.target_choice import check_method, make_target, score_of
from becausal.core.boxes import describe_far
from becausal.core.checks import ANY, Checks, Level, check, level_name
from becausal.core.contracts import Answers, Classifier, Pixels, Search, Stop, with_hints
from becausal.core.errors import BecausalError, FillError, TwinError, UnstableModelError
from becausal.core.explanation import NamedScore
from becausal.core.minimise import Minimal
from becausal.core.pipeline import SearchResult, last_checks, run_pipeline
from becausal.core.problem import Explainer, Problem
from becausal.core.progress import Failure, Status
from becausal.core.request import Request
from becausal.core.searches import BudgetedRun, keeping
from becausal.core.targets import Target, with_floor
from becausal.core.text import one_line
from becausal.core.twins import compare_twin
from becausal.core.version import versions
from becausal.engine.engine import Engine
from becausal.engine.memory import require_memory, total_memory
from becausal.engine.running import Job, Outcome, SharedAnswers
from becausal.images.backgrounds import Backgrounds, make_backgrounds
from becausal.images.fills import make_background
from becausal.images.loading import InputImage, View, load_image, make_view, peek_size, read_like, shown_original
from becausal.methods import make_explainer
from becausal.methods.costs import check_cost

R = TypeVar("R")


@dataclass(eq=False)
class ImageJob:
    """One image to be explained. Its problem and confidence are known once the model has seen the whole view."""

    image: InputImage
    view: View
    backgrounds: tuple[Pixels, ...]
    explainer: Explainer
    request: Request
    engine: Engine
    run: BudgetedRun
    sampler: Backgrounds | None = None
    problem: Problem | None = None
    confidence: float = float("nan")
    whole: NDArray[Any] | None = None  # the model's answer to the whole view: scores (classes,), or a label
    extra_calls: int = 0  # past the engine's count
    notes: tuple[str, ...] = ()
    may_be_guided: bool = True  # by a twin of the model

    def start(self, scores: NDArray[Any]) -> tuple[Problem, Search[SearchResult | BecausalError]]:
        """The problem and the search, given the model's answer to the whole view."""
        # Only now: what a function's output means, and its labels, may be known from its first answer on.
        classifier, has_scores = self.engine.classifier, scores.ndim > 1
        self.whole = np.array(scores[0])
        target = make_target(self.request, classifier.info, scores, self.view.frame)
        check_method(self.explainer, classifier.info)
        self.confidence = score_of(target, scores)
        shares = self.request.shares if has_scores else ()
        floors = tuple(share * self.confidence for share in shares) if len(shares) > 1 else ()
        self.run.floor = floors[-1] if floors else 0.0
        self.problem = Problem(
            self.view.pixels, self.backgrounds, target, has_scores, classifier, floors=floors, sampler=self.sampler
        )
        twin = self.engine.find_twin() if self.may_be_guided and has_scores else None
        if twin is None:
            return self.problem, search_and_confirm(self, self.problem)
        self.notes += (f"{twin.name} guided the search; every claim and every score is of the model itself",)
        self.problem = replace(self.problem, is_guided=True)
        return self.problem, compare_twin(search_and_confirm(self, self.problem), twin.tolerance)

    def repeated(self, error: TwinError, calls: int) -> Self:
        """The same job, not begun, after a twin gave another answer than the model. calls: what this one has cost."""
        note = "a faster stand-in of the model gave another answer than the model, so the search was repeated"
        run = BudgetedRun(self.view.grid, price=self.request.price)
        return replace(self, run=run, extra_calls=self.extra_calls + calls, notes=(note,), may_be_guided=error.is_wrong)

    def advise(self, error: BecausalError) -> BecausalError:
        """The error; where it refuses the fill, with the fills that would work."""
        if self.problem is None or not isinstance(error, FillError):
            return error
        return suggest_fills(error, self.problem, self.request, self.engine, self._make_background)

    def _make_background(self, fill: str) -> Pixels:
        return _make_background(fill, self.view, self.engine.classifier, np.random.default_rng([self.request.seed, 1]))


def explain_here(
    images: Iterable[Any],
    classifier: Classifier,
    *,
    request: Request,
    function: Callable[[Explanation | Failure], R],
    batch_size: int | None = None,
    width: int | None = None,
    progress: Callable[[Status], None] | None = None,
) -> Iterator[tuple[int, R]]:
    """Explain images in this process; yield what `function` makes of each answer, with the number of its image."""
    engine = Engine(classifier, batch_size=batch_size)
    work = ((image, request) for image in images)
    for number, answer in run_jobs(work, engine, limit_of(request), width=width, progress=progress):
        yield number, function(answer)


def limit_of(request: Request) -> int | None:
    """The engine's limit on the calls of a search; the explanation is evaluated once more at the very end, past it."""
    return None if request.max_calls is None else request.max_calls - request.last_calls


def run_jobs(
    work: Iterable[tuple[Any, Request]],
    engine: Engine,
    limit: int | None,
    *,
    width: int | None = None,
    progress: Callable[[Status], None] | None = None,
    shared: SharedAnswers | None = None,
) -> Iterator[tuple[int, Explanation | Failure]]:
    """Explain images, each with its own request; yield each answer with its number.

    limit: of the engine, on the calls of each. shared: what the model has answered, where all of them are the same image
    with the same fills.
    """
    jobs = _Jobs(work, engine, shared)

    def watch(index: int, calls: int) -> None:
        if progress is not None:
            number, job = jobs.started[index]
            size = job.run.pixels / job.run.visible.size
            progress(Status(job.image.name, number, job.run.stage, calls, job.request.max_calls, size, job.run.visible))

    engine.watch = watch
    for outcome in engine.run_many(jobs, max_calls=limit, width=width):
        if outcome.index in jobs.refused:
            yield jobs.refused.pop(outcome.index)
            continue
        number, job = jobs.started.pop(outcome.index)
        error = outcome.result if isinstance(outcome.result, BecausalError) else outcome.error
        if isinstance(error, TwinError):
            if error.is_wrong:
                engine.calls.drop_twin()
            jobs.again.append((number, job.repeated(error, outcome.stats.calls)))
        elif isinstance(outcome.result, SearchResult):
            yield number, finish(job, outcome.result, outcome)
        elif error is not None:
            yield number, Failure(job.image.name, job.advise(error))
    if jobs.again:
        raise KeyboardInterrupt


class _Jobs:
    """The work of an engine: images one after the other, and before them those that are searched again.

    started: the jobs by the engine's index, with the number of the image. refused: what could not even be prepared.
    """

    def __init__(self, work: Iterable[tuple[Any, Request]], engine: Engine, shared: SharedAnswers | None) -> None:
        self.again: deque[tuple[int, ImageJob]] = deque()
        self.started: dict[int, tuple[int, ImageJob]] = {}
        self.refused: dict[int, tuple[int, Failure]] = {}
        self._work = enumerate(work)
        self._indices = count()
        self._engine = engine
        self._shared = shared

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Job[SearchResult | BecausalError] | BecausalError:
        """The next job. After the last one there may be another later, when a search is to be repeated."""
        if self.again:
            number, job = self.again.popleft()
        else:
            number, (image, request) = next(self._work)
            try:
                job = prepare(image, self._engine, request)
            except BecausalError as error:
                self.refused[next(self._indices)] = number, Failure(_name(image), error)
                return error
        self.started[next(self._indices)] = number, job
        return Job(job.view.pixels, job.backgrounds, job.start, self._shared)


def prepare(image: Any, engine: Engine, request: Request) -> ImageJob:
    """The image read, its view and its backgrounds made, the method chosen. Raises BecausalError for what cannot be."""
    classifier = engine.classifier
    info = classifier.info
    if info.geometry is None and isinstance(image, (str, PathLike)) and (size := peek_size(Path(image))) is not None:
        require_memory(Path(image).name, (*size, 3), 1, engine.calls)  # before it is decoded
    source = image if isinstance(image, InputImage) else load_image(image)
    shape = source.pixels.shape if info.geometry is None else (*info.geometry.grid, info.channels or 3)
    require_memory(source.name, shape, source.pixels.itemsize, engine.calls, has_draws=request.holds is not None)
    view = view_of(source, classifier)
    rng = np.random.default_rng([request.seed, 1])
    backgrounds = tuple(_make_background(fill, view, classifier, rng) for fill in request.fills)
    method = request.method
    explainer = make_explainer(method, request.options) if isinstance(method, str) else method
    check_cost(explainer, view.grid, memory=total_memory() / 2)
    explainer = request.within(view.grid).configure(explainer)
    run = BudgetedRun(view.grid, price=request.price)
    sampler = None
    if request.holds is not None:
        read_image = partial(read_like, view.pixels, geometry=info.geometry, channels=info.channels)
        sampler = make_backgrounds(request.backgrounds, view.pixels, request.seed, read_image)
    is_plain = request.max_calls is None and not request.contrast  # a limit is on what the model itself is asked
    return ImageJob(source, view, backgrounds, explainer, request, engine, run, sampler, may_be_guided=is_plain)


def _make_background(fill: str, view: View, classifier: Classifier, rng: np.random.Generator) -> Pixels:
    return make_background(fill, view.pixels, rng=rng, read_image=lambda path: view_of(load_image(path), classifier).pixels)


def view_of(image: InputImage, classifier: Classifier) -> View:
    """The image as the classifier sees it."""
    return make_view(image, classifier.info.geometry, channels=classifier.info.channels)


def search_and_confirm(job: ImageJob, problem: Problem) -> Search[SearchResult | BecausalError]:
    """The whole search, its result evaluated once more at the end; an error is returned, so that other images go on."""
    try:
        result = yield from _search(job, problem)
        while True:
            try:
                alone = yield with_hints(result.visible[None], uncached=True, exact=True)
                company = yield from ask_company(result, job.run.widest, job.request.last_rows)
                floor = max(0.0, job.run.floor - tolerance_of(job.engine))  # rounding may put it below
                target = replace(problem.target, floor=max(floor, problem.target.floor))
                result = _confirm(job, replace(problem, target=target), result, with_floor(alone, floor), company)
                if job.sampler is None:
                    return result
                return (yield from add_any_level(problem, job.sampler, result, job.request, job.run))
            except Stop as stop:  # without a cause an interrupt just now: the result is there, and this is still allowed
                if stop.cause is not None:
                    return (yield from _best_after_failure(job, result, stop))
    except BecausalError as error:
        return error


def _search(job: ImageJob, problem: Problem) -> Search[SearchResult]:
    """The pipeline; where a KeyboardInterrupt was raised inside it, the smallest sufficient set it had found."""
    run = job.run
    try:
        return (yield from run_pipeline(problem, job.explainer, reserve_calls(job.request), run))
    except KeyboardInterrupt:
        if run.pixels == run.visible.size:
            raise
        job.engine.interrupt()  # the other searches are to end as well
        run.stopped_by = "interrupt"
    try:
        checks = yield from keeping(check(run.visible, grain=None), run.floor)
    except Stop:  # an interrupt just now: this is still allowed
        checks = yield from keeping(last_checks(Minimal(run.visible, None), is_guided=problem.is_guided), run.floor)
    note = "the search was interrupted inside a method: its map is lost, the smallest set found so far is shown"
    return SearchResult(run.visible.astype(np.float64), (_only_level(job, checks),), job.confidence, (), (note,))


def _only_level(job: ImageJob, checks: Checks) -> Level:
    """The best set so far, as the only level."""
    share = 0.0 if math.isnan(job.confidence) else job.request.shares[-1]
    return Level(job.run.visible, checks, level_name(share), share)


def _best_after_failure(job: ImageJob, result: SearchResult, stop: Stop) -> Search[SearchResult]:
    """The best of a search whose model has failed, or hung until Ctrl-C.

    The failure, or the interrupt, is raised where nothing smaller than the view is known.
    """
    if not result.visible.all():
        return result
    if job.run.visible.all():
        if stop.reason == "interrupt" or stop.cause is None:
            raise KeyboardInterrupt
        raise stop.cause from stop.cause.__cause__
    guided = job.problem is not None and job.problem.is_guided
    checks = yield from keeping(last_checks(Minimal(job.run.visible, None), is_guided=guided), job.run.floor)
    return replace(result, levels=(_only_level(job, checks),))


def _confirm(job: ImageJob, problem: Problem, result: SearchResult, alone: Answers, company: Company) -> SearchResult:
    """The result, compared with its last evaluations; marked as a failure where the batch decides on the label."""
    try:
        confirmed = confirm(job.engine, problem, result, job.confidence, alone, company)
    except KeyboardInterrupt:  # while finding out why the model gave another answer
        job.engine.interrupt()
        raise UnstableModelError("the model answered the same question in two ways") from None
    job.extra_calls += confirmed.calls
    if confirmed.is_lost:
        job.run.stopped_by = "failure"
    return confirmed.result


def finish(job: ImageJob, result: SearchResult, outcome: Outcome[Any]) -> Explanation:
    """The explanation of a job that is done."""
    info, request, problem = job.engine.classifier.info, job.request, job.problem
    if problem is None:
        raise ValueError("this job has not been started")
    failed = () if outcome.error is None else (one_line(outcome.error),)
    far = describe_far(problem.target.box, job.view.grid)
    against = problem.target.against
    origin = make_origin(job.image, info, request, job.explainer, job.view.grid, versions())
    return Explanation(
        label=info.name_of(problem.label_id),
        label_id=problem.label_id,
        confidence=job.confidence,
        target=_final_target(problem, result.levels[-1]),
        levels=result.levels,
        visible=result.visible,
        responsibility=result.saliency,
        checks=result.checks,
        stopped_by=outcome.stopped_by if failed else job.run.stopped_by or outcome.stopped_by,
        stats=replace(outcome.stats, calls=outcome.stats.calls + job.extra_calls),
        origin=origin,
        view=job.view.pixels,
        backgrounds=job.backgrounds,
        frame=job.view.frame,
        original=shown_original(job.image, job.view.frame),
        others=result.others,
        top=None if job.whole is None or problem.target.box is not None else NamedScore.of(info, job.whole),
        rival=None if job.whole is None or against is None else NamedScore.of(info, job.whole, against),
        notes=(*job.image.notes, *info.notes, *far, *job.notes, *result.notes, *failed),
    )


def _final_target(problem: Problem, last: Level) -> Target:
    """What must stay true of the explanation: the target, and the confidence of the last level."""
    return replace(problem.target, floor=problem.floors[-1]) if problem.floors and last.name != ANY else problem.target


def _name(image: Any) -> str:
    return str(image) if isinstance(image, str) or hasattr(image, "__fspath__") else "array"
