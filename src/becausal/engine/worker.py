"""The other end of `becausal.engine.pool`: searches in a process of their own, for a model that lives in another.

Python runs on one core at a time. A GPU may answer faster than one core can make up questions, so several processes do
the searching. Each has an engine like any other, whose classifier is at the other end of a pipe.
"""

import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Grid, ModelInfo, Pixels, Visible
from becausal.core.errors import AnswerError, BecausalError, NetworkError
from becausal.core.progress import Status
from becausal.core.twins import Twin

IDLE_SECONDS = 120.0  # without a task, after which a process ends
DEPTH = 4  # batches a process may have in flight
STATUS_SECONDS = 0.1  # between two reports of progress
_keys = count(1)  # never used twice in a process: a late message about the last task must not be taken for one of this


@dataclass(frozen=True)
class Task:
    """What a process is to do.

    explain: called with images, a classifier, `width` and `progress`, yields (index of the image, answer). width: images
    explained at a time. is_watched: whether progress is reported. twin: name and tolerance of the model's twin, if any.
    """

    info: ModelInfo
    explain: Callable[..., Iterator[tuple[int, Any]]]
    batch_size: int
    width: int
    is_watched: bool
    twin: tuple[str, float] | None = None


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
        self._line = line
        self._inbox = inbox
        self._replies: dict[int, tuple[Any, float]] = {}
        self._images: deque[tuple[int, Any] | None] = deque()

    def stage(self, view: Pixels, background: Pixels) -> StagedElsewhere:
        key = next(_keys)
        self._line.send(("stage", key, view, background))
        return StagedElsewhere(key, self._line)

    def submit(
        self, staged: Sequence[StagedElsewhere], which: NDArray[np.intp], packed: NDArray[np.uint8], grid: Grid
    ) -> "PendingBatch":
        return self.send(staged, which, packed, grid)

    def ask(self, staged: Sequence[StagedElsewhere], which: NDArray[np.intp], visible: Visible) -> NDArray[Any]:
        packed = np.packbits(visible.reshape(len(visible), -1), axis=1)
        return self.send(staged, which, packed, visible.shape[1:], is_alone=True).collect()

    def find_twin(self) -> Twin | None:
        return None if self.twin is None else Twin(*self.twin, ask=self.ask, submit=partial(self.send, is_guided=True))

    def drop_twin(self) -> None:
        self.twin = None  # other processes find out for themselves

    def send(
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

    def classify(self, pixels: Pixels) -> NDArray[Any]:
        raise AnswerError("whole images are classified in the process of the model")

    def has(self, ticket: int) -> bool:
        return ticket in self._replies

    def wait_for(self, ticket: int) -> tuple[NDArray[Any], float]:
        """The scores of a batch and the seconds they took. Raises what the model failed with."""
        while ticket not in self._replies:
            self._receive()
        scores, seconds = self._replies.pop(ticket)
        if isinstance(scores, BecausalError):
            raise scores
        return scores, seconds

    def images(self) -> Iterator[tuple[int, Any]]:
        """The images of the task, with their numbers; the next one is requested before it is needed."""
        self._line.send(("next",))
        self._line.send(("next",))
        while True:
            while not self._images:
                self._receive()
            image = self._images.popleft()
            if image is None:
                return
            self._line.send(("next",))
            yield image

    def _receive(self) -> None:
        match self._inbox.get():
            case "scores", ticket, scores, seconds:
                self._replies[ticket] = scores, seconds
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
        return self._classifier.has(self._ticket)

    def collect(self) -> NDArray[Any]:
        scores, self.seconds = self._classifier.wait_for(self._ticket)
        return scores


def work(task: Task, line: Connection, inbox: "SimpleQueue[Any]") -> None:
    """Explain the images of one task and send the answers back."""
    classifier = RemoteClassifier(task, line, inbox)
    numbers: list[int] = []
    reported = 0.0

    def images() -> Iterator[Any]:
        for number, image in classifier.images():
            numbers.append(number)
            yield image

    def report(status: Status) -> None:
        nonlocal reported
        if time.monotonic() - reported > STATUS_SECONDS:
            reported = time.monotonic()
            line.send(("status", numbers[status.index], status))

    answers = task.explain(images(), classifier, width=task.width, progress=report if task.is_watched else None)
    try:
        for index, answer in answers:
            line.send(("answer", numbers[index], answer))
    except KeyboardInterrupt:
        pass  # there was no result yet
    except NetworkError:
        pass  # the other end knows: the model is there
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
