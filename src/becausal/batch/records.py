"""Messages between the store, the pools and the workers: small frozen dataclasses that can be pickled."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from becausal.core.request import Request
from becausal.models import Loading

ASSUMED_WIDTH = 128  # images a worker is assumed to explain concurrently where it chooses the number itself, on a GPU

Box = tuple[float, float, float, float, str]  # left, top, width, height in pixels of the original; its category
Stamp = tuple[int, int, int, int]  # of an image file when it was read: bytes, times of modification and change in ns, inode


@dataclass(frozen=True)
class InputItem:
    """One input image: its path as given, and its ground-truth boxes.

    boxes: None where the input has no ground truth. size: (width, height) of the image the boxes were drawn on, None if
    unknown.
    """

    image: str
    boxes: tuple[Box, ...] | None = None
    size: tuple[int, int] | None = None


@dataclass(frozen=True)
class BatchTask:
    """An image to explain: its number in the run and its absolute path."""

    id: int
    path: str
    item: InputItem


@dataclass(frozen=True, kw_only=True)
class BatchJob:
    """What all workers need to know: the model, how it is loaded, what is requested, what is stored.

    categories: names of all ground-truth categories, in lower case. folder: working directory for relative paths in
    `model` and `loading`. render: also draw PNGs and a page per image. every_box: explain every box that a detector finds.
    """

    model: str
    loading: Loading = field(default_factory=Loading)
    request: Request = field(default_factory=Request)
    categories: frozenset[str] = frozenset()
    folder: str = "."
    render: bool = False
    every_box: bool = False


@dataclass(frozen=True)
class WorkerReady:
    """A worker has loaded the model.

    facts: hashes and preprocessing, which must be the same for all workers and starts. notes: what the model had to assume.
    """

    facts: dict[str, str | None]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class WorkerFailed:
    """A worker cannot start: the model cannot be loaded, or an extra is not installed."""

    reason: str


@dataclass(frozen=True)
class RowResult:
    """One row of the index (see `index.RESULTS`) and its files as bytes. error: why a box could not be explained."""

    row: dict[str, Any]
    files: dict[str, bytes]
    error: str | None = None


@dataclass(frozen=True)
class TaskDone:
    """An explained image: one result, or one for each of its boxes, some of which may have failed.

    stamp: of the image file, None if unknown. notes: what the model had to assume, as known by now.
    """

    id: int
    results: tuple[RowResult, ...]
    stamp: Stamp | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class TaskFailed:
    """An image that could not be explained, with a reason of one line; is_model: the model itself failed."""

    id: int
    reason: str
    sha256: str | None = None
    is_model: bool = False


@dataclass(frozen=True)
class TaskLost:
    """An image whose worker died or failed unexpectedly while it held other images too; it is retried separately."""

    id: int
    reason: str


TaskResult = TaskDone | TaskFailed | TaskLost


class WorkerPool(Protocol):
    """Explains tasks in any order; holds only as many as its workers need to stay busy.

    feeds_device: whether a device waits while this process does something else, so that results must be taken at once.
    """

    @property
    def feeds_device(self) -> bool: ...

    def results(self, tasks: Iterable[BatchTask], *, one_at_a_time: bool = False) -> Iterator[TaskResult]:
        """One result per task, of which there is at least one: workers are started at once.

        one_at_a_time: never two tasks in one worker at once, so that a crash can be attributed to its image.
        Raises ModelError when no worker can load the model.
        """
        ...

    def close(self) -> None:
        """End all workers."""
        ...


ModelCheck = Callable[[WorkerReady], None]  # raises InputError for a model other than the run's
