"""The controls `random` and `centre`: maps that ignore the model, which every method should outperform."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from becausal.core.contracts import Finding, Needs, Search
from becausal.core.problem import Problem


@dataclass(frozen=True, kw_only=True)
class RandomMap:
    """An independent random number for every pixel, without model calls."""

    name: ClassVar[str] = "random"
    needs: ClassVar[Needs] = "labels"

    def search(self, problem: Problem, rng: np.random.Generator) -> Search[Finding]:
        yield from ()
        return Finding(rng.random(problem.grid))


@dataclass(frozen=True, kw_only=True)
class CentreMap:
    """A Gaussian in the centre, exp(-d²/2) with d the distance in quarters of each side, without model calls."""

    name: ClassVar[str] = "centre"
    needs: ClassVar[Needs] = "labels"

    def search(self, problem: Problem, rng: np.random.Generator) -> Search[Finding]:
        yield from ()
        squared = np.zeros(problem.grid)
        for along in np.ix_(*[(np.arange(side) - (side - 1) / 2) / (side / 4) for side in problem.grid]):
            squared = squared + along**2
        return Finding(np.exp(-squared / 2))
