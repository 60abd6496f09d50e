"""A library that calls back, made into a search.

Our methods yield their questions; a library wants a function it can call. The library runs in a thread of its own and
the two take turns: while it computes the search waits, while it waits for an answer the search has its question out.
Nothing ever runs at the same time, so the result is as deterministic as the library.
"""

from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread
from typing import Any, Generic, TypeVar

import numpy as np

from becausal.core.contracts import Answers, Search, Stop, Visible

T = TypeVar("T")
Ask = Callable[[Visible], Answers]  # (n, *grid) questions to n answers


class Ended(BaseException):
    """Raised inside the library's call when the search must end; not an Exception, so that no library swallows it.

    `answers` are those to the first questions of the call, as with `Stop`.
    """

    def __init__(self, answers: Answers) -> None:
        super().__init__("the search was told to stop")
        self.answers = answers


@dataclass(frozen=True)
class _Returned(Generic[T]):
    """The library is done, with a result or with an error."""

    result: T | None = None
    error: BaseException | None = None


def bridge(function: Callable[[Ask], T], *, seed: int) -> Search[T | None]:
    """The search that runs `function(ask)` and returns its result; None if it was told to stop.

    What the function raises comes out of the search. Told to stop, `ask` raises Ended, once and ever after; a function
    that would rather return its best so far catches it. However the search ends, the thread has ended before it.
    seed: of numpy's global random numbers, which libraries like to use; they are put back whenever the library waits.
    """
    questions: SimpleQueue[Visible | _Returned[T]] = SimpleQueue()
    replies: SimpleQueue[Answers | Ended] = SimpleQueue()
    ended: list[Ended] = []

    def ask(visible: Visible) -> Answers:
        if not ended:
            questions.put(visible)
            reply = replies.get()
            if isinstance(reply, Answers):
                return reply
            ended.append(reply)
            raise reply
        raise Ended(Answers.none())

    def work() -> None:
        try:
            questions.put(_Returned(result=function(ask)))
        except Ended:
            questions.put(_Returned())
        except BaseException as error:
            questions.put(_Returned(error=error))

    numbers = GlobalNumbers(seed)
    thread = Thread(target=work, name="becausal-bridge", daemon=True)
    try:
        with numbers:
            thread.start()
            word = questions.get()
        while not isinstance(word, _Returned):
            try:
                reply: Answers | Ended = yield word
            except Stop as told:
                reply = Ended(told.answers)
            with numbers:
                replies.put(reply)
                word = questions.get()
        if word.error is not None:
            raise word.error
        return word.result
    finally:
        # Also when the search is closed unfinished: the library must not wait for ever.
        replies.put(Ended(Answers.none()))
        thread.join()


class GlobalNumbers:
    """numpy's global random numbers, lent to a library for the length of its turns, seeded and then put back."""

    def __init__(self, seed: int) -> None:
        self.theirs: Any = np.random.RandomState(seed).get_state()
        self.ours: Any = None

    def __enter__(self) -> None:
        self.ours = np.random.get_state()  # noqa: NPY002 - the library's choice, not ours
        np.random.set_state(self.theirs)  # noqa: NPY002

    def __exit__(self, *error: object) -> None:
        self.theirs = np.random.get_state()  # noqa: NPY002
        np.random.set_state(self.ours)  # noqa: NPY002
