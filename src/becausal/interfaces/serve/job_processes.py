"""Jobs in processes of their own, for the page and for the API: a process can be ended, whatever its job is doing.

There is one process for each job that may run at once. Each loads the models as the server has loaded them, when it starts,
and works on one job after the other. A job that is stopped has some seconds to return its best result so far; then its
process is killed and replaced by a new one. This module is both sides of it: `serve_jobs` is what runs in a process.
"""

import atexit
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from multiprocessing import get_context
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, Protocol

from becausal.api import Status
from becausal.core.contracts import Classifier
from becausal.core.errors import AnswerError, BecausalError, ModelError
from becausal.core.text import one_line
from becausal.interfaces.serve.listening import return_memory
from becausal.models import Loading, open_model

POLL_SECONDS = 0.05
STATUS_SECONDS = 0.1  # between two reports of progress
STOPPED = "stopped before a result was found"
_SIGNALS = (signal.SIGINT, signal.SIGTERM)  # they reach all processes of the server, which decides what to do


class WatchedJob(Protocol):
    """A job that runs in a process, as seen from the server."""

    def record(self, status: Status) -> None:
        """Take note of its progress."""

    def find_reason_to_stop(self) -> str | None:
        """Why it must stop, as a note for its result, which may be empty; None as long as it may go on."""

    def is_overdue(self) -> bool:
        """Whether it was asked to stop so long ago that it is not waited for any more."""


class JobFailed(Exception):
    """A job ended without a result. failure: the kind of the error; None where it was stopped."""

    def __init__(self, message: str, failure: type[Exception] | None) -> None:
        super().__init__(message)
        self.message = message
        self.failure = failure


def describe_failure(error: BaseException) -> JobFailed:
    """What clients are told about an error."""
    if isinstance(error, JobFailed):
        return error
    if isinstance(error, KeyboardInterrupt):
        return JobFailed(": ".join(filter(None, (str(error), STOPPED))), None)
    if isinstance(error, BecausalError):
        return JobFailed(one_line(error), type(error))
    if isinstance(error, MemoryError):
        return JobFailed("not enough memory", MemoryError)
    return JobFailed(f"unexpected {type(error).__name__}: {one_line(error, 200)}", Exception)


@dataclass(frozen=True)
class ModelSource:
    """How a model of the server is loaded."""

    spec: str
    loading: Loading

    def open(self) -> Classifier:
        """Load it; raises BecausalError where that fails."""
        return open_model(self.spec, self.loading)


@dataclass(frozen=True)
class _Stop:
    """To a process: return the best result so far. note: why, for the result."""

    note: str


class _JobPickler(pickle.Pickler):
    """Writes a job; in place of a model of the server its name is written, and the hash of its files."""

    def __init__(self, file: BytesIO, names: Mapping[int, tuple[str, str | None]]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._names = names

    def persistent_id(self, obj: Any) -> tuple[str, str | None] | None:
        return self._names.get(id(obj))


class _JobUnpickler(pickle.Unpickler):
    """Reads a job, with the models of this process."""

    def __init__(self, file: BytesIO, find: Callable[[str, str | None], Classifier]) -> None:
        super().__init__(file)
        self._find = find

    def persistent_load(self, pid: tuple[str, str | None]) -> Classifier:
        return self._find(*pid)


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

    def run(self, task: Any, job: WatchedJob) -> Any:
        """The result of a task, called with a progress callback in a process.

        Raises:
            JobFailed: The task has failed, or its process was killed after the job was asked to stop.
        """
        buffer = BytesIO()
        _JobPickler(buffer, self._names).dump(task)
        with self._lock:
            process = self._idle.pop() if self._idle else None
        process = process or self._start()
        try:
            result = process.work(buffer.getvalue(), job)
        except (EOFError, OSError):  # it is gone
            self._end(process)
            if self._is_closed:
                raise JobFailed(STOPPED, None) from None
            message = "the process of the search has ended unexpectedly: not enough memory?"
            raise JobFailed(message, AnswerError) from None
        except KeyboardInterrupt:
            self._end(process)
            raise
        except BaseException:
            self._give_back(process)
            raise
        self._give_back(process)
        return result

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
        with self._lock:
            if not self._is_closed:
                self._idle.append(process)
                return
        process.kill()

    def _end(self, process: "_JobProcess") -> None:
        """Kill a process, and start another one for the next job."""
        process.kill()
        with self._lock:
            self._all.discard(process)
        if not self._is_closed:
            self._give_back(self._start())


class _JobProcess:
    """One process, as seen from the server."""

    def __init__(self, sources: Mapping[str, ModelSource]) -> None:
        context = get_context("spawn")
        self._lock = threading.Lock()
        self._line, theirs = context.Pipe()
        self._process = context.Process(target=serve_jobs, args=(theirs, sources), daemon=True)
        with _without_signals():
            self._process.start()
        theirs.close()  # so that the end of the process shows as the end of the stream

    def work(self, data: bytes, job: WatchedJob) -> Any:
        """The result of a pickled task. Raises JobFailed, KeyboardInterrupt where it is overdue, EOFError or OSError."""
        self._line.send(data)
        note: str | None = None
        while True:
            if note is None and (note := job.find_reason_to_stop()) is not None:
                self._line.send(_Stop(note))
            if note is not None and job.is_overdue():
                raise KeyboardInterrupt(note)
            if not self._line.poll(POLL_SECONDS):
                continue
            match self._line.recv():
                case Status() as status:
                    job.record(status)
                case "failed", message, failure:
                    raise JobFailed(message, failure)
                case "done", result:
                    return result

    def kill(self) -> None:
        """End it at once; more than one thread may want to."""
        with self._lock:
            self._process.kill()
            self._process.join()


@contextmanager
def _without_signals() -> Iterator[None]:
    """Processes that are started here begin with these signals blocked: Ctrl-C would end one before it can ignore it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def serve_jobs(line: "Connection[Any, Any]", sources: Mapping[str, ModelSource]) -> None:
    """Main function of a process: load the models, then work on jobs until the server ends."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    server = _Server(line)
    models: dict[str, Classifier] = {}

    def find(name: str, sha256: str | None) -> Classifier:
        if name not in models:
            models[name] = sources[name].open()
        if models[name].info.sha256 != sha256:
            raise ModelError(f"the files of the model {name} have changed since the server was started: restart the server")
        return models[name]

    for name, source in sources.items():
        with suppress(Exception):  # the job that needs it is told
            models[name] = source.open()
    while True:
        server.work(find)
        return_memory()


class _Server:
    """The server, as seen from one of its processes."""

    def __init__(self, line: "Connection[Any, Any]") -> None:
        self._jobs: SimpleQueue[bytes] = SimpleQueue()
        self._line = line
        self._stop: _Stop | None = None
        self._sent = 0.0
        self._unsent: Status | None = None
        threading.Thread(target=self._listen, daemon=True).start()

    def work(self, find: Callable[[str, str | None], Classifier]) -> None:
        """Wait for a job and send its result, or why there is none. find: a model by its name and the hash of its files."""
        data = self._jobs.get()
        try:
            result = _JobUnpickler(BytesIO(data), find).load()(self._report)
            self._send_status()
            self._line.send(("done", result))
        except BaseException as error:  # a model may raise anything
            failed = describe_failure(error)
            self._send_status()
            self._line.send(("failed", failed.message, failed.failure))

    def _report(self, status: Status) -> None:
        """Send the progress of the job from time to time; raises KeyboardInterrupt once where it has to stop."""
        self._unsent = status
        if (stop := self._stop) is not None:
            self._stop = None
            raise KeyboardInterrupt(stop.note)
        if time.monotonic() - self._sent > STATUS_SECONDS:
            self._sent = time.monotonic()
            self._send_status()

    def _send_status(self) -> None:
        status, self._unsent = self._unsent, None
        if status is not None:
            self._line.send(status)

    def _listen(self) -> None:
        """Receive jobs and stops; when the server is gone, end the process at once."""
        try:
            while True:
                message = self._line.recv()
                self._stop = message if isinstance(message, _Stop) else None  # one for the last job may come too late
                if self._stop is None:
                    self._jobs.put(message)
        except (EOFError, OSError):
            os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
