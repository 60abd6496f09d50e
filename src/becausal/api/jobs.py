"""One image on its way: read, viewed, classified, searched, made an Explanation."""

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

from becausal.api.explanation import Explanation
from becausal.api.fill_advice import suggest_fills
from becausal.api.origins import make_origin
from becausal.api.target_choice import check_method, make_target, score_of
from becausal.core.boxes import describe_far
from becausal.core.checks import ANY
from becausal.core.contracts import Classifier, Pixels, Search
from becausal.core.errors import BecausalError, FillError, TwinError
from becausal.core.explanation import NamedScore
from becausal.core.problem import Explainer, Problem
from becausal.core.progress import Failure, Status
from becausal.core.request import Request
from becausal.core.text import one_line
from becausal.core.twins import Twin
from becausal.core.version import versions
from becausal.engine.engine import Engine
from becausal.engine.memory import require_memory, total_memory
from becausal.engine.running import Job, Outcome, SharedAnswers
from becausal.images.backgrounds import Backgrounds, make_backgrounds
from becausal.images.fills import make_background
from becausal.images.loading import InputImage, View, load_image, make_view, peek_size, read_like, shown_original
from becausal.methods import make_explainer
from becausal.methods.costs import check_cost
from becausal.search.budget import Budget
from becausal.search.confirming import Plan
from becausal.search.drive import BudgetedRun
from becausal.search.explaining import search_explanation
from becausal.search.pipeline import SearchResult
from becausal.search.twins import compare_twin

R = TypeVar("R")

GUIDED = "guided the search; every claim and every score is of the model itself"


@dataclass(frozen=True, eq=False)
class ImageJob:
    """One image that waits to be explained: what it shows is known once the model has seen the whole view.

    extra_calls: of searches that were given up. may_be_guided: by a twin of the model.
    """

    image: InputImage
    view: View
    backgrounds: tuple[Pixels, ...]
    explainer: Explainer
    request: Request
    engine: Engine
    run: BudgetedRun
    sampler: Backgrounds | None = None
    extra_calls: int = 0
    notes: tuple[str, ...] = ()
    may_be_guided: bool = True

    def start(self, scores: NDArray[Any]) -> "StartedJob":
        """The job with its target, given the model's answer to the whole view: scores (1, classes), or a label (1,)."""
        # Only now: what a function's output means, and its labels, may be known from its first answer on.
        classifier, has_scores = self.engine.classifier, scores.ndim > 1
        target = make_target(self.request, classifier.info, scores, self.view.frame)
        check_method(self.explainer, classifier.info)
        confidence = score_of(target, scores)
        shares = self.request.shares if has_scores else ()
        floors = tuple(share * confidence for share in shares) if len(shares) > 1 else ()
        self.run.floor = floors[-1] if floors else 0.0
        twin = self.engine.find_twin() if self.may_be_guided and has_scores else None
        problem = Problem(
            self.view.pixels, self.backgrounds, target, has_scores, classifier,
            floors=floors, sampler=self.sampler, is_guided=twin is not None,
        )  # fmt: skip
        return StartedJob(self, problem, confidence, np.array(scores[0]), twin)

    def repeated(self, error: TwinError, calls: int) -> Self:
        """The same job after a twin gave another answer than the model. calls: what the first search has cost."""
        note = "a faster stand-in of the model gave another answer than the model, so the search was repeated"
        run = BudgetedRun(self.view.grid, price=self.run.price)
        return replace(self, run=run, extra_calls=self.extra_calls + calls, notes=(note,), may_be_guided=error.is_wrong)


@dataclass(frozen=True, eq=False)
class StartedJob:
    """One image whose label is known. whole: the model's answer to the whole view, scores (classes,) or a label."""

    job: ImageJob
    problem: Problem
    confidence: float
    whole: NDArray[Any]
    twin: Twin | None

    def search(self) -> Search[SearchResult | BecausalError]:
        """The search for the explanation."""
        job = self.job
        plan = Plan(
            problem=self.problem, explainer=job.explainer, request=job.request, run=job.run, confidence=self.confidence,
            info=job.engine.classifier.info, batch_size=job.engine.calls.batch_size, interrupt=job.engine.interrupt,
        )  # fmt: skip
        search = search_explanation(plan)
        return search if self.twin is None else compare_twin(search, self.twin.tolerance)

    def advise(self, error: BecausalError) -> BecausalError:
        """The error; where it refuses the fill, with the fills that would work."""
        if not isinstance(error, FillError):
            return error
        job = self.job
        rng = np.random.default_rng([job.request.seed, 1])
        make = partial(_make_background, view=job.view, classifier=job.engine.classifier, rng=rng)
        return suggest_fills(error, self.problem, job.request, job.engine, make)

    def finish(self, result: SearchResult, outcome: Outcome[Any]) -> Explanation:
        """The explanation."""
        job, problem, target = self.job, self.problem, self.problem.target
        info = job.engine.classifier.info
        failed = () if outcome.error is None else (one_line(outcome.error),)
        far = describe_far(target.box, job.view.grid)
        guided = () if self.twin is None else (f"{self.twin.name} {GUIDED}",)
        is_any = result.levels[-1].name == ANY
        return Explanation(
            label=info.name_of(problem.label_id),
            label_id=problem.label_id,
            confidence=self.confidence,
            target=replace(target, floor=problem.floors[-1]) if problem.floors and not is_any else target,
            levels=result.levels,
            visible=result.visible,
            responsibility=result.saliency,
            checks=result.checks,
            stopped_by=outcome.stopped_by if failed else job.run.stopped_by or outcome.stopped_by,
            stats=replace(outcome.stats, calls=outcome.stats.calls + job.extra_calls),
            origin=make_origin(job.image, info, job.request, job.explainer, job.view.grid, versions()),
            view=job.view.pixels,
            backgrounds=job.backgrounds,
            frame=job.view.frame,
            original=shown_original(job.image, job.view.frame),
            others=result.others,
            top=None if target.box is not None else NamedScore.of(info, self.whole),
            rival=None if target.against is None else NamedScore.of(info, self.whole, target.against),
            notes=(*job.image.notes, *info.notes, *far, *job.notes, *guided, *result.notes, *failed),
        )


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
    for number, answer in ImageQueue(work, engine, progress).run(Budget.of(request), width=width):
        yield number, function(answer)


class ImageQueue:
    """Images on their way through an engine, each with its own request; before them those that are searched again.

    work: images and requests. progress: called after each batch. shared: what the model has answered, where all of them
    are the same image with the same fills.
    """

    def __init__(
        self,
        work: Iterable[tuple[Any, Request]],
        engine: Engine,
        progress: Callable[[Status], None] | None = None,
        shared: SharedAnswers | None = None,
    ) -> None:
        self._work = enumerate(work)
        self._engine = engine
        self._progress = progress
        self._shared = shared
        self._again: deque[tuple[int, ImageJob]] = deque()
        self._indices = count()  # of the engine: one for each search, also for one that is repeated
        self._taken: dict[int, tuple[int, ImageJob | Failure]] = {}  # by index, with the number of the image
        self._started: dict[int, StartedJob] = {}  # by index

    def run(self, budget: Budget, *, width: int | None = None) -> Iterator[tuple[int, Explanation | Failure]]:
        """Explain the images, `width` of them at a time; yield each answer with its number. budget: of each of them."""
        self._engine.watch = self._watch
        for outcome in self._engine.run_many(self, max_calls=budget.engine_limit, width=width):
            number, job = self._taken.pop(outcome.index)
            started = self._started.pop(outcome.index, None)
            error = outcome.result if isinstance(outcome.result, BecausalError) else outcome.error
            if isinstance(job, Failure):
                yield number, job
            elif isinstance(error, TwinError):
                if error.is_wrong:
                    self._engine.calls.drop_twin()
                self._again.append((number, job.repeated(error, outcome.stats.calls)))
            elif started is not None and isinstance(outcome.result, SearchResult):
                yield number, started.finish(outcome.result, outcome)
            elif error is not None:
                yield number, Failure(job.image.name, error if started is None else started.advise(error))
        if self._again:
            raise KeyboardInterrupt

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Job[SearchResult | BecausalError] | BecausalError:
        """The next job. After the last one there may be another later, when a search is to be repeated."""
        if self._again:
            number, job = self._again.popleft()
        else:
            number, (image, request) = next(self._work)
            try:
                job = prepare(image, self._engine, request)
            except BecausalError as error:
                self._taken[next(self._indices)] = number, Failure(_name(image), error)
                return error
        index = next(self._indices)
        self._taken[index] = number, job
        return Job(job.view.pixels, job.backgrounds, partial(self._start, index, job), self._shared)

    def _start(
        self, index: int, job: ImageJob, scores: NDArray[Any]
    ) -> tuple[Problem, Search[SearchResult | BecausalError]]:
        started = self._started[index] = job.start(scores)
        return started.problem, started.search()

    def _watch(self, index: int, calls: int) -> None:
        if self._progress is not None:
            number, job = self._taken[index][0], self._started[index].job
            run, size = job.run, job.run.pixels / job.run.visible.size
            self._progress(Status(job.image.name, number, run.stage, calls, job.request.max_calls, size, run.visible))


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
    run = BudgetedRun(view.grid, price=Budget.of(request).price)
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


def _name(image: Any) -> str:
    return str(image) if isinstance(image, str) or hasattr(image, "__fspath__") else "array"
