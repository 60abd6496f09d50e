"""What one explanation is made with."""

from collections.abc import Callable
from dataclasses import dataclass

from becausal.core.problem import Explainer, Problem
from becausal.core.request import Request
from becausal.search.drive import BudgetedRun

STABLE, STABLE_HALF = 1e-3, 0.05  # how far a confidence may move between two evaluations, and in half precision


def tolerance_of(*, is_half: bool) -> float:
    """How far a confidence may move between two evaluations."""
    return STABLE_HALF if is_half else STABLE


@dataclass(frozen=True, eq=False, kw_only=True)
class Plan:
    """What one image's explanation is made with.

    confidence: of the whole view, in the very first call. is_half: whether the model calculates in half precision.
    batch_size: the most rows that it evaluates at once. interrupt: tells whoever runs the search of a Ctrl-C inside it.
    """

    problem: Problem
    explainer: Explainer
    request: Request
    run: BudgetedRun
    confidence: float
    is_half: bool = False
    batch_size: int = 1
    interrupt: Callable[[], None] = lambda: None

    @property
    def tolerance(self) -> float:
        """How far a confidence may move between two evaluations."""
        return tolerance_of(is_half=self.is_half)
