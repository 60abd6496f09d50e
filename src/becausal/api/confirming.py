"""The last evaluation of an explanation: does the model still say what it said during the search?

Three kinds of models are told apart. Most give the same answer again. One that is random answers the same batch in two
ways; its explanation is worth nothing, and it is refused. One whose rounding depends on the other rows of the batch gives
the same answer to the same batch; its explanation is kept, with a note that says how large the effect is.
"""

from dataclasses import dataclass, replace

import numpy as np

from becausal.core.contracts import Answers, Visible
from becausal.core.errors import UnstableModelError
from becausal.core.pipeline import SearchResult
from becausal.core.problem import Problem
from becausal.engine.engine import Engine

STABLE, STABLE_HALF = 1e-3, 0.05  # how far a confidence may move between two evaluations, and in half precision
REPEATS = 2  # how often each batch is evaluated to find out why an answer has changed
BATCH_SIZES = (2, 16)  # rows of the batches that are compared with a batch of one


@dataclass(frozen=True, eq=False)
class Confirmed:
    """A result that was evaluated once more.

    is_lost: whether it is sufficient in some batches only. calls: model calls to find out why an answer had changed.
    """

    result: SearchResult
    is_lost: bool = False
    calls: int = 0


@dataclass(frozen=True, eq=False)
class BatchEffect:
    """How an answer depends on the batch. size: the difference of the confidence, NaN without scores."""

    size: float
    holds: frozenset[bool]
    calls: int


def confirm(engine: Engine, problem: Problem, result: SearchResult, first: float, again: Answers) -> Confirmed:
    """Compare a result with its second evaluation.

    Args:
        engine: Evaluates further batches where the two differ.
        problem: What was explained.
        result: What was found.
        first: The confidence of the whole view in the very first call.
        again: The answer to the explanation, evaluated once more.

    Returns:
        The result; with a note where the model's answers depend on the batch.

    Raises:
        UnstableModelError: The model answered the same question in two ways, and not because of the batch.
    """
    is_half, tolerance = engine.classifier.info.is_half, tolerance_of(engine)
    before, after = result.checks.confidence, float(again.confidence[0])
    held = {result.checks.sufficient, bool(again.holds[0])}
    is_about_whole = False
    if len(held) == 1 and not abs(after - before) > tolerance:
        if not abs(result.confidence - first) > tolerance:
            return Confirmed(result)
        is_about_whole, before, after, held = True, first, result.confidence, {True}
    gap = abs(after - before)
    visible = np.ones(problem.grid, bool) if is_about_whole else result.visible
    step = tolerance if np.isnan(gap) else min(tolerance, max(gap, tolerance) / 10)
    effect = find_batch_effect(engine, problem, visible, step)
    if effect is None:
        reason = "is dropout still on, or is there randomness in it?"
        if is_half:
            reason = "half precision may be too coarse for this image, or there is randomness in the model"
        raise UnstableModelError(
            f"the model answered the same question in two ways (confidence {before:.4f}, then {after:.4f}): {reason}"
        )
    size = float(np.nanmax([gap, effect.size])) if problem.has_scores else float("nan")
    paired = engine.ask_uncached(problem, np.stack([result.visible, ~result.visible]))  # the batch of `verify`
    is_lost = len(held | effect.holds | {bool(paired.holds[0])}) > 1
    checks = replace(result.checks, confidence=float(paired.confidence[0]))
    if is_lost:
        checks = replace(checks, sufficient=False, minimal_grain=None, cells=0)
    levels = (*result.levels[:-1], replace(result.levels[-1], checks=checks))
    note = _describe(size, is_lost=is_lost)
    calls = effect.calls + 2 * len(problem.backgrounds)
    return Confirmed(replace(result, levels=levels, notes=(*result.notes, note)), is_lost, calls)


def tolerance_of(engine: Engine) -> float:
    """How far a confidence may move between two evaluations."""
    return STABLE_HALF if engine.classifier.info.is_half else STABLE


def find_batch_effect(engine: Engine, problem: Problem, visible: Visible, step: float) -> BatchEffect | None:
    """Evaluate a set alone and with others, in turn, each batch several times.

    Returns:
        How the answer depends on the batch; None where that cannot be shown: the same batch was answered in two ways
        (confidences that differ by more than `step`, or another label), or all batches were answered alike.
    """
    calls = 0
    for size in BATCH_SIZES:
        if size > engine.calls.batch_size:
            break
        rows = np.stack([visible, ~visible] * (size // 2))
        alone, together = [], []
        for _ in range(REPEATS):
            alone.append(engine.ask_uncached(problem, rows[:1]))
            together.append(engine.ask_uncached(problem, rows))
        calls += REPEATS * (1 + size) * len(problem.backgrounds)
        if _differ(alone, step) or _differ(together, step):
            return None
        if _differ([alone[0], together[0]], step):
            difference = abs(float(alone[0].confidence[0]) - float(together[0].confidence[0]))
            holds = frozenset({bool(alone[0].holds[0]), bool(together[0].holds[0])})
            return BatchEffect(difference, holds, calls)
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
