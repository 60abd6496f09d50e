"""The search of one image from beginning to end: found, evaluated once more, and held against random backgrounds."""

import math
from dataclasses import replace

import numpy as np

from becausal.core.checks import Checks, Level, level_name
from becausal.core.contracts import Search, Stop
from becausal.core.errors import BecausalError
from becausal.search.any_level import add_any_level
from becausal.search.budget import Budget
from becausal.search.checking import check
from becausal.search.confirming import Plan, confirm, tolerance_of
from becausal.search.drive import Terms, drive
from becausal.search.minimise import Minimal
from becausal.search.pipeline import SearchResult, last_checks, run_pipeline

LOST_MAP = "the search was interrupted inside a method: its map is lost, the smallest set found so far is shown"


def search_explanation(plan: Plan) -> Search[SearchResult | BecausalError]:
    """The whole search, its result evaluated once more at the end; an error is returned, so that other images go on."""
    problem, request, run, budget = plan.problem, plan.request, plan.run, Budget.of(plan.request)
    try:
        try:
            result = yield from run_pipeline(problem, plan.explainer, request, run, budget.for_levels())
        except KeyboardInterrupt:
            result = yield from _best_after_interrupt(plan)
        while True:
            try:
                floor = max(0.0, run.floor - tolerance_of(plan.info))  # rounding may put it below
                result = yield from drive(confirm(plan, result, budget.last_rows), Terms(floor=floor))
                return (yield from add_any_level(problem, result, request, run))
            except Stop as stop:  # without a cause an interrupt just now: the result is there, and this is still allowed
                if stop.cause is not None:
                    return (yield from _best_after_failure(plan, result, stop))
    except BecausalError as error:
        return error


def _best_after_interrupt(plan: Plan) -> Search[SearchResult]:
    """The smallest sufficient set of a search in which a KeyboardInterrupt was raised; this, where there is none."""
    run = plan.run
    if run.pixels == run.visible.size:
        raise KeyboardInterrupt
    plan.interrupt()  # the other searches are to end as well
    run.stopped_by = "interrupt"
    try:
        checks = yield from drive(check(run.visible, grain=None), Terms(floor=run.floor))
    except Stop:  # an interrupt just now: this is still allowed
        checks = yield from _check_best(plan)
    return SearchResult(run.visible.astype(np.float64), (_only_level(plan, checks),), plan.confidence, (), (LOST_MAP,))


def _best_after_failure(plan: Plan, result: SearchResult, stop: Stop) -> Search[SearchResult]:
    """The best of a search whose model has failed, or hung until Ctrl-C.

    The failure, or the interrupt, is raised where nothing smaller than the view is known.
    """
    if not result.visible.all():
        return result
    if plan.run.visible.all():
        if stop.reason == "interrupt" or stop.cause is None:
            raise KeyboardInterrupt
        raise stop.cause from stop.cause.__cause__
    checks = yield from _check_best(plan)
    return replace(result, levels=(_only_level(plan, checks),))


def _check_best(plan: Plan) -> Search[Checks]:
    run = plan.run
    return drive(last_checks(Minimal(run.visible, None), is_guided=plan.problem.is_guided), Terms(floor=run.floor))


def _only_level(plan: Plan, checks: Checks) -> Level:
    """The best set so far, as the only level."""
    share = 0.0 if math.isnan(plan.confidence) else plan.request.shares[-1]
    return Level(plan.run.visible, checks, level_name(share), share)
