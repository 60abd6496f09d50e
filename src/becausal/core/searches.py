"""Ways to put searches together: several as one, and one after the other within a limit, the best remembered."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import numpy as np

from becausal.core.contracts import Answers, Grid, Lookahead, Search, Stop, Visible, Wave, draws_of, is_exact, with_hints
from becausal.core.targets import holds_with_floor, with_floor

T = TypeVar("T")

SAMPLE = 5  # sets that are remembered of the largest wave


@dataclass(frozen=True)
class Done(Generic[T]):
    """A search has ended, with this result."""

    result: T


def step(search: Search[T], message: Answers | Exception | None) -> Visible | Done[T]:
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


def gather(searches: Sequence[Search[T]]) -> Search[list[T]]:
    """Step several searches as one: what they ask at the same time forms one wave.

    Told to stop, it gives each search whose questions were all answered its answers and stops the others. Raises
    ValueError where one of them uses random backgrounds.
    """
    states = {i: step(search, None) for i, search in enumerate(searches)}
    while asking := {i: wave for i, wave in states.items() if not isinstance(wave, Done)}:
        stop: Stop | None = None
        try:
            answers = yield np.concatenate([_on_fills(wave, "gather") for wave in asking.values()])
        except Stop as thrown:
            stop, answers = thrown, thrown.answers
        start = 0
        for i, wave in asking.items():
            own = answers.part(slice(start, start + len(wave)))
            start += len(wave)
            if stop is None or len(own) == len(wave):
                states[i] = step(searches[i], own)
            else:
                states[i] = step(searches[i], Stop(stop.reason, own))
            while stop is not None and not isinstance(states[i], Done):
                states[i] = step(searches[i], Stop(stop.reason))
    return [state.result for state in states.values() if isinstance(state, Done)]


class BudgetedRun:
    """What a chain of searches has come to: the smallest set seen to be sufficient, what was spent, what cut it short.

    visible, pixels: the best set so far. spent: calls so far. stopped_by: None, or why a search had to end early. stage:
    a name for those who watch. price: how many calls a question costs. floor: the confidence a set must keep to count.
    widest: some sets of the largest wave, whose batches were the largest.
    """

    def __init__(self, grid: Grid, *, price: int = 1, floor: float = 0.0) -> None:
        self.price = price
        self.floor = floor
        self.visible: Visible = np.ones(grid, bool)
        self.pixels = self.visible.size
        self.spent = 0
        self.stopped_by: str | None = None
        self.stage = "search"
        self.widest: Visible = self.visible[None]
        self._most = 0

    def note(self, wave: Visible, answers: Answers) -> None:
        """Learn from the answers to the first questions of a wave; on random backgrounds only what was spent."""
        self.spent = max(self.spent, answers.spent)
        if draws_of(wave) is not None:  # a set that holds on one background is not sufficient for that
            return
        if len(wave) > self._most and len(answers) == len(wave):
            self._most, self.widest = len(wave), np.asarray(wave)[:: max(1, len(wave) // SAMPLE)]
        rows = np.flatnonzero(holds_with_floor(answers, self.floor)).tolist()
        if not rows:
            return
        sets = np.asarray(wave)
        counts = [int(np.count_nonzero(sets[row])) for row in rows]  # faster than all at once
        least = min(counts)
        if least < self.pixels:
            self.pixels = least
            self.visible = sets[rows[counts.index(least)]].copy()

    def follow(self, search: Search[T], *, limit: int | None = None) -> Search[T]:
        """The same search, watched, and stopped once `limit` calls are spent in all."""
        state = step(search, None)
        while not isinstance(state, Done):
            price = self.price if draws_of(state) is None else 1
            room = len(state) if limit is None else min(len(state), max(0, limit - self.spent) // price)
            message: Answers | Stop = Stop("budget")
            if room:
                try:
                    message = yield state if room == len(state) else _first(state, room)
                    self.note(state, message)
                    if room < len(state):
                        message = Stop("budget", message)
                except Stop as stopped:
                    message = stopped
                    self.note(state, stopped.answers)
            if isinstance(message, Stop):
                self.stopped_by = self.stopped_by or message.reason
            state = step(search, message)
        return state.result


def keeping(search: Search[T], floor: float) -> Search[T]:
    """The search under a harder target: the label must also keep a confidence of at least `floor`."""
    if not floor > 0.0:
        return (yield from search)
    state = step(search, None)
    while not isinstance(state, Done):
        message: Answers | Stop
        try:
            message = with_floor((yield state), floor)
        except Stop as stopped:
            message = Stop(stopped.reason, with_floor(stopped.answers, floor), stopped.cause)
        try:
            state = step(search, message)
        finally:
            del message  # a Stop that is raised again holds this frame, and would wait for gc
    return state.result


def showing(search: Search[T], always: Visible) -> Search[T]:
    """The search, with the pixels `always`, (*grid,), added to every set it asks about."""

    def add(ahead: Lookahead, count: int) -> list[Visible]:
        return [visible | always for visible in ahead(count)]

    state = step(search, None)
    while not isinstance(state, Done):
        ahead = state.lookahead if isinstance(state, Wave) else None
        wave = np.asarray(state) | always
        if isinstance(state, Wave):
            ahead_shown = None if ahead is None else partial(add, ahead)
            wave = with_hints(wave, lookahead=ahead_shown, draws=state.draws, exact=state.exact)
        message: Answers | Stop
        try:
            message = yield wave
        except Stop as stopped:
            message = stopped
        state = step(search, message)
    return state.result


def contrastive(search: Search[T]) -> Search[T]:
    """The search under a harder target: what is shown must be enough, and what is left when it is masked must not be.

    Every question costs two calls, of the set and of its complement. The margin is that of the condition nearer to fail.
    Raises ValueError where the search uses random backgrounds.
    """
    state = step(search, None)
    while not isinstance(state, Done):
        message: Answers | Stop
        try:
            message = _both((yield np.concatenate(zip_rows(_on_fills(state, "contrastive"), ~state))))
        except Stop as stopped:
            whole = stopped.answers.part(slice(0, len(stopped.answers) // 2 * 2))
            message = Stop(stopped.reason, _both(whole))
        state = step(search, message)
    return state.result


def zip_rows(first: Visible, second: Visible) -> list[Visible]:
    """Rows of two waves in turn, as pairs: a wave cut short then still has whole pairs."""
    return [np.stack(pair) for pair in zip(first, second, strict=True)]


def _first(wave: Visible, rows: int) -> Visible:
    """The first rows of a wave, on the same random backgrounds."""
    draws = draws_of(wave)
    return with_hints(wave[:rows], draws=None if draws is None else draws[:rows], exact=is_exact(wave))


def _on_fills(wave: Visible, name: str) -> Visible:
    """The wave, if it is evaluated under the fills. Raises ValueError if not."""
    if draws_of(wave) is not None:
        raise ValueError(f"a search inside {name}() cannot use random backgrounds (Wave.draws)")
    return wave


def _both(answers: Answers) -> Answers:
    """One answer for each pair: the set keeps the target, and its complement loses it."""
    enough, rest = answers.part(slice(0, None, 2)), answers.part(slice(1, None, 2))
    holds = enough.holds & ~rest.holds
    margin = np.minimum(enough.margin, -rest.margin)
    # A complement that holds by a hair has a margin of 0, and so would the pair, which does not hold.
    margin = np.where(holds, margin, np.minimum(margin, -1e-30))
    return Answers(holds, margin, enough.confidence, answers.spent, enough.similarity)
