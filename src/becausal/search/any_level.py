"""The level "any": a set around the explanation that keeps the label on random backgrounds, with a certificate."""

from dataclasses import replace

import numpy as np

from becausal.core.certificates import Certificate
from becausal.core.checks import ANY, Level
from becausal.core.contracts import Search
from becausal.core.problem import Problem
from becausal.core.request import Request
from becausal.search.any_background import CONFIDENCE, find_any
from becausal.search.budget import Budget
from becausal.search.drive import BudgetedRun
from becausal.search.minimise import Minimal
from becausal.search.pipeline import SearchResult, last_checks


def add_any_level(problem: Problem, result: SearchResult, request: Request, run: BudgetedRun) -> Search[SearchResult]:
    """The result with the level "any", or with a note that says why there is none.

    Args:
        problem: The problem, with random backgrounds.
        result: The other levels.
        request: What was asked for.
        run: Counts the calls.
    """
    if request.holds is None or problem.sampler is None or not result.checks.sufficient:
        return result
    goal = f"at least {request.holds:.3g} of random backgrounds"
    if run.stopped_by in ("interrupt", "failure"):
        return _with_note(result, f"the search ended before a set was found that keeps the label on {goal}")
    run.stage = "backgrounds"
    limit = Budget.of(request).any_limit
    rng = np.random.default_rng([request.seed, 2])
    held = yield from find_any(
        problem, result.visible, request.holds, confidence=result.confidence, run=run, limit=limit, rng=rng
    )
    if held is None:
        return _with_note(result, f"the search ended before a set was found that keeps the label on {goal}")
    tally = held.tally
    certificate = Certificate(
        request.holds,
        tally.asked,
        tally.failures,
        held.bound(request.holds),
        CONFIDENCE,
        tally.first,
        problem.sampler.record(),
    )
    if not certificate.holds and run.stopped_by is not None:
        return _with_note(result, f"the search ended before a set was found that keeps the label on {goal}")
    if held.visible.all():
        return _with_note(result, f"no set smaller than the whole view was found that keeps the label on {goal}")
    if not certificate.holds:
        share = np.count_nonzero(held.visible) / held.visible.size
        kept = f"kept it on {certificate.kept} of {certificate.asked}"
        return _with_note(
            result, f"no set was shown to keep the label on {goal}: the last one, {100 * share:.0f} % of the view, {kept}"
        )
    run.stage = "verify"
    checks = yield from last_checks(Minimal(held.visible, None))
    return replace(result, levels=(*result.levels, Level(held.visible, checks, ANY, 0.0, certificate)))


def _with_note(result: SearchResult, note: str) -> SearchResult:
    return replace(result, notes=(*result.notes, note))
