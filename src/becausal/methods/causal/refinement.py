"""Algorithms 2 and 3: responsibility refined region by region, and summed over random partitions."""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, islice
from math import prod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Finding, Grid, Needs, Search, Stop, Visible
from becausal.core.errors import OptionError
from becausal.core.problem import Problem
from becausal.core.regions import Region, split, whole
from becausal.core.searches import Done
from becausal.methods.causal.responsibility import degrees, masked_table

MAX_BYTES = 16 * 2**20  # of the mutants that exist at a time: small, since fresh memory is slow

Leaves = list[tuple[Region, float]]
Partition = tuple[Region, ...]
# Yields partitions whose mutants are to be evaluated; is sent which mutants keep the target, (2^parts,) for each of them,
# or None where it must end.
Plan = Generator[list[Partition], list[NDArray[np.bool_]] | None, Leaves]


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
        plans = [self._plan(grid, own) for own in rng.spawn(self.partitions)]
        saliency = np.zeros(grid)
        for leaves in (yield from _follow(grid, plans)):
            for region, degree in leaves:
                saliency[region.slices] += degree / region.size
        return Finding(saliency)

    def refine(self, grid: Grid, rng: np.random.Generator) -> Search[Leaves]:
        """Algorithm 2 from the whole view, breadth first: the leaves with their responsibility."""
        (leaves,) = yield from _follow(grid, [self._plan(grid, rng)])
        return leaves

    def _plan(self, grid: Grid, rng: np.random.Generator) -> Plan:
        leaves: Leaves = []
        pending = [(whole(grid), 0.0, self.redraw)]
        while pending:
            partitions = [split(region, self.parts, rng) for region, _, _ in pending]
            answers = yield partitions
            if answers is None:
                return leaves + [(region, degree) for region, degree, _ in pending if degree > 0]  # the last known values
            following: list[tuple[Region, float, int]] = []
            for (region, known, redraws), parts, holds in zip(pending, partitions, answers, strict=True):
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


def _follow(grid: Grid, plans: Sequence[Plan]) -> Search[list[Leaves]]:
    """Step the plans as one search: what they ask at the same time is asked together, in waves of bounded memory.

    Told to stop, it gives each plan whose mutants were all evaluated its answers, and stops the others.
    """
    states = [_step(plan, None, is_new=True) for plan in plans]
    while asking := [i for i, state in enumerate(states) if not isinstance(state, Done)]:
        wanted = {i: state for i in asking if not isinstance(state := states[i], Done)}
        known: list[NDArray[np.bool_]] = []
        is_stopped = False
        for wave in _waves(grid, [parts for partitions in wanted.values() for parts in partitions]):
            try:
                known.append((yield wave).holds)
            except Stop as stop:
                known.append(stop.answers.holds)
                is_stopped = True
                break
        holds, start = np.concatenate(known), 0
        for i, partitions in wanted.items():
            ends = start + np.cumsum([2 ** len(parts) for parts in partitions])
            is_complete = ends[-1] <= len(holds)
            states[i] = _step(plans[i], np.split(holds[start : ends[-1]], ends[:-1] - start) if is_complete else None)
            start = int(ends[-1])
            while is_stopped and not isinstance(states[i], Done):
                states[i] = _step(plans[i], None)
    return [state.result for state in states if isinstance(state, Done)]


def _step(plan: Plan, answers: list[NDArray[np.bool_]] | None, *, is_new: bool = False) -> list[Partition] | Done[Leaves]:
    try:
        return next(plan) if is_new else plan.send(answers)
    except StopIteration as end:
        return Done(end.value)


def _waves(grid: Grid, partitions: Sequence[Partition]) -> Iterator[Visible]:
    """The mutants of all partitions, one after the other, in arrays (n, *grid) of at most MAX_BYTES."""
    limit = max(1, MAX_BYTES // prod(grid))
    mutants = ((parts, masked) for parts in partitions for masked in masked_table(len(parts)))
    while some := list(islice(mutants, limit)):
        wave = np.ones((len(some), *grid), bool)
        for visible, (parts, masked) in zip(wave, some, strict=True):
            for part in compress(parts, masked):
                visible[part.slices] = False
        yield wave
