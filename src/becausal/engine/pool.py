"""Searching in several processes for one model that lives here: their questions are evaluated together, in full batches.

Python runs on one core at a time, and a GPU may answer faster than one core can make up questions. Each process has an
engine like any other, whose classifier, `RemoteClassifier`, is at the other end of a pipe. Images are handed out as they are
wanted. Answers do not depend on how many processes there are.

What a process says is a tuple: ("stage", key, view, background), ("drop", key), ("ask", ticket, …), ("next",) for an image,
("status", …), ("answer", …), ("done",). It hears a Task, ("image", …) or ("end",), ("scores", ticket, …), ("stop",).
"""

import atexit
import os
import pickle
import selectors
import socket
import subprocess
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Grid, ModelInfo, Pixels, Twin, Visible
from becausal.core.errors import AnswerError, BecausalError, NetworkError, OptionError
from becausal.core.stats import Status
from becausal.engine.calls import ModelCalls
from becausal.engine.running import pack
from becausal.engine.scheduler import Part, Scheduler

MAX_PROCESSES = 12  # by default
MIN_IMAGES = 32  # for fewer, starting processes does not pay
IDLE_SECONDS = 120.0  # without a task, after which a process ends
DEPTH = 4  # batches a process may have in flight
STATUS_SECONDS = 0.1  # between two reports of progress
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

Explain = Callable[..., Iterator[tuple[int, Any]]]


@dataclass(frozen=True)
class Task:
    """What a process is to do.

    explain: called with images, a classifier, `width` and `progress`, yields (index of the image, answer). width: images
    explained at a time. is_watched: whether progress is reported. twin: name and tolerance of the model's twin, if any.
    """

    info: ModelInfo
    explain: Explain
    batch_size: int
    width: int
    is_watched: bool
    twin: tuple[str, float] | None = None


# The end of the model


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
                [sys.executable, "-c", f"from becausal.engine.pool import main; main({theirs.fileno()})"],
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


_idle: list[SearchProcess] = []  # from the last task


@atexit.register
def _end_all() -> None:
    while _idle:
        _idle.pop().end()


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
    turn: int = 0  # 1 when they have been replied to
    scores: dict[int, NDArray[Any]] = field(default_factory=dict)  # by the first row
    seconds: float = 0.0
    rank: tuple[int, int] = field(init=False)

    def __post_init__(self) -> None:
        # Those in a batch of their own go first: all searches of the process wait for them.
        shown = 8 * self.packed.shape[1] + 1 if self.is_alone else int(np.unpackbits(self.packed[0]).sum())
        self.rank = -shown, self.ticket

    @property
    def kind(self) -> Hashable:
        return self.grid, self.packed.shape[1:], self.is_guided, id(self) if self.is_alone else 0

    @property
    def rows_left(self) -> int:
        return 0 if self.turn else len(self.packed) - self.sent

    def take(self, room: int, *, at_least_one: bool) -> "Part[ProcessQuestions]":
        own = slice(self.sent, self.sent + min(self.rows_left, room))
        self.sent = own.stop
        return Part(self, self.turn, range(own.start, own.stop), self.packed[own], self.places[own])

    def speculate(self, room: int) -> None:
        """A process guesses by itself, where its own batches would be padded."""

    def stage(self, part: "Part[ProcessQuestions]") -> Sequence[Any]:
        for pair in self.staged:
            if isinstance(pair, BecausalError):
                raise pair
        return self.staged

    def deliver(
        self, part: "Part[ProcessQuestions]", scores: NDArray[Any], seconds: float, batches: int, slots: int
    ) -> None:
        self.scores[part.keys[0]] = scores
        self.seconds += seconds
        if sum(map(len, self.scores.values())) == len(self.packed):
            self.reply(np.concatenate([self.scores[start] for start in sorted(self.scores)]))

    def fail(self, part: "Part[ProcessQuestions]", error: AnswerError) -> None:
        self.reply(error)

    def reply(self, scores: Any) -> None:
        if not self.turn and not self.process.is_done:
            self.turn = 1
            self.process.line.send(("scores", self.ticket, scores, self.seconds))


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
        self._scheduler: Scheduler[ProcessQuestions] = Scheduler(calls)
        self._open: list[ProcessQuestions] = []  # not replied to yet
        self._source: Iterator[tuple[int, Any]] = iter(())
        self._is_stopping = False
        self._unreachable: NetworkError | None = None

    def explain(
        self, images: Iterable[Any], explain: Explain, progress: Callable[[Status], None] | None
    ) -> Iterator[tuple[int, Any]]:
        """Each answer with its image's number, as it comes.

        explain: what a process does with its images, see `Task`; it must be picklable. Raises NetworkError, after what
        was running, where the model cannot be reached any more.
        """
        self._source = enumerate(images)
        processes = self._take_processes()
        twin = self._calls.find_twin()
        known = None if twin is None else (twin.name, twin.tolerance)
        info, batch_size = self._calls.classifier.info, self._calls.batch_size
        task = Task(info, explain, batch_size, self._width, progress is not None, known)
        is_complete = False
        lines = selectors.DefaultSelector()
        try:
            for process in processes:
                process.line.send(task)
                lines.register(process.line, selectors.EVENT_READ, process)
            while lines.get_map():
                try:
                    yield from self._turn(lines, progress)
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

    def _take_processes(self) -> list[SearchProcess]:
        """Processes to search in, those that are still there from the last time first."""
        found: list[SearchProcess] = []
        while _idle and len(found) < self._count:
            process = _idle.pop()
            if process.process.poll() is None:
                found.append(replace(process, staged={}, is_done=False))
            else:
                process.end()
        return found + [SearchProcess.start() for _ in range(self._count - len(found))]

    def _turn(self, lines: selectors.BaseSelector, progress: Callable[[Status], None] | None) -> Iterator[tuple[int, Any]]:
        """Hear the processes, send a batch if there is enough for one, hand out the scores of the oldest."""
        scheduler = self._scheduler
        # Rows that did not fit into the last batch are no news: no process may send anything until they are answered.
        pause = 0.0002 if scheduler.flights else 0.0 if scheduler.waiting else None
        for key, _ in lines.select(pause):
            process: SearchProcess = key.data
            while not process.is_done:
                yield from self._receive(process, progress)
                if not process.line.poll():
                    break
            if process.is_done:
                lines.unregister(process.line)
        try:
            scheduler.launch()
            while scheduler.land(wait=False):
                pass
        except NetworkError as error:  # whoever asks is told at once
            self._unreachable = error
            scheduler.clear()
            for questions in self._open:
                questions.reply(error)
        scheduler.settled.clear()

    def _receive(self, process: SearchProcess, progress: Callable[[Status], None] | None) -> Iterator[tuple[int, Any]]:
        match process.line.recv():
            case "ask", ticket, keys, which, packed, grid, is_alone, is_guided:
                staged = [process.staged[k] for k in keys]
                questions = ProcessQuestions(process, ticket, staged, which, packed, grid, is_alone, is_guided)
                if self._unreachable is not None:
                    questions.reply(self._unreachable)
                else:
                    self._open = [one for one in self._open if not one.turn] + [questions]
                    self._scheduler.waiting.append(questions)
            case "stage", key, view, background:
                try:
                    process.staged[key] = self._calls.stage(view, background)
                except BecausalError as error:
                    process.staged[key] = error  # raised when it is used
            case "drop", key:
                process.staged.pop(key, None)
            case ("next",):
                is_ending = self._is_stopping or self._unreachable is not None
                following = None if is_ending else next(self._source, None)
                if following is None:
                    process.line.send(("end",))
                    return
                number, image = following
                try:
                    process.line.send(("image", number, image))
                except (pickle.PicklingError, TypeError, AttributeError):
                    process.line.send(("image", number, self._convert(image)))
            case "status", number, status:
                if progress is not None:
                    progress(replace(status, index=number))
            case "answer", number, answer:
                yield number, answer
            case ("done",):
                process.is_done = True
                process.staged.clear()


# The end of the searches


_keys = count(1)  # never used twice in a process: a late message about the last task must not be taken for one of this


class StagedElsewhere:
    """A pair of view and background that was sent to the model's process, as long as it is needed here."""

    def __init__(self, key: int, line: Connection) -> None:
        self.key = key
        weakref.finalize(self, _drop, line, key)


def _drop(line: Connection, key: int) -> None:
    with suppress(OSError):  # the other end may be gone
        line.send(("drop", key))


@final
class RemoteClassifier:
    """A classifier in another process."""

    def __init__(self, task: Task, line: Connection, inbox: "SimpleQueue[Any]") -> None:
        self.twin = task.twin
        self.info = task.info
        self.batch_size = task.batch_size
        self.fixed_sizes: tuple[int, ...] = ()  # the other process pads its batches
        self.depth = DEPTH
        self.replies: dict[int, tuple[Any, float]] = {}  # by ticket
        self.numbers: list[int] = []  # of the images so far
        self._line = line
        self._inbox = inbox
        self._images: deque[tuple[int, Any] | None] = deque()

    def stage(self, view: Pixels, background: Pixels) -> StagedElsewhere:
        key = next(_keys)
        self._line.send(("stage", key, view, background))
        return StagedElsewhere(key, self._line)

    def submit(
        self,
        staged: Sequence[StagedElsewhere],
        which: NDArray[np.intp],
        packed: NDArray[np.uint8],
        grid: Grid,
        *,
        is_alone: bool = False,
        is_guided: bool = False,
    ) -> "PendingBatch":
        """Have rows evaluated; is_alone: in a batch of their own; is_guided: by the model's twin."""
        ticket = next(_keys)
        self._line.send(("ask", ticket, [pair.key for pair in staged], which, packed, grid, is_alone, is_guided))
        return PendingBatch(self, ticket)

    def ask(self, staged: Sequence[StagedElsewhere], which: NDArray[np.intp], visible: Visible) -> NDArray[Any]:
        return self.submit(staged, which, pack(visible), visible.shape[1:], is_alone=True).collect()

    def classify(self, pixels: Pixels) -> NDArray[Any]:
        raise AnswerError("whole images are classified in the process of the model")

    def find_twin(self) -> Twin | None:
        return None if self.twin is None else Twin(*self.twin, ask=self.ask, submit=partial(self.submit, is_guided=True))

    def drop_twin(self) -> None:
        self.twin = None  # other processes find out for themselves

    def images(self) -> Iterator[Any]:
        """The images of the task; the next one is requested before it is needed."""
        self._line.send(("next",))  # two are under way at any time: the next search begins without waiting for its image
        self._line.send(("next",))
        while True:
            while not self._images:
                self.receive()
            image = self._images.popleft()
            if image is None:
                return
            self._line.send(("next",))
            self.numbers.append(image[0])
            yield image[1]

    def receive(self) -> None:
        """Take in one message, waiting for it."""
        match self._inbox.get():
            case "scores", ticket, scores, seconds:
                self.replies[ticket] = scores, seconds
            case "image", number, image:
                self._images.append((number, image))
            case ("end",):
                self._images.append(None)
            case ("stop",):
                raise KeyboardInterrupt
            case None:
                raise EOFError


class PendingBatch:
    """A batch in flight in the other process."""

    def __init__(self, classifier: RemoteClassifier, ticket: int) -> None:
        self._classifier = classifier
        self._ticket = ticket
        self.seconds = 0.0

    def is_ready(self) -> bool:
        return self._ticket in self._classifier.replies

    def collect(self) -> NDArray[Any]:
        while not self.is_ready():
            self._classifier.receive()
        scores, self.seconds = self._classifier.replies.pop(self._ticket)
        if isinstance(scores, BecausalError):
            raise scores
        found: NDArray[Any] = scores
        return found


def work(task: Task, line: Connection, inbox: "SimpleQueue[Any]") -> None:
    """Explain the images of one task and send the answers back."""
    classifier = RemoteClassifier(task, line, inbox)
    reported = 0.0

    def report(status: Status) -> None:
        nonlocal reported
        if time.monotonic() - reported > STATUS_SECONDS:
            reported = time.monotonic()
            line.send(("status", classifier.numbers[status.index], status))

    answers = task.explain(classifier.images(), classifier, width=task.width, progress=report if task.is_watched else None)
    # An interrupt: there was no result yet. A NetworkError: the other end knows, the model is there.
    with suppress(KeyboardInterrupt, NetworkError):
        for index, answer in answers:
            line.send(("answer", classifier.numbers[index], answer))
    line.send(("done",))


def main(file: int) -> None:
    """Work on tasks until the other end is closed, or none has come for a while. file: descriptor of the socket."""
    line = Connection(file)
    inbox: SimpleQueue[Any] = SimpleQueue()
    Thread(target=_listen, args=(line, inbox), daemon=True).start()
    try:
        while (task := inbox.get(timeout=IDLE_SECONDS)) is not None:
            if isinstance(task, Task):  # else a late message about the last one
                work(task, line, inbox)
    except (Empty, EOFError, ConnectionError):
        return


def _listen(line: Connection, inbox: "SimpleQueue[Any]") -> None:
    """Receive whatever comes at once: were both ends busy sending, neither would ever read."""
    try:
        while True:
            inbox.put(line.recv())
    except (EOFError, OSError):
        inbox.put(None)
