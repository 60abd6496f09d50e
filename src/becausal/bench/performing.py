"""Doing what is still to be done: every arm on every image, a row for each answer, or for why there is none."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from becausal.api import Failure, explain_numbered, find_failure
from becausal.api.explanation import Explanation
from becausal.bench.datasets import Sample
from becausal.bench.findings import Row
from becausal.bench.packing import pack_set
from becausal.bench.plan import TAGS, Arm, Bench, Pool, Settings, Subject, common_row, rounded
from becausal.bench.pools import see
from becausal.bench.runs import Store
from becausal.core.contracts import Classifier
from becausal.core.errors import AnswerError, BecausalError, MissingExtraError, ModelError, NetworkError

Numbered = tuple[int, Explanation | Failure]


@dataclass(frozen=True)
class Progress:
    """How far a run is: explanations done, of how many, and by which method the last was."""

    done: int
    total: int
    method: str


def perform_arms(
    bench: Bench,
    settings: Settings,
    classifier: Classifier,
    pool: Pool,
    store: Store,
    width: int | None,
    progress: Callable[[Progress], None] | None,
) -> dict[str, str]:
    """Do what is still to be done; returns the methods that turned out not to run, and why."""
    arms = bench.arms(settings)
    unable = {row["_unable"]: row["_why"] for row in store.rows if "_unable" in row}
    done = {_key(row) for row in store.rows if "name" in row}
    total = len(arms) * len(pool.samples)
    for arm in arms:
        todo = [sample for sample in pool.samples if _key(_head(sample, arm)) not in done]
        if arm.method in unable or not todo:
            continue
        if bench.perform is not None:
            answers = bench.perform(arm, todo, classifier, settings)
        else:
            answers = _explain(arm, todo, classifier, bench, width)
        try:
            for sample, row in answers:
                store.append({**_head(sample, arm), **sample.facts, **row})
                done.add(_key(_head(sample, arm)))
                if progress is not None:
                    progress(Progress(len(done), total, arm.method))
        except (MissingExtraError, ModelError) as error:
            unable[arm.method] = str(error)
            store.append({"_unable": arm.method, "_why": str(error)})
    return unable


def _head(sample: Sample, arm: Arm) -> Row:
    return {"name": sample.name, "method": arm.method, **arm.tags}


def _key(row: Row) -> tuple[Any, ...]:
    return tuple(row.get(key) for key in ("name", "method", *TAGS))


def _explain(
    arm: Arm, samples: Sequence[Sample], classifier: Classifier, bench: Bench, width: int | None
) -> Iterator[tuple[Sample, Row]]:
    """Explain images side by side and measure each.

    Raises ModelError or MissingExtraError where the method cannot run on this model at all, NetworkError where the model
    cannot be reached, and KeyboardInterrupt where the user wished to stop: an explanation that was cut short is no row.
    """
    subjects: list[Subject | None] = []
    broken: list[tuple[Sample, Row]] = []
    has_any = False

    def pictures() -> Iterator[Any]:
        for sample in samples:
            try:
                subject = see(sample, classifier)
            except BecausalError as error:
                broken.append((sample, _failed(error)))
                continue
            subjects.append(subject)
            yield subject.picture

    begun = time.perf_counter()
    for number, answer in _guarded(explain_numbered(pictures(), classifier, request=arm.request, width=width)):
        subject, subjects[number] = subjects[number], None  # images are not held longer than needed
        if subject is None:
            raise AnswerError(f"image {number} was answered twice")
        if isinstance(answer, Failure):
            if isinstance(answer.error, NetworkError):
                raise answer.error
            if isinstance(answer.error, (MissingExtraError, ModelError)) and not has_any:
                raise answer.error
            yield subject.sample, _failed(answer.error)
            continue
        if answer.stopped_by == "interrupt":
            raise KeyboardInterrupt
        if (failure := find_failure(answer)) is not None:
            broken.append((subject.sample, _failed(AnswerError(failure))))  # no row where a NetworkError is to follow
            continue
        has_any = True
        row = _row_of(subject, answer, bench, classifier)
        yield subject.sample, row | {"_seconds": round(time.perf_counter() - begun, 3)}
        begun = time.perf_counter()
    yield from broken


def _guarded(answers: Iterator[Numbered]) -> Iterator[Numbered]:
    """The answers; what breaks in a library behind a method is a ModelError, so that other methods go on."""
    while True:
        try:
            answer = next(answers)
        except StopIteration:
            return
        except BecausalError:
            raise
        except Exception as error:
            said = " ".join(str(error).split())[:200]
            raise ModelError(f"unexpected {type(error).__name__}: {said}") from error
        yield answer


def _row_of(subject: Subject, explanation: Explanation, bench: Bench, classifier: Classifier) -> Row:
    own = {} if bench.measure is None else bench.measure(subject, explanation, classifier)
    return common_row(explanation) | rounded(own) | {"_shown": pack_set(explanation.visible)}


def _failed(error: BecausalError) -> Row:
    return {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}


def in_order(rows: Sequence[Row], arms: Sequence[Arm], samples: Sequence[Sample]) -> list[Row]:
    """The rows method by method and image by image, however they came."""
    places = {sample.name: i for i, sample in enumerate(samples)}
    turns = {_key({"method": arm.method, **arm.tags}): i for i, arm in enumerate(arms)}
    found = [row for row in rows if "name" in row]
    return sorted(found, key=lambda row: (turns[_key(row | {"name": None})], places[row["name"]]))
