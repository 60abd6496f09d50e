"""The search of one image from beginning to end: `pipeline` and the last evaluation.

The last evaluation asks whether the model still says what it said during the search, and in other company. The explanation
is evaluated alone, and in one batch with other sets of the search, at another place. Three kinds of models are told
apart. Most give the same answer again. One that is random answers the same batch in two ways; its explanation is worth
nothing, and it is refused. One whose rounding depends on the other rows of the batch gives the same answer to the same
batch; its explanation is kept, with a note that says how large the effect is.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from becausal.core.checks import Checks, Level, level_name
from becausal.core.contracts import Answers, ModelInfo, Question, Search, Stop, Visible
from becausal.core.errors import BecausalError, UnstableModelError
from becausal.core.problem import Explainer, Problem
from becausal.core.request import Request
from becausal.search.budget import Budget
from becausal.search.checking import check, claims, last_checks
from becausal.search.drive import BudgetedRun, drive
from becausal.search.minimise import Minimal
from becausal.search.pipeline import SearchResult, run_pipeline

LOST_MAP = "the search was interrupted inside a method: its map is lost, the smallest set found so far is shown"
STABLE, STABLE_HALF = 1e-3, 0.05  # how far a confidence may move between two evaluations, and in half precision
REPEATS = 2  # how often each batch is evaluated to find out why an answer has changed
BATCH_SIZES = (2, 16, 32)  # rows of the batches that are compared with a batch of one


@dataclass(frozen=True, eq=False, kw_only=True)
class Plan:
    """What one image's explanation is made with.

    confidence: of the whole view, in the very first call. holds: whether the target held there. info: of the model.
    batch_size: the most rows that it evaluates at once. interrupt: tells whoever runs the search of a Ctrl-C inside it.
    """

    problem: Problem
    explainer: Explainer
    request: Request
    run: BudgetedRun
    confidence: float
    holds: bool
    info: ModelInfo
    batch_size: int
    interrupt: Callable[[], None]


class Change(NamedTuple):
    """A set, (*grid,), whose second evaluation gave another confidence, or for NaN another label."""

    visible: Visible
    before: float
    after: float


def search_explanation(plan: Plan) -> Search[SearchResult | BecausalError]:
    """The whole search, its result evaluated once more at the end; an error is returned, so that other images go on."""
    problem, request, run, budget = plan.problem, plan.request, plan.run, Budget.of(plan.request)
    first = plan.confidence if plan.holds else None
    try:
        try:
            result = yield from run_pipeline(problem, plan.explainer, request, run, first)
        except KeyboardInterrupt:  # inside the method, which cannot handle it as it does a Stop
            result = yield from _best_after_interrupt(plan)
        while True:
            try:
                floor = max(0.0, run.floor - tolerance_of(plan.info))  # rounding may put it below
                return (yield from drive(confirm(plan, result, budget.last_rows), floor=floor))
            except Stop as stop:
                if stop.cause is None:  # an interrupt just now: the result is there, and this is still allowed
                    continue
                # The model has failed, or hung until Ctrl-C. That is raised where nothing smaller than the view is known.
                if not result.visible.all():
                    return result
                if not run.visible.all():
                    return replace(result, levels=((yield from _check_best(plan)),))
                if stop.reason == "interrupt":
                    raise KeyboardInterrupt from None
                raise stop.cause from stop.cause.__cause__
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
        level = _only_level(plan, (yield from drive(check(run.visible, grain=None), floor=run.floor)))
    except Stop:  # an interrupt just now: this is still allowed
        level = yield from _check_best(plan)
    return SearchResult(run.visible.astype(np.float64), (level,), plan.confidence, (), (LOST_MAP,))


def _check_best(plan: Plan) -> Search[Level]:
    run = plan.run
    asked = last_checks(Minimal(run.visible, None), is_guided=plan.problem.is_guided)
    return _only_level(plan, (yield from drive(asked, floor=run.floor)))


def _only_level(plan: Plan, checks: Checks) -> Level:
    """The best set so far, as the only level."""
    share = 0.0 if math.isnan(plan.confidence) else plan.request.share
    return Level(plan.run.visible, checks, level_name(share), share)


def tolerance_of(info: ModelInfo) -> float:
    """How far a confidence may move between two evaluations."""
    return STABLE_HALF if info.is_rough else STABLE


def confirm(plan: Plan, result: SearchResult, count: int) -> Search[SearchResult]:
    """The result, evaluated once more: alone, and in one batch of `count` sets; noted is where answers depend on the batch.

    Raises UnstableModelError where the model answered the same question in two ways, and not because of the batch, or where
    the label of the whole view depends on the batch.
    """
    alone = yield Question(result.visible[None], uncached=True, exact=True)
    change = yield from _find_change(plan, result, alone, count)
    if change is None:
        return result
    try:
        return (yield from _explain_change(plan, result, alone, change))
    except Stop as stop:
        if stop.cause is not None and stop.reason != "interrupt":
            raise stop.cause from stop.cause.__cause__
        raise UnstableModelError("the model answered the same question in two ways") from None


def _find_change(plan: Plan, result: SearchResult, alone: Answers, count: int) -> Search[Change | None]:
    """The set whose answer is another one now than in the search: alone, or with others, `count` sets in one batch.

    The whole view comes first: where its label changes, there is nothing to explain. Then the explanation.
    """
    tolerance, whole = tolerance_of(plan.info), np.ones_like(result.visible)
    rows, gap = result.visible[None][:0], np.zeros(0)
    before = after = Answers.none()
    if count:
        rows = _in_company(result, plan.run.widest, count)
        try:
            before = yield Question(rows, exact=True)  # known, as a rule, so that it costs nothing
        except Stop as stop:
            before = stop.answers
        rows = rows[: len(before)]
        after = (yield Question(rows, uncached=True, exact=True)) if len(rows) else before
        gap = np.abs(after.confidence - before.confidence)
        gap = np.where(np.isnan(gap), (after.holds != before.holds) * 1.0, gap)

    def largest(gap: NDArray[np.float64]) -> Change | None:
        worst = int(np.argmax(gap)) if len(gap) else 0
        if not len(gap) or not gap[worst] > tolerance:
            return None
        return Change(rows[worst], float(before.confidence[worst]), float(after.confidence[worst]))

    if (change := largest(gap * rows.reshape(len(gap), whole.size).all(axis=1))) is not None:
        return change
    stated, found = result.checks.confidence, float(alone.confidence[0])
    if result.checks.sufficient != bool(alone.holds[0]) or abs(found - stated) > tolerance:
        return Change(result.visible, stated, found)
    if abs(result.confidence - plan.confidence) > tolerance:
        return Change(whole, plan.confidence, result.confidence)
    return largest(gap)


def _in_company(result: SearchResult, widest: Visible, count: int) -> Visible:
    """Sets that were asked in the search, and the explanation as the last of them, (count, *grid).

    They are the whole view, those of the largest wave, and of each level itself, its complement, and the removals of its
    cells.
    """
    known = {visible.tobytes(): visible for visible in (result.visible, np.ones_like(result.visible), *widest)}
    for level in result.levels[::-1]:
        grain = None if level.certificate is not None else level.checks.minimal_grain
        known |= {visible.tobytes(): visible for visible in claims(Minimal(level.visible, grain))[:count]}
    sets = list(known.values())
    return np.stack([sets[i % len(sets)] for i in range(count)])[::-1]


def _explain_change(plan: Plan, result: SearchResult, alone: Answers, change: Change) -> Search[SearchResult]:
    """Find out whether an answer has changed because of the batch."""
    gap, tolerance = abs(change.after - change.before), tolerance_of(plan.info)
    step = tolerance if np.isnan(gap) else min(tolerance, max(gap, tolerance) / 10)
    effect = yield from find_batch_effect(change.visible, step, plan.batch_size)
    said = "" if np.isnan(gap) else f" (confidence {change.before:.4f}, then {change.after:.4f})"
    if effect is None:
        reason = "is dropout still on, or is there randomness in it?"
        if plan.info.is_half:
            reason = "half precision may be too coarse for this image, or there is randomness in the model"
        elif plan.info.is_costly:
            reason = "ask for a shorter answer, or give choices with --labels"
        raise UnstableModelError(f"the model answered the same question in two ways{said}: {reason}")
    difference, verdicts = effect
    if change.visible.all() and len(verdicts) > 1:
        raise UnstableModelError(f"the label of the image depends on the batch it is evaluated in{said}: use --batch-size 1")
    paired = yield Question(np.stack([result.visible, ~result.visible]), alone=True)  # the batch of `verify`
    is_own = bool((change.visible == result.visible).all())
    held = {result.checks.sufficient, bool(alone.holds[0]), bool(paired.holds[0])}
    is_lost = len(held | (verdicts if is_own else set())) > 1
    checks = replace(result.checks, confidence=float(paired.confidence[0]))
    size = float(np.nanmax([gap, difference])) if plan.problem.has_scores else float("nan")
    said = "" if np.isnan(size) else f" (confidence differs by up to {size:.4f})"
    if is_lost:  # it is sufficient in some batches only
        plan.run.stopped_by = "failure"
        checks = replace(checks, sufficient=False, minimal_grain=None, cells=0)
        said += ", and the explanation is sufficient in some batches only"
    elif not is_own and len(verdicts) > 1:  # a removal that keeps the label in some batches
        checks = replace(checks, minimal_grain=None, cells=0)
    levels = (*result.levels[:-1], replace(result.levels[-1], checks=checks))
    note = f"the model's answers depend on the batch they are evaluated in{said}: use --batch-size 1 to avoid this"
    return replace(result, levels=levels, notes=(*result.notes, note))


def find_batch_effect(visible: Visible, step: float, batch_size: int) -> Search[tuple[float, set[bool]] | None]:
    """Evaluate a set alone and with others, in turn, each batch several times.

    Returns by how much the confidence depends on the batch, NaN without scores, and the verdicts; None where that cannot be
    shown: the same batch was answered in two ways (confidences that differ by more than `step`, or another label), or all
    batches were answered alike.
    """

    def differ(answers: list[Answers]) -> bool:  # to a first row
        confidence = [float(answer.confidence[0]) for answer in answers]
        return len({bool(answer.holds[0]) for answer in answers}) > 1 or max(confidence) - min(confidence) > step

    for size in BATCH_SIZES:
        if size > batch_size:
            break
        rows = np.stack([~visible, visible] * (size // 2))
        alone, together = [], []
        for _ in range(REPEATS):
            alone.append((yield Question(rows[-1:], alone=True)))
            together.append((yield Question(rows, alone=True)).part(slice(-1, None)))
        if differ(alone) or differ(together):
            return None
        if differ([alone[0], together[0]]):
            difference = abs(float(alone[0].confidence[0]) - float(together[0].confidence[0]))
            return difference, {bool(alone[0].holds[0]), bool(together[0].holds[0])}
    return None
