"""The whole explanation as one search: a method's map, a sufficient set from it, a minimal one, its checks."""

from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TypeVar

import numpy as np

from becausal.core.checks import CheckedSet, Checks
from becausal.core.contracts import Answers, Saliency, Search, Stop, Visible
from becausal.core.errors import FillError, OptionError, TargetError
from becausal.core.extract import COARSE, extract
from becausal.core.minimise import Minimal, minimise, present
from becausal.core.problem import Explainer, Problem, SetExplainer
from becausal.core.regions import cells
from becausal.core.request import Request
from becausal.core.searches import BudgetedRun, contrastive

T = TypeVar("T")

RESERVE = COARSE + 16  # questions kept back from the method for the extraction
LAST_QUESTIONS = 2  # and for the last checks
FIRST_CALL = 1  # of the whole view, to find its label


@dataclass(frozen=True, eq=False)
class SearchResult:
    """What a pipeline found: the map, the explanation, its checks, and the classifier's confidence in the whole view.

    others: further explanations, where several were asked for.
    """

    saliency: Saliency
    visible: Visible
    checks: Checks
    confidence: float
    others: tuple[CheckedSet, ...] = ()
    notes: tuple[str, ...] = ()


def run_pipeline(problem: Problem, explainer: Explainer, request: Request, run: BudgetedRun) -> Search[SearchResult]:
    """Check that there is something to explain, then search, extract, minimise and verify within the budget.

    Args:
        problem: What to explain; its budget is set here.
        explainer: The method, configured for this request.
        request: The fills, the grain, the seed and the limit on calls.
        run: Keeps the best set and the calls so far, for those who watch.
    """
    seeds = np.random.default_rng(request.seed).spawn(2)
    opening = yield from _opening(problem)
    run.spent = opening.spent
    confirming = len(request.fills)  # the explanation is evaluated once more at the very end
    last = None
    if request.max_calls is not None:
        checking = LAST_QUESTIONS * len(request.fills)
        checking += min(checking * (request.several - 1), request.max_calls // 4)  # of the further explanations
        last = request.max_calls - confirming - checking
    limit = last
    if last is not None and not isinstance(explainer, SetExplainer):
        limit = last - min(RESERVE * request.price, (last - FIRST_CALL) // 3)
    limited = problem if limit is None else replace(problem, budget=max(0, limit - run.spent) // request.price)
    ask = contrastive if request.contrast else _unchanged
    finding = yield from ask(run.follow(explainer.search(limited, seeds[0]), limit=limit))
    if finding.sets:
        minimal = Minimal(finding.sets[0], finding.grain)
    else:
        run.stage = "extract"
        visible = yield from ask(run.follow(extract(finding.saliency, seeds[1]), limit=last))
        minimal = Minimal(run.visible if visible is None else visible, None)
        if (grain := request.grain_for(explainer, problem.grid)) is not None:
            run.stage = "minimise"
            shaving = minimise(minimal.visible, finding.saliency, finest=grain)
            minimal = yield from ask(run.follow(shaving, limit=last))
    run.stage = "verify"
    checks = yield from last_checks(minimal)
    others = []
    for visible, grain in zip_longest(finding.sets[1:], finding.grains[1:]):
        others.append(CheckedSet(visible, (yield from last_checks(Minimal(visible, grain)))))
    return SearchResult(
        finding.saliency, minimal.visible, checks, float(opening.confidence[0]), tuple(others), finding.notes
    )


def _unchanged(search: Search[T]) -> Search[T]:
    return search


def _opening(problem: Problem) -> Search[Answers]:
    """Evaluate the whole view and the fully masked image; refuse where there is nothing to explain."""
    grid = problem.grid
    try:
        answers = yield np.stack([np.ones(grid, bool), np.zeros(grid, bool)])
    except Stop as stop:
        if stop.reason == "interrupt":
            raise KeyboardInterrupt from None
        if stop.cause is not None:
            raise stop.cause from stop.cause.__cause__
        raise OptionError(
            "max_calls is too small: not even the whole view and the fully masked image can be evaluated"
        ) from None
    if not answers.holds[0]:
        raise TargetError(
            "the target does not hold on the whole view, so there is nothing to explain"
            + (f": its confidence there is {answers.confidence[0]:.3f}" if problem.has_scores else "")
        )
    if answers.holds[1]:
        raise FillError(
            "the fully masked image already has this label, so there is nothing to explain under this fill: use another fill"
        )
    return answers


def last_checks(minimal: Minimal) -> Search[Checks]:
    """Sufficiency and necessity; minimality was asked on the way, removal by removal."""
    visible, grain = minimal.visible, minimal.grain
    count = len(present(visible, cells(visible.shape, grain))) if grain else 0
    try:
        answers = yield np.stack([visible, ~visible])
    except Stop as stop:
        answers = stop.answers
    sufficient = bool(answers.holds[0]) if len(answers) else True  # every set on the way was seen to be sufficient
    confidence = float(answers.confidence[0]) if len(answers) else float("nan")
    necessary = not bool(answers.holds[1]) if len(answers) > 1 else None
    return Checks(sufficient, confidence, necessary, grain, count)
