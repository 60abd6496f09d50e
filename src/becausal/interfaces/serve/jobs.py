"""A job, which is one search of one client, and the process of its own that it runs in, which can be ended at any time.

Clients poll the progress of a job and can stop it. There is one process for each job that may run at once. Each loads the
models as the server has loaded them, when it starts, and works on one job after the other. A job that is stopped has some
seconds to return its best result so far; then its process is killed and replaced by a new one. This module is both sides of
it: `serve_jobs` is what runs in a process. Tests, and servers without sources of their models, run jobs in threads.
"""

import atexit
import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from becausal.api import Status
from becausal.core.contracts import Classifier
from becausal.core.errors import AnswerError, BecausalError, ModelError
from becausal.core.text import one_line
from becausal.interfaces.serve.limits import Limits
from becausal.interfaces.serve.tasks import JobResult, Task
from becausal.models import Loading, open_model

POLL_SECONDS = 0.05
STATUS_SECONDS = 0.1  # between two reports of progress
STOPPED = "stopped before a result was found"
Owner = Literal["api", "page"]
_SIGNALS = (signal.SIGINT, signal.SIGTERM)  # they reach all processes of the server, which decides what to do


class JobFailed(Exception):
    """A job ended without a result: a message, and the kind of the error, None where the job was stopped."""


def describe_failure(error: BaseException) -> tuple[str, type[Exception] | None]:
    """What clients are told about an error, and its kind; None where the job was stopped."""
    if isinstance(error, JobFailed):
        message, failure = error.args
        return message, failure
    if isinstance(error, KeyboardInterrupt):
        return ": ".join(filter(None, (str(error), STOPPED))), None
    if isinstance(error, BecausalError):
        return one_line(error), type(error)
    if isinstance(error, MemoryError):
        return "not enough memory", MemoryError
    return f"unexpected {type(error).__name__}: {one_line(error, 200)}", Exception


def return_memory() -> None:
    """Give freed memory back to the system; the C library would keep most of it for later. Only with glibc."""
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


@dataclass(frozen=True)
class JobProgress:
    """How far a job is."""

    updates: int = 0
    calls: int = 0  # of the model, in all methods
    status: Status | None = None
    #: (*grid,), for each pixel log(view / smallest sufficient set seen that contains it), a preliminary map.
    depth: NDArray[np.float32] | None = None


class BackgroundJob:
    """One search of one client. size: bytes of its image. on_end: called when it has run."""

    def __init__(
        self,
        task: Task,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
        *,
        size: int = 0,
        on_end: "Callable[[BackgroundJob], None] | None" = None,
    ) -> None:
        self.state: Literal["waiting", "running", "done", "failed"] = "waiting"
        self.progress = JobProgress()
        self.result: JobResult | None = None
        self.error = ""
        self.failure: type[Exception] | None = None  # the kind of the error; None where the job was stopped
        self.ahead = 0  # jobs before this one in the queue; set by the queue
        self.ended = threading.Event()
        self.is_stopping = False
        self.task: Task | None = task  # with its image; None once the job has ended
        self.size = size
        self.owner: Owner | None = None  # the part of the server that keeps it for clients who know its id
        self.classifier: Classifier | None = None  # its model, for what is kept
        self.used = 0.0  # when a client last asked for it
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

    @property
    def held_bytes(self) -> int:
        """Memory of its result."""
        return len(self.result.data) if self.result is not None else 0

    def stop(self, grace: float | None = None) -> None:
        """Ask for the best result so far; a job that has not started ends at once without one.

        grace: seconds for that, if less than usual; a job in a process is then ended.
        """
        self._grace = self._grace if grace is None else min(grace, self._grace)
        self.is_stopping = True
        with self._lock:
            if self.state == "waiting":
                self.task = None
                self.state, self.error = "failed", STOPPED
                self.ended.set()

    def run(self, processes: "JobProcesses | None" = None) -> None:
        """Run the job, in a process or in this thread; keeps its result or error, and nothing that only the search needs."""
        with self._lock:
            if self.state != "waiting":
                return
            self.state = "running"
        self._started = self._clock()
        try:
            if self.find_reason_to_stop() is not None or self.task is None:
                raise KeyboardInterrupt
            self.result = self.task(self._update) if processes is None else processes.run(self.task, self)
            self.state = "done"
        except (Exception, KeyboardInterrupt) as error:  # an error in a library must not end the server
            self.error, self.failure = describe_failure(error)
            self.state = "failed"
        finally:
            self.task, self.progress = None, JobProgress(self.progress.updates, self.progress.calls)
            if self._on_end is not None:
                self._on_end(self)
            self.ended.set()

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


# ---------------------------------------------------------------- processes, as seen from the server


@dataclass(frozen=True)
class ModelSource:
    """How a model of the server is loaded."""

    spec: str
    loading: Loading

    def open(self) -> Classifier:
        """Load it; raises BecausalError where that fails."""
        return open_model(self.spec, self.loading)


class JobProcesses:
    """The processes of a server. models: as tasks refer to them. sources: how each of them is loaded, by the same names."""

    def __init__(self, models: Mapping[str, Classifier], sources: Mapping[str, ModelSource]) -> None:
        self._names = {id(classifier): (name, classifier.info.sha256) for name, classifier in models.items()}
        self._sources = dict(sources)
        self._lock = threading.Lock()
        self._idle: list[_JobProcess] = []
        self._all: set[_JobProcess] = set()
        self._is_closed = False
        atexit.register(self.close)  # the end of the server waits for its processes

    def start(self, count: int) -> None:
        """Start processes, so that the first jobs do not wait for the models."""
        for _ in range(count):
            self._give_back(self._start())

    def run(self, task: Any, job: BackgroundJob) -> JobResult:
        """The result of a task in a process, with that process's copy of its classifier.

        Raises JobFailed: the task has failed, or its process was killed after the job was asked to stop.
        """
        name, sha256 = self._names[id(task.classifier)]
        with self._lock:
            process = self._idle.pop() if self._idle else None
        process = process or self._start()
        try:
            return process.work((name, sha256, replace(task, classifier=None)), job)
        except KeyboardInterrupt:  # it is overdue
            process.kill()
            raise
        except (EOFError, OSError):  # it is gone
            process.kill()
            if self._is_closed:
                raise JobFailed(STOPPED, None) from None
            message = "the process of the search has ended unexpectedly: not enough memory?"
            raise JobFailed(message, AnswerError) from None
        finally:
            self._give_back(process)

    def close(self) -> None:
        """Kill all processes; the jobs in them fail."""
        with self._lock:
            self._is_closed = True
            processes, self._all, self._idle = self._all, set(), []
        for process in processes:
            process.kill()
        atexit.unregister(self.close)

    def _start(self) -> "_JobProcess":
        process = _JobProcess(self._sources)
        with self._lock:
            self._all.add(process)
        return process

    def _give_back(self, process: "_JobProcess") -> None:
        """Keep a process for the next job, or another one where it has ended."""
        if not process.is_alive() and not self._is_closed:
            with self._lock:
                self._all.discard(process)
            process = self._start()
        with self._lock:
            if not self._is_closed:
                self._idle.append(process)
                return
        process.kill()


class _JobProcess:
    """One process."""

    def __init__(self, sources: Mapping[str, ModelSource]) -> None:
        context = get_context("spawn")
        self._lock = threading.Lock()
        self._line, theirs = context.Pipe()
        self._process = context.Process(target=serve_jobs, args=(theirs, sources), daemon=True)
        can_block = hasattr(signal, "pthread_sigmask")
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS) if can_block else None
        try:
            self._process.start()  # with these signals blocked: Ctrl-C would end it before it can ignore it
        finally:
            if before is not None:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()  # so that the end of the process shows as the end of the stream

    def work(self, ordered: tuple[str, str | None, Any], job: BackgroundJob) -> JobResult:
        """The result of a task. Raises JobFailed, KeyboardInterrupt where it is overdue, EOFError or OSError."""
        self._line.send(ordered)
        note: str | None = None
        while True:
            if note is None and (note := job.find_reason_to_stop()) is not None:
                self._line.send(note)
            if note is not None and job.is_overdue():
                raise KeyboardInterrupt(note)
            if not self._line.poll(POLL_SECONDS):
                continue
            match self._line.recv():
                case Status() as status:
                    job.record(status)
                case "failed", *failure:
                    raise JobFailed(*failure)
                case "done", result:
                    return result  # type: ignore[no-any-return]

    def is_alive(self) -> bool:
        """Whether it can take another job."""
        with self._lock:
            return self._process.is_alive()

    def kill(self) -> None:
        """End it at once; more than one thread may want to."""
        with self._lock:
            self._process.kill()
            self._process.join()


# ---------------------------------------------------------------- inside of a process


def serve_jobs(line: "Connection[Any, Any]", sources: Mapping[str, ModelSource]) -> None:
    """Main function of a process: load the models, then work on jobs until the server ends."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    server = _Server(line)
    models: dict[str, Classifier] = {}
    for name, source in sources.items():
        with suppress(Exception):  # the job that needs it is told
            models[name] = source.open()
    while True:
        name, sha256, task = server.jobs.get()
        reply: tuple[Any, ...]
        try:
            if name not in models:
                models[name] = sources[name].open()
            if models[name].info.sha256 != sha256:
                raise ModelError(
                    f"the files of the model {name} have changed since the server was started: restart the server"
                )
            reply = "done", replace(task, classifier=models[name])(server.report)
        except BaseException as error:  # a model may raise anything
            reply = "failed", *describe_failure(error)
        server.send_status()
        line.send(reply)
        del task, reply  # an image and a result, while the next job is waited for
        return_memory()


class _Server:
    """The server, as seen from one of its processes: it sends jobs, and text, why a job must stop."""

    def __init__(self, line: "Connection[Any, Any]") -> None:
        self.jobs: SimpleQueue[tuple[str, str | None, Any]] = SimpleQueue()  # model, hash of its files, and task
        self._line = line
        self._stop: str | None = None
        self._sent = 0.0
        self._unsent: Status | None = None
        threading.Thread(target=self._listen, daemon=True).start()

    def report(self, status: Status) -> None:
        """Send the progress of the job from time to time; raises KeyboardInterrupt once where it has to stop."""
        self._unsent = status
        if (note := self._stop) is not None:
            self._stop = None
            raise KeyboardInterrupt(note)
        if time.monotonic() - self._sent > STATUS_SECONDS:
            self._sent = time.monotonic()
            self.send_status()

    def send_status(self) -> None:
        """Send the last progress, unless it was sent."""
        status, self._unsent = self._unsent, None
        if status is not None:
            self._line.send(status)

    def _listen(self) -> None:
        """Receive jobs and stops; when the server is gone, end the process at once."""
        try:
            while True:
                message = self._line.recv()
                self._stop = message if isinstance(message, str) else None  # one for the last job may come too late
                if self._stop is None:
                    self.jobs.put(message)
        except (EOFError, OSError):
            os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
