"""The paper's method: Algorithms 1 to 3, responsibility refined region by region, and summed over random partitions."""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import compress, islice
from math import prod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Done, Finding, Grid, Needs, Search, Stop, Visible
from becausal.core.errors import OptionError
from becausal.core.problem import Problem
from becausal.core.regions import Region, split, whole

MAX_BYTES = 16 * 2**20  # of the mutants that exist at a time: small, since fresh memory is slow

Leaves = list[tuple[Region, float]]
Partition = tuple[Region, ...]
# Yields partitions whose mutants are to be evaluated; is sent which mutants keep the target, (2^parts,) for each of them,
# or None where it must end.
Plan = Generator[list[Partition], list[NDArray[np.bool_]] | None, Leaves]


@cache
def masked_table(parts: int) -> NDArray[np.bool_]:
    """(2^parts, parts) bool: row m masks part j where bit j of m is set."""
    return (np.arange(2**parts)[:, None] >> np.arange(parts) & 1).astype(bool)


def degrees(holds: NDArray[np.bool_], parts: int, *, strict: bool = False) -> NDArray[np.float64]:
    """Algorithm 1: the degree of responsibility of each part, from whether each mutant keeps the target, (2^parts,).

    r = 1/(k+1), where k is the smallest number of masked parts in a mutant that shows part j, keeps the target, and
    loses it when j is masked too (SC3); 0 where there is no such mutant. With `strict`, every mutant that masks a subset
    of those k parts must keep the target as well (SC2 in full). The two agree where masking more never restores the target.
    """
    rows = np.arange(2**parts)
    kept = holds
    if strict:
        kept = holds.copy()
        for j in range(parts):  # part by part: after the last one, a row knows of all its subsets
            masks = rows & (1 << j) != 0
            kept[masks] &= kept[rows[masks] ^ (1 << j)]
    sizes = masked_table(parts).sum(axis=1)
    result = np.zeros(parts)
    for j in range(parts):
        decisive = (rows & (1 << j) == 0) & kept & ~holds[rows | (1 << j)]
        if decisive.any():
            result[j] = 1.0 / (sizes[decisive].min() + 1)
    return result


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
        literal: Give parts their own degrees, as the pseudocode has it, instead of a share of their region's responsibility.
    """

    partitions: int = 50
    parts: int = 4
    smallest: float = 0.1
    threshold: float = 0.0
    redraw: int = 0
    strict: bool = False
    literal: bool = False

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
        saliency = np.zeros(problem.grid)
        plans = [self._refine(problem.grid, own) for own in rng.spawn(self.partitions)]
        for leaves in (yield from _follow(problem.grid, plans)):
            for region, degree in leaves:
                saliency[region.slices] += degree / region.size
        return Finding(saliency)

    def _refine(self, grid: Grid, rng: np.random.Generator) -> Plan:
        """Algorithm 2 from the whole view, breadth first: the leaves with their responsibility."""

        def is_refinable(region: Region) -> bool:
            large = all(side >= self.smallest * full for side, full in zip(region.shape, grid, strict=True))
            return large and region.size > 1

        def share_out(known: float, own: list[float]) -> list[float]:
            """The responsibility of the parts of a region that has `known`; the view itself has none to distribute."""
            is_view = len(pending) == 1 and pending[0][0] == whole(grid)
            return own if self.literal or is_view else [known * degree / sum(own) for degree in own]

        leaves: Leaves = []
        pending = [(whole(grid), 0.0, self.redraw)]
        while pending:
            partitions = [split(region, self.parts, rng) for region, _, _ in pending]
            answers = yield partitions
            if answers is None:
                return leaves + [(region, degree) for region, degree, _ in pending if degree > 0]  # the last known values
            following: list[tuple[Region, float, int]] = []
            for (region, known, redraws), parts, holds in zip(pending, partitions, answers, strict=True):
                own = degrees(holds, len(parts), strict=self.strict).tolist()
                stands_out = any(degree != own[0] for degree in own)
                if not stands_out and redraws and is_refinable(region):
                    following.append((region, known, redraws - 1))
                elif not any(own):  # masking one part after the other changes nothing: the region is responsible as a whole
                    leaves += [] if self.literal or not known else [(region, known)]
                else:
                    for part, degree in zip(parts, share_out(known, own), strict=True):
                        if stands_out and degree > self.threshold and is_refinable(part):
                            following.append((part, degree, self.redraw))
                        elif degree > (self.threshold if stands_out else 0.0):
                            leaves.append((part, degree))
            pending = following
        return leaves


def _follow(grid: Grid, plans: Sequence[Plan]) -> Search[list[Leaves]]:
    """Step the plans as one search: what they ask at the same time is asked together, in waves of bounded memory.

    Told to stop, it gives each plan whose mutants were all evaluated its answers, and stops the others.
    """
    states = [_step(plan, None, is_new=True) for plan in plans]
    while wanted := {i: state for i, state in enumerate(states) if not isinstance(state, Done)}:
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
