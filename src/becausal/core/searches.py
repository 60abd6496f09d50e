"""How a search is run by hand: one step at a time."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from becausal.core.contracts import Answers, Question, Search, Stop, Visible

T = TypeVar("T")

SAMPLE = 5  # sets that are remembered of the largest wave


@dataclass(frozen=True)
class Done(Generic[T]):
    """A search has ended, with this result."""

    result: T


def step(search: Search[T], message: Answers | Exception | None) -> Question | Visible | Done[T]:
    """Give a search what it waits for (None to begin; a Stop or an error is thrown) and get its questions, or its end."""
    try:
        if message is None:
            return next(search)
        return search.throw(message) if isinstance(message, Exception) else search.send(message)
    except StopIteration as end:
        return Done(end.value)
    finally:
        if isinstance(message, Stop):
            message.__traceback__ = None  # it holds the search's frame, and that often holds it: all would wait for gc
