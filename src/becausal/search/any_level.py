"""The level "any": a set around the explanation that keeps the label on random backgrounds, with a certificate."""

from dataclasses import replace

import numpy as np

from becausal.core.certificates import Certificate
from becausal.core.checks import ANY, Level
from becausal.core.contracts import Search
from becausal.core.problem import Problem
from becausal.core.request import Request
from becausal.search.any_background import RULES, find_any
from becausal.search.budget import Budget
from becausal.search.drive import BudgetedRun
from becausal.search.minimise import Minimal
from becausal.search.pipeline import SearchResult, last_checks


def add_any_level(problem: Problem, result: SearchResult, request: Request, run: BudgetedRun) -> Search[SearchResult]:
    """The result, which has the other levels, with the level "any", or with a note that says why there is none."""
    if request.holds is None or problem.sampler is None or not result.checks.sufficient:
        return result
    goal = f"at least {request.holds:.3g} of random backgrounds"
    ended = f"the search ended before a set was found that keeps the label on {goal}"
    if run.stopped_by in ("interrupt", "failure"):
        return replace(result, notes=(*result.notes, ended))
    run.stage = "backgrounds"
    limit, rng = Budget.of(request).any_limit, np.random.default_rng([request.seed, 2])
    held = yield from find_any(
        problem, result.visible, request.holds, confidence=result.confidence, run=run, limit=limit, rng=rng
    )
    if held is None:
        return replace(result, notes=(*result.notes, ended))
    tally, bound = held.tally, held.bound(request.holds)
    record = problem.sampler.record()
    certificate = Certificate(request.holds, tally.asked, tally.failures, bound, RULES.confidence, tally.first, record)
    if certificate.holds and not held.visible.all():
        run.stage = "verify"
        checks = yield from last_checks(Minimal(held.visible, None))
        return replace(result, levels=(*result.levels, Level(held.visible, checks, ANY, 0.0, certificate)))
    note = ended
    if certificate.holds or run.stopped_by is None:
        share, kept = held.visible.mean(), f"kept it on {certificate.kept} of {certificate.asked}"
        note = f"no set was shown to keep the label on {goal}: the last one, {100 * share:.0f} % of the view, {kept}"
        if held.visible.all():
            note = f"no set smaller than the whole view was found that keeps the label on {goal}"
    return replace(result, notes=(*result.notes, note))
