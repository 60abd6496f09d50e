"""Running a bench: images and methods, a row for each explanation or the reason why there is none, tables, the page."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from becausal.api import Failure, Request, explain_numbered, find_failure
from becausal.api.explanation import Explanation
from becausal.core.contracts import Classifier, ModelInfo
from becausal.core.errors import AnswerError, BecausalError, MissingExtraError, ModelError, NetworkError, OptionError
from becausal.core.files import write_file
from becausal.core.text import one_line
from becausal.core.version import versions
from becausal.images.fills import USUAL, make_background
from becausal.lab.base import (
    Arm,
    Bench,
    BenchRun,
    BenchSettings,
    ImageSelection,
    MeasureExplanation,
    Subject,
    common_row,
)
from becausal.lab.datasets import Sample
from becausal.lab.page import write_page
from becausal.lab.rows import Row, RowStore, error_row, pack_set, rounded, table_text
from becausal.lab.selection import load_subject, select_images, select_methods
from becausal.models import as_classifier

#: All benches; each is a module of this package.
BENCHES = (
    "photobombing", "roaming-panda", "occlusion", "scenes", "fills", "exact", "convergence", "misclassified",
    "paste", "faithfulness", "sanity",
)  # fmt: skip

TAGS = ("fill", "seed", "by", "step")  # the keys in which arms of the same method may differ


@dataclass(frozen=True)
class BenchProgress:
    """Progress of a run: finished explanations, their total number, and the method of the last one."""

    done: int
    total: int
    method: str


def load_bench(name: str) -> Bench:
    """The bench with this name. Raises OptionError where there is none."""
    if name not in BENCHES:
        raise OptionError(f"unknown bench {name!r}: choose one of {', '.join(BENCHES)}")
    bench: Bench = import_module(f"becausal.lab.{name.replace('-', '_')}").BENCH
    return bench


def run(
    name: str,
    model: Any,
    *,
    out: str | Path,
    data: str | Path | None = None,
    methods: str | Sequence[str] | None = None,
    limit: int | None = None,
    request: Request | None = None,
    side: int = 4,
    width: int | None = None,
    resume: bool = False,
    progress: Callable[[BenchProgress], None] | None = None,
) -> BenchRun:
    """Run a bench; writes results.csv, summary.json, figures and report.html.

    Args:
        name: One of `BENCHES`.
        model: A classifier, e.g. from `becausal.load_model`, or anything that `as_classifier` takes.
        out: Folder to write to; new or empty, unless a run is resumed.
        data: Folder of images, for benches that take one.
        methods: Names separated by commas, or "all"; name:key=value sets options. Default: those of the bench.
        limit: Maximum number of images, evenly spaced. Default: that of the bench.
        request: What is asked of each explanation, with each of `methods`; by default the smallest set in one fill.
        side: Side of the tiny images of the bench `exact`.
        width: Number of images explained in parallel, by default chosen for the device; does not affect the rows.
        resume: Continue the run in `out`.
        progress: Called after each explanation.

    Returns:
        The finished run.

    Raises:
        OptionError: The options do not fit the bench, the model, or the run that is resumed.
        OutputError: A file cannot be written.
    """
    bench = load_bench(name)
    request = _checked(bench, request or Request())
    if width is not None and width < 1:
        raise OptionError(f"width must be at least 1, not {width}")
    classifier = as_classifier(model)
    chosen, unable = select_methods(bench.methods if methods is None else methods, classifier, request)
    folder = None if data is None else Path(data)
    limit = bench.limit if limit is None else limit
    settings = BenchSettings(bench=name, methods=chosen, data=folder, limit=limit, request=request, side=side)
    measure = bench.measure if bench.make_measure is None else bench.make_measure(settings, classifier)
    record = _describe(settings, classifier.info)
    with RowStore.open(Path(out), record, resume=resume) as store:
        try:
            selection = _select_images(bench, settings, classifier, store)
        except BecausalError:
            store.discard_if_new()
            raise
        found, stopped = _run_arms(bench, measure, settings, classifier, selection, store, width, progress)
    rows, unable = bench.postprocess(found), unable | stopped
    finished = BenchRun(Path(out), bench, settings, record, rows, selection, bench.summarise(rows), unable)
    _write_files(finished)
    write_page(finished, classifier)
    return finished


def _write_files(run: BenchRun) -> None:
    """The rows, and their summary."""
    summary = json.dumps(run.summary(), indent=2, allow_nan=False, default=str) + "\n"
    write_file(run.folder / "results.csv", table_text(run.rows).encode())
    write_file(run.folder / "summary.json", summary.encode())


def _checked(bench: Bench, request: Request) -> Request:
    """The request, with one fill for all images; refuses options without effect and unknown fills before any model call."""
    for changed in (f.name for f in fields(request) if getattr(request, f.name) != f.default):
        if changed in ("method", "options"):
            raise OptionError(f"a bench runs several methods: give methods='name:key=value', not {changed} in the request")
        if changed in bench.sets:
            raise OptionError(f"the bench {bench.name} sets {changed} itself: leave it out")
        if bench.takes is not None and changed not in bench.takes:
            raise OptionError(f"the bench {bench.name} has no use for {changed}: leave it out")
    request = replace(request, fills=(USUAL,)) if request.chooses_fill else request
    for fill in request.fills:
        if not fill.startswith("image:"):
            make_background(fill, np.zeros((8, 8, 3), np.uint8), rng=np.random.default_rng(0))
    return request


def _describe(settings: BenchSettings, info: ModelInfo) -> dict[str, Any]:
    """Everything that determines the rows, in a form that JSON can hold."""
    return {
        "bench": settings.bench, "methods": list(settings.methods),
        "data": None if settings.data is None else str(settings.data), "limit": settings.limit, "side": settings.side,
        "request": settings.request.record(), "model": info.spec, "model_sha256": info.sha256,
        "loading": dict(info.loading), "device": info.device, "becausal": versions()["becausal"],
    }  # fmt: skip


def _select_images(bench: Bench, settings: BenchSettings, classifier: Classifier, store: RowStore) -> ImageSelection:
    """The images; in a resumed run they must be the same."""
    before = next((row for row in store.rows if "_pool" in row), None)
    known = None if before is None else frozenset(before["_pool"])
    selection = (bench.select or select_images)(replace(settings, known=known), classifier)
    if not selection.samples:
        reasons = "; ".join(f"{reason}: {count}" for reason, count in selection.left_out.items())
        raise OptionError(f"there is no image to explain ({reasons or 'the dataset is empty'})")
    names = [sample.name for sample in selection.samples]
    if len(set(names)) != len(names):
        raise OptionError("two images of this dataset have the same name: rename one of them")
    if before is None:
        store.append({"_pool": names, "_left_out": dict(selection.left_out)})
        return selection
    if before["_pool"] != names:
        raise OptionError("the images are not those of the run: give the same data, or another --out")
    return replace(selection, left_out=before["_left_out"])


def _run_arms(
    bench: Bench,
    measure: MeasureExplanation | None,
    settings: BenchSettings,
    classifier: Classifier,
    selection: ImageSelection,
    store: RowStore,
    width: int | None,
    progress: Callable[[BenchProgress], None] | None,
) -> tuple[list[Row], dict[str, str]]:
    """Compute the missing rows; returns all, by arm and image, and the methods that could not run, with the reasons."""
    arms = bench.arms(settings)
    unable = {row["_unable"]: row["_why"] for row in store.rows if "_unable" in row}
    done = {_key(row) for row in store.rows if "name" in row}
    total = len(arms) * len(selection.samples)
    for arm in arms:
        heads = {sample.name: {"name": sample.name, "method": arm.method, **arm.tags} for sample in selection.samples}
        missing = [sample for sample in selection.samples if _key(heads[sample.name]) not in done]
        if arm.method in unable or not missing:
            continue
        if bench.run_arm is not None:
            rows = bench.run_arm(arm, missing, classifier, settings)
        else:
            rows = _explain(arm, missing, classifier, measure, width)
        try:
            for sample, row in rows:
                store.append({**heads[sample.name], **sample.facts, **row})
                done.add(_key(heads[sample.name]))
                if progress is not None:
                    progress(BenchProgress(len(done), total, arm.method))
        except (MissingExtraError, ModelError) as error:
            unable[arm.method] = str(error)
            store.append({"_unable": arm.method, "_why": str(error)})
    turns = {_key({"method": arm.method, **arm.tags}): i for i, arm in enumerate(arms)}
    places = {sample.name: i for i, sample in enumerate(selection.samples)}
    found = [row for row in store.rows if "name" in row]
    return sorted(found, key=lambda row: (turns[_key(row | {"name": None})], places[row["name"]])), unable


def _key(row: Row) -> tuple[Any, ...]:
    return tuple(row.get(key) for key in ("name", "method", *TAGS))


def _explain(
    arm: Arm, samples: Sequence[Sample], classifier: Classifier, measure: MeasureExplanation | None, width: int | None
) -> Iterator[tuple[Sample, Row]]:
    """Explain images in parallel and measure each explanation.

    Raises ModelError or MissingExtraError where the method cannot run on this model, NetworkError where it is out of reach,
    KeyboardInterrupt where the user interrupted the run: an incomplete explanation does not become a row.
    """
    subjects: list[Subject | None] = []
    broken: list[tuple[Sample, Row]] = []
    has_any = False

    def images() -> Iterator[Any]:
        for sample in samples:
            try:
                subjects.append(subject := load_subject(sample, classifier))
            except BecausalError as error:
                broken.append((sample, error_row(error)))
            else:
                yield subject.image

    start = time.perf_counter()
    for number, answer in _wrap_errors(explain_numbered(images(), classifier, request=arm.request, width=width)):
        subject, subjects[number] = subjects[number], None  # frees the image as early as possible
        if subject is None:
            raise AnswerError(f"image {number} was answered twice")
        if isinstance(answer, Failure):
            if isinstance(answer.error, NetworkError) or (
                isinstance(answer.error, (MissingExtraError, ModelError)) and not has_any
            ):
                raise answer.error
            yield subject.sample, error_row(answer.error)
            continue
        if answer.stopped_by == "interrupt":
            raise KeyboardInterrupt
        if (failure := find_failure(answer)) is not None:
            broken.append((subject.sample, error_row(AnswerError(failure))))  # yielded last: a NetworkError may follow
            continue
        has_any = True
        own = {} if measure is None else measure(subject, answer, classifier)
        row = common_row(answer) | rounded(own) | {"_shown": pack_set(answer.visible)}
        yield subject.sample, row | {"_seconds": round(time.perf_counter() - start, 3)}
        start = time.perf_counter()
    yield from broken


def _wrap_errors(answers: Iterator[tuple[int, Explanation | Failure]]) -> Iterator[tuple[int, Explanation | Failure]]:
    """The answers; an unexpected error in the library behind a method becomes a ModelError, so that other methods run."""
    try:
        yield from answers
    except BecausalError:
        raise
    except Exception as error:
        raise ModelError(f"unexpected {type(error).__name__}: {one_line(error, 200)}") from error
