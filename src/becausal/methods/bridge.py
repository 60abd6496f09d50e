"""Run a library that calls the model through a callback as a search.

Our methods yield their questions, a library needs a function to call. The library runs in its own thread, and the two
alternate: the search waits while the library computes, and the library waits while the search evaluates. They never run
at the same time, so the result is as deterministic as the library.
"""

from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread
from typing import Any, Generic, TypeVar

import numpy as np

from becausal.core.contracts import Answers, Search, Stop, Visible

T = TypeVar("T")
Evaluate = Callable[[Visible], Answers]  # visible sets, (n, *grid), to n answers


class SearchStopped(BaseException):
    """Raised in the library's callback when the search must end; a BaseException, so that no library catches it.

    `answers` are those to the first questions of the call, as in `Stop`.
    """

    def __init__(self, answers: Answers) -> None:
        super().__init__("the search was stopped")
        self.answers = answers


@dataclass(frozen=True)
class _Finished(Generic[T]):
    result: T | None = None
    error: BaseException | None = None


def bridge(function: Callable[[Evaluate], T], *, seed: int) -> Search[T | None]:
    """Run `function(evaluate)` as a search and return its result, or None after a stop.

    Exceptions of the function are raised by the search. After a stop, `evaluate` raises SearchStopped on every call; a
    function that can return a partial result may catch it. The thread has always ended before the search ends.
    seed: for numpy's global random state, which many libraries use; it is restored whenever the library waits.
    """
    questions: SimpleQueue[Visible | _Finished[T]] = SimpleQueue()
    replies: SimpleQueue[Answers | SearchStopped] = SimpleQueue()
    stopped = False

    def evaluate(visible: Visible) -> Answers:
        nonlocal stopped
        if stopped:
            raise SearchStopped(Answers.none())
        questions.put(visible)
        reply = replies.get()
        if isinstance(reply, Answers):
            return reply
        stopped = True
        raise reply

    def work() -> None:
        try:
            questions.put(_Finished(result=function(evaluate)))
        except SearchStopped:
            questions.put(_Finished())
        except BaseException as error:
            questions.put(_Finished(error=error))

    random_state = GlobalRandomState(seed)
    thread = Thread(target=work, name="becausal-bridge", daemon=True)
    try:
        with random_state:
            thread.start()
            item = questions.get()
        while not isinstance(item, _Finished):
            try:
                reply: Answers | SearchStopped = yield item
            except Stop as stop:
                reply = SearchStopped(stop.answers)
            with random_state:
                replies.put(reply)
                item = questions.get()
        if item.error is not None:
            raise item.error
        return item.result
    finally:
        # Also when the search is closed early: the library must not wait forever.
        replies.put(SearchStopped(Answers.none()))
        thread.join()


class GlobalRandomState:
    """Context manager: numpy's global random state belongs to a library inside the context, and is restored after it."""

    def __init__(self, seed: int) -> None:
        self._inner: Any = np.random.RandomState(seed).get_state()
        self._outer: Any = None

    def __enter__(self) -> None:
        self._outer = np.random.get_state()  # noqa: NPY002 - the state that the library uses
        np.random.set_state(self._inner)  # noqa: NPY002

    def __exit__(self, *error: object) -> None:
        self._inner = np.random.get_state()  # noqa: NPY002
        np.random.set_state(self._outer)  # noqa: NPY002
