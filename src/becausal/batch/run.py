"""Runs a batch: passes over the images that are waiting, were lost or have failed, until none is left; and its progress."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import chain

from becausal.batch.pools import InProcessPool, ProcessPool
from becausal.batch.store import BatchStore
from becausal.batch.work import BatchTask, TaskDone, TaskFailed, TaskLost, WorkerPool
from becausal.core.errors import AnswerError, BecausalError

MAX_MODEL_FAILURES = 50  # consecutive images on which the model fails before the run stops
WRITERS = 4  # threads that write files while a device is fed
MAX_UNSTORED = 32  # results that may wait for their files
WINDOW = 120.0  # seconds over which the rate is measured
MAX_MARKS = 512


OnEvent = Callable[[TaskDone | TaskFailed], None]


def run_batch(
    store: BatchStore,
    pool: WorkerPool,
    *,
    retry: int = 0,
    limit: int | None = None,
    on_event: OnEvent = lambda event: None,
    is_stopping: Callable[[], bool] = lambda: False,
) -> None:
    """Explain all waiting images, then retry failed ones up to `retry` times, including those of earlier starts.

    An image that was in progress in a driver that died is explained in a process of its own.
    is_stopping: called before each image is passed to a worker; once True, only the images in progress are finished.
    Raises OutputError when results cannot be stored, AnswerError when the model fails on every image.
    """
    runner = _BatchRunner(store, on_event, is_stopping)
    for state in ("waiting", *("failed",) * retry):
        suspects: list[int] = []
        if isinstance(pool, InProcessPool) and (suspects := store.suspects(state, limit=limit)):
            # What ended an earlier driver may end this one too: such images are explained in a process of their own.
            with closing(ProcessPool(pool.job, pool.check, workers=1)) as isolated:
                runner.explain_alone(isolated, suspects)
        lost = runner.explain(pool, store.tasks(state, limit=limit, without=suspects))
        if lost:  # one of them may have ended its worker
            runner.explain_alone(pool, sorted(lost))


class _BatchRunner:
    def __init__(self, store: BatchStore, on_event: OnEvent, is_stopping: Callable[[], bool]) -> None:
        self._store, self._on_event, self._is_stopping = store, on_event, is_stopping
        self._model_failures = 0

    def explain_alone(self, pool: WorkerPool, numbers: list[int]) -> None:
        """Explain images one at a time; those that are lost have failed."""
        lost = self.explain(pool, (self._store.task(number) for number in numbers), one_at_a_time=True)
        for number, reason in lost.items():
            self._store_result(TaskFailed(number, reason))

    def explain(self, pool: WorkerPool, tasks: Iterable[BatchTask], *, one_at_a_time: bool = False) -> dict[int, str]:
        """Explain tasks and store the results; returns the reasons of those that were lost.

        Files are written by threads. A device is fed meanwhile, as long as not too many results wait for their files.
        """
        lost: dict[int, str] = {}
        unstored: deque[tuple[TaskDone | TaskFailed, Future[None] | None]] = deque()

        def until_stopped() -> Iterator[BatchTask]:
            for task in tasks:
                if self._is_stopping():
                    return
                if isinstance(pool, InProcessPool):
                    self._store.start(task.id)
                yield task

        def store_results(keep: int = 0) -> None:
            """Store results in their order, those whose files are written; wait where more than `keep` are left."""
            while unstored and (len(unstored) > keep or unstored[0][1] is None or unstored[0][1].done()):
                result, files = unstored.popleft()
                if files is not None:
                    files.result()
                self._store_result(result)

        waiting = until_stopped()
        if (first := next(waiting, None)) is None:
            return lost  # and no worker is started
        with ThreadPoolExecutor(WRITERS, "writer") as threads:
            try:
                for result in pool.results(chain([first], waiting), one_at_a_time=one_at_a_time):
                    if isinstance(result, TaskLost):
                        lost[result.id] = result.reason
                        continue
                    files = threads.submit(self._store.write, result) if isinstance(result, TaskDone) else None
                    unstored.append((result, files))
                    store_results(keep=MAX_UNSTORED if pool.feeds_device else 0)
                store_results()
            except BaseException:
                with suppress(BecausalError):  # the first one counts
                    store_results()
                raise
        return lost

    def _store_result(self, result: TaskDone | TaskFailed) -> None:
        if isinstance(result, TaskDone):
            self._store.save(result)
        else:
            self._store.fail(result)
        self._on_event(result)
        if isinstance(result, TaskDone) or not result.is_model:
            self._model_failures = 0
            return
        self._model_failures += 1
        if self._model_failures >= MAX_MODEL_FAILURES:
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

    def __str__(self) -> str:
        """E.g. `1,234 of 10,000, 3.1 images/s, 47 min left`."""
        parts = [f"{self.done:,} of {self.total:,}"]
        (then, before), (now, after) = self._marks[0], self._marks[-1]
        if now > then and after > before:
            rate = (after - before) / (now - then)  # images per second
            parts.append(f"{rate:.1f} images/s" if rate >= 1 else f"{60 * rate:.1f} images/min")
            if self.done < self.total:
                parts.append(f"{format_duration((self.total - self.done) / rate)} left")
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
