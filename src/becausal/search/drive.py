"""A search run by another: under harder terms, within a limit, and on the record (`drive`)."""

from dataclasses import replace
from typing import TypeVar

import numpy as np

from becausal.core.contracts import Answers, Done, Grid, Question, Search, Stop, Visible, step
from becausal.core.targets import FAINT, holds_with_floor, with_floor

T = TypeVar("T")

SAMPLE = 5  # sets that are remembered of the largest question


def drive(
    search: Search[T], *, run: "BudgetedRun | None" = None, limit: int | None = None,
    exact: bool = False, contrast: bool = False, floor: float = 0.0,
) -> Search[T]:  # fmt: skip
    """The same search under other terms; watched by a run, and stopped once `limit` calls are spent in all.

    exact: the model itself answers, not a twin of it. contrast: what
    is shown must be enough, and what is left when it is masked must not be: every set costs two calls, and the margin is
    that of the condition nearer to fail. floor: the label must also keep a confidence of at least this much in the fills.
    Raises ValueError where a contrastive search uses random backgrounds.
    """
    # One loop for all of it, and not one inside the other: every question and every answer would pass each of them.

    def judge(answers: Answers) -> Answers:
        if contrast:
            answers = judge_pairs(answers)
        if run is not None:  # it learns before the floor counts: it has one of its own
            run.note(question, answers)
        return with_floor(answers, floor if question.draws is None else 0.0)

    state = step(search, None)
    while not isinstance(state, Done):
        question = Question.of(state)
        if exact and not question.exact:
            question = replace(question, exact=True)
        room = len(question)  # how many of its sets may be asked
        if run is not None and limit is not None:
            room = min(room, max(0, limit - run.spent) // (run.price if question.draws is None else 1))
        message: Answers | Stop = Stop("budget")
        if room:
            # A search that is cut short ends with these answers, so nothing may follow them.
            part = question if room == len(question) else replace(question.part(slice(room)), lookahead=None)
            try:
                message = judge((yield pair(part) if contrast else part))
                if room < len(question):
                    message = Stop("budget", message)
            except Stop as stop:
                answers = judge(stop.answers)
                message = stop if answers is stop.answers else Stop(stop.reason, answers, stop.cause)
        if run is not None and isinstance(message, Stop):
            run.stopped_by = run.stopped_by or message.reason
        try:
            state = step(search, message)
        finally:
            del message  # a Stop that is raised again holds this frame, and would wait for gc
    return state.result


def pair(question: Question) -> Question:
    """Each set, and after it its complement: a question cut short then still has whole pairs."""
    if question.draws is not None:
        raise ValueError("a contrastive search cannot use random backgrounds (Question.draws)")
    visible = question.visible
    both = np.stack([visible, ~visible], axis=1)  # (n, 2, *grid)
    return replace(question, visible=both.reshape(-1, *visible.shape[1:]), lookahead=None)


def judge_pairs(answers: Answers) -> Answers:
    """One answer for each whole pair: the set keeps the target, and its complement loses it."""
    whole = len(answers) // 2 * 2
    enough, rest = answers.part(slice(0, whole, 2)), answers.part(slice(1, whole, 2))
    holds = enough.holds & ~rest.holds
    margin = np.minimum(enough.margin, -rest.margin)
    # A complement that holds by a hair has a margin of 0, and so would the pair, which does not hold.
    margin = np.where(holds, margin, np.minimum(margin, -FAINT))
    return Answers(holds, margin, enough.confidence, answers.spent, enough.similarity)


class BudgetedRun:
    """The record of searches that are driven one after the other, which know nothing of it.

    visible, pixels: the smallest set seen to be sufficient. spent: calls so far. stopped_by: None, or why a search had to
    end early. stage: a name for those who watch. price: how many calls a question costs. floor: the confidence a set must
    keep to count. widest: some sets of the largest question, whose batches were the largest.
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
        counts = [int(np.count_nonzero(question.visible[row])) for row in rows]  # faster than all at once
        least = min(counts)
        if least < self.pixels:
            self.pixels, self.visible = least, question.visible[rows[counts.index(least)]].copy()
