"""What travels between the store, the pools and the workers: small, frozen and ready to be pickled."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from becausal.core.request import Request
from becausal.models import Loading

NATURAL = 32  # images a worker is assumed to want side by side where it may choose for itself, on a GPU

Box = tuple[float, float, float, float, str]  # left, top, width, height in pixels of the original; its category


@dataclass(frozen=True)
class Item:
    """One image of the input: its path as it was given, and the truth boxes, where there are any.

    boxes: None where the input has no truth. size: (width, height) the boxes were drawn on, None where not said.
    """

    image: str
    boxes: tuple[Box, ...] | None = None
    size: tuple[int, int] | None = None


@dataclass(frozen=True)
class Task:
    """An item to be explained: its number in the run, and its absolute path."""

    id: int
    path: str
    item: Item


@dataclass(frozen=True, kw_only=True)
class Job:
    """What all workers are told: the model, how it is loaded, what is asked, and what is kept of an answer.

    loading: options of `load_model`. categories: the names of all truth categories, in lower case. folder: the working
    directory that relative paths in `model` and `loading` are meant in. images: also draw the PNGs and the page.
    """

    model: str
    loading: Loading = field(default_factory=Loading)
    request: Request = field(default_factory=Request)
    categories: frozenset[str] = frozenset()
    folder: str = "."
    pictures: bool = False


@dataclass(frozen=True)
class Hello:
    """A worker has loaded the model, and says which it is; all must say the same."""

    facts: dict[str, str | None]


@dataclass(frozen=True)
class Broken:
    """A worker cannot work at all: the model cannot be loaded, or an extra is missing."""

    reason: str


@dataclass(frozen=True)
class Done:
    """An explained image: its row in the index (see `store.RESULTS`) and its files as bytes."""

    id: int
    row: dict[str, Any]
    files: dict[str, bytes]


@dataclass(frozen=True)
class Failed:
    """An image that could not be explained, and why, in one line; is_model: it was the model that broke."""

    id: int
    reason: str
    sha256: str | None = None
    is_model: bool = False


@dataclass(frozen=True)
class Lost:
    """An image whose worker died, or broke in an unexpected way, while others were under way too: to be tried alone."""

    id: int
    reason: str


Result = Done | Failed | Lost


class Pool(Protocol):
    """Explains tasks, in any order, and never holds more of them than its workers need to stay busy."""

    def answers(self, tasks: Iterable[Task], *, alone: bool = False) -> Iterator[Result]:
        """One result per task. alone: never two tasks in one worker at a time, so that a death can be blamed.

        Raises ModelError when no worker can load the model.
        """
        ...

    def close(self) -> None:
        """End all workers."""
        ...


Check = Callable[[Hello], None]  # raises InputError for a model that is not the run's
