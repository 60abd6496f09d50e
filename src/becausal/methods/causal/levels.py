"""Nested sets that keep more and more of the confidence, found in one search.

From the outside in: the set of the last level is made small first, patch by patch, then cell by cell. The set of the first
level is searched for inside it. The levels in between, and the last one, are then minimised around the first.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Search, Stop, Visible
from becausal.core.regions import cells
from becausal.search.descent.chain import Chain
from becausal.search.descent.lattice import CoalitionIndex, Lattice
from becausal.search.descent.survey import Survey, restrict
from becausal.search.descent.tuning import Tuning
from becausal.search.drive import BudgetedRun, Terms
from becausal.search.minimise import settle, settle_within

Costs = NDArray[np.float64]  # of removing each cell, (*lattice,)


@dataclass(eq=False)
class LevelSearch:
    """One search for nested sets.

    Attributes:
        floors: The confidences that they have to keep.
        index: Learns from all evaluations, where there is no survey.
        effort: Number of calls after which minimality is proved for cells twice as large; None for no limit.
        sets: The best sets so far, (*grid,) each, smallest first. Each keeps its floor at every moment.
        grains: For each set, the side of the cells of which none that it adds to the one before can be removed; None
            before this is shown.
    """

    tuning: Tuning
    lattice: Lattice
    floors: tuple[float, ...]
    rng: np.random.Generator
    index: CoalitionIndex | None
    effort: int | None

    def __post_init__(self) -> None:
        self.sets: list[Visible] = [np.ones(self.lattice.grid, bool) for _ in self.floors]
        self.grains: list[int | None] = [None for _ in self.floors]

    def run(self, survey: Survey | None) -> Search[None]:
        """All levels; stopped half-way, it leaves the best sets so far."""
        answers = yield self.sets[-1][None]  # known, so without a call
        calls, last = BudgetedRun(self.lattice.grid), len(self.floors) - 1
        calls.spent = answers.spent
        limit = None if self.effort is None else answers.spent + self.effort
        level, best = last, self._watch(last)
        try:
            outer, costs = yield from best.follow(self._shrink_last(survey), Terms(floor=self.floors[last]))
            level, best = 0, self._watch(0)
            first = yield from best.follow(self._shrink_first(outer, costs), Terms(floor=self.floors[0]))
        except Stop:
            self._keep(level, best.visible)
            raise
        self.sets[0], start = first.lattice.show(first.visible), first.cost.estimate()
        margin = np.inf if np.isnan(first.margin) else first.margin
        for level in (0, *range(last, 0, -1)):  # the others are minimised around the first
            settled, self.grains[level] = yield from settle_within(
                self.sets[level], self.lattice.grain, costs if level else start, calls, limit=limit,
                margin=np.inf if level else margin, always=self.sets[0] if level else None, floor=self.floors[level],
            )  # fmt: skip
            self.sets[level] = settled.visible
            if level:
                if len(settled.cost) == costs.size:  # else these are the costs of larger cells
                    costs = np.where(np.isnan(settled.cost), costs.reshape(-1), settled.cost).reshape(costs.shape)
                self.sets[1:level] = [settled.visible] * (level - 1)

    def _watch(self, level: int) -> BudgetedRun:
        """Remembers the smallest set that keeps the floor of a level, for a search that is stopped."""
        return BudgetedRun(self.lattice.grid, floor=self.floors[level])

    def _keep(self, level: int, visible: Visible) -> None:
        """A set for this level, and for all levels inside it, where it fits into the one around it."""
        if not (visible & ~self.sets[level]).any():
            self.sets[: level + 1] = [visible] * (level + 1)

    def _shrink_last(self, survey: Survey | None) -> Search[tuple[Visible, Costs]]:
        """A small set for the last level: patches, then cells of twice the side, then parts of the cells."""
        lattice, tuning = self.lattice, self.tuning
        visible, costs = np.ones(lattice.grid, bool), None
        if survey is not None:
            visible = yield from restrict(visible, survey)
            settled = yield from settle(visible, survey.patch, survey.contribution)
            visible, costs = settled.visible, survey.removal_cost(lattice)
            if tuning.twice:
                coarse = replace(lattice, grain=2 * lattice.grain)
                number, expected = cells(coarse.grid, coarse.grain), survey.removal_cost(coarse).reshape(-1)
                settled = yield from settle(visible, number, expected, margin=settled.margin, solid=True, once=True)
                known = np.where(np.isnan(settled.cost), expected, settled.cost).reshape(coarse.shape)
                visible, costs = settled.visible, coarse.spread(known, lattice)
        chain = self._chain(visible, costs)
        yield from chain.shrink(tuning.last_share if survey is not None and tuning.twice else tuning.share)
        visible, costs = chain.lattice.show(chain.visible), chain.cost.estimate()
        self._keep(len(self.floors) - 1, visible)
        return visible, costs

    def _shrink_first(self, outer: Visible, costs: Costs) -> Search[Chain]:
        """A small set for the first level, inside a set of the last one."""
        chain = self._chain(outer, costs)
        for share in (self.tuning.share, *self.tuning.reheat[:1]):
            yield from chain.shrink(share)
        return chain

    def _chain(self, start: Visible, costs: Costs | None) -> Chain:
        lattice, visible = self.lattice.restrict(start)
        return Chain(self.tuning, lattice, visible, costs, self.rng.spawn(1)[0], self.index)
