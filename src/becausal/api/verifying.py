"""Claims of an explanation, asked again."""

from typing import Any

import numpy as np

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
    search = check(explanation.visible, grain=explanation.checks.minimal_grain, contrast=explanation.origin.contrast)
    claims = compare(explanation.checks, engine.run(problem, search).result)
    if explanation.others:
        again = engine.ask_uncached(problem, np.stack(explanation.others)).holds
        claims += [
            Claim(f"further explanation {i} sufficient", "yes", "yes" if holds else "no", bool(holds))
            for i, holds in enumerate(again, start=2)
        ]
    return claims
