"""The other end of `becausal.engine.workers`: searches in a process of their own, for a model that lives in another.

Python runs on one core at a time. A GPU may answer faster than one core can think of questions, so several processes
do the searching, each with an engine like any other whose classifier is at the other end of a pipe.
"""

import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Grid, ModelInfo, Pixels, Visible
from becausal.core.errors import AnswerError, BecausalError, NetworkError

PATIENCE = 120.0  # seconds without a task after which a process ends
DEPTH = 4  # batches a process may have under way
_keys = count(1)  # never used twice in a process: a late word about the last task must not be taken for one about this
PULSE = 0.1  # seconds between two words on how far a process is


@dataclass(frozen=True)
class Task:
    """What a process is to do: explain the images it is given, `width` of them side by side. ahead: the classifier's."""

    info: ModelInfo
    request: Any  # becausal.api.request.Request
    batch_size: int
    width: int
    ahead: int
    is_watched: bool


class Held:
    """A pair of view and background that was sent to the model's process, until nobody here needs it any more."""

    def __init__(self, key: int, line: Connection) -> None:
        self.key = key
        weakref.finalize(self, _drop, line, key)


def _drop(line: Connection, key: int) -> None:
    with suppress(OSError):  # the other end may be gone
        line.send(("drop", key))


@final
class RemoteClassifier:
    """A classifier in another process."""

    def __init__(self, task: Task, line: Connection, heard: "SimpleQueue[Any]") -> None:
        self.info = task.info
        self.batch_size = task.batch_size
        self.fixed_sizes: tuple[int, ...] = ()  # padding is for those who make the batches
        self.depth = DEPTH
        self.ahead = task.ahead
        self._line = line
        self._heard = heard
        self._replies: dict[int, tuple[Any, float]] = {}
        self._pictures: deque[tuple[int, Any] | None] = deque()

    def stage(self, view: Pixels, background: Pixels) -> Held:
        key = next(_keys)
        self._line.send(("stage", key, view, background))
        return Held(key, self._line)

    def submit(self, staged: Sequence[Held], which: NDArray[np.intp], packed: NDArray[np.uint8], grid: Grid) -> "_Awaited":
        ticket = next(_keys)
        self._line.send(("ask", ticket, [pair.key for pair in staged], which, packed, grid))
        return _Awaited(self, ticket)

    def ask(self, staged: Sequence[Held], which: NDArray[np.intp], visible: Visible) -> NDArray[Any]:
        packed = np.packbits(visible.reshape(len(visible), -1), axis=1)
        return self.submit(staged, which, packed, visible.shape[1:]).collect()

    def classify(self, pixels: Pixels) -> NDArray[Any]:
        raise AnswerError("whole pixels are classified where the model is")

    def has(self, ticket: int) -> bool:
        return ticket in self._replies

    def wait_for(self, ticket: int) -> tuple[NDArray[Any], float]:
        """The scores of a batch and the seconds they took. Raises what the model failed with."""
        while ticket not in self._replies:
            self._hear()
        scores, seconds = self._replies.pop(ticket)
        if isinstance(scores, BecausalError):
            raise scores
        return scores, seconds

    def pictures(self) -> Iterator[tuple[int, Any]]:
        """The images of the task, with their numbers; the next one is asked for before it is needed."""
        self._line.send(("next",))
        self._line.send(("next",))
        while True:
            while not self._pictures:
                self._hear()
            picture = self._pictures.popleft()
            if picture is None:
                return
            self._line.send(("next",))
            yield picture

    def _hear(self) -> None:
        match self._heard.get():
            case "scores", ticket, scores, seconds:
                self._replies[ticket] = scores, seconds
            case "picture", number, image:
                self._pictures.append((number, image))
            case ("end",):
                self._pictures.append(None)
            case ("stop",):
                raise KeyboardInterrupt
            case None:
                raise EOFError


class _Awaited:
    """A batch under way in the other process."""

    def __init__(self, classifier: RemoteClassifier, ticket: int) -> None:
        self._classifier = classifier
        self._ticket = ticket
        self.seconds = 0.0

    def is_ready(self) -> bool:
        return self._classifier.has(self._ticket)

    def collect(self) -> NDArray[Any]:
        scores, self.seconds = self._classifier.wait_for(self._ticket)
        return scores


def work(task: Task, line: Connection, heard: "SimpleQueue[Any]") -> None:
    """Explain the images of one task and send the answers back."""
    from becausal.api import Status, explain_numbered

    classifier = RemoteClassifier(task, line, heard)
    numbers: list[int] = []
    told = 0.0

    def images() -> Iterator[Any]:
        for number, image in classifier.pictures():
            numbers.append(number)
            yield image

    def tell(status: Status) -> None:
        nonlocal told
        if time.monotonic() - told > PULSE:
            told = time.monotonic()
            line.send(("status", numbers[status.index], status))

    answers = explain_numbered(
        images(), classifier, request=task.request, width=task.width, progress=tell if task.is_watched else None, workers=0
    )
    try:
        for index, answer in answers:
            line.send(("answer", numbers[index], answer))
    except KeyboardInterrupt:
        pass  # there was nothing to give yet
    except NetworkError:
        pass  # the other end knows: it is where the model could not be reached
    line.send(("done",))


def main(file: int) -> None:
    """Serve tasks until the other end is closed, or none has come for a while. file: the number of the pipe."""
    line = Connection(file)
    heard: SimpleQueue[Any] = SimpleQueue()
    Thread(target=_listen, args=(line, heard), daemon=True).start()
    try:
        while (task := heard.get(timeout=PATIENCE)) is not None:
            if isinstance(task, Task):  # else a late word about the last one
                work(task, line, heard)
    except (Empty, EOFError, ConnectionError):
        return


def _listen(line: Connection, heard: "SimpleQueue[Any]") -> None:
    """Take in whatever comes at once: were both ends busy sending, neither would ever hear the other."""
    try:
        while True:
            heard.put(line.recv())
    except (EOFError, OSError):
        heard.put(None)
