"""Claims of an explanation, asked again."""

from dataclasses import replace
from typing import Any

from becausal.core.checks import Claim, check, compare
from becausal.core.explanation import ExplanationRecord
from becausal.core.problem import Problem
from becausal.engine.engine import Engine
from becausal.models import as_classifier


def verify(explanation: ExplanationRecord, model: Any) -> list[Claim]:
    """Ask the model every claim of an explanation again.

    Args:
        explanation: What to verify.
        model: The model to ask, as in `explain`.

    Returns:
        Each claim as it was stated and as it was found now.
    """
    engine = Engine(as_classifier(model))
    contrast, claims = explanation.origin.contrast, []
    inner = None
    for level in explanation.levels:
        target = replace(explanation.target, floor=level.share * explanation.confidence if level.share else 0.0)
        problem = Problem(explanation.view, explanation.backgrounds, target)
        search = check(level.visible, grain=level.checks.minimal_grain, contrast=contrast, inner=inner)
        found = compare(level.checks, engine.run(problem, search).result)
        inner = level.visible
        is_last = level is explanation.level
        claims += found if is_last else [replace(claim, name=f"level {level.name}: {claim.name}") for claim in found]
    problem = Problem(explanation.view, explanation.backgrounds, explanation.target)
    for number, stated in enumerate(explanation.others, start=2):
        search = check(stated.visible, grain=stated.checks.minimal_grain, contrast=contrast)
        found = compare(stated.checks, engine.run(problem, search).result)
        claims += [replace(claim, name=f"explanation {number}: {claim.name}") for claim in found]
    return claims
