"""Pools on one machine: this process, or worker processes that may crash without ending the run."""

import os
import signal
from collections.abc import Iterable, Iterator
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
    TaskResult,
    WorkerFailed,
    WorkerReady,
)
from becausal.batch.work import MAX_START_CRASHES, explain_tasks, give_up, open_model, try_open_model
from becausal.core.contracts import AsyncClassifier, Classifier
from becausal.core.errors import ModelError


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
        if self._classifier is None:
            classifier, ready = open_model(self._job)
            self._check(ready)
            self._classifier = classifier
        for part in ([task] for task in tasks) if one_at_a_time else [tasks]:
            yield from explain_tasks(part, self._classifier, self._job, width=1 if one_at_a_time else self._width)

    def isolated(self) -> "ProcessPool":
        """A pool for the same job in one process of its own, for images that may have ended this process before."""
        return ProcessPool(self._job, self._check, workers=1)

    def close(self) -> None:
        """See `WorkerPool`."""


class ProcessPool:
    """A pool of worker processes, each with its own model. A process that dies is replaced, and its tasks are lost.

    The processes are spawned, so a script that uses this class needs `if __name__ == "__main__":`. An executor of
    `concurrent.futures` would not do: a process that dies breaks all of it and takes its exit status along, a task has one
    result at its end, where here images share batches and each is stored as it comes, and workers outlive a killed driver.
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
        for _ in range(self._workers):
            self._start(width)
        start_crashes = 0
        while self._processes:
            for connection in wait(list(self._processes)):
                worker = self._processes[connection]  # type: ignore[index]
                try:
                    message = worker.connection.recv()
                except (EOFError, OSError):
                    start_crashes += not worker.is_ready
                    reason = f"the worker process died, exit status {_describe_status(self._remove(worker))}"
                    if start_crashes >= MAX_START_CRASHES:
                        raise ModelError(f"{reason}, before it had loaded the model: not enough memory?") from None
                    yield from give_up(worker.tasks.values(), reason, one_at_a_time=one_at_a_time)
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
    classifier, message = try_open_model(job)
    connection.send(message)
    while classifier is not None and (first := inbox.get()) is not None:
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
    """The first task and those already queued; a None is put back for the loop in `serve`.

    It never waits for more: the driver sends the next task after a result, and a search would wait for both.
    """
    task: BatchTask | None = first
    while task is not None:
        yield task
        try:
            task = inbox.get_nowait()
        except Empty:
            return
    inbox.put(None)
