"""The queue of the server: a few jobs run at once, others wait, and results are kept for clients that come back."""

import asyncio
import math
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from becausal.core.contracts import Classifier
from becausal.core.errors import InputError
from becausal.interfaces.serve.guard import RequestRejected
from becausal.interfaces.serve.jobs import BackgroundJob, JobProcesses, Owner
from becausal.interfaces.serve.limits import Connections, Limits
from becausal.interfaces.serve.tasks import Task

POLL_SECONDS = 0.05
LAST_SECONDS = 2.7  # to return the best result so far when the server shuts down


class QueueFull(InputError):
    """So many jobs are waiting that one more is refused."""


class JobQueue:
    """All jobs, in processes, or else in threads of the server.

    Those with a client that waits for the result are not kept; the others are found by their id.
    """

    def __init__(
        self, limits: Limits, processes: JobProcesses | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits = limits
        self._processes = processes
        self._clock = clock
        self._pool = ThreadPoolExecutor(limits.workers, thread_name_prefix="becausal-search")
        self._lock = threading.Lock()
        self._waiting: list[BackgroundJob] = []
        self._running: list[BackgroundJob] = []
        self._kept: OrderedDict[str, BackgroundJob] = OrderedDict()  # least recently used first

    @property
    def lengths(self) -> tuple[int, int]:
        """How many jobs are waiting, and how many are running."""
        with self._lock:
            self._count_ahead()
            return len(self._waiting), len(self._running)

    @property
    def kept(self) -> tuple[int, int]:
        """How many jobs are kept, and the bytes of their results."""
        with self._lock:
            return len(self._kept), sum(job.held_bytes for job in self._kept.values())

    def start(self) -> None:
        """Start the processes, so that they are ready for the first jobs."""
        if self._processes is not None:
            self._processes.start(self._limits.workers)

    def submit(
        self, task: Task, on_end: Callable[[BackgroundJob], None] | None = None, *, size: int = 0, is_watched: bool = False
    ) -> BackgroundJob:
        """Append a job; raises QueueFull if the queue is full, or if the images of all jobs are too large.

        on_end: called when the job has run. size: bytes of its image. is_watched: whether somebody polls it, and wants it to
        end once nobody does.
        """
        limits = self._limits if is_watched else replace(self._limits, unwatched_seconds=math.inf)
        job = BackgroundJob(task, limits, size=size, on_end=on_end)
        with self._lock:
            self._count_ahead()
            held = [other.size for other in (*self._waiting, *self._running) if not other.ended.is_set()]
            if held and size + sum(held) > limits.receiving_bytes:
                raise QueueFull("the queue is full (its images are too large together): try again in a minute")
            if len(self._waiting) >= limits.waiting:
                raise QueueFull(f"the queue is full ({len(self._waiting)} searches are waiting): try again in a minute")
            self._waiting.append(job)
            self._count_ahead()
        self._pool.submit(self._run_next)
        return job

    def close(self) -> None:
        """End all jobs: at once in processes; in threads, when their functions return."""
        with self._lock:
            for job in (*self._waiting, *self._running):
                job.stop()
            self._waiting.clear()
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

    def keep(self, job: BackgroundJob, owner: Owner = "api", classifier: Classifier | None = None) -> str:
        """Keep a job and its result for a part of the server; returns its id, which cannot be guessed.

        classifier: its model, to evaluate more with.
        """
        name = secrets.token_urlsafe(24)
        with self._lock:
            job.owner, job.classifier, job.used = owner, classifier, self._clock()
            self._kept[name] = job
        self.clean_up()
        return name

    def find(self, name: str, owner: Owner = "api") -> BackgroundJob:
        """The job of an id. Raises RequestRejected if it is unknown or was dropped."""
        with self._lock:
            job = self._kept.get(name)
            if job is None or job.owner != owner:
                minutes = self._limits.idle_seconds / 60
                raise RequestRejected(404, f"there is no such job: results are kept for {minutes:g} minutes")
            self._kept.move_to_end(name)
            job.used = self._clock()
            return job

    def stop(self, name: str, owner: Owner = "api", *, keep: bool = True) -> BackgroundJob:
        """Stop a running job, which keeps its best result so far; drop any other. Raises RequestRejected.

        keep: whether the result of a running job is wanted.
        """
        job = self.find(name, owner)
        job.stop()
        if job.ended.is_set() or not keep:
            with self._lock:
                self._kept.pop(name, None)
        return job

    def clean_up(self) -> None:
        """Drop finished jobs that nobody has asked for, then the least recently used until the limits are met."""
        now, limits = self._clock(), self._limits
        with self._lock:
            ended = {name: job for name, job in self._kept.items() if job.ended.is_set()}
            held = sum(job.held_bytes for job in ended.values())
            for number, (name, job) in enumerate(ended.items()):
                is_too_old = now - job.used > limits.idle_seconds
                if is_too_old or len(ended) - number > limits.results or held > limits.held_bytes:
                    held -= job.held_bytes
                    del self._kept[name]

    async def wait(
        self, job: BackgroundJob, seconds: float, connections: Connections, is_gone: Callable[[], Awaitable[bool]]
    ) -> bool:
        """Wait until a job has ended; False after so many seconds.

        The job of a client that has gone is stopped. When the server shuts down, a job has `closing_seconds` to finish;
        then it is stopped, and its best result so far is waited for, for a moment.
        """
        ends, closes = self._clock() + seconds, math.inf
        while not job.ended.is_set():
            now = self._clock()
            if connections.is_closing:
                if closes == math.inf:
                    closes = now + self._limits.closing_seconds
                    with self._lock:  # nobody can fetch the results of kept jobs any more
                        for kept in self._kept.values():
                            kept.stop()
                if now >= closes:
                    job.stop(LAST_SECONDS)
            elif await is_gone():
                job.stop()
            elif now >= ends:
                return False
            await asyncio.sleep(POLL_SECONDS)
        return True
