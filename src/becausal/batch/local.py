"""Pools on one machine: this process, or worker processes that can die without harm."""

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

from becausal.batch.records import NATURAL, Broken, Check, Failed, Hello, Job, Lost, Result, Task
from becausal.batch.work import one_line, open_model, work
from becausal.core.errors import BecausalError, ModelError

STARTS = 3  # how often in a row a worker may die before it has loaded the model


class Single:
    """A pool of this process alone."""

    def __init__(self, job: Job, check: Check, *, width: int | None = 1) -> None:
        self._job, self._width = job, width
        self._classifier, hello = open_model(job)
        check(hello)

    def answers(self, tasks: Iterable[Task], *, alone: bool = False) -> Iterator[Result]:
        """See `Pool`."""
        if not alone:
            yield from work(tasks, self._classifier, self._job, width=self._width)
            return
        for task in tasks:
            yield from work([task], self._classifier, self._job, width=1)

    def close(self) -> None:
        """See `Pool`."""


class Processes:
    """A pool of worker processes, each with its own model. One that dies is replaced, and what it held is Lost.

    The processes are spawned, so a script that uses this needs the usual `if __name__ == "__main__":`.
    """

    def __init__(self, job: Job, check: Check, *, workers: int, width: int | None = 1) -> None:
        self._job, self._check, self._workers, self._width = job, check, workers, width
        self._members: dict[Connection[Any, Any], _Member] = {}

    def answers(self, tasks: Iterable[Task], *, alone: bool = False) -> Iterator[Result]:
        """See `Pool`."""
        waiting = iter(tasks)
        width = 1 if alone else self._width
        room = 1 if alone else 2 * (self._width or NATURAL) + 1  # enough that a worker never waits for us
        first = next(waiting, None)
        if first is None:
            return
        waiting = chain([first], waiting)
        for _ in range(self._workers):
            self._start(width)
        deaths = 0
        while self._members:
            for connection in wait(list(self._members)):
                member = self._members[connection]  # type: ignore[index]
                try:
                    message = member.connection.recv()
                except (EOFError, OSError):
                    status = self._bury(member)
                    reason = f"the worker process died, exit status {status}"
                    deaths += 0 if member.is_ready else 1
                    if deaths >= STARTS:
                        raise ModelError(f"{reason}, before it had loaded the model: not enough memory?") from None
                    for task in member.tasks.values():
                        yield Failed(task.id, f"{reason}, with this image alone") if alone else Lost(task.id, reason)
                    if not member.is_told:
                        self._start(width)
                    continue
                match message:
                    case Hello():
                        self._check(message)
                        member.is_ready, deaths = True, 0
                    case Broken(reason):
                        raise ModelError(reason)
                    case _:
                        del member.tasks[message.id]
                        yield message
                member.feed(waiting, room)
        self.close()

    def close(self) -> None:
        """End all workers at once; what they hold is not kept."""
        for member in list(self._members.values()):
            member.process.kill()
            self._bury(member)

    def _start(self, width: int | None) -> None:
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(theirs, self._job, width), daemon=True)
        process.start()
        theirs.close()  # so that its death is seen as the end of the line
        self._members[ours] = _Member(process, ours)

    def _bury(self, member: "_Member") -> int | None:
        del self._members[member.connection]
        member.connection.close()
        member.process.join()
        return member.process.exitcode


class _Member:
    """A worker process, and what it was given and has not answered."""

    def __init__(self, process: BaseProcess, connection: "Connection[Any, Any]") -> None:
        self.process = process
        self.connection = connection
        self.tasks: dict[int, Task] = {}
        self.is_ready = False
        self.is_told = False  # that there is no more to come

    def feed(self, waiting: Iterator[Task], room: int) -> None:
        """Give it tasks until it has enough, or the word that there are none left."""
        try:
            while not self.is_told and len(self.tasks) < room:
                task = next(waiting, None)
                if task is None:
                    self.is_told = True
                    self.connection.send(None)
                else:
                    self.tasks[task.id] = task
                    self.connection.send(task)
        except (BrokenPipeError, ConnectionError):
            return  # it has died: the next look at the line says so


def serve(connection: "Connection[Any, Any]", job: Job, width: int | None) -> None:
    """The life of a worker process: load the model, say so, explain what comes down the line until None comes."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the driver decides
    inbox: SimpleQueue[Task | None] = SimpleQueue()
    Thread(target=_listen, args=(connection, inbox), daemon=True).start()
    try:
        classifier, hello = open_model(job)
    except BecausalError as error:
        connection.send(Broken(one_line(error)))
        return
    connection.send(hello)
    while (first := inbox.get()) is not None:
        for result in work(_drain(first, inbox), classifier, job, width=width):
            connection.send(result)


def _listen(connection: "Connection[Any, Any]", inbox: "SimpleQueue[Task | None]") -> None:
    """Pass on what the driver sends; without a driver nothing here has a purpose, so the process ends on the spot."""
    try:
        while True:
            inbox.put(connection.recv())
    except (EOFError, OSError):
        os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))


def _drain(first: Task, inbox: "SimpleQueue[Task | None]") -> Iterator[Task]:
    """The first task and those that are here already; a None is put back for the one who waits for it."""
    task: Task | None = first
    while task is not None:
        yield task
        try:
            task = inbox.get_nowait()
        except Empty:
            return
    inbox.put(None)
