"""A queue of background jobs: a few run at once, clients poll their progress and can stop them.

This module knows nothing about pages or explanations. A job calls its function with a progress callback, as
`becausal.explain` takes one; the latest progress can be read from any thread. It runs in a process (`job_processes`), where
it can be ended, or in a thread of the server, where it ends when its function returns.
"""

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from becausal.api import Status
from becausal.core.errors import InputError
from becausal.interfaces.serve.job_processes import STOPPED, JobProcesses, describe_failure
from becausal.interfaces.serve.limits import Limits

T = TypeVar("T")

ProgressCallback = Callable[[Status], None]
JobFunction = Callable[[ProgressCallback], T]
JobState = Literal["waiting", "running", "done", "failed"]


@dataclass(frozen=True)
class JobProgress:
    """How far a job is.

    updates: number of updates so far. calls: model calls so far, of all methods. depth: (*grid,), for each pixel
    log(view / smallest sufficient set seen that contains it), a preliminary map.
    """

    updates: int = 0
    calls: int = 0
    status: Status | None = None
    depth: NDArray[np.float32] | None = None


class QueueFull(InputError):
    """So many jobs are waiting that one more is refused."""


class BackgroundJob(Generic[T]):
    """One search of one client."""

    def __init__(
        self,
        function: JobFunction[T],
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
        on_end: "Callable[[BackgroundJob[T]], None] | None" = None,
    ) -> None:
        self.state: JobState = "waiting"
        self.progress = JobProgress()
        self.result: T | None = None
        self.error = ""
        self.failure: type[Exception] | None = None  # the kind of the error; None where the job was stopped
        self.ahead = 0  # jobs before this one in the queue; set by the queue
        self.ended = threading.Event()
        self.is_stopping = False
        self._function: JobFunction[T] | None = function
        self._limits = limits
        self._clock = clock
        self._on_end = on_end
        self._was_interrupted = False
        self._started = 0.0
        self._grace = limits.grace_seconds
        self._stopped: float | None = None  # when it was first seen to have to stop
        self._earlier_calls = 0  # of the methods that have finished
        self._polled = clock()
        self._lock = threading.Lock()

    def poll(self) -> JobProgress:
        """The current progress; a job that is not polled for a while is stopped."""
        self._polled = self._clock()
        return self.progress

    @property
    def seconds(self) -> float:
        """How long it has been running."""
        return self._clock() - self._started

    def stop(self, grace: float | None = None) -> None:
        """Ask for the best result so far; a job that has not started ends at once without one.

        grace: seconds for that, if less than usual; a job in a process is then ended.
        """
        self._grace = self._grace if grace is None else min(grace, self._grace)
        self.is_stopping = True
        with self._lock:
            if self.state == "waiting":
                self.cancel()

    def run(self, processes: JobProcesses | None = None) -> None:
        """Run the job and keep its result or error; what only the search needs is dropped at the end.

        processes: where it runs; None for this thread.
        """
        with self._lock:
            if self.state != "waiting":
                return
            self.state = "running"
        function, self._function = self._function, None
        self._started = self._clock()
        try:
            if self.find_reason_to_stop() is not None or function is None:
                raise KeyboardInterrupt
            self.result = function(self._update) if processes is None else processes.run(function, self)
            self.state = "done"
        except (Exception, KeyboardInterrupt) as error:  # an error in a library must not end the server
            failed = describe_failure(error)
            self._fail(failed.message, failed.failure)
        finally:
            self.progress = JobProgress(self.progress.updates, self.progress.calls)
            if self._on_end is not None:
                self._on_end(self)
            self.ended.set()

    def cancel(self) -> None:
        """End a job that has not started."""
        self._function = None
        self._fail(STOPPED)
        self.ended.set()

    def _fail(self, message: str, failure: type[Exception] | None = None) -> None:
        self.error = message
        self.failure = failure
        self.state = "failed"

    def find_reason_to_stop(self) -> str | None:
        """Why the job must stop, as a note for its result, empty where a client wants it; None if it may go on."""
        now, limits, found = self._clock(), self._limits, None
        if self.is_stopping or now - self._polled > limits.unwatched_seconds:
            found = ""
        elif now - self._started > limits.seconds:
            found = f"stopped at this server's limit of {limits.seconds:g} seconds"
        if found is not None:
            self.is_stopping = True
            self._stopped = self._stopped or now
        return found

    def is_overdue(self) -> bool:
        """Whether the job has not ended in the seconds it has for that, once it must stop."""
        return self._stopped is not None and self._clock() - self._stopped > self._grace

    def _update(self, status: Status) -> None:
        """Record the progress, or raise KeyboardInterrupt once, upon which a search returns its best result so far."""
        if not self._was_interrupted and (note := self.find_reason_to_stop()) is not None:
            self._was_interrupted = True
            raise KeyboardInterrupt(note)
        self.record(status)

    def record(self, status: Status) -> None:
        """Take note of the progress."""
        before = self.progress
        if before.status is not None and status.calls < before.status.calls:  # the next method of a comparison
            self._earlier_calls += before.status.calls
        depth = before.depth
        if depth is None or depth.shape != status.visible.shape:
            depth = np.zeros(status.visible.shape, np.float32)
        if before.status is None or status.size != before.status.size:
            depth = depth.copy()  # another thread may be drawing the previous one
            depth[status.visible] = np.maximum(depth[status.visible], -np.log(max(status.size, 1e-12)))
        self.progress = JobProgress(before.updates + 1, self._earlier_calls + status.calls, status, depth)


class JobQueue:
    """Runs jobs in the order of submission, `limits.workers` at once, in processes, or else in threads of the server."""

    def __init__(self, limits: Limits, processes: JobProcesses | None = None) -> None:
        self.limits = limits
        self._processes = processes
        self._pool = ThreadPoolExecutor(limits.workers, thread_name_prefix="becausal-search")
        self._lock = threading.Lock()
        self._waiting: list[BackgroundJob[object]] = []
        self._running: list[BackgroundJob[object]] = []

    @property
    def lengths(self) -> tuple[int, int]:
        """How many jobs are waiting, and how many are running."""
        with self._lock:
            self._count_ahead()
            return len(self._waiting), len(self._running)

    def start(self) -> None:
        """Start the processes, so that they are ready for the first jobs."""
        if self._processes is not None:
            self._processes.start(self.limits.workers)

    def submit(
        self,
        function: JobFunction[T],
        on_end: Callable[[BackgroundJob[T]], None] | None = None,
        *,
        is_watched: bool = False,
    ) -> BackgroundJob[T]:
        """Append a job; raises QueueFull if the queue is full.

        on_end: called when the job has run. is_watched: whether somebody polls it, and wants it to end once nobody does.
        """
        limits = self.limits if is_watched else replace(self.limits, unwatched_seconds=math.inf)
        job: BackgroundJob[T] = BackgroundJob(function, limits, on_end=on_end)
        with self._lock:
            self._count_ahead()
            if len(self._waiting) >= self.limits.waiting:
                raise QueueFull(f"the queue is full ({len(self._waiting)} searches are waiting): try again in a minute")
            self._waiting.append(job)  # type: ignore[arg-type]
            self._count_ahead()
        self._pool.submit(self._run_next)
        return job

    def close(self) -> None:
        """End all jobs: at once in processes; in threads, when their functions return."""
        with self._lock:
            for job in self._waiting:
                job.cancel()
            self._waiting.clear()
            for job in self._running:
                job.stop()
        if self._processes is not None:
            self._processes.close()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _run_next(self) -> None:
        with self._lock:
            if not self._waiting:
                return
            job = self._waiting.pop(0)
            self._running.append(job)
            self._count_ahead()
        try:
            job.run(self._processes)
        finally:
            with self._lock:
                self._running.remove(job)

    def _count_ahead(self) -> None:
        """Remove the jobs that were stopped while they waited, and number the others."""
        self._waiting = [job for job in self._waiting if not job.ended.is_set()]
        for ahead, job in enumerate(self._waiting):
            job.ahead = ahead
