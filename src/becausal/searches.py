"""Ways to put searches together: several as one, one within a limit, one whose best answer is remembered."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from becausal.contracts import Answers, Search, Stop, Visible

T = TypeVar("T")


@dataclass(frozen=True)
class Done(Generic[T]):
    """A search has ended, with this result."""

    result: T


def step(search: Search[T], message: Answers | Stop | None) -> Visible | Done[T]:
    """Give a search what it waits for (None to begin) and get its next questions, or its end."""
    try:
        if message is None:
            return next(search)
        return search.throw(message) if isinstance(message, Stop) else search.send(message)
    except StopIteration as end:
        return Done(end.value)


def gather(searches: Sequence[Search[T]]) -> Search[list[T]]:
    """Step several searches as one: what they ask at the same time forms one wave.

    Told to stop, it gives each search whose questions were all answered its answers and stops the others.
    """
    states = {i: step(search, None) for i, search in enumerate(searches)}
    while asking := {i: wave for i, wave in states.items() if not isinstance(wave, Done)}:
        stop: Stop | None = None
        try:
            answers = yield np.concatenate(list(asking.values()))
        except Stop as told:
            stop, answers = told, told.answers
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


def limited(search: Search[T], calls: int | None, *, spent: int = 0) -> Search[T]:
    """The search, stopped once the case has cost `calls` in all; `spent` is what it has cost so far."""
    state = step(search, None)
    while not isinstance(state, Done):
        room = len(state) if calls is None else max(0, calls - spent)
        message: Answers | Stop = Stop("budget")
        if room:
            try:
                message = yield state[:room]
                spent = max(spent, message.spent)
                if room < len(state):
                    message = Stop("budget", message)
            except Stop as told:
                message = told
        state = step(search, message)
    return state.result


class Best:
    """The smallest set that any question has shown to be sufficient so far, and what has been spent."""

    def __init__(self, grid: tuple[int, ...]) -> None:
        self.visible: Visible = np.ones(grid, bool)
        self.pixels = self.visible.size
        self.spent = 0

    def note(self, wave: Visible, answers: Answers) -> None:
        """Learn from the answers to the first questions of a wave."""
        self.spent = max(self.spent, answers.spent)
        if not len(answers) or not answers.holds.any():
            return
        rows = np.flatnonzero(answers.holds)
        counts = np.count_nonzero(wave[rows].reshape(len(rows), -1), axis=1)
        i = int(np.argmin(counts))
        if counts[i] < self.pixels:
            self.pixels = int(counts[i])
            self.visible = wave[rows[i]].copy()

    def follow(self, search: Search[T]) -> Search[T]:
        """The same search, watched."""
        state = step(search, None)
        while not isinstance(state, Done):
            message: Answers | Stop
            try:
                message = yield state
                self.note(state, message)
            except Stop as told:
                message = told
                self.note(state, told.answers)
            state = step(search, message)
        return state.result
