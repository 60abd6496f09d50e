"""Pools on one machine: this process, or worker processes that may crash without ending the run."""

import os
import signal
from collections.abc import Iterable, Iterator
from itertools import chain
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from becausal.batch.records import (
    ASSUMED_WIDTH,
    BatchJob,
    BatchTask,
    ModelCheck,
    TaskFailed,
    TaskLost,
    TaskResult,
    WorkerFailed,
    WorkerReady,
)
from becausal.batch.work import MAX_REASON, explain_tasks, open_model
from becausal.core.contracts import AsyncClassifier, Classifier
from becausal.core.errors import BecausalError, ModelError
from becausal.core.text import one_line

MAX_START_CRASHES = 3  # consecutive crashes of workers that had not loaded the model yet


class InProcessPool:
    """A pool that works in this process. The model is loaded for the first task."""

    def __init__(self, job: BatchJob, check: ModelCheck, *, width: int | None = 1) -> None:
        self._job, self._check, self._width = job, check, width
        self._classifier: Classifier | None = None

    @property
    def feeds_device(self) -> bool:
        """See `WorkerPool`."""
        return isinstance(self._classifier, AsyncClassifier) and self._classifier.depth > 0

    def results(self, tasks: Iterable[BatchTask], *, one_at_a_time: bool = False) -> Iterator[TaskResult]:
        """See `WorkerPool`."""
        waiting = iter(tasks)
        first = next(waiting, None)
        if first is None:
            return
        waiting = chain([first], waiting)
        if self._classifier is None:
            classifier, ready = open_model(self._job)
            self._check(ready)
            self._classifier = classifier
        if not one_at_a_time:
            yield from explain_tasks(waiting, self._classifier, self._job, width=self._width)
            return
        for task in waiting:
            yield from explain_tasks([task], self._classifier, self._job, width=1)

    def isolated(self) -> "ProcessPool":
        """A pool for the same job in one process of its own, for images that may have ended this process before."""
        return ProcessPool(self._job, self._check, workers=1)

    def close(self) -> None:
        """See `WorkerPool`."""


class ProcessPool:
    """A pool of worker processes, each with its own model. A process that dies is replaced, and its tasks are lost.

    The processes are spawned, so a script that uses this class needs `if __name__ == "__main__":`.
    """

    feeds_device = False

    def __init__(self, job: BatchJob, check: ModelCheck, *, workers: int, width: int | None = 1) -> None:
        self._job, self._check, self._workers, self._width = job, check, workers, width
        self._processes: dict[Connection[Any, Any], _WorkerProcess] = {}

    def results(self, tasks: Iterable[BatchTask], *, one_at_a_time: bool = False) -> Iterator[TaskResult]:
        """See `WorkerPool`."""
        waiting = iter(tasks)
        width = 1 if one_at_a_time else self._width
        max_tasks = 1 if one_at_a_time else 2 * (self._width or ASSUMED_WIDTH) + 1  # a worker never waits for the driver
        first = next(waiting, None)
        if first is None:
            return
        waiting = chain([first], waiting)
        for _ in range(self._workers):
            self._start(width)
        start_crashes = 0
        while self._processes:
            for connection in wait(list(self._processes)):
                worker = self._processes[connection]  # type: ignore[index]
                try:
                    message = worker.connection.recv()
                except (EOFError, OSError):
                    start_crashes += 0 if worker.is_ready else 1
                    yield from self._handle_crash(worker, start_crashes, one_at_a_time=one_at_a_time)
                    if not worker.is_closing:
                        self._start(width)
                    continue
                match message:
                    case WorkerReady():
                        self._check(message)
                        worker.is_ready, start_crashes = True, 0
                    case WorkerFailed(reason):
                        raise ModelError(reason)
                    case _:
                        del worker.tasks[message.id]
                        yield message
                worker.send_tasks(waiting, max_tasks)
        self.close()

    def close(self) -> None:
        """Kill all workers; the tasks they hold are dropped."""
        for worker in list(self._processes.values()):
            worker.process.kill()
            self._remove(worker)

    def _handle_crash(
        self, worker: "_WorkerProcess", start_crashes: int, *, one_at_a_time: bool
    ) -> Iterator[TaskFailed | TaskLost]:
        """Remove a dead worker and give up its tasks. Raises ModelError when workers keep crashing at the start."""
        reason = f"the worker process died, exit status {_describe_status(self._remove(worker))}"
        if start_crashes >= MAX_START_CRASHES:
            raise ModelError(f"{reason}, before it had loaded the model: not enough memory?") from None
        for task in worker.tasks.values():
            yield TaskFailed(task.id, f"{reason}, with this image alone") if one_at_a_time else TaskLost(task.id, reason)

    def _start(self, width: int | None) -> None:
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(theirs, self._job, width), daemon=True)
        process.start()
        theirs.close()  # so that the death of the process shows as the end of the stream
        self._processes[ours] = _WorkerProcess(process, ours)

    def _remove(self, worker: "_WorkerProcess") -> int | None:
        """Forget a process that has ended; returns its exit status."""
        del self._processes[worker.connection]
        worker.connection.close()
        worker.process.join()
        return worker.process.exitcode


def _describe_status(status: int | None) -> str:
    """E.g. `1`, or `-11 (SIGSEGV)`."""
    names = {-number.value: number.name for number in signal.Signals}
    return f"{status} ({names[status]})" if status in names else str(status)


class _WorkerProcess:
    """A worker process and the tasks it has not answered yet."""

    def __init__(self, process: BaseProcess, connection: "Connection[Any, Any]") -> None:
        self.process = process
        self.connection = connection
        self.tasks: dict[int, BatchTask] = {}
        self.is_ready = False
        self.is_closing = False  # it knows that there are no more tasks

    def send_tasks(self, waiting: Iterator[BatchTask], max_tasks: int) -> None:
        """Send tasks until it holds `max_tasks`, or None when no task is left."""
        try:
            while not self.is_closing and len(self.tasks) < max_tasks:
                task = next(waiting, None)
                if task is None:
                    self.is_closing = True
                    self.connection.send(None)
                else:
                    self.tasks[task.id] = task
                    self.connection.send(task)
        except (BrokenPipeError, ConnectionError):
            return  # the process has died: the next read from the connection reports it


def serve(connection: "Connection[Any, Any]", job: BatchJob, width: int | None) -> None:
    """Main function of a worker process: load the model, report it, explain tasks until None arrives."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the driver decides
    inbox: SimpleQueue[BatchTask | None] = SimpleQueue()
    Thread(target=_receive, args=(connection, inbox), daemon=True).start()
    try:
        classifier, ready = open_model(job)
    except BecausalError as error:
        connection.send(WorkerFailed(one_line(error, MAX_REASON)))
        return
    connection.send(ready)
    while (first := inbox.get()) is not None:
        for result in explain_tasks(_drain(first, inbox), classifier, job, width=width):
            connection.send(result)


def _receive(connection: "Connection[Any, Any]", inbox: "SimpleQueue[BatchTask | None]") -> None:
    """Queue the messages of the driver; when the driver is gone, end the process at once."""
    try:
        while True:
            inbox.put(connection.recv())
    except (EOFError, OSError):
        os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))


def _drain(first: BatchTask, inbox: "SimpleQueue[BatchTask | None]") -> Iterator[BatchTask]:
    """The first task and those already queued; a None is put back for the loop in `serve`."""
    task: BatchTask | None = first
    while task is not None:
        yield task
        try:
            task = inbox.get_nowait()
        except Empty:
            return
    inbox.put(None)
