"""Running the arms of a bench on the images: a row for each explanation, or for the reason why there is none."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from becausal.api import Failure, explain_numbered, find_failure
from becausal.api.explanation import Explanation
from becausal.core.contracts import Classifier
from becausal.core.errors import AnswerError, BecausalError, MissingExtraError, ModelError, NetworkError
from becausal.core.text import one_line
from becausal.lab.bench.base import Bench
from becausal.lab.bench.datasets import Sample
from becausal.lab.bench.packing import pack_set
from becausal.lab.bench.plan import TAGS, Arm, BenchSettings, ImageSelection, Subject, common_row
from becausal.lab.bench.rows import Row, rounded
from becausal.lab.bench.selection import load_subject
from becausal.lab.bench.storage import RowStore

Numbered = tuple[int, Explanation | Failure]


@dataclass(frozen=True)
class BenchProgress:
    """Progress of a run: finished explanations, their total number, and the method of the last one."""

    done: int
    total: int
    method: str


def run_arms(
    bench: Bench,
    settings: BenchSettings,
    classifier: Classifier,
    selection: ImageSelection,
    store: RowStore,
    width: int | None,
    progress: Callable[[BenchProgress], None] | None,
) -> dict[str, str]:
    """Compute the missing rows; returns the methods that turned out not to run, with the reasons."""
    arms = bench.arms(settings)
    unable = {row["_unable"]: row["_why"] for row in store.rows if "_unable" in row}
    done = {_key(row) for row in store.rows if "name" in row}
    total = len(arms) * len(selection.samples)
    for arm in arms:
        missing = [sample for sample in selection.samples if _key(_head(sample, arm)) not in done]
        if arm.method in unable or not missing:
            continue
        if bench.run_arm is not None:
            rows = bench.run_arm(arm, missing, classifier, settings)
        else:
            rows = _explain(arm, missing, classifier, bench, width)
        try:
            for sample, row in rows:
                store.append({**_head(sample, arm), **sample.facts, **row})
                done.add(_key(_head(sample, arm)))
                if progress is not None:
                    progress(BenchProgress(len(done), total, arm.method))
        except (MissingExtraError, ModelError) as error:
            unable[arm.method] = str(error)
            store.append({"_unable": arm.method, "_why": str(error)})
    return unable


def error_row(error: BecausalError) -> Row:
    """The row of an image without an explanation."""
    return {"error": f"{type(error).__name__}: {one_line(error)}"}


def sort_rows(rows: Sequence[Row], arms: Sequence[Arm], samples: Sequence[Sample]) -> list[Row]:
    """The rows in the order of the arms and the images."""
    places = {sample.name: i for i, sample in enumerate(samples)}
    turns = {_key({"method": arm.method, **arm.tags}): i for i, arm in enumerate(arms)}
    found = [row for row in rows if "name" in row]
    return sorted(found, key=lambda row: (turns[_key(row | {"name": None})], places[row["name"]]))


def _head(sample: Sample, arm: Arm) -> Row:
    return {"name": sample.name, "method": arm.method, **arm.tags}


def _key(row: Row) -> tuple[Any, ...]:
    return tuple(row.get(key) for key in ("name", "method", *TAGS))


def _explain(
    arm: Arm, samples: Sequence[Sample], classifier: Classifier, bench: Bench, width: int | None
) -> Iterator[tuple[Sample, Row]]:
    """Explain images in parallel and measure each explanation.

    Raises:
        ModelError: The method cannot run on this model; likewise MissingExtraError.
        NetworkError: The model cannot be reached.
        KeyboardInterrupt: The user interrupted the run; an incomplete explanation does not become a row.
    """
    subjects: list[Subject | None] = []
    broken: list[tuple[Sample, Row]] = []
    has_any = False

    def images() -> Iterator[Any]:
        for sample in samples:
            try:
                subject = load_subject(sample, classifier)
            except BecausalError as error:
                broken.append((sample, error_row(error)))
                continue
            subjects.append(subject)
            yield subject.image

    start = time.perf_counter()
    for number, answer in _wrap_errors(explain_numbered(images(), classifier, request=arm.request, width=width)):
        subject, subjects[number] = subjects[number], None  # frees the image as early as possible
        if subject is None:
            raise AnswerError(f"image {number} was answered twice")
        if isinstance(answer, Failure):
            if isinstance(answer.error, NetworkError):
                raise answer.error
            if isinstance(answer.error, (MissingExtraError, ModelError)) and not has_any:
                raise answer.error
            yield subject.sample, error_row(answer.error)
            continue
        if answer.stopped_by == "interrupt":
            raise KeyboardInterrupt
        if (failure := find_failure(answer)) is not None:
            broken.append((subject.sample, error_row(AnswerError(failure))))  # yielded last: a NetworkError may follow
            continue
        has_any = True
        row = _measure(subject, answer, bench, classifier)
        yield subject.sample, row | {"_seconds": round(time.perf_counter() - start, 3)}
        start = time.perf_counter()
    yield from broken


def _wrap_errors(answers: Iterator[Numbered]) -> Iterator[Numbered]:
    """The answers; an unexpected error in the library behind a method becomes a ModelError, so that other methods run."""
    while True:
        try:
            answer = next(answers)
        except StopIteration:
            return
        except BecausalError:
            raise
        except Exception as error:
            raise ModelError(f"unexpected {type(error).__name__}: {one_line(error, 200)}") from error
        yield answer


def _measure(subject: Subject, explanation: Explanation, bench: Bench, classifier: Classifier) -> Row:
    own = {} if bench.measure is None else bench.measure(subject, explanation, classifier)
    return common_row(explanation) | rounded(own) | {"_shown": pack_set(explanation.visible)}
