"""One image on its way: read, viewed, classified, searched, confirmed, made an Explanation."""

import math
import platform
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from becausal.api.any_level import add_any_level, reserve_calls
from becausal.api.confirming import confirm, tolerance_of
from becausal.api.explanation import Explanation
from becausal.api.origins import make_origin
from becausal.api.target_choice import check_method, make_target, score_of
from becausal.core.checks import ANY, Checks, Level, check, level_name
from becausal.core.contracts import Answers, Classifier, ModelInfo, Pixels, Search, Stop, with_hints
from becausal.core.errors import BecausalError, FillError, MissingExtraError, UnstableModelError
from becausal.core.explanation import NamedScore
from becausal.core.minimise import Minimal
from becausal.core.pipeline import SearchResult, last_checks, run_pipeline
from becausal.core.problem import Explainer, Problem
from becausal.core.progress import Failure, Status
from becausal.core.request import Request
from becausal.core.searches import BudgetedRun, keeping
from becausal.core.targets import Target, with_floor
from becausal.core.text import one_line
from becausal.core.version import __version__
from becausal.engine.engine import Engine
from becausal.engine.memory import require_memory, total_memory
from becausal.engine.running import Job, Outcome, SharedAnswers
from becausal.images.backgrounds import Backgrounds, make_backgrounds
from becausal.images.fills import NAMES, make_background
from becausal.images.loading import InputImage, View, load_image, make_view, peek_size, read_like, shown_original
from becausal.methods import make_explainer
from becausal.methods.costs import check_cost

R = TypeVar("R")

MOST_FILLS = 7  # evaluated to find one that would work


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
        return self.problem, search_and_confirm(self, self.problem)


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
    return None if request.max_calls is None else request.max_calls - len(request.fills)


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
    jobs: dict[int, ImageJob] = {}
    names: dict[int, str] = {}

    def watch(index: int, calls: int) -> None:
        if progress is not None:
            run, request = jobs[index].run, jobs[index].request
            size = run.pixels / run.visible.size
            progress(Status(names[index], index, run.stage, calls, request.max_calls, size, run.visible))

    def prepared() -> Iterator[Job[SearchResult | BecausalError] | BecausalError]:
        for index, (image, request) in enumerate(work):
            try:
                job = prepare(image, engine, request)
            except BecausalError as error:
                names[index] = _name(image)
                yield error
                continue
            jobs[index], names[index] = job, job.image.name
            yield Job(job.view.pixels, job.backgrounds, job.start, shared)

    engine.watch = watch
    for outcome in engine.run_many(prepared(), max_calls=limit, width=width):
        done, name = jobs.pop(outcome.index, None), names.pop(outcome.index)
        error = outcome.result if isinstance(outcome.result, BecausalError) else outcome.error
        if done is not None and isinstance(outcome.result, SearchResult):
            yield outcome.index, finish(done, outcome.result, outcome)
        elif error is not None:
            if done is not None and isinstance(error, FillError):
                error = suggest_fills(done, error)
            yield outcome.index, Failure(name, error)


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
    return ImageJob(source, view, backgrounds, explainer, request, engine, run, sampler)


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
                again = yield with_hints(result.visible[None], uncached=True)
                floor = max(0.0, job.run.floor - tolerance_of(job.engine))  # rounding may put it below
                target = replace(problem.target, floor=max(floor, problem.target.floor))
                result = _confirm(job, replace(problem, target=target), result, with_floor(again, floor))
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
        checks = yield from keeping(last_checks(Minimal(run.visible, None)), run.floor)
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
    checks = yield from keeping(last_checks(Minimal(job.run.visible, None)), job.run.floor)
    return replace(result, levels=(_only_level(job, checks),))


def _confirm(job: ImageJob, problem: Problem, result: SearchResult, again: Answers) -> SearchResult:
    """The result, compared with its second evaluation; marked as a failure where the batch decides on the label."""
    try:
        confirmed = confirm(job.engine, problem, result, job.confidence, again)
    except KeyboardInterrupt:  # while finding out why the model gave another answer
        job.engine.interrupt()
        raise UnstableModelError("the model answered the same question in two ways") from None
    job.extra_calls = confirmed.calls
    if confirmed.is_lost:
        job.run.stopped_by = "failure"
    return confirmed.result


def suggest_fills(job: ImageJob, error: FillError) -> FillError:
    """The refusal of a fill, with the label of the fully masked image and the built-in fills that would work."""
    problem, fills, info = job.problem, job.request.fills, job.engine.classifier.info
    if problem is None or len(fills) > 1:
        return error
    working, found, label = [], problem.label_id, ""
    try:
        for fill in [fills[0], *(name for name in NAMES if name != fills[0])][:MOST_FILLS]:
            with suppress(FillError, MissingExtraError):  # inpaint is not for signals, and needs a library
                rng = np.random.default_rng([job.request.seed, 1])
                background = _make_background(fill, job.view, job.engine.classifier, rng)
                scores = job.engine.evaluate(problem.view, background, np.zeros((1, *problem.grid), bool))
                if fill == fills[0] and scores.ndim < 3:
                    found, label = _describe_top(info, scores)
                elif fill != fills[0] and not problem.target.judge(scores).holds[0]:
                    working.append(fill)
    except KeyboardInterrupt:
        job.engine.interrupt()
        return error
    except BecausalError:  # the model failed
        return error
    advice = f"use {_either(working)}" if working else "none of the built-in fills would work either"
    fact = "fully masked image already has this label"
    if problem.target.box is not None:
        return FillError(f"the detector still finds this box in the fully masked image (fill {fills[0]}): {advice}")
    if found != problem.label_id:  # one of the top k, or ahead of its rival
        fact = "target already holds on the fully masked image"
    return FillError(f"the {fact}: under the fill {fills[0]} it is {label}, so there is nothing to explain; {advice}")


def _describe_top(info: ModelInfo, scores: NDArray[Any]) -> tuple[int, str]:
    if scores.ndim == 1:
        return int(scores[0]), info.name_of(int(scores[0]))
    top = int(np.argmax(scores[0]))
    return top, f"{info.name_of(top)} (confidence {scores[0, top]:.2f})"


def _either(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else names[0]


def finish(job: ImageJob, result: SearchResult, outcome: Outcome[Any]) -> Explanation:
    """The explanation of a job that is done."""
    info, request, problem = job.engine.classifier.info, job.request, job.problem
    if problem is None:
        raise ValueError("this job has not been started")
    failed = () if outcome.error is None else (one_line(outcome.error),)
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
        notes=(*job.image.notes, *info.notes, *result.notes, *failed),
    )


def _final_target(problem: Problem, last: Level) -> Target:
    """What must stay true of the explanation: the target, and the confidence of the last level."""
    return replace(problem.target, floor=problem.floors[-1]) if problem.floors and last.name != ANY else problem.target


def _name(image: Any) -> str:
    return str(image) if isinstance(image, str) or hasattr(image, "__fspath__") else "array"


@cache
def _versions() -> dict[str, str]:
    found = {"becausal": __version__, "python": platform.python_version()}
    for name in ("numpy", "pillow", "onnxruntime", "torch"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def versions() -> dict[str, str]:
    """The versions of everything that may influence an answer."""
    return dict(_versions())
