"""Runs a batch: passes over the images that are waiting, were lost or have failed, until none is left; and its progress."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import chain

from becausal.batch.local import InProcessPool
from becausal.batch.records import BatchTask, TaskDone, TaskFailed, TaskLost, WorkerPool
from becausal.batch.store import BatchStore
from becausal.core.errors import AnswerError, BecausalError

MAX_MODEL_FAILURES = 50  # consecutive images on which the model fails before the run stops
WRITERS = 4  # threads that write files while a device is fed
MAX_UNSTORED = 32  # results that may wait for their files
WINDOW = 120.0  # seconds over which the rate is measured
MAX_MARKS = 512


@dataclass(frozen=True)
class TaskEvent:
    """An image has been processed; error is None if it was explained."""

    id: int
    image: str
    error: str | None


OnEvent = Callable[[TaskEvent], None]
_Unstored = deque[tuple[TaskDone | TaskFailed, Future[None]]]  # results, and the writing of their files


def run_batch(
    store: BatchStore,
    pool: WorkerPool,
    *,
    retry: int = 0,
    limit: int | None = None,
    on_event: OnEvent | None = None,
    is_stopping: Callable[[], bool] = lambda: False,
) -> None:
    """Explain all waiting images, then retry failed ones up to `retry` times, including those of earlier starts.

    An image that was in progress in a driver that died is explained in a process of its own.
    is_stopping: called before each image is passed to a worker; once True, only the images in progress are finished.
    Raises OutputError when results cannot be stored, AnswerError when the model fails on every image.
    """
    runner = _BatchRunner(store, pool, on_event, is_stopping)
    runner.run_pass("waiting", limit)
    for _ in range(retry):
        runner.run_pass("failed", limit)


class _BatchRunner:
    def __init__(
        self, store: BatchStore, pool: WorkerPool, on_event: OnEvent | None, is_stopping: Callable[[], bool]
    ) -> None:
        self._store, self._pool, self._on_event, self._is_stopping = store, pool, on_event, is_stopping
        self._model_failures = 0

    def run_pass(self, state: str, limit: int | None) -> None:
        """Try the images in a state, then those whose worker died, one at a time."""
        suspects: list[int] = []
        if isinstance(self._pool, InProcessPool) and (suspects := self._store.suspects(state, limit=limit)):
            with closing(self._pool.isolated()) as isolated:
                self._process_alone(isolated, suspects)
        lost = self._process(self._pool, self._store.tasks(state, limit=limit, without=suspects), one_at_a_time=False)
        if lost:
            self._process_alone(self._pool, sorted(lost))

    def _process_alone(self, pool: WorkerPool, numbers: list[int]) -> None:
        """Explain images one at a time; those that are lost have failed."""
        lost = self._process(pool, (self._store.task(number) for number in numbers), one_at_a_time=True)
        for number, reason in lost.items():
            self._store_result(TaskFailed(number, reason))

    def _process(self, pool: WorkerPool, tasks: Iterable[BatchTask], *, one_at_a_time: bool) -> dict[int, str]:
        """Explain tasks and store the results; returns the reasons of those that were lost."""
        lost: dict[int, str] = {}
        unstored: _Unstored = deque()
        waiting = self._until_stopped(pool, tasks)
        if (first := next(waiting, None)) is None:
            return lost  # and no worker is started
        with ThreadPoolExecutor(WRITERS, "writer") as threads:
            try:
                for result in pool.results(chain([first], waiting), one_at_a_time=one_at_a_time):
                    if isinstance(result, TaskLost):
                        lost[result.id] = result.reason
                        continue
                    unstored.append((result, threads.submit(self._write_files, result)))
                    self._store_results(unstored, keep=MAX_UNSTORED if pool.feeds_device else 0)
                self._store_results(unstored)
            except BaseException:
                with suppress(BecausalError):  # the first one counts
                    self._store_results(unstored)
                raise
        return lost

    def _write_files(self, result: TaskDone | TaskFailed) -> None:
        if isinstance(result, TaskDone):
            self._store.write(result)

    def _store_results(self, unstored: _Unstored, keep: int = 0) -> None:
        """Store the results whose files are written, in their order; wait for files where more than `keep` are left."""
        while unstored and (len(unstored) > keep or unstored[0][1].done()):
            result, files = unstored.popleft()
            files.result()
            self._store_result(result)

    def _until_stopped(self, pool: WorkerPool, tasks: Iterable[BatchTask]) -> Iterator[BatchTask]:
        for task in tasks:
            if self._is_stopping():
                return
            if isinstance(pool, InProcessPool):
                self._store.start(task.id)
            yield task

    def _store_result(self, result: TaskDone | TaskFailed) -> None:
        if isinstance(result, TaskDone):
            self._store.save(result)
        else:
            self._store.fail(result)
        self._model_failures = self._model_failures + 1 if isinstance(result, TaskFailed) and result.is_model else 0
        if self._on_event is not None:
            error = result.reason if isinstance(result, TaskFailed) else None
            self._on_event(TaskEvent(result.id, self._store.task(result.id).item.image, error))
        if self._model_failures >= MAX_MODEL_FAILURES and isinstance(result, TaskFailed):
            raise AnswerError(
                f"the run was stopped because the model failed on {MAX_MODEL_FAILURES} images in a row, last with: "
                f"{result.reason}; add --retry 1 to try these images again"
            )


class ProgressMeter:
    """Measures the rate over the last two minutes: long enough to be stable, short enough to follow a change.

    total: number of images. done: images finished in earlier starts.
    """

    def __init__(self, total: int, done: int = 0, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.total, self.done = total, done
        self._clock = clock
        self._marks: deque[tuple[float, int]] = deque([(clock(), done)], maxlen=MAX_MARKS)

    def step(self) -> None:
        """Count another finished image."""
        self.done += 1
        self.total = max(self.total, self.done)  # images that are retried count again
        now = self._clock()
        self._marks.append((now, self.done))
        while len(self._marks) > 2 and now - self._marks[0][0] > WINDOW:
            self._marks.popleft()

    @property
    def rate(self) -> float:
        """Images per second; 0 if unknown."""
        (then, before), (now, after) = self._marks[0], self._marks[-1]
        return (after - before) / (now - then) if now > then else 0.0

    @property
    def seconds_left(self) -> float | None:
        """Estimated remaining time; None if unknown."""
        return (self.total - self.done) / self.rate if self.rate > 0 else None


def format_progress(meter: ProgressMeter) -> str:
    """E.g. `1,234 of 10,000, 3.1 images/s, 47 min left`."""
    parts = [f"{meter.done:,} of {meter.total:,}"]
    if (rate := meter.rate) > 0:
        parts.append(f"{rate:.1f} images/s" if rate >= 1 else f"{60 * rate:.1f} images/min")
    if meter.seconds_left is not None and meter.done < meter.total:
        parts.append(f"{format_duration(meter.seconds_left)} left")
    return ", ".join(parts)


def format_duration(seconds: float) -> str:
    """E.g. 40 s, 12 min, 3 h 05 min, 2 d 4 h."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    hours = round(minutes / 60)
    return f"{hours // 24} d {hours % 24} h"
