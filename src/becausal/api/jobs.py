"""Requests become searches, and what a search finds becomes an Explanation: each image on its way through the engine."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from math import isnan
from os import PathLike
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from becausal.api.explanation import Explanation
from becausal.api.origins import make_origin
from becausal.api.target_choice import check_method, check_target, describe_blank, describe_low, make_target
from becausal.core.boxes import describe_far
from becausal.core.contracts import Classifier, Pixels, Search, Twin
from becausal.core.errors import BecausalError, FillError, MissingExtraError, TwinError
from becausal.core.explanation import NamedScore
from becausal.core.problem import Explainer, Problem
from becausal.core.request import LEAST_CALLS, Request
from becausal.core.stats import Failure, Status
from becausal.core.targets import Target, with_floor
from becausal.core.text import one_line
from becausal.core.version import versions
from becausal.engine.engine import Engine
from becausal.engine.running import Job, Outcome, SharedAnswers, require_memory, total_memory
from becausal.images.backgrounds import Backgrounds, make_backgrounds
from becausal.images.fills import FILLS, USUAL, make_background
from becausal.images.loading import InputImage, View, load_image, make_view, peek_size, read_like, shown_original
from becausal.methods import make_explainer
from becausal.methods.costs import check_cost
from becausal.render.numbers import format_confidence
from becausal.search.budget import Budget
from becausal.search.drive import BudgetedRun
from becausal.search.explaining import Plan, search_explanation
from becausal.search.pipeline import SearchResult
from becausal.search.twins import compare_twin

Found = SearchResult | BecausalError  # what a search returns

GUIDED = "guided the search; every claim and every score is of the model itself"
REPEATED = "a faster stand-in of the model gave another answer than the model, so the search was repeated"
WITHOUT_CORE = "the model returns labels only, so no set `core` keeps a confidence: the set `label` keeps the label alone"
MOST_FILLS = 7  # evaluated to find one that would work, where a fill is refused
MORE = 0.9  # of the confidence: what can be asked for where nothing less is lost
ALIKE = 0.05  # of confidence: where masking all pixels changes it by less than this, it hardly depends on them
OTHERS, LEAST = 5, 0.001  # labels that can be asked about instead: of the best ones, those with at least this confidence


class Tried(NamedTuple):
    """The fully masked image under a fill. scores: as the target reads them; holds, confidence: of the target."""

    background: Pixels
    scores: NDArray[Any]
    holds: bool
    confidence: float


@dataclass(eq=False)
class ImageJob:
    """One image that waits for the model's answer to its whole view, which starts it: there is a target then, and a search.

    extra_calls: of searches that were given up. may_be_guided: by a twin of the model. chooses_fill: whether another fill
    may be taken than that of the request (`Request.chooses_fill`). is_shared: whether its backgrounds are those of the other
    jobs of the image. started: None while it waits.
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
    chooses_fill: bool = False
    is_shared: bool = True
    started: "StartedJob | None" = None

    def start(self, scores: NDArray[Any]) -> tuple[Problem, Search[Found]]:
        """The problem and its search, given the model's answer to the whole view: scores (1, classes), or a label (1,)."""
        classifier = self.engine.classifier
        info, has_scores = classifier.info, scores.ndim > 1
        target = make_target(self.request, info, scores, self.view.frame)
        check_target(target, info, scores)
        check_method(self.explainer, info)
        first = target.judge(scores)
        confidence = float(first.confidence[0])
        floor = self.request.share * confidence if has_scores else 0.0
        self.run.floor = floor
        twin = self.engine.find_twin() if self.may_be_guided and has_scores else None
        problem = Problem(
            self.view.pixels, self.backgrounds, target, has_scores, classifier,
            floor=floor, holds=self.request.share_held, sampler=self.sampler, is_guided=twin is not None,
        )  # fmt: skip
        self.started = StartedJob(self, problem, confidence, np.array(target.read(scores)[0]), twin)
        request, most = self.request, self.request.max_calls
        if most is not None and self.extra_calls:
            request = replace(request, max_calls=max(LEAST_CALLS, most - self.extra_calls))
        plan = Plan(
            problem=problem, explainer=self.explainer, request=request, run=self.run, confidence=confidence,
            holds=bool(first.holds[0]), info=info, batch_size=self.engine.calls.batch_size, interrupt=self.engine.interrupt,
        )  # fmt: skip
        search = search_explanation(plan)
        return problem, search if twin is None else compare_twin(search, twin.tolerance)


@dataclass(frozen=True, eq=False)
class StartedJob:
    """An image whose search has begun. whole: the answer to the whole view, as the target reads it: scores or a label."""

    job: ImageJob
    problem: Problem
    confidence: float
    whole: NDArray[Any]
    twin: Twin | None

    def finish(self, result: SearchResult, outcome: Outcome[Any]) -> Explanation:
        """The explanation, from what the search has found and what it has cost."""
        job, problem, info = self.job, self.problem, self.job.engine.classifier.info
        target = problem.target
        failed = () if outcome.error is None else (one_line(outcome.error),)
        far = (*describe_far(target.box, job.view.grid), *describe_low(target, info, self.confidence))
        blank = tuple(f"{said}: the image may not be why" for said in describe_blank(target, info))
        guided = () if self.twin is None else (f"{self.twin.name} {GUIDED}",)
        coreless = () if problem.has_scores or problem.holds is None else (WITHOUT_CORE,)
        return Explanation(
            label=info.name_of(problem.label_id), label_id=problem.label_id, confidence=self.confidence,
            target=replace(target, floor=problem.floor),
            levels=result.levels, visible=result.visible, responsibility=result.saliency, checks=result.checks,
            others=result.others, zones=result.zones, against=result.against,
            stopped_by=outcome.stopped_by if failed else job.run.stopped_by or outcome.stopped_by,
            stats=replace(outcome.stats, calls=outcome.stats.calls + job.extra_calls),
            origin=make_origin(job.image, info, job.request, job.explainer, job.view.grid, versions()),
            view=job.view.pixels, backgrounds=job.backgrounds, frame=job.view.frame,
            original=shown_original(job.image, job.view.frame),
            top=NamedScore.of(info, self.whole) if target.noun == "label" else None,
            rival=None if target.against is None else NamedScore.of(info, self.whole, target.against),
            runner_up=NamedScore.next_to(info, self.whole, target.label_id) if target.noun == "label" else None,
            # What it failed with comes last: `find_failure` reads it there.
            notes=(
                *blank, *job.image.notes, *info.notes, *far, *coreless, *job.notes, *guided,
                *result.notes, *failed,
            ),
        )  # fmt: skip

    def refuse(self, error: BecausalError, spent: int) -> "BecausalError | ImageJob":
        """The error, or the job with another fill; where the only fill is refused, the error says what can be done.

        spent: calls of the search.
        """
        job, info = self.job, self.job.engine.classifier.info
        if not isinstance(error, FillError) or len(job.request.fills) > 1:
            return error
        if said := describe_blank(self.problem.target, info):
            return FillError(f"{said[0]}: the image is not why, and there is nothing to explain")
        (own,) = job.request.fills
        most = job.request.max_calls
        may_choose = job.chooses_fill and (most is None or most >= spent + MOST_FILLS + LEAST_CALLS)
        tried: dict[str, Tried] = {}
        try:
            for fill in [*[name for name in FILLS if name != own][: MOST_FILLS - 1], own]:
                with suppress(FillError, MissingExtraError):  # inpaint is not for signals, and needs a library
                    tried[fill] = found = self._try_fill(fill)
                    if may_choose and not found.holds:
                        return self._refill(fill, found.background, spent + len(tried))
        except KeyboardInterrupt:
            job.engine.interrupt()
            return error
        except BecausalError:  # the model failed
            return error
        advice, where = self._advise(own, tried), "in one plain colour" if job.chooses_fill else f"under the fill {own}"
        if (noun := self.problem.target.noun) != "label":
            who = "detector" if noun == "box" else "model"
            return FillError(f"the {who} still finds this {noun} in the fully masked image ({where}): {advice}")
        return FillError(f"{self._tell_masked(tried[own], where)}, so there is nothing to explain; {advice}")

    def _tell_masked(self, masked: "Tried", where: str) -> str:
        """What the model says of the fully masked image, in words. where: under which fill."""
        info, target = self.job.engine.classifier.info, self.problem.target
        if target.threshold is None:
            top = NamedScore.of(info, masked.scores[0])
            label = top.label + ("" if isnan(top.confidence) else f" (confidence {top.confidence:.2f})")
            return f"the fully masked image already {self._name_held()}: {where} it is {label}"
        # Its own score decides, whatever the other labels have.
        name, scores = info.name_of(target.label_id), (self.confidence, masked.confidence)
        here, there = (f"{score:.2f}" if score >= 0.01 else f"{score:.1g}" for score in scores)
        is_similarity = info.output == "similarity"
        what = f"the similarity to {name.removeprefix('like ')!r} is" if is_similarity else f"the model gives {name}"
        return f"{what} {here} here, and {there} {'for' if is_similarity else 'to'} an image {where}"

    def _try_fill(self, fill: str) -> "Tried":
        """What the model answers to the fully masked image under a fill."""
        job, problem = self.job, self.problem
        rng = np.random.default_rng([job.request.seed, 1])
        background = _make_background(fill, job.view, job.engine.classifier, rng)
        masked = np.zeros((1, *problem.grid), bool)
        scores = problem.target.read(job.engine.evaluate(problem.view, background, masked))
        answers = with_floor(problem.target.judge(scores), 0.0 if job.request.confidence is None else problem.floor)
        return Tried(background, scores, bool(answers.holds[0]), float(answers.confidence[0]))

    def _refill(self, fill: str, background: Pixels, calls: int) -> ImageJob:
        """The job with another fill; the search is new. calls: so far."""
        job, fact = self.job, f"one plain colour {self._name_held()} already"
        return replace(
            job, backgrounds=(background,), request=replace(job.request, fills=(fill,)), chooses_fill=False, is_shared=False,
            run=BudgetedRun(job.view.grid, price=job.run.price), extra_calls=job.extra_calls + calls, started=None,
            notes=(*job.notes, f"{fact}, so masked pixels become {fill} instead: set another fill with --fill"),
        )  # fmt: skip

    def _name_held(self) -> str:
        """What a masked image has or does where there is nothing to explain, in words."""
        target = self.problem.target
        if target.share is not None:
            noun = "similarity" if self.job.engine.classifier.info.output == "similarity" else "confidence"
            return f"has at least {100 * target.share:g} % of this {noun}"
        return f"has this {target.noun}" if target.top == 1 and target.against is None else "meets the target"

    def _advise(self, own: str, tried: "dict[str, Tried]") -> str:
        """What can be asked instead, in words, where there is nothing to explain under the fill `own`."""
        if working := [f"--fill {fill}" for fill, found in tried.items() if not found.holds]:
            return f"use {' or '.join(working)}"
        info, whole, asks = self.job.engine.classifier.info, self.confidence, []
        # Where this share of the confidence is lost with all pixels masked, there is something to explain.
        lost = [fill for fill, found in tried.items() if found.confidence < MORE * whole]
        if lost and (self.job.request.confidence or 0.0) < MORE:
            asks.append(f"for most of the confidence with --confidence {MORE}{self._name_fill(own, lost)}")
        others = {"multilabel": "label with --target", "boxes": "box with --box", "segments": "pixel with --at"}
        other = f"for another {others[info.output]}" if info.output in others else self._find_other(own, tried)
        fact = f"in every other built-in fill too, an image without content {self._name_held()}"
        if asks := [*asks, *filter(None, [other])]:
            return f"{fact}: ask {', or '.join(asks)}, or see `becausal inspect`"
        if all(abs(found.confidence - whole) < ALIKE for found in tried.values()):
            fact += ", and the confidence hardly depends on the pixels of this image"
        return f"{fact}: see `becausal inspect` for what the model says of the image"

    def _name_fill(self, own: str, lost: list[str]) -> str:
        """The option for a fill of `lost`, empty where `own` is one, or where it is chosen in any case."""
        return "" if own in lost or self.job.chooses_fill else f" --fill {lost[0]}"

    def _find_other(self, own: str, tried: "dict[str, Tried]") -> str:
        """The question about another label that can be answered, in words: the best one that loses its rank when masked."""
        if self.job.engine.classifier.info.output != "probabilities" or self.whole.ndim != 1:
            return ""
        for rank, label_id in enumerate(np.argsort(-self.whole, kind="stable")[:OTHERS].tolist(), start=1):
            score = float(self.whole[label_id])
            if label_id == self.problem.label_id or score < LEAST:
                continue
            target = Target(label_id, top=rank)
            for share, words in ((0.0, ""), (MORE, f" --confidence {MORE}")):
                lost = [name for name, found in tried.items()
                        if not with_floor(target.judge(found.scores), share * score).holds[0]]  # fmt: skip
                if lost:
                    name = self.job.engine.classifier.info.name_of(label_id)
                    words = (f" --top {rank}" if rank > 1 else "") + words + self._name_fill(own, lost)
                    return f"about {name} ({format_confidence(score)}) with --target {quote(name)}{words}"
        return ""


def explain_here(
    images: Iterable[Any],
    classifier: Classifier,
    *,
    request: Request,
    function: Callable[[Explanation | Failure], Any] | None = None,
    batch_size: int | None = None,
    width: int | None = None,
    progress: Callable[[Status], None] | None = None,
) -> Iterator[tuple[int, Any]]:
    """Explain images in this process; yield each answer, or what `function` makes of it, with the number of its image."""
    request = request.limited(classifier.info)
    work = ((image, request) for image in images)
    queue = ImageQueue(work, Engine(classifier, batch_size=batch_size), progress)
    for number, answer in queue.run(Budget.of(request), width=width):
        yield number, answer if function is None else function(answer)


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
        # The engine numbers what it draws from here (`run_many`), and this counts along: a search that is repeated has a
        # number of its own, and its outcomes are told apart.
        self._indices = count()
        self._taken: dict[int, tuple[int, ImageJob | Failure]] = {}  # by index, with the number of the image

    def run(self, budget: Budget, *, width: int | None = None) -> Iterator[tuple[int, Explanation | Failure]]:
        """Explain the images, `width` of them at a time; yield each answer with its number. budget: of each of them."""

        def watch(index: int, calls: int) -> None:
            number, job = self._taken[index]
            if self._progress is not None and isinstance(job, ImageJob):
                name, run, most = job.image.name, job.run, job.request.max_calls
                size = run.pixels / run.visible.size
                self._progress(Status(name, number, run.stage, calls, most, size, run.visible))

        self._engine.watch = watch
        # The engine draws jobs from `__next__` below, while this loop takes what is done and may put a job back.
        for outcome in self._engine.run_many(self, max_calls=budget.engine_limit, width=width):
            number, job = self._taken.pop(outcome.index)
            error = outcome.result if isinstance(outcome.result, BecausalError) else outcome.error
            if isinstance(job, Failure):
                yield number, job
                continue
            started, job.started = job.started, None  # they know each other: without this, their arrays would wait for `gc`
            if isinstance(error, TwinError):
                if error.is_wrong:
                    self._engine.calls.drop_twin()
                again = replace(
                    job, run=BudgetedRun(job.view.grid, price=job.run.price), notes=(REPEATED,),
                    extra_calls=job.extra_calls + outcome.stats.calls, may_be_guided=error.is_wrong,
                )  # fmt: skip
                self._again.append((number, again))
            elif isinstance(outcome.result, SearchResult) and started is not None:
                yield number, started.finish(outcome.result, outcome)
            elif error is not None:
                answer = error if started is None else started.refuse(error, outcome.stats.calls)
                if isinstance(answer, ImageJob):
                    self._again.append((number, answer))
                else:
                    yield number, Failure(job.image.name, answer)
        if self._again:  # only Ctrl-C ends the run before what was put back: of that image nothing is known
            raise KeyboardInterrupt

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Job[Found] | BecausalError:
        """The next job. After the last one there may be another later, when a search is to be repeated."""
        if self._again:
            number, job = self._again.popleft()
        else:
            number, (image, request) = next(self._work)
            try:
                job = prepare(image, self._engine, request)
            except BecausalError as error:
                name = str(image) if isinstance(image, (str, PathLike)) else "array"
                self._taken[next(self._indices)] = number, Failure(name, error)
                return error
        self._taken[next(self._indices)] = number, job
        return Job(job.view.pixels, job.backgrounds, job.start, self._shared if job.is_shared else None)


def prepare(image: Any, engine: Engine, request: Request) -> ImageJob:
    """The image read, its view and its backgrounds made, the method chosen. Raises BecausalError for what cannot be."""
    classifier, chooses_fill = engine.classifier, request.chooses_fill
    if chooses_fill:
        request = replace(request, fills=(USUAL,), holds=request.share_held)
    info = classifier.info
    if info.geometry is None and isinstance(image, (str, PathLike)) and (size := peek_size(Path(image))) is not None:
        require_memory(Path(image).name, (*size, 3), 1, engine.calls)  # before it is decoded
    source = image if isinstance(image, InputImage) else load_image(image)
    shape = source.pixels.shape if info.geometry is None else (*info.geometry.grid, info.channels or 3)
    require_memory(source.name, shape, source.pixels.itemsize, engine.calls, has_draws=True)
    view = view_of(source, classifier)
    rng = np.random.default_rng([request.seed, 1])  # of fills; methods take `seed`
    backgrounds = tuple(_make_background(fill, view, classifier, rng) for fill in request.fills)
    method = request.method
    explainer = make_explainer(method, request.options) if isinstance(method, str) else method
    check_cost(explainer, view.grid, memory=total_memory() / 2)
    explainer = request.within(view.grid).configure(explainer)
    run = BudgetedRun(view.grid, price=Budget.of(request).price)
    read_image = partial(read_like, view.pixels, geometry=info.geometry, channels=info.channels)
    sampler = make_backgrounds(request.backgrounds, view.pixels, request.seed, read_image)
    # A limit is on what the model itself is asked; and what a twin found is confirmed to be sufficient and minimal, which is
    # not all that `contrast` asks (`confirm_minimal`).
    is_plain = request.max_calls is None and not request.contrast
    return ImageJob(
        source, view, backgrounds, explainer, request, engine, run, sampler,
        may_be_guided=is_plain, chooses_fill=chooses_fill,
    )  # fmt: skip


def _make_background(fill: str, view: View, classifier: Classifier, rng: np.random.Generator) -> Pixels:
    return make_background(fill, view.pixels, rng=rng, read_image=lambda path: view_of(load_image(path), classifier).pixels)


def view_of(image: InputImage, classifier: Classifier) -> View:
    """The image as the classifier sees it."""
    return make_view(image, classifier.info.geometry, channels=classifier.info.channels)
