"""Two maps that look at nothing: whatever claims to explain must beat both."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from becausal.core.contracts import Finding, Needs, Search
from becausal.core.problem import Problem


@dataclass(frozen=True, kw_only=True)
class RandomMap:
    """Every pixel an independent random number: the map `random`, at no call."""

    name: ClassVar[str] = "random"
    needs: ClassVar[Needs] = "labels"

    def search(self, problem: Problem, rng: np.random.Generator) -> Search[Finding]:
        yield from ()
        return Finding(rng.random(problem.grid))


@dataclass(frozen=True, kw_only=True)
class CentreMap:
    """A bump in the middle, exp(-d²/2) with d the distance in quarters of each side: the map `centre`, at no call."""

    name: ClassVar[str] = "centre"
    needs: ClassVar[Needs] = "labels"

    def search(self, problem: Problem, rng: np.random.Generator) -> Search[Finding]:
        yield from ()
        squared = np.zeros(problem.grid)
        for axis, side in enumerate(problem.grid):
            along = (np.arange(side) - (side - 1) / 2) / (side / 4)
            shape = [1] * len(problem.grid)
            shape[axis] = side
            squared = squared + along.reshape(shape) ** 2
        return Finding(np.exp(-squared / 2))
