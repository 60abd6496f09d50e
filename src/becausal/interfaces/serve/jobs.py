"""The jobs of clients: submitted to the queue, waited for, kept for clients that come back, and dropped in time."""

import asyncio
import json
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from becausal.core.contracts import Classifier
from becausal.interfaces.serve.connections import Connections
from becausal.interfaces.serve.guard import RequestRejected
from becausal.interfaces.serve.job_queue import BackgroundJob, JobQueue, QueueFull
from becausal.interfaces.serve.limits import Limits
from becausal.interfaces.serve.tasks import Answer, AnswerTask, CompareTask, ExplainTask, PageResult

POLL_SECONDS = 0.05
LAST_SECONDS = 2.7  # to return the best result so far when the server shuts down

Task = AnswerTask | ExplainTask | CompareTask
ClientJob = BackgroundJob[Answer | PageResult]
Owner = Literal["api", "page"]


@dataclass
class KeptJob:
    """A job that clients know by an id.

    task: to show its progress with, as long as it runs. used: when a client last asked for it. owner: the part of the server
    that keeps it. classifier: its model, to evaluate more with.
    """

    job: ClientJob
    task: Task | None
    used: float
    owner: Owner
    classifier: Classifier | None = None


class ClientJobs:
    """All jobs. Those with a client that waits for the result are not kept; the others are found by their id."""

    def __init__(self, queue: JobQueue, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._queue = queue
        self._limits = limits
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, KeptJob] = OrderedDict()  # least recently used first
        self._uploads: list[tuple[ClientJob, int]] = []  # jobs that have not ended, with the bytes of their images

    @property
    def kept(self) -> tuple[int, int]:
        """How many jobs are kept, and the bytes of their results."""
        with self._lock:
            return len(self._kept), sum(_size(kept.job) for kept in self._kept.values())

    def submit(
        self, task: Task, on_end: Callable[[ClientJob], None] | None = None, *, is_watched: bool = False
    ) -> ClientJob:
        """Append a job to the queue. Raises QueueFull, also where the images of all jobs are too large."""
        with self._lock:
            self._forget_uploads()
            size = len(task.upload.data)
            if self._uploads and size + sum(held for _, held in self._uploads) > self._limits.receiving_bytes:
                raise QueueFull("the queue is full (its images are too large together): try again in a minute")
            job: ClientJob = self._queue.submit(task, on_end, is_watched=is_watched)
            self._uploads.append((job, size))
        return job

    def keep(self, job: ClientJob, owner: Owner = "api", task: Task | None = None) -> str:
        """Keep a job and its result; returns its id, which cannot be guessed. task: what its progress is shown with."""
        name = secrets.token_urlsafe(24)
        with self._lock:
            self._kept[name] = KeptJob(job, task, self._clock(), owner, task.classifier if task is not None else None)
        self.clean_up()
        return name

    def find(self, name: str, owner: Owner = "api") -> KeptJob:
        """The job of an id. Raises RequestRejected if it is unknown or was dropped."""
        with self._lock:
            kept = self._kept.get(name)
            if kept is None or kept.owner != owner:
                minutes = self._limits.idle_seconds / 60
                raise RequestRejected(404, f"there is no such job: results are kept for {minutes:g} minutes")
            self._kept.move_to_end(name)
            kept.used = self._clock()
            kept.task = None if kept.job.ended.is_set() else kept.task
            return kept

    def stop(self, name: str, owner: Owner = "api", *, keep: bool = True) -> ClientJob:
        """Stop a running job, which keeps its best result so far; drop any other. Raises RequestRejected.

        keep: whether the result of a running job is wanted.
        """
        job = self.find(name, owner).job
        job.stop()
        if job.ended.is_set() or not keep:
            with self._lock:
                self._kept.pop(name, None)
        return job

    def clean_up(self) -> None:
        """Drop finished jobs that nobody has asked for, then the least recently used until the limits are met."""
        now, limits = self._clock(), self._limits
        with self._lock:
            self._forget_uploads()
            ended = [name for name, kept in self._kept.items() if kept.job.ended.is_set()]
            held = sum(_size(self._kept[name].job) for name in ended)
            for number, name in enumerate(ended):
                self._kept[name].task = None  # with its image
                too_old = now - self._kept[name].used > limits.idle_seconds
                if too_old or len(ended) - number > limits.results or held > limits.held_bytes:
                    held -= _size(self._kept.pop(name).job)

    def stop_kept(self) -> None:
        """Stop all jobs that no client waits for: their results cannot be fetched any more."""
        with self._lock:
            for kept in self._kept.values():
                kept.job.stop()

    def _forget_uploads(self) -> None:
        """A job that has ended holds no image any more."""
        self._uploads = [(job, size) for job, size in self._uploads if not job.ended.is_set()]

    async def wait(
        self, job: ClientJob, seconds: float, connections: Connections, is_gone: Callable[[], Awaitable[bool]]
    ) -> bool:
        """Wait until a job has ended; False after so many seconds.

        The job of a client that has gone is stopped. When the server shuts down, a job has `closing_seconds` to finish;
        then it is stopped, and its best result so far is waited for, for a moment.
        """
        ends, closes = self._clock() + seconds, float("inf")
        while not job.ended.is_set():
            now = self._clock()
            if connections.is_closing:
                if closes == float("inf"):
                    closes = now + self._limits.closing_seconds
                    self.stop_kept()
                if now >= closes:
                    job.stop(LAST_SECONDS)
            elif await is_gone():
                job.stop()
            elif now >= ends:
                return False
            await asyncio.sleep(POLL_SECONDS)
        return True


def describe_job(name: str, job: ClientJob) -> dict[str, Any]:
    """The state and progress of a job as JSON can hold it, without its result."""
    progress = job.progress
    found: dict[str, Any] = {"id": name, "state": "queued" if job.state == "waiting" else job.state, "calls": progress.calls}
    if job.state == "waiting":
        found["ahead"] = job.ahead
    if progress.status is not None and job.state == "running":
        found |= {"stage": progress.status.stage, "size": progress.status.size, "max_calls": progress.status.max_calls}
    if job.state == "failed":
        found["error"] = job.error
    return found


def write_job(name: str, job: ClientJob) -> bytes:
    """The state of a job as JSON, with its result once it is done."""
    found = describe_job(name, job)
    text, result = json.dumps(found).encode("utf-8"), job.result
    if found["state"] != "done" or not isinstance(result, Answer):
        return text
    return text[:-1] + b', "result": ' + result.body + b"}"


def _size(job: ClientJob) -> int:
    return job.result.held_bytes if job.result is not None else 0
