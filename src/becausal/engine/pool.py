"""Searching in several processes for one model that lives here: their questions are evaluated together, in full batches.

Each process runs the engine of `becausal.engine.worker`. Images are handed out as they are wanted. Answers do not depend
on how many processes there are.
"""

import atexit
import os
import pickle
import selectors
import socket
import subprocess
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Grid
from becausal.core.errors import AnswerError, BecausalError, NetworkError, OptionError
from becausal.core.progress import Status
from becausal.engine.calls import ModelCalls
from becausal.engine.scheduler import Landing, Scheduler
from becausal.engine.worker import Task

MAX_PROCESSES = 12  # by default
MIN_IMAGES = 32  # for fewer, starting processes does not pay
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def default_count() -> int:
    """How many processes to search in: three of four cores; none with few cores, or where they cannot be started."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(MAX_PROCESSES, 3 * cores // 4) if cores >= 4 and os.name == "posix" else 0


@dataclass(eq=False)
class SearchProcess:
    """A process that searches, kept for the next task."""

    process: subprocess.Popen[bytes]
    line: Connection
    staged: dict[int, Any] = field(default_factory=dict)
    is_done: bool = False

    @staticmethod
    def start() -> "SearchProcess":
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", f"from becausal.engine.worker import main; main({theirs.fileno()})"],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is handled here; processes are sent a message
                env={**os.environ, **_ONE_THREAD, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            )
        return SearchProcess(process, Connection(ours.detach()))

    def end(self) -> None:
        self.line.close()
        self.process.terminate()
        self.process.wait()


@dataclass(eq=False)
class ProcessQuestions:
    """Questions of one process: a source of rows, whose scores are sent back when all of them have come."""

    process: SearchProcess
    ticket: int
    staged: list[Any]
    places: NDArray[np.intp]
    packed: NDArray[np.uint8]
    grid: Grid
    is_alone: bool = False  # in a batch of its own
    is_guided: bool = False  # for the model's twin
    sent: int = 0
    received: int = 0
    scores: list[tuple[int, NDArray[Any]]] = field(default_factory=list)
    seconds: float = 0.0
    is_over: bool = False
    shown: int = field(init=False)  # pixels of the first row

    def __post_init__(self) -> None:
        self.shown = int(np.unpackbits(self.packed[0]).sum())

    @property
    def kind(self) -> Hashable:
        return self.grid, self.packed.shape[1:], self.is_guided, id(self) if self.is_alone else 0

    @property
    def rank(self) -> tuple[int, int]:
        """Questions in a batch of their own go first: all searches of the process wait for them."""
        return (-8 * self.packed.shape[1] - 1 if self.is_alone else -self.shown), self.ticket

    @property
    def rows_left(self) -> int:
        return 0 if self.is_over else len(self.packed) - self.sent

    def take(self, room: int, *, at_least_one: bool) -> "ProcessPart":
        count = min(self.rows_left, room)
        part = ProcessPart(self, self.sent, count)
        self.sent += count
        return part

    def reply(self, scores: Any) -> None:
        if not self.is_over and not self.process.is_done:
            self.is_over = True
            self.process.line.send(("scores", self.ticket, scores, self.seconds))


@dataclass(eq=False)
class ProcessPart:
    """Some rows of a process's questions, in one batch."""

    owner: ProcessQuestions
    start: int
    count: int

    @property
    def grid(self) -> Grid:
        return self.owner.grid

    @property
    def is_wanted(self) -> bool:
        return not self.owner.is_over

    @property
    def is_guided(self) -> bool:
        return self.owner.is_guided

    @property
    def staged(self) -> Sequence[Any]:
        for pair in self.owner.staged:
            if isinstance(pair, BecausalError):
                raise pair
        return self.owner.staged

    @property
    def which(self) -> NDArray[np.intp]:
        return self.owner.places[self.start : self.start + self.count]

    def rows(self, *, packed: bool) -> NDArray[Any]:
        return self.owner.packed[self.start : self.start + self.count]

    def deliver(self, scores: NDArray[Any], landing: Landing) -> None:
        owner = self.owner
        owner.scores.append((self.start, scores))
        owner.seconds += landing.seconds
        owner.received += self.count
        if owner.received == len(owner.packed):
            owner.reply(np.concatenate([rows for _, rows in sorted(owner.scores, key=lambda part: part[0])]))

    def fail(self, error: AnswerError) -> None:
        self.owner.reply(error)


_idle: list[SearchProcess] = []


@atexit.register
def _end_all() -> None:
    while _idle:
        _idle.pop().end()


def _take_processes(count: int) -> list[SearchProcess]:
    """Processes to search in, those that are still there from the last time first."""
    found: list[SearchProcess] = []
    while _idle and len(found) < count:
        process = _idle.pop()
        if process.process.poll() is None:
            found.append(replace(process, staged={}, is_done=False))
        else:
            process.end()
    return found + [SearchProcess.start() for _ in range(count - len(found))]


class SearchPool:
    """Runs `explain` of a task in `count` processes.

    calls: of an asynchronous classifier in this process. convert: makes an image that cannot be pickled into one that can.
    """

    def __init__(self, calls: ModelCalls, *, count: int, width: int, convert: Callable[[Any], Any]) -> None:
        if os.name != "posix":
            raise OptionError("searching in further processes needs a POSIX system: use workers=0")
        self._calls = calls
        self._count = count
        self._width = max(1, width // count)
        self._convert = convert
        self._scheduler = Scheduler(calls)
        self._open: list[ProcessQuestions] = []  # not replied to yet
        self._is_stopping = False
        self._unreachable: NetworkError | None = None

    def explain(
        self,
        images: Iterable[Any],
        explain: Callable[..., Iterator[tuple[int, Any]]],
        progress: Callable[[Status], None] | None,
    ) -> Iterator[tuple[int, Any]]:
        """Each answer with its image's number, as it comes.

        explain: what a process does with its images, see `Task`; it must be picklable. Raises NetworkError, after what
        was running, where the model cannot be reached any more.
        """
        processes = _take_processes(self._count)
        twin = self._calls.find_twin()
        task = Task(
            self._calls.classifier.info,
            explain,
            batch_size=self._calls.batch_size,
            width=self._width,
            is_watched=progress is not None,
            twin=None if twin is None else (twin.name, twin.tolerance),
        )
        source = enumerate(images)
        is_complete = False
        lines = selectors.DefaultSelector()
        try:
            for process in processes:
                process.line.send(task)
                lines.register(process.line, selectors.EVENT_READ, process)
            while lines.get_map():
                try:
                    yield from self._turn(lines, source, progress)
                except KeyboardInterrupt:
                    if self._is_stopping:
                        raise
                    self._is_stopping = True
                    for process in processes:
                        process.line.send(("stop",))
            is_complete = True
            if self._unreachable is not None:
                raise self._unreachable
        except (EOFError, ConnectionError) as error:
            raise AnswerError("a search process has ended unexpectedly; use workers=0 to search in this process") from error
        finally:
            lines.close()
            for process in processes:
                if is_complete:
                    _idle.append(process)
                else:
                    process.end()

    def _turn(
        self,
        lines: selectors.BaseSelector,
        source: Iterator[tuple[int, Any]],
        progress: Callable[[Status], None] | None,
    ) -> Iterator[tuple[int, Any]]:
        """Hear the processes, send a batch if there is enough for one, hand out the scores of the oldest."""
        scheduler = self._scheduler
        # Rows that did not fit into the last batch are no news: no process may send anything until they are answered.
        pause = 0.0002 if scheduler.flights else 0.0 if scheduler.waiting else None
        for key, _ in lines.select(pause):
            process: SearchProcess = key.data
            while not process.is_done:
                yield from self._receive(process, source, progress)
                if not process.line.poll():
                    break
            if process.is_done:
                lines.unregister(process.line)
        try:
            scheduler.launch()
            while scheduler.land(wait=False):
                pass
        except NetworkError as error:
            self._give_up(error)
        scheduler.settled.clear()

    def _receive(
        self, process: SearchProcess, source: Iterator[tuple[int, Any]], progress: Callable[[Status], None] | None
    ) -> Iterator[tuple[int, Any]]:
        match process.line.recv():
            case "ask", ticket, keys, which, packed, grid, is_alone, is_guided:
                staged = [process.staged[k] for k in keys]
                questions = ProcessQuestions(process, ticket, staged, which, packed, grid, is_alone, is_guided)
                if self._unreachable is not None:
                    questions.reply(self._unreachable)
                else:
                    self._open = [one for one in self._open if not one.is_over] + [questions]
                    self._scheduler.waiting.append(questions)
            case "stage", key, view, background:
                try:
                    process.staged[key] = self._calls.stage(view, background)
                except BecausalError as error:
                    process.staged[key] = error  # raised when it is used
            case "drop", key:
                process.staged.pop(key, None)
            case ("next",):
                self._hand_image(process, source)
            case "status", number, status:
                if progress is not None:
                    progress(replace(status, index=number))
            case "answer", number, answer:
                yield number, answer
            case ("done",):
                process.is_done = True
                process.staged.clear()

    def _hand_image(self, process: SearchProcess, source: Iterator[tuple[int, Any]]) -> None:
        following = None if self._is_stopping or self._unreachable is not None else next(source, None)
        if following is None:
            process.line.send(("end",))
            return
        number, image = following
        try:
            process.line.send(("image", number, image))
        except (pickle.PicklingError, TypeError, AttributeError):
            process.line.send(("image", number, self._convert(image)))

    def _give_up(self, error: NetworkError) -> None:
        """The model cannot be reached any more: whoever asks is told at once."""
        self._unreachable = error
        self._scheduler.clear()
        for questions in self._open:
            questions.reply(error)
