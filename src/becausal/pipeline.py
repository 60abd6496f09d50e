"""The whole way as one search: a method's map, a sufficient set from it, a minimal one, its checks."""

from dataclasses import dataclass, field

import numpy as np

from becausal.contracts import Explainer, Finding, Problem, Saliency, Search, Stop, Visible
from becausal.errors import FillError, TargetError
from becausal.extract import COARSE, extract
from becausal.minimise import Minimal, minimise
from becausal.searches import Best, limited
from becausal.verify import Checks

RESERVE = COARSE + 24  # calls kept back for extraction and the last checks


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to do: the method, the grain to minimise to (None: not at all), the seed, the budget."""

    explainer: Explainer
    grain: int | None = None
    seed: int = 0
    max_calls: int | None = None


@dataclass(frozen=True)
class Trace:
    """What came out: the map, the explanation, its checks, and the classifier's confidence in the whole view."""

    saliency: Saliency
    visible: Visible
    checks: Checks
    confidence: float
    others: tuple[Visible, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass
class Progress:
    """The best so far, for those who watch."""

    best: Best
    stage: str = field(default="search")


def pursue(problem: Problem, plan: Plan, progress: Progress) -> Search[Trace]:
    """Check that there is something to explain, then search, extract, minimise and verify within the budget."""
    grid, best = problem.grid, progress.best
    seeds = np.random.default_rng(plan.seed).spawn(2)
    opening = yield np.stack([np.ones(grid, bool), np.zeros(grid, bool)])
    if not opening.holds[0]:
        raise TargetError(
            "the target does not hold on the whole view, so there is nothing to explain: "
            f"the classifier gives it a confidence of {opening.confidence[0]:.3f}"
        )
    if opening.holds[1]:
        raise FillError(
            "the empty picture under this fill has the target already, so the explanation would be empty: "
            "choose another fill"
        )
    budget = plan.max_calls
    reserve = 0 if budget is None else min(RESERVE, budget // 3)
    finding: Finding = yield from best.follow(
        limited(plan.explainer.search(problem, seeds[0]), budget and budget - reserve, spent=opening.spent)
    )
    progress.stage = "extract"
    visible = finding.sets[0] if finding.sets else None
    if visible is None:
        visible = yield from best.follow(limited(extract(finding.saliency, seeds[1]), budget and budget - 2, spent=best.spent))
    if visible is None:
        visible = best.visible
    minimal = Minimal(visible, None)
    if plan.grain is not None:
        progress.stage = "minimise"
        shaving = minimise(visible, finding.saliency, finest=plan.grain)
        minimal = yield from best.follow(limited(shaving, budget and budget - 2, spent=best.spent))
    progress.stage = "verify"
    checks = yield from _last_checks(minimal)
    return Trace(
        finding.saliency, minimal.visible, checks, float(opening.confidence[0]), finding.sets[1:], finding.notes
    )


def _last_checks(minimal: Minimal) -> Search[Checks]:
    """Sufficiency and necessity; minimality was asked on the way, removal by removal."""
    from becausal.minimise import present
    from becausal.regions import cells

    visible, grain = minimal.visible, minimal.grain
    count = len(present(visible, cells(visible.shape, grain))) if grain else 0
    try:
        answers = yield np.stack([visible, ~visible])
    except Stop as told:
        if not len(told.answers):
            return Checks(True, float("nan"), None, grain, count)
        answers = told.answers
    necessary = not bool(answers.holds[1]) if len(answers) > 1 else None
    return Checks(bool(answers.holds[0]), float(answers.confidence[0]), necessary, grain, count)
