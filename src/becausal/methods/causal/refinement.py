"""Algorithms 2 and 3: responsibility refined region by region, and summed over random partitions."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Finding, Grid, Needs, Search, Stop
from becausal.core.errors import OptionError
from becausal.core.problem import Problem
from becausal.core.regions import Region, split, whole
from becausal.core.searches import gather
from becausal.methods.causal.responsibility import degrees, mutants

Leaves = list[tuple[Region, float]]


@dataclass(frozen=True, kw_only=True)
class DcCausal:
    """The method of the paper: responsibility of regions, refined and summed over random partitions.

    Attributes:
        partitions: Number of random partitions that are refined and summed (N in the paper).
        parts: Number of regions each region is split into (s in the paper).
        smallest: A region with a side below this share of the view's is not refined.
        threshold: Only regions with a responsibility above it are refined.
        redraw: How often another partition is drawn where all parts are equally responsible; 0 stops refining there.
        strict: Require SC2 for every subset of the witness, not only for the witness itself.
    """

    partitions: int = 50
    parts: int = 4
    smallest: float = 0.1
    threshold: float = 0.0
    redraw: int = 0
    strict: bool = False

    name: ClassVar[str] = "dc-causal"
    needs: ClassVar[Needs] = "labels"

    def __post_init__(self) -> None:
        if self.partitions < 1:
            raise OptionError(f"partitions must be at least 1, not {self.partitions}")
        if not 2 <= self.parts <= 12:
            raise OptionError(f"parts must be 2 to 12 (2^parts mutants are evaluated), not {self.parts}")
        if not 0.0 < self.smallest <= 1.0:
            raise OptionError(f"smallest must be above 0 and at most 1, not {self.smallest}")
        if not 0.0 <= self.threshold < 1.0:
            raise OptionError(f"threshold must be at least 0 and below 1, not {self.threshold}")
        if self.redraw < 0:
            raise OptionError(f"redraw must be 0 or more, not {self.redraw}")

    def search(self, problem: Problem, rng: np.random.Generator) -> Search[Finding]:
        """Algorithm 3, lines 1 to 9: refine N partitions in parallel, each with its own generator."""
        grid = problem.grid
        runs = [self.refine(grid, own) for own in rng.spawn(self.partitions)]
        saliency = np.zeros(grid)
        for leaves in (yield from gather(runs)):
            for region, degree in leaves:
                saliency[region.slices] += degree / region.size
        return Finding(saliency)

    def refine(self, grid: Grid, rng: np.random.Generator) -> Search[Leaves]:
        """Algorithm 2 from the whole view, breadth first: the leaves with their responsibility."""
        intact = np.ones(grid, bool)
        leaves: Leaves = []
        pending = [(whole(grid), 0.0, self.redraw)]
        while pending:
            partitions = [split(region, self.parts, rng) for region, _, _ in pending]
            waves = [mutants(intact, parts) for parts in partitions]
            try:
                answers = yield np.concatenate(waves)
            except Stop:
                return leaves + [(region, degree) for region, degree, _ in pending if degree > 0]  # the last known values
            following: list[tuple[Region, float, int]] = []
            start = 0
            for (region, known, redraws), parts, wave in zip(pending, partitions, waves, strict=True):
                holds = answers.holds[start : start + len(wave)]
                start += len(wave)
                result = degrees(holds, len(parts), strict=self.strict)
                if np.all(result == result[0]):
                    if redraws and self._refinable(region, grid):
                        following.append((region, known, redraws - 1))
                    else:
                        leaves += self._positive(parts, result)
                    continue
                for part, degree in zip(parts, result, strict=True):
                    if degree <= self.threshold:
                        continue
                    if self._refinable(part, grid):
                        following.append((part, float(degree), self.redraw))
                    else:
                        leaves.append((part, float(degree)))
            pending = following
        return leaves

    def _refinable(self, region: Region, grid: Grid) -> bool:
        large = all(side >= self.smallest * full for side, full in zip(region.shape, grid, strict=True))
        return large and region.size > 1

    @staticmethod
    def _positive(parts: tuple[Region, ...], result: NDArray[np.float64]) -> Leaves:
        return [(part, float(r)) for part, r in zip(parts, result, strict=True) if r > 0]
