"""Ways to put searches together: several as one, one under harder terms, one after the other within a limit."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from becausal.core.contracts import Answers, Grid, Question, Search, Stop, Visible
from becausal.core.searches import Done, step
from becausal.core.targets import holds_with_floor, with_floor

T = TypeVar("T")

SAMPLE = 5  # sets that are remembered of the largest question


@dataclass(frozen=True, eq=False, kw_only=True)
class Terms:
    """What is asked in place of a search's own questions, and how the answers are judged.

    always: (*grid,) pixels that are added to every set. exact: the model itself answers, not a twin of it. contrast: what
    is shown must be enough, and what is left when it is masked must not be: every set costs two calls, and the margin is
    that of the condition nearer to fail. floor: the label must also keep a confidence of at least this much.
    """

    always: Visible | None = None
    exact: bool = False
    contrast: bool = False
    floor: float = 0.0

    def change(self, question: Question) -> Question:
        """The question as it is asked, but for the complements."""
        if self.always is not None:
            question = question.showing(self.always)
        return replace(question, exact=True) if self.exact and not question.exact else question


PLAIN = Terms()


def drive(
    search: Search[T], terms: Terms = PLAIN, *, run: "BudgetedRun | None" = None, limit: int | None = None
) -> Search[T]:
    """The same search under other terms; watched by a run, and stopped once `limit` calls are spent in all.

    One loop for all of it, and not one inside the other: every question and every answer would pass each of them. Raises
    ValueError where a contrastive search uses random backgrounds.
    """
    state = step(search, None)
    while not isinstance(state, Done):
        question = terms.change(Question.of(state))
        room = len(question) if run is None or limit is None else run.room(question, limit)
        message: Answers | Stop = Stop("budget")
        if room:
            # A search that is cut short ends with these answers, so nothing may follow them.
            part = question if room == len(question) else replace(question.part(slice(room)), lookahead=None)
            try:
                message = _judge((yield pair(part) if terms.contrast else part), terms, question, run)
                if room < len(question):
                    message = Stop("budget", message)
            except Stop as stop:
                answers = _judge(stop.answers, terms, question, run)
                message = stop if answers is stop.answers else Stop(stop.reason, answers, stop.cause)
        if run is not None and isinstance(message, Stop):
            run.stopped_by = run.stopped_by or message.reason
        try:
            state = step(search, message)
        finally:
            del message  # a Stop that is raised again holds this frame, and would wait for gc
    return state.result


def _judge(answers: Answers, terms: Terms, question: Question, run: "BudgetedRun | None") -> Answers:
    """The answers to the first sets of a question under these terms; the run learns from them before the floor counts."""
    if terms.contrast:
        answers = judge_pairs(answers)
    if run is not None:
        run.note(question, answers)
    return with_floor(answers, terms.floor)


def pair(question: Question) -> Question:
    """Each set, and after it its complement: a question cut short then still has whole pairs."""
    visible = _on_fills(question, "a contrastive search").visible
    both = np.stack([visible, ~visible], axis=1)  # (n, 2, *grid)
    return replace(question, visible=both.reshape(-1, *visible.shape[1:]), lookahead=None)


def judge_pairs(answers: Answers) -> Answers:
    """One answer for each whole pair: the set keeps the target, and its complement loses it."""
    whole = len(answers) // 2 * 2
    enough, rest = answers.part(slice(0, whole, 2)), answers.part(slice(1, whole, 2))
    holds = enough.holds & ~rest.holds
    margin = np.minimum(enough.margin, -rest.margin)
    # A complement that holds by a hair has a margin of 0, and so would the pair, which does not hold.
    margin = np.where(holds, margin, np.minimum(margin, -1e-30))
    return Answers(holds, margin, enough.confidence, answers.spent, enough.similarity)


def gather(searches: Sequence[Search[T]]) -> Search[list[T]]:
    """Step several searches as one: what they ask at the same time forms one question.

    Told to stop, it gives each search whose questions were all answered its answers and stops the others. Raises
    ValueError where one of them uses random backgrounds.
    """
    states = {i: step(search, None) for i, search in enumerate(searches)}
    while asking := {i: Question.of(state) for i, state in states.items() if not isinstance(state, Done)}:
        stop: Stop | None = None
        try:
            answers = yield np.concatenate(
                [_on_fills(question, "a gathered search").visible for question in asking.values()]
            )
        except Stop as thrown:
            stop, answers = thrown, thrown.answers
        start = 0
        for i, question in asking.items():
            own = answers.part(slice(start, start + len(question)))
            start += len(question)
            if stop is None or len(own) == len(question):
                states[i] = step(searches[i], own)
            else:
                states[i] = step(searches[i], Stop(stop.reason, own))
            while stop is not None and not isinstance(states[i], Done):
                states[i] = step(searches[i], Stop(stop.reason))
    return [state.result for state in states.values() if isinstance(state, Done)]


def _on_fills(question: Question, name: str) -> Question:
    """The question, if it is evaluated under the fills. Raises ValueError if not."""
    if question.draws is not None:
        raise ValueError(f"{name} cannot use random backgrounds (Question.draws)")
    return question


class BudgetedRun:
    """What a chain of searches has come to: the smallest set seen to be sufficient, what was spent, what cut it short.

    visible, pixels: the best set so far. spent: calls so far. stopped_by: None, or why a search had to end early. stage:
    a name for those who watch. price: how many calls a question costs. floor: the confidence a set must keep to count.
    widest: some sets of the largest question, whose batches were the largest.
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

    def follow(self, search: Search[T], terms: Terms = PLAIN, *, limit: int | None = None) -> Search[T]:
        """The same search, watched, and stopped once `limit` calls are spent in all."""
        return drive(search, terms, run=self, limit=limit)

    def room(self, question: Question, limit: int) -> int:
        """How many sets of a question may be asked before `limit` calls are spent in all."""
        price = self.price if question.draws is None else 1
        return min(len(question), max(0, limit - self.spent) // price)

    def note(self, question: Question, answers: Answers) -> None:
        """Learn from the answers to the first sets of a question; on random backgrounds only what was spent."""
        self.spent = max(self.spent, answers.spent)
        if question.draws is not None:  # a set that holds on one background is not sufficient for that
            return
        if len(question) > self._most and len(answers) == len(question):
            self._most, self.widest = len(question), question.visible[:: max(1, len(question) // SAMPLE)]
        rows = np.flatnonzero(holds_with_floor(answers, self.floor)).tolist()
        if not rows:
            return
        sets = question.visible
        counts = [int(np.count_nonzero(sets[row])) for row in rows]  # faster than all at once
        least = min(counts)
        if least < self.pixels:
            self.pixels = least
            self.visible = sets[rows[counts.index(least)]].copy()
