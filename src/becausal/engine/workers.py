"""Searching in several processes for one model that lives here: batches of all of them, filled and answered together.

Each process has the engine of `becausal.engine.remote`; here their questions are put together into full batches, and
images are handed out as they are wanted. Answers do not depend on how many processes there are.
"""

import atexit
import os
import pickle
import selectors
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Promise
from becausal.core.errors import AnswerError, BecausalError, NetworkError, OptionError
from becausal.engine.remote import Task

if TYPE_CHECKING:
    from collections.abc import Callable

    from becausal.api.explanation import Explanation
    from becausal.core.progress import Failure, Status
    from becausal.core.request import Request

MOST = 12  # processes, where nothing is said
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")  # there are enough
WORTH = 32  # images under which they are not worth the beginning


def natural_count() -> int:
    """How many processes to search in: three of four cores, none where there are but a few, or no way to begin them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(MOST, 3 * cores // 4) if cores >= 4 and os.name == "posix" else 0


@dataclass(eq=False)
class Worker:
    """A process that searches, kept for the next task."""

    process: subprocess.Popen[bytes]
    line: Connection
    staged: dict[int, Any] = field(default_factory=dict)
    is_done: bool = False

    @staticmethod
    def start() -> "Worker":
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", f"from becausal.engine.remote import main; main({theirs.fileno()})"],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for us: they are told
                env={**os.environ, **_ONE_THREAD, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            )
        return Worker(process, Connection(ours.detach()))

    def end(self) -> None:
        self.line.close()
        self.process.terminate()
        self.process.wait()


@dataclass(eq=False)
class _Asked:
    """Questions of one process, of which the first so many rows were sent off, and the scores that have come."""

    worker: Worker
    ticket: int
    staged: list[Any]
    which: NDArray[np.intp]
    packed: NDArray[np.uint8]
    grid: tuple[int, ...]
    sent: int = 0
    scores: list[NDArray[Any]] = field(default_factory=list)
    seconds: float = 0.0
    is_over: bool = False
    shown: int = field(init=False)  # pixels of the first row: see Drive

    def __post_init__(self) -> None:
        self.shown = int(np.unpackbits(self.packed[0]).sum())

    @property
    def left(self) -> int:
        return len(self.packed) - self.sent


@dataclass
class _Flight:
    """A batch under way: whose rows it has, and how many of each."""

    parts: list[tuple[_Asked, int]]
    promise: Promise


_idle: list[Worker] = []


@atexit.register
def _end_all() -> None:
    while _idle:
        _idle.pop().end()


def _take(count: int) -> list[Worker]:
    """So many processes, those still there from before first."""
    found: list[Worker] = []
    while _idle and len(found) < count:
        worker = _idle.pop()
        if worker.process.poll() is None:
            found.append(replace(worker, staged={}, is_done=False))
        else:
            worker.end()
    return found + [Worker.start() for _ in range(count - len(found))]


class Pool:
    """Explains images in `count` processes; classifier: an AsyncClassifier, here."""

    def __init__(self, classifier: Any, request: "Request", *, count: int, width: int, batch_size: int) -> None:
        if os.name != "posix":
            raise OptionError("searching in further processes needs a POSIX system: take workers=0")
        self._classifier = classifier
        self._request = request
        self._count = count
        self._width = max(1, width // count)
        self._batch_size = batch_size
        self._sizes = classifier.fixed_sizes or (batch_size,)
        self._queue: deque[_Asked] = deque()
        self._flights: deque[_Flight] = deque()
        self._is_stopping = False
        self._gone: NetworkError | None = None  # why the model cannot be asked any more

    def explain(
        self, images: Iterable[Any], progress: "Callable[[Status], None] | None"
    ) -> "Iterator[tuple[int, Explanation | Failure]]":
        """Each answer with its image's number, as it comes. Raises NetworkError, after what was under way, where the
        model cannot be reached any more.
        """
        workers = _take(self._count)
        task = Task(
            self._classifier.info,
            self._request,
            batch_size=self._batch_size,
            width=self._width,
            ahead=self._classifier.ahead,
            is_watched=progress is not None,
        )
        source = enumerate(images)
        is_whole = False
        lines = selectors.DefaultSelector()
        try:
            for worker in workers:
                worker.line.send(task)
                lines.register(worker.line, selectors.EVENT_READ, worker)
            while lines.get_map():
                try:
                    yield from self._turn(lines, source, progress)
                except KeyboardInterrupt:
                    if self._is_stopping:
                        raise
                    self._is_stopping = True
                    for worker in workers:
                        worker.line.send(("stop",))
            is_whole = True
            if self._gone is not None:
                raise self._gone
        except (EOFError, ConnectionError) as error:
            raise AnswerError("a process that searched has ended unexpectedly; workers=0 does without") from error
        finally:
            lines.close()
            for worker in workers:
                if is_whole:
                    _idle.append(worker)
                else:
                    worker.end()

    def _turn(
        self,
        lines: selectors.BaseSelector,
        source: Iterator[tuple[int, Any]],
        progress: "Callable[[Status], None] | None",
    ) -> "Iterator[tuple[int, Explanation | Failure]]":
        """Hear the processes, send a batch off if there is enough for one, hand out the answers of the oldest."""
        # Questions that did not fit into the last batch are no longer news: nobody may say anything until they are answered.
        pause = 0.0002 if self._flights else 0.0 if self._queue else None
        for key, _ in lines.select(pause):
            worker: Worker = key.data
            while not worker.is_done:
                yield from self._hear(worker, source, progress)
                if not worker.line.poll():
                    break
            if worker.is_done:
                lines.unregister(worker.line)
        if len(self._flights) < self._classifier.depth:
            self._launch()
        while self._flights and self._flights[0].promise.is_ready():
            self._land()

    def _hear(
        self, worker: Worker, source: Iterator[tuple[int, Any]], progress: "Callable[[Status], None] | None"
    ) -> "Iterator[tuple[int, Explanation | Failure]]":
        match worker.line.recv():
            case "ask", ticket, keys, which, packed, grid:
                self._queue.append(_Asked(worker, ticket, [worker.staged[k] for k in keys], which, packed, grid))
            case "stage", key, view, background:
                worker.staged[key] = self._stage(view, background)
            case "drop", key:
                worker.staged.pop(key, None)
            case ("next",):
                self._hand_picture(worker, source)
            case "status", number, status:
                if progress is not None:
                    progress(replace(status, index=number))
            case "answer", number, answer:
                yield number, answer
            case ("done",):
                worker.is_done = True
                worker.staged.clear()

    def _stage(self, view: Any, background: Any) -> Any:
        try:
            return self._classifier.stage(view, background)
        except Exception as error:  # a model of the user's; said when it is asked about
            return AnswerError(f"the model failed: {type(error).__name__}: {' '.join(str(error).split())[:300]}")

    def _hand_picture(self, worker: Worker, source: Iterator[tuple[int, Any]]) -> None:
        following = None if self._is_stopping or self._gone is not None else next(source, None)
        if following is None:
            worker.line.send(("end",))
            return
        number, image = following
        try:
            worker.line.send(("picture", number, image))
        except (pickle.PicklingError, TypeError, AttributeError):
            from becausal.images.loading import load_image

            worker.line.send(("picture", number, load_image(image)))

    def _launch(self) -> None:
        """Rows of several processes as one batch of a fixed size, of those with the longest way to go first; less than half
        a large one only where nothing flies.
        """
        waiting = sum(asked.left for asked in self._queue)
        if not waiting or (self._flights and waiting < self._batch_size // 2):
            return
        room = max((size for size in self._sizes if size <= waiting), default=waiting)
        by_way = sorted(self._queue, key=lambda asked: -asked.shown)
        first = by_way[0]
        parts: list[tuple[_Asked, int]] = []
        rest: deque[_Asked] = deque()
        for asked in by_way:
            is_alike = asked.grid == first.grid and asked.packed.shape[1:] == first.packed.shape[1:]
            count = min(asked.left, room) if is_alike else 0
            if count:
                parts.append((asked, count))
                room -= count
            if count < asked.left:
                rest.append(asked)
        self._queue = rest
        self._send(parts)

    def _send(self, parts: list[tuple[_Asked, int]]) -> None:
        staged: list[Any] = []
        which, packed = [], []
        for asked, count in parts:
            rows = slice(asked.sent, asked.sent + count)
            which.append(asked.which[rows] + len(staged))
            packed.append(asked.packed[rows])
            staged += asked.staged
        try:
            for one in (self._gone, *staged):
                if isinstance(one, BecausalError):
                    raise one
            promise = self._classifier.submit(staged, np.concatenate(which), np.concatenate(packed), parts[0][0].grid)
        except Exception as error:
            self._fail(parts, error)
            return
        for asked, count in parts:
            asked.sent += count
        self._flights.append(_Flight(parts, promise))

    def _land(self) -> None:
        flight = self._flights.popleft()
        try:
            scores = flight.promise.collect()
        except Exception as error:
            for asked, count in flight.parts:
                asked.sent -= count
            self._fail(flight.parts, error)
            return
        start = 0
        for asked, count in flight.parts:
            asked.scores.append(scores[start : start + count])
            asked.seconds += flight.promise.seconds * count / len(scores)
            start += count
            if not asked.left and sum(len(part) for part in asked.scores) == len(asked.packed):
                self._reply(asked, np.concatenate(asked.scores))

    def _reply(self, asked: _Asked, scores: Any) -> None:
        if not asked.is_over and not asked.worker.is_done:
            asked.is_over = True
            asked.worker.line.send(("scores", asked.ticket, scores, asked.seconds))

    def _fail(self, parts: list[tuple[_Asked, int]], error: Exception) -> None:
        """Each process alone, where several shared the batch; the one whose question it was is told.

        A model that cannot be reached is not asked again: whoever asks from now on is told at once.
        """
        if isinstance(error, NetworkError):
            self._gone = error
        if len(parts) > 1:
            for part in parts:
                self._send([part])
            return
        reason = f"the model failed: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        asked = parts[0][0]
        self._reply(asked, error if isinstance(error, BecausalError) else AnswerError(reason))
        if asked in self._queue:
            self._queue.remove(asked)
