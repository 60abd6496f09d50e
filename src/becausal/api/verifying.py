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
    problem = Problem(explanation.view, explanation.backgrounds, explanation.target)
    claims: list[Claim] = []
    for number, stated in enumerate(explanation.sets, start=1):
        search = check(stated.visible, grain=stated.checks.minimal_grain, contrast=explanation.origin.contrast)
        found = compare(stated.checks, engine.run(problem, search).result)
        claims += found if number == 1 else [replace(claim, name=f"explanation {number}: {claim.name}") for claim in found]
    return claims
