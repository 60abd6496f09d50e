"""Searches in threads: a line of them, so many at a time, each watched while it runs and stopped when wished.

Nothing here knows of pages or requests. A job calls its task with a `progress` function, as `becausal.explain` takes
one; what it last said can be read from any thread at any time.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import numpy as np

from becausal.api import Status
from becausal.core.contracts import Saliency
from becausal.core.errors import BecausalError, InputError
from becausal.interfaces.web.limits import Limits

T = TypeVar("T")

Progress = Callable[[Status], None]
Task = Callable[[Progress], T]
State = Literal["waiting", "running", "done", "failed"]


@dataclass(frozen=True)
class Live:
    """What is known of a running job.

    number: grows with every change. calls: of all methods so far. depth: (*grid,), for each pixel log(view / smallest
    sufficient set seen that it was part of), the map as far as it is known.
    """

    number: int = 0
    calls: int = 0
    status: Status | None = None
    depth: Saliency | None = None


class Job(Generic[T]):
    """One search of one client."""

    def __init__(self, task: Task[T], limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self.state: State = "waiting"
        self.live = Live()
        self.result: T | None = None
        self.error = ""
        self.before = 0  # how many jobs in line come first; kept by the desk
        self.ended = threading.Event()
        self._task = task
        self._limits = limits
        self._clock = clock
        self._stopping = False
        self._told = False
        self._begun = 0.0
        self._earlier = 0  # calls of methods that are done
        self._looked = clock()

    def look(self) -> Live:
        """What there is to see now; a job nobody looks at is stopped after a while."""
        self._looked = self._clock()
        return self.live

    def stop(self) -> None:
        """Ask for the best so far; before the search has begun there is none."""
        self._stopping = True

    @property
    def is_stopping(self) -> bool:
        return self._stopping

    def run(self) -> None:
        """Do it, in this thread, and keep what came of it."""
        self._begun = self._clock()
        self.state = "running"
        try:
            if self._must_stop():
                raise KeyboardInterrupt
            self.result = self._task(self._progress)
            self.state = "done"
        except KeyboardInterrupt:
            self._fail("stopped before anything was found")
        except BecausalError as error:
            self._fail(" ".join(str(error).split()))
        except MemoryError:
            self._fail("there was not enough memory for this")
        except Exception as error:  # a library behind a method must not take the server with it
            self._fail(f"unexpected {type(error).__name__}: {' '.join(str(error).split())[:200]}")
        finally:
            self.ended.set()

    def drop(self) -> None:
        """End a job that never began."""
        self._fail("stopped before anything was found")
        self.ended.set()

    def _fail(self, message: str) -> None:
        self.error = message
        self.state = "failed"

    def _must_stop(self) -> bool:
        now = self._clock()
        limits = self._limits
        return self._stopping or now - self._looked > limits.silence or now - self._begun > limits.seconds

    def _progress(self, status: Status) -> None:
        """Take note of a batch that was asked, or end the search: KeyboardInterrupt makes it round off its best so far."""
        if self._must_stop() and not self._told:
            self._told = True
            self._stopping = True
            raise KeyboardInterrupt
        before = self.live
        if before.status is not None and status.calls < before.status.calls:  # the next method of a comparison
            self._earlier += before.status.calls
        depth = before.depth
        if depth is None or depth.shape != status.visible.shape:
            depth = np.zeros(status.visible.shape)
        if before.status is None or status.size != before.status.size:
            depth = depth.copy()  # what was handed out is being drawn
            depth[status.visible] = np.maximum(depth[status.visible], -np.log(max(status.size, 1e-12)))
        self.live = Live(before.number + 1, self._earlier + status.calls, status, depth)


class Desk:
    """The line of jobs: so many run at once, so many wait, in the order they came."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._pool = ThreadPoolExecutor(limits.workers, thread_name_prefix="becausal-search")
        self._lock = threading.Lock()
        self._waiting: list[Job[object]] = []
        self._running: list[Job[object]] = []

    def submit(self, task: Task[T]) -> Job[T]:
        """A job for the task, at the end of the line. Raises InputError where the line is full."""
        job: Job[T] = Job(task, self.limits)
        with self._lock:
            if len(self._waiting) >= self.limits.waiting:
                raise InputError(f"{len(self._waiting)} searches are waiting already: please try again in a minute")
            self._waiting.append(job)  # type: ignore[arg-type]
            self._number()
        self._pool.submit(self._work)
        return job

    def close(self) -> None:
        """Stop everything and wait for it."""
        with self._lock:
            for job in self._waiting:
                job.drop()
            self._waiting.clear()
            for job in self._running:
                job.stop()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _work(self) -> None:
        """One place in the pool takes the first of the line."""
        with self._lock:
            if not self._waiting:
                return
            job = self._waiting.pop(0)
            self._running.append(job)
            self._number()
        try:
            job.run()
        finally:
            with self._lock:
                self._running.remove(job)

    def _number(self) -> None:
        for place, job in enumerate(self._waiting):
            job.before = place
