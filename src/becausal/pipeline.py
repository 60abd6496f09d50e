"""The whole way as one search: a method's map, a sufficient set from it, a minimal one, its checks."""

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from becausal.contracts import Answers, Explainer, Problem, Saliency, Search, Stop, Visible
from becausal.errors import FillError, OptionError, TargetError
from becausal.extract import COARSE, extract
from becausal.minimise import Minimal, minimise, present
from becausal.regions import cells
from becausal.searches import Course, contrastive
from becausal.verify import Checks

T = TypeVar("T")

RESERVE = COARSE + 16  # questions kept back from the method for the extraction
LAST_QUESTIONS = 2  # and for the last checks


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to do: the method, the grain to minimise to (None: not at all), the seed, the budget.

    fills: how many there are. contrast: what is found must be necessary as well as sufficient.
    """

    explainer: Explainer
    grain: int | None = None
    seed: int = 0
    max_calls: int | None = None
    fills: int = 1
    contrast: bool = False

    @property
    def price(self) -> int:
        """How many calls a question costs."""
        return self.fills * (2 if self.contrast else 1)

    def ask(self, search: Search[T]) -> Search[T]:
        """The search as the plan wants it asked."""
        return contrastive(search) if self.contrast else search


@dataclass(frozen=True)
class Trace:
    """What came out: the map, the explanation, its checks, and the classifier's confidence in the whole view."""

    saliency: Saliency
    visible: Visible
    checks: Checks
    confidence: float
    others: tuple[Visible, ...] = ()
    notes: tuple[str, ...] = ()


def pursue(problem: Problem, plan: Plan, course: Course) -> Search[Trace]:
    """Check that there is something to explain, then search, extract, minimise and verify within the budget."""
    seeds = np.random.default_rng(plan.seed).spawn(2)
    opening = yield from _opening(problem)
    course.spent = opening.spent
    last = None if plan.max_calls is None else plan.max_calls - LAST_QUESTIONS * plan.fills
    limit = last
    if last is not None and not getattr(plan.explainer, "finds_sets", False):
        limit = last - min(RESERVE * plan.price, last // 3)
    told = problem if limit is None else replace(problem, budget=max(0, limit - course.spent) // plan.price)
    finding = yield from plan.ask(course.follow(plan.explainer.search(told, seeds[0]), limit=limit))
    if finding.sets:
        minimal = Minimal(finding.sets[0], finding.grain)
    else:
        course.stage = "extract"
        visible = yield from plan.ask(course.follow(extract(finding.saliency, seeds[1]), limit=last))
        minimal = Minimal(course.visible if visible is None else visible, None)
        if plan.grain is not None:
            course.stage = "minimise"
            shaving = minimise(minimal.visible, finding.saliency, finest=plan.grain)
            minimal = yield from plan.ask(course.follow(shaving, limit=last))
    course.stage = "verify"
    checks = yield from last_checks(minimal)
    return Trace(finding.saliency, minimal.visible, checks, float(opening.confidence[0]), finding.sets[1:], finding.notes)


def _opening(problem: Problem) -> Search[Answers]:
    """Ask the whole view and the empty one; refuse where there is nothing to explain."""
    grid = problem.grid
    try:
        answers = yield np.stack([np.ones(grid, bool), np.zeros(grid, bool)])
    except Stop as told:
        if told.reason == "interrupt":
            raise KeyboardInterrupt from None
        if told.cause is not None:
            raise told.cause from told.cause.__cause__
        raise OptionError("the budget of calls is too small to ask even the whole and the empty picture") from None
    if not answers.holds[0]:
        raise TargetError(
            "the target does not hold on the whole view, so there is nothing to explain"
            + (f": its confidence there is {answers.confidence[0]:.3f}" if problem.has_scores else "")
        )
    if answers.holds[1]:
        raise FillError(
            "the empty picture under this fill has the target already, so the explanation would be empty: "
            "choose another fill"
        )
    return answers


def last_checks(minimal: Minimal) -> Search[Checks]:
    """Sufficiency and necessity; minimality was asked on the way, removal by removal."""
    visible, grain = minimal.visible, minimal.grain
    count = len(present(visible, cells(visible.shape, grain))) if grain else 0
    try:
        answers = yield np.stack([visible, ~visible])
    except Stop as told:
        answers = told.answers
    sufficient = bool(answers.holds[0]) if len(answers) else True  # every set on the way was seen to be sufficient
    confidence = float(answers.confidence[0]) if len(answers) else float("nan")
    necessary = not bool(answers.holds[1]) if len(answers) > 1 else None
    return Checks(sufficient, confidence, necessary, grain, count)
