"""Nested sets that keep more and more of the confidence, found in one search.

From the outside in: the set of the last level is made small first, patch by patch, then cell by cell. The set of the first
level is searched for inside it. The levels in between, and the last one, are then minimised around the first.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Search, Stop, Visible
from becausal.core.minimise import Settled, settle
from becausal.core.regions import cells
from becausal.core.searches import BudgetedRun, keeping
from becausal.methods.causal.chain import Chain
from becausal.methods.causal.coalitions import CoalitionIndex
from becausal.methods.causal.lattice import Lattice
from becausal.methods.causal.settling import settle_within
from becausal.methods.causal.survey import Survey, restrict
from becausal.methods.causal.tuning import Tuning

Costs = NDArray[np.float64]  # of removing each cell, (*lattice,)
T = TypeVar("T")


class LevelSearch:
    """One search for nested sets.

    Attributes:
        sets: The best sets so far, (*grid,) each, smallest first. Each keeps its floor at every moment.
        grains: For each set, the side of the cells of which none that it adds to the one before can be removed; None
            before this is shown.
    """

    def __init__(
        self,
        tuning: Tuning,
        lattice: Lattice,
        floors: tuple[float, ...],
        rng: np.random.Generator,
        index: CoalitionIndex | None,
        effort: int | None,
    ) -> None:
        self.tuning = tuning
        self.lattice = lattice
        self.floors = floors
        self.rng = rng
        self.index = index
        self.effort = effort
        self.calls = BudgetedRun(lattice.grid)
        self.sets: list[Visible] = [np.ones(lattice.grid, bool) for _ in floors]
        self.grains: list[int | None] = [None for _ in floors]

    def run(self, survey: Survey | None) -> Search[None]:
        """All levels; stopped half-way, it leaves the best sets so far."""
        answers = yield self.sets[-1][None]  # known, so without a call
        self.calls.spent = answers.spent
        limit = None if self.effort is None else answers.spent + self.effort
        outer, costs = yield from self._tracked(len(self.floors) - 1, lambda: self._shrink_last(survey))
        first = yield from self._tracked(0, lambda: self._shrink_first(outer, costs))
        visible, margin = first.lattice.show(first.visible), np.inf if np.isnan(first.margin) else first.margin
        yield from self._settle(0, visible, first.cost.estimate(), limit, margin=margin)
        for level in range(len(self.floors) - 1, 0, -1):
            found = yield from self._settle(level, self.sets[level], costs, limit)
            if len(found.cost) == costs.size:  # else these are the costs of larger cells
                costs = np.where(np.isnan(found.cost), costs.reshape(-1), found.cost).reshape(costs.shape)
            self.sets[1:level] = [found.visible] * (level - 1)

    def _tracked(self, level: int, stage: Callable[[], Search[T]]) -> Search[T]:
        """Run a stage for the floor of a level; if it is stopped, the smallest set that kept the floor stays."""
        best = BudgetedRun(self.lattice.grid, floor=self.floors[level])
        try:
            return (yield from best.follow(keeping(stage(), self.floors[level])))
        except Stop:
            self._keep(level, best.visible)
            raise

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
                visible, costs = yield from self._shrink_coarsely(survey, settled)
        chain = self._chain(visible, costs)
        yield from chain.shrink(tuning.last_share if survey is not None and tuning.twice else tuning.share)
        visible, costs = chain.lattice.show(chain.visible), chain.cost.estimate()
        self._keep(len(self.floors) - 1, visible)
        return visible, costs

    def _shrink_coarsely(self, survey: Survey, before: Settled) -> Search[tuple[Visible, Costs]]:
        """Remove cells of twice the side."""
        coarse = replace(self.lattice, grain=2 * self.lattice.grain)
        number, expected = cells(coarse.grid, coarse.grain), survey.removal_cost(coarse)
        settled = yield from settle(
            before.visible, number, expected.reshape(-1), margin=before.margin, solid=True, once=True
        )
        known = np.where(np.isnan(settled.cost), expected.reshape(-1), settled.cost).reshape(coarse.shape)
        return settled.visible, coarse.spread(known, self.lattice)

    def _shrink_first(self, outer: Visible, costs: Costs) -> Search[Chain]:
        """A small set for the first level, inside a set of the last one."""
        chain = self._chain(outer, costs)
        for share in (self.tuning.share, *self.tuning.reheat[:1]):
            yield from chain.shrink(share)
        return chain

    def _chain(self, start: Visible, costs: Costs | None) -> Chain:
        lattice, visible = self.lattice.restrict(start)
        return Chain(self.tuning, lattice, visible, costs, self.rng.spawn(1)[0], self.index)

    def _settle(
        self, level: int, visible: Visible, costs: Costs, limit: int | None, *, margin: float = np.inf
    ) -> Search[Settled]:
        """Minimise the set of a level around that of the first one."""
        always, floor = self.sets[0] if level else None, self.floors[level]
        settled, grain = yield from settle_within(
            visible, self.lattice.grain, costs, self.calls, limit=limit, margin=margin, always=always, floor=floor
        )
        self.sets[level], self.grains[level] = settled.visible, grain
        return settled
