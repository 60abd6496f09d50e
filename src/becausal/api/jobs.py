"""One image on its way: read, viewed, classified, searched, confirmed, made an Explanation."""

import platform
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.api.explanation import Explanation
from becausal.core.checks import check
from becausal.core.contracts import Answers, Classifier, ModelInfo, Pixels, Search, Stop, with_hints
from becausal.core.errors import BecausalError, ModelError, TargetError, UnstableModelError
from becausal.core.explanation import Origin
from becausal.core.minimise import Minimal
from becausal.core.pipeline import SearchResult, last_checks, run_pipeline
from becausal.core.problem import Explainer, Problem
from becausal.core.progress import Failure, Status
from becausal.core.request import Request
from becausal.core.searches import BudgetedRun
from becausal.core.targets import Target
from becausal.core.text import one_line
from becausal.core.version import __version__
from becausal.engine.engine import Engine
from becausal.engine.running import Job, Outcome
from becausal.images.fills import make_background
from becausal.images.loading import InputImage, View, load_image, make_view
from becausal.methods import make_explainer, options_of
from becausal.models.labels import find_label

STABLE, STABLE_HALF = 1e-3, 0.05  # how far a confidence may move between two evaluations, and in half precision


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
    problem: Problem | None = None
    confidence: float = float("nan")

    def start(self, scores: NDArray[Any]) -> tuple[Problem, Search[SearchResult | BecausalError]]:
        """The problem and the search, given the model's answer to the whole view."""
        # Only now: what a function's output means, and its labels, may be known from its first answer on.
        classifier, has_scores = self.engine.classifier, scores.ndim == 2
        target = make_target(self.request, classifier.info, scores)
        if self.explainer.needs == "scores" and not has_scores:
            raise ModelError(f"the method {self.explainer.name} needs scores, and this model returns labels only")
        self.confidence = float(scores[0, target.label_id]) if has_scores else float("nan")
        self.problem = Problem(self.view.pixels, self.backgrounds, target, has_scores, classifier)
        return self.problem, search_and_confirm(self, self.problem)


def explain_here(
    images: Iterable[Any],
    classifier: Classifier,
    *,
    request: Request,
    batch_size: int | None = None,
    width: int | None = None,
    progress: Callable[[Status], None] | None = None,
) -> Iterator[tuple[int, Explanation | Failure]]:
    """Explain images in this process; yield each answer with its image's number, as it comes."""
    engine = Engine(classifier, batch_size=batch_size)
    jobs: dict[int, ImageJob] = {}
    names: dict[int, str] = {}

    def watch(index: int, calls: int) -> None:
        if progress is not None:
            run = jobs[index].run
            size = run.pixels / run.visible.size
            progress(Status(names[index], index, run.stage, calls, request.max_calls, size, run.visible))

    def prepared() -> Iterator[Job[SearchResult | BecausalError] | BecausalError]:
        for index, image in enumerate(images):
            try:
                job = prepare(image, engine, request)
            except BecausalError as error:
                names[index] = _name(image)
                yield error
                continue
            jobs[index], names[index] = job, job.image.name
            yield Job(job.view.pixels, job.backgrounds, job.start)

    engine.watch = watch
    # The explanation is evaluated once more at the very end, past the engine's limit.
    limit = None if request.max_calls is None else request.max_calls - len(request.fills)
    for outcome in engine.run_many(prepared(), max_calls=limit, width=width):
        done, name = jobs.pop(outcome.index, None), names.pop(outcome.index)
        error = outcome.result if isinstance(outcome.result, BecausalError) else outcome.error
        if done is not None and isinstance(outcome.result, SearchResult):
            yield outcome.index, finish(done, outcome.result, outcome)
        elif error is not None:
            yield outcome.index, Failure(name, error)


def prepare(image: Any, engine: Engine, request: Request) -> ImageJob:
    """The image read, its view and its backgrounds made, the method chosen. Raises BecausalError for what cannot be."""
    classifier = engine.classifier
    source = image if isinstance(image, InputImage) else load_image(image)
    view = view_of(source, classifier)
    rng = np.random.default_rng([request.seed, 1])

    def read_image(path: str) -> Pixels:
        return view_of(load_image(path), classifier).pixels

    backgrounds = tuple(make_background(f, view.pixels, rng=rng, read_image=read_image) for f in request.fills)
    method = request.method
    explainer = request.configure(make_explainer(method, request.options) if isinstance(method, str) else method)
    run = BudgetedRun(view.grid, price=request.price)
    return ImageJob(source, view, backgrounds, explainer, request, engine, run)


def view_of(image: InputImage, classifier: Classifier) -> View:
    """The image as the classifier sees it."""
    return make_view(image, classifier.info.geometry, channels=classifier.info.channels)


def make_target(request: Request, info: ModelInfo, scores: NDArray[Any]) -> Target:
    """What must stay true, given the model's answer to the whole view."""
    classes = scores.shape[1] if scores.ndim == 2 else None
    if request.target is None:
        label_id = int(np.argmax(scores[0])) if scores.ndim == 2 else int(scores[0])
    else:
        label_id = find_label(request.target, info.labels, classes)
    against = None if request.against is None else find_label(request.against, info.labels, classes)
    if scores.ndim == 1 and (request.confidence or request.top > 1 or against is not None):
        raise TargetError("this model returns labels only: confidence, top and against cannot be used with it")
    floor = 0.0 if request.confidence is None else request.confidence * float(scores[0, label_id])
    threshold = 0.5 if info.output == "multilabel" else None
    return Target(label_id, top=request.top, floor=floor, threshold=threshold, against=against)


def search_and_confirm(job: ImageJob, problem: Problem) -> Search[SearchResult | BecausalError]:
    """The whole search, its result evaluated once more at the end; an error is returned, so that other images go on."""
    try:
        result = yield from _search(job, problem)
        while True:
            try:
                _confirm(job, result, (yield with_hints(result.visible[None], uncached=True)))
                return result
            except Stop as stop:  # without a cause an interrupt just now: the result is there, and this is still allowed
                if stop.cause is not None:
                    return (yield from _best_after_failure(job, result, stop.cause))
    except BecausalError as error:
        return error


def _search(job: ImageJob, problem: Problem) -> Search[SearchResult]:
    """The pipeline; where a KeyboardInterrupt was raised inside it, the smallest sufficient set it had found."""
    run = job.run
    try:
        return (yield from run_pipeline(problem, job.explainer, job.request, run))
    except KeyboardInterrupt:
        if run.pixels == run.visible.size:
            raise
        job.engine.interrupt()  # the other searches are to end as well
        run.stopped_by = "interrupt"
    try:
        checks = yield from check(run.visible, grain=None)
    except Stop:  # an interrupt just now: this is still allowed
        checks = yield from last_checks(Minimal(run.visible, None))
    note = "the search was interrupted inside a method: its map is lost, the smallest set found so far is shown"
    return SearchResult(run.visible.astype(np.float64), run.visible, checks, job.confidence, (), (note,))


def _best_after_failure(job: ImageJob, result: SearchResult, cause: Exception) -> Search[SearchResult]:
    """The best of a search whose model has failed; the failure is raised where nothing smaller than the view is known."""
    if not result.visible.all():
        return result
    if job.run.visible.all():
        raise cause from cause.__cause__
    checks = yield from last_checks(Minimal(job.run.visible, None))
    return replace(result, visible=job.run.visible, checks=checks)


def _confirm(job: ImageJob, result: SearchResult, again: Answers) -> None:
    """Compare with the second evaluation. Raises UnstableModelError where the model answered in two ways."""
    is_half = job.engine.classifier.info.is_half
    tolerance = STABLE_HALF if is_half else STABLE
    moved = abs(float(again.confidence[0]) - result.checks.confidence) > tolerance
    drifted = not np.isnan(job.confidence) and abs(result.confidence - job.confidence) > tolerance
    if bool(again.holds[0]) != result.checks.sufficient or moved or drifted:
        reason = "is dropout still on, or is there randomness in it?"
        if is_half:
            reason = "half precision may be too coarse for this image, or there is randomness in the model"
        raise UnstableModelError(
            "the model answered the same question in two ways (confidence "
            f"{result.checks.confidence:.4f}, then {float(again.confidence[0]):.4f}): {reason}"
        )


def finish(job: ImageJob, result: SearchResult, outcome: Outcome[Any]) -> Explanation:
    """The explanation of a job that is done."""
    info, request, problem = job.engine.classifier.info, job.request, job.problem
    if problem is None:
        raise ValueError("this job has not been started")
    failed = () if outcome.error is None else (one_line(outcome.error),)
    origin = Origin(
        image=job.image.name,
        image_sha256=job.image.sha256,
        model=info.spec,
        model_sha256=info.sha256,
        preprocess=f"{info.geometry or 'as it is'}; {info.normalisation}",
        loading=dict(info.loading),
        request=request,
        method=job.explainer.name,
        options=options_of(job.explainer),
        grain=request.grain_for(job.explainer, job.view.grid),
        versions=versions(),
    )
    return Explanation(
        label=info.name_of(problem.label_id),
        label_id=problem.label_id,
        confidence=job.confidence,
        target=problem.target,
        visible=result.visible,
        responsibility=result.saliency,
        checks=result.checks,
        stopped_by=outcome.stopped_by if failed else job.run.stopped_by or outcome.stopped_by,
        stats=outcome.stats,
        origin=origin,
        view=job.view.pixels,
        backgrounds=job.backgrounds,
        frame=job.view.frame,
        others=result.others,
        notes=(*job.image.notes, *info.notes, *result.notes, *failed),
    )


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
