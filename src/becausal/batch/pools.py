"""Pools of workers: this process, or worker processes that may crash without ending the run; and what all pools share."""

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Protocol

from becausal.batch.settings import BatchJob
from becausal.batch.work import (
    BatchTask,
    ModelCheck,
    TaskFailed,
    TaskLost,
    TaskResult,
    WorkerFailed,
    WorkerReady,
    explain_tasks,
    open_model,
    try_open_model,
)
from becausal.core.contracts import AsyncClassifier, Classifier
from becausal.core.errors import ModelError

ASSUMED_WIDTH = 128  # images a worker is assumed to explain concurrently where it chooses the number itself, on a GPU
MAX_START_CRASHES = 3  # consecutive crashes of workers that had not loaded the model yet, before the run stops


class InProcessPool:
    """A `WorkerPool` that works in this process. The model is loaded for the first task."""

    def __init__(self, job: BatchJob, check: ModelCheck, *, width: int | None = 1) -> None:
        self.job, self.check, self._width = job, check, width
        self._classifier: Classifier | None = None

    @property
    def feeds_device(self) -> bool:
        return isinstance(self._classifier, AsyncClassifier) and self._classifier.depth > 0

    def results(self, tasks: Iterable[BatchTask], *, one_at_a_time: bool = False) -> Iterator[TaskResult]:
        if self._classifier is None:
            classifier, ready = open_model(self.job)
            self.check(ready)
            self._classifier = classifier
        for part in ([task] for task in tasks) if one_at_a_time else [tasks]:
            yield from explain_tasks(part, self._classifier, self.job, width=1 if one_at_a_time else self._width)

    def close(self) -> None:
        pass


class Carrier(Protocol):
    """How tasks travel to workers, and messages back. A worker is any hashable object that stands for it."""

    def start(self, width: int | None) -> Any:
        """Start a worker that explains `width` images at a time."""

    def send(self, worker: Any, tasks: list[BatchTask]) -> None:
        """Give a worker tasks; if it has died, `messages` says so."""

    def messages(self) -> Iterator[tuple[Any, WorkerReady | WorkerFailed | TaskResult | None]]:
        """What workers report, as it comes: first that they are ready; None for nothing new."""

    def end(self, worker: Any) -> None:
        """A worker that holds no task is not needed any more."""

    def stop(self) -> None:
        """End all workers; what they hold is dropped."""


def share_out(
    carrier: Carrier,
    chunks: Iterator[list[BatchTask]],
    check: ModelCheck,
    *,
    workers: int,
    width: int | None,
    ahead: int,
    one_at_a_time: bool,
) -> Iterator[TaskResult]:
    """Explain chunks of tasks with workers that may die: they are replaced, and the tasks they held are lost.

    ahead: how many chunks a worker holds at a time, so that it never waits for the driver. one_at_a_time: a task was alone
    in its worker; if that died, the task killed it, and has failed.
    """
    held: dict[Any, list[dict[int, BatchTask]]] = {carrier.start(width): [] for _ in range(workers)}
    starting, crashes, is_over = set(held), 0, False
    for worker, message in carrier.messages():
        match message:
            case WorkerReady():
                check(message)
                starting.discard(worker)
                crashes = 0
            case WorkerFailed(reason, has_died=False):
                raise ModelError(reason)
            case WorkerFailed(reason):
                crashes += worker in starting
                if crashes >= MAX_START_CRASHES:
                    raise ModelError(f"{reason}, before it had loaded the model: not enough memory?")
                for number in [number for chunk in held.pop(worker) for number in chunk]:
                    alone = TaskFailed(number, f"{reason}, with this image alone")
                    yield alone if one_at_a_time else TaskLost(number, reason)
                if not is_over:
                    starting.add(new := carrier.start(width))
                    held[new] = []
            case None:
                pass
            case _:
                for chunk in held[worker]:
                    chunk.pop(message.id, None)
                held[worker] = [chunk for chunk in held[worker] if chunk]
                yield message
        while worker in held and not is_over and len(held[worker]) < ahead:
            tasks = next(chunks, [])
            is_over = not tasks  # known only now: tasks may be read from the index as they are needed
            if tasks:
                held[worker].append({task.id: task for task in tasks})
                carrier.send(worker, tasks)
        if is_over and not held.get(worker, True):
            del held[worker]
            carrier.end(worker)
        if is_over and not any(held.values()):
            break  # workers that are still starting are not waited for
    carrier.stop()


class ProcessPool:
    """A `WorkerPool` of processes, each with its own model, and the `Carrier` of their tasks.

    The processes are spawned, so a script that uses this class needs `if __name__ == "__main__":`. An executor of
    `concurrent.futures` would not do: a process that dies breaks all of it and takes its exit status along, a task has one
    result at its end, where here images share batches and each is stored as it comes, and workers outlive a killed driver.
    """

    feeds_device = False

    def __init__(self, job: BatchJob, check: ModelCheck, *, workers: int, width: int | None = 1) -> None:
        self._job, self._check, self._workers, self._width = job, check, workers, width
        self._processes: dict[Connection[Any, Any], BaseProcess] = {}
        self._ended: dict[Connection[Any, Any], BaseProcess] = {}  # they have been told that there are no more tasks

    def results(self, tasks: Iterable[BatchTask], *, one_at_a_time: bool = False) -> Iterator[TaskResult]:
        width = 1 if one_at_a_time else self._width
        return share_out(
            self,
            ([task] for task in tasks),
            self._check,
            workers=self._workers,
            width=width,
            ahead=1 if one_at_a_time else 2 * (width or ASSUMED_WIDTH) + 1,
            one_at_a_time=one_at_a_time,
        )

    def start(self, width: int | None) -> "Connection[Any, Any]":
        context = get_context("spawn")  # a forked process would share threads, locks and the GPU of this one
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(theirs, self._job, width), daemon=True)
        process.start()
        theirs.close()  # so that the death of the process shows as the end of the stream
        self._processes[ours] = process
        return ours

    def send(self, worker: "Connection[Any, Any]", tasks: list[BatchTask]) -> None:
        with suppress(BrokenPipeError, ConnectionError):  # if it has died, the next read from the connection says so
            for task in tasks:
                worker.send(task)

    def messages(self) -> Iterator[tuple["Connection[Any, Any]", Any]]:
        while self._processes:
            for ready in wait(list(self._processes)):
                worker: Connection[Any, Any] = ready  # type: ignore[assignment]
                try:
                    message = worker.recv()
                except (EOFError, OSError):
                    process = self._processes.pop(worker)
                    worker.close()
                    process.join()
                    names = {-number.value: f" ({number.name})" for number in signal.Signals}
                    status = f"{process.exitcode}{names.get(process.exitcode or 0, '')}"  # e.g. 1, or -11 (SIGSEGV)
                    message = WorkerFailed(f"the worker process died, exit status {status}", has_died=True)
                yield worker, message

    def end(self, worker: "Connection[Any, Any]") -> None:
        """See `Carrier`. The process ends in order; a closed connection would kill it."""
        with suppress(BrokenPipeError, ConnectionError):  # it may have died since, and held no task
            worker.send(None)
        self._ended[worker] = self._processes.pop(worker)

    def stop(self) -> None:
        """See `Carrier`: kill all workers that have not been told to end."""
        for process in self._processes.values():
            process.kill()
        for worker, process in (self._processes | self._ended).items():
            process.join()
            worker.close()
        self._processes.clear()
        self._ended.clear()

    close = stop


def serve(connection: "Connection[Any, Any]", job: BatchJob, width: int | None) -> None:
    """Main function of a worker process: load the model, report it, explain tasks until None arrives."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the driver decides
    inbox: SimpleQueue[BatchTask | None] = SimpleQueue()

    def receive() -> None:
        try:
            while True:
                inbox.put(connection.recv())
        except (EOFError, OSError):  # the driver is gone
            os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))

    def queued(task: BatchTask | None) -> Iterator[BatchTask]:
        """A task and those that are there already; the None behind the last one is put back for the loop below."""
        while task is not None:
            yield task
            try:  # never waits: the driver sends the next task after a result, and a search would wait for both
                task = inbox.get_nowait()
            except Empty:
                return
        inbox.put(None)

    Thread(target=receive, daemon=True).start()
    classifier, message = try_open_model(job)
    connection.send(message)
    while classifier is not None and (first := inbox.get()) is not None:
        for result in explain_tasks(queued(first), classifier, job, width=width):
            connection.send(result)
