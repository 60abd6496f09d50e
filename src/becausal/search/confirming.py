"""The last evaluation of an explanation: does the model still say what it said during the search, and in other company?

It is evaluated alone, and in one batch with other sets of the search, at another place. Three kinds of models are told
apart. Most give the same answer again. One that is random answers the same batch in two ways; its explanation is worth
nothing, and it is refused. One whose rounding depends on the other rows of the batch gives the same answer to the same
batch; its explanation is kept, with a note that says how large the effect is.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from becausal.core.contracts import Answers, ModelInfo, Question, Search, Stop, Visible
from becausal.core.errors import UnstableModelError
from becausal.core.problem import Explainer, Problem
from becausal.core.request import Request
from becausal.search.drive import BudgetedRun
from becausal.search.minimise import Minimal
from becausal.search.pipeline import SearchResult
from becausal.search.twins import claims

STABLE, STABLE_HALF = 1e-3, 0.05  # how far a confidence may move between two evaluations, and in half precision
REPEATS = 2  # how often each batch is evaluated to find out why an answer has changed
BATCH_SIZES = (2, 16, 32)  # rows of the batches that are compared with a batch of one


@dataclass(frozen=True, eq=False, kw_only=True)
class Plan:
    """What one image's explanation is made with.

    confidence: of the whole view, in the very first call. info: of the model. batch_size: the most rows that it evaluates
    at once. interrupt: tells whoever runs the search of a Ctrl-C inside it.
    """

    problem: Problem
    explainer: Explainer
    request: Request
    run: BudgetedRun
    confidence: float
    info: ModelInfo
    batch_size: int
    interrupt: Callable[[], None]


def tolerance_of(info: ModelInfo) -> float:
    """How far a confidence may move between two evaluations."""
    return STABLE_HALF if info.is_half else STABLE


@dataclass(frozen=True, eq=False)
class BatchEffect:
    """How an answer depends on the batch. size: the difference of the confidence, NaN without scores."""

    size: float
    holds: frozenset[bool]


@dataclass(frozen=True, eq=False)
class Change:
    """A set, (*grid,), whose second evaluation gave another confidence, or for NaN another label."""

    visible: Visible
    before: float
    after: float


@dataclass(frozen=True, eq=False)
class Company:
    """Sets, (n, *grid), that were evaluated once more in one batch: the answers before, and these."""

    visible: Visible
    before: Answers
    after: Answers

    def find_change(self, tolerance: float, *, of_whole: bool = False) -> Change | None:
        """The set whose answer has changed most, if by more than the tolerance; of_whole: the whole view, if its has."""
        if not len(self.visible):
            return None
        gap = np.abs(self.after.confidence - self.before.confidence)
        gap = np.where(np.isnan(gap), (self.after.holds != self.before.holds) * 1.0, gap)
        if of_whole:
            gap = gap * self.visible.reshape(len(gap), -1).all(axis=1)
        worst = int(np.argmax(gap))
        if not gap[worst] > tolerance:
            return None
        return Change(self.visible[worst], float(self.before.confidence[worst]), float(self.after.confidence[worst]))


def _in_company(result: SearchResult, widest: Visible, count: int) -> Visible:
    """Sets that were asked in the search, and the explanation as the last of them, (count, *grid).

    They are the whole view, those of the largest wave, and of each level itself, its complement, and the removals of its
    cells.
    """
    known = {visible.tobytes(): visible for visible in (result.visible, np.ones_like(result.visible), *widest)}
    for level, inner in zip(result.levels[::-1], (*result.levels[-2::-1], None), strict=True):
        asked = claims(Minimal(level.visible, level.checks.minimal_grain), None if inner is None else inner.visible)
        known |= {visible.tobytes(): visible for visible in asked[:count]}
    sets = list(known.values())
    return np.stack([sets[i % len(sets)] for i in range(count)])[::-1]


def ask_company(result: SearchResult, widest: Visible, count: int) -> Search[Company]:
    """The explanation and other sets of the search, `count` together, evaluated once more in one batch."""
    if not count:
        return Company(result.visible[None][:0], Answers.none(), Answers.none())
    rows = _in_company(result, widest, count)
    try:
        before = yield Question(rows, exact=True)  # known, as a rule, so that it costs nothing
    except Stop as stop:
        before = stop.answers
    rows = rows[: len(before)]
    return Company(rows, before, (yield Question(rows, uncached=True, exact=True)) if len(rows) else before)


def confirm(plan: Plan, result: SearchResult, count: int) -> Search[SearchResult]:
    """Evaluate a result once more: alone, and in one batch of `count` sets of the search.

    Returns:
        The result; with a note where the model's answers depend on the batch.

    Raises:
        UnstableModelError: The model answered the same question in two ways, and not because of the batch; or the label
            of the whole view depends on the batch.
    """
    alone = yield Question(result.visible[None], uncached=True, exact=True)
    company = yield from ask_company(result, plan.run.widest, count)
    change = company.find_change(tolerance_of(plan.info), of_whole=True) or _find_change(plan, result, alone)
    change = change or company.find_change(tolerance_of(plan.info))
    if change is None:
        return result
    try:
        return (yield from _explain_change(plan, result, alone, change))
    except Stop as stop:
        if stop.cause is not None and stop.reason != "interrupt":
            raise stop.cause from stop.cause.__cause__
        raise UnstableModelError("the model answered the same question in two ways") from None


def _explain_change(plan: Plan, result: SearchResult, alone: Answers, change: Change) -> Search[SearchResult]:
    """Find out whether an answer has changed because of the batch."""
    gap, tolerance = abs(change.after - change.before), tolerance_of(plan.info)
    step = tolerance if np.isnan(gap) else min(tolerance, max(gap, tolerance) / 10)
    effect = yield from find_batch_effect(change.visible, step, plan.batch_size)
    said = f"(confidence {change.before:.4f}, then {change.after:.4f})"
    if effect is None:
        reason = "is dropout still on, or is there randomness in it?"
        if plan.info.is_half:
            reason = "half precision may be too coarse for this image, or there is randomness in the model"
        raise UnstableModelError(f"the model answered the same question in two ways {said}: {reason}")
    if change.visible.all() and len(effect.holds) > 1:
        raise UnstableModelError(
            f"the label of the image depends on the batch it is evaluated in {said}: use --batch-size 1"
        )
    size = float(np.nanmax([gap, effect.size])) if plan.problem.has_scores else float("nan")
    paired = yield Question(np.stack([result.visible, ~result.visible]), alone=True)  # the batch of `verify`
    is_own = bool((change.visible == result.visible).all())
    held = {result.checks.sufficient, bool(alone.holds[0]), bool(paired.holds[0])}
    is_lost = len(held | (effect.holds if is_own else set())) > 1
    checks = replace(result.checks, confidence=float(paired.confidence[0]))
    if is_lost:  # it is sufficient in some batches only
        plan.run.stopped_by = "failure"
        checks = replace(checks, sufficient=False, minimal_grain=None, cells=0)
    elif not is_own and len(effect.holds) > 1:  # a removal that keeps the label in some batches
        checks = replace(checks, minimal_grain=None, cells=0)
    levels = (*result.levels[:-1], replace(result.levels[-1], checks=checks))
    note = _describe(size, is_lost=is_lost)
    return replace(result, levels=levels, notes=(*result.notes, note))


def _find_change(plan: Plan, result: SearchResult, alone: Answers) -> Change | None:
    """Whether the explanation, or else the whole view, has another answer now than in the search."""
    first, tolerance = plan.confidence, tolerance_of(plan.info)
    before, after = result.checks.confidence, float(alone.confidence[0])
    if result.checks.sufficient != bool(alone.holds[0]) or abs(after - before) > tolerance:
        return Change(result.visible, before, after)
    if abs(result.confidence - first) > tolerance:
        return Change(np.ones_like(result.visible), first, result.confidence)
    return None


def find_batch_effect(visible: Visible, step: float, batch_size: int) -> Search[BatchEffect | None]:
    """Evaluate a set alone and with others, in turn, each batch several times.

    Returns:
        How the answer depends on the batch; None where that cannot be shown: the same batch was answered in two ways
        (confidences that differ by more than `step`, or another label), or all batches were answered alike.
    """
    for size in BATCH_SIZES:
        if size > batch_size:
            break
        rows = np.stack([~visible, visible] * (size // 2))
        alone, together = [], []
        for _ in range(REPEATS):
            alone.append((yield Question(rows[-1:], alone=True)))
            together.append((yield Question(rows, alone=True)).part(slice(-1, None)))
        if _differ(alone, step) or _differ(together, step):
            return None
        if _differ([alone[0], together[0]], step):
            difference = abs(float(alone[0].confidence[0]) - float(together[0].confidence[0]))
            return BatchEffect(difference, frozenset({bool(alone[0].holds[0]), bool(together[0].holds[0])}))
    return None


def _differ(answers: list[Answers], step: float) -> bool:
    """Whether the answers to a first row differ: another verdict, or confidences more than `step` apart."""
    confidence = [float(answer.confidence[0]) for answer in answers]
    return len({bool(answer.holds[0]) for answer in answers}) > 1 or max(confidence) - min(confidence) > step


def _describe(size: float, *, is_lost: bool) -> str:
    effect = "" if np.isnan(size) else f" (confidence differs by up to {size:.4f})"
    if is_lost:
        effect += ", and the explanation is sufficient in some batches only"
    return f"the model's answers depend on the batch they are evaluated in{effect}: use --batch-size 1 to avoid this"
