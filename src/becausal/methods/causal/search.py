"""The method `causal`: mask everything that can be masked, large parts first, until every remaining cell is needed.

1. A survey evaluates random sets of patches that follow the image's edges. The search starts from the smallest number
   of best patches that keeps the target.
2. A chain shrinks this set. Each round draws random parts of it, evaluates the set without each part and without unions
   of the best parts, and continues with the best trade of margin for size. Where no part can go, smaller parts follow.
3. Cells are tried one by one until each single removal has failed (`settle`). Every remaining cell is then a cause: the
   target holds with it and is lost without it, with all masked pixels as the witness.

The visible set is sufficient at every moment. The map combines the sufficient sets that were evaluated with the
survey's estimates; the explanation ranks above all other pixels.
"""

from collections import deque
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Finding, Grid, Needs, Search, Stop, Visible, with_hints
from becausal.core.errors import OptionError
from becausal.core.minimise import Settled, settle
from becausal.core.problem import Problem
from becausal.core.regions import cells, default_grain
from becausal.core.searches import BudgetedRun
from becausal.methods.causal.chain import Chain
from becausal.methods.causal.coalitions import CoalitionIndex
from becausal.methods.causal.lattice import Cells, Lattice
from becausal.methods.causal.survey import Survey, run_survey
from becausal.methods.causal.tuning import Tuning

Result = tuple[Settled, int | None]  # a settled set, and the grain at which it is minimal


@dataclass(frozen=True, kw_only=True)
class Causal:
    """Search for small sufficient sets of pixels that are minimal at a stated grain.

    Attributes:
        grain: Side of a cell in pixels; None for 1/56 of the view's longest side.
        effort: Number of model calls after which minimality is proved for cells twice as large; None for no limit.
        several: Number of explanations to look for, each in the pixels that the previous ones leave.
        overlap: Share of an explanation's cells that the next one may use again.
        tuning: Constants of the search, for research.
    """

    grain: int | None = None
    effort: int | None = 1100
    several: int = 1
    overlap: float = 0.0
    tuning: Tuning = Tuning()

    name: ClassVar[str] = "causal"
    needs: ClassVar[Needs] = "labels"

    def __post_init__(self) -> None:
        if self.grain is not None and self.grain < 1:
            raise OptionError(f"grain must be at least 1 pixel, not {self.grain}")
        if self.several < 1:
            raise OptionError(f"several must be at least 1, not {self.several}")
        if not 0.0 <= self.overlap < 1.0:
            raise OptionError(f"overlap must be at least 0 and below 1, not {self.overlap}")

    def cell_side(self, grid: Grid) -> int:
        """The side of the cells at which its sets are minimal, in pixels."""
        return self.grain or default_grain(grid)

    def configured(self, *, grain: int | None, several: int) -> "Causal":
        """The same search with this grain and number of explanations, where its own options do not set them."""
        return replace(self, grain=self.grain or grain, several=self.several if self.several > 1 else several)

    def search(self, problem: Problem, rng: np.random.Generator) -> Search[Finding]:
        """Find the explanations one after the other, each in the pixels that the previous ones leave."""
        lattice = Lattice(problem.grid, self.cell_side(problem.grid))
        index, run = CoalitionIndex(lattice, self.tuning), BudgetedRun(problem.grid)
        found: list[Result] = []
        start = np.ones(lattice.shape, bool)
        survey: Survey | None = None
        try:
            survey = yield from self._survey(problem, lattice, rng, run)
            for own in _spawn(rng, self.several):
                if found and not (yield from _holds(lattice.show(start))):
                    break
                results = []
                for each in _spawn(own, self._count_runs(start.size)):
                    results.append((yield from self._descend(lattice, start, survey, each, index, run)))
                found.append(min(results, key=lambda result: int(result[0].visible.sum())))
                start = start & ~self._used(lattice, found[-1][0].visible, own)
        except Stop:
            if not found:
                best = run.visible
                return Finding(index.saliency(survey)) if best.all() else Finding(index.saliency(survey, best), (best,))
        notes = () if self.several == 1 else (f"{len(found)} of {self.several} explanations were found",)
        sets, grains = tuple(settled.visible for settled, _ in found), tuple(grain for _, grain in found)
        return Finding(index.saliency(survey, sets[0]), sets, grains, notes)

    def _count_runs(self, lattice_size: int) -> int:
        tuning = self.tuning
        return tuning.runs or (tuning.small_runs if lattice_size <= tuning.small_lattice else 1)

    def _survey(
        self, problem: Problem, lattice: Lattice, rng: np.random.Generator, run: BudgetedRun
    ) -> Search[Survey | None]:
        """The survey; None on small lattices and with a small budget."""
        tuning, samples = self.tuning, self.tuning.survey
        if problem.budget is not None:
            samples = min(samples, problem.budget // tuning.survey_fraction)
        if samples < tuning.min_survey or np.prod(lattice.shape) <= tuning.small_lattice:
            return None
        search = run_survey(problem.view, samples=samples, patches=tuning.patches, rng=rng.spawn(1)[0])
        return (yield from run.follow(search))

    def _descend(
        self,
        lattice: Lattice,
        start: Cells,
        survey: Survey | None,
        rng: np.random.Generator,
        index: CoalitionIndex,
        run: BudgetedRun,
    ) -> Search[Result]:
        """Shrink several chains to a coarse size, continue with the best of them, then try cell by cell."""
        tuning = self.tuning
        if survey is not None:
            lattice, start = yield from run.follow(_restrict(lattice, start, survey))
        count = tuning.chains or (2 if survey is None else 1)
        chains = [Chain(tuning, lattice, start, survey, own, index) for own in rng.spawn(count)]
        for chain in chains:
            yield from run.follow(chain.shrink(tuning.share, stop_at=tuning.coarse))
        best = min(chains, key=Chain.rank)
        for share in tuning.reheat:
            yield from run.follow(best.shrink(share))
        return (yield from self._settle(best, run))

    def _settle(self, chain: Chain, run: BudgetedRun) -> Search[Result]:
        """Try cells one by one until none can be removed; past the effort limit, prove it for larger cells instead."""
        grid, grain = chain.lattice.grid, chain.lattice.grain
        cell, expected = cells(grid, grain), chain.cost.estimate().reshape(-1)
        search = settle(chain.lattice.show(chain.visible), cell, expected, margin=chain.margin)
        limit = None if self.effort is None else chain.calls_before + self.effort
        settled = yield from run.follow(search, limit=limit)
        while not settled.finished and 2 * grain <= max(grid):
            grain, finer = 2 * grain, cell
            cell = cells(grid, grain)
            known = np.where(np.isnan(settled.cost), expected, settled.cost)
            expected = _merge_costs(known, finer, cell, settled.visible)
            settled = yield from settle(settled.visible, cell, expected, margin=settled.margin)
        return settled, grain if settled.finished else None

    def _used(self, lattice: Lattice, found: Visible, rng: np.random.Generator) -> Cells:
        """The cells of an explanation that the next one may not use."""
        numbers = np.unique(cells(lattice.grid, lattice.grain)[found])
        allowed = rng.permutation(numbers)[: int(self.overlap * len(numbers))]
        used = np.zeros(int(np.prod(lattice.shape)), bool)
        used[np.setdiff1d(numbers, allowed)] = True
        return used.reshape(lattice.shape)


def _holds(visible: Visible) -> Search[bool]:
    answers = yield visible[None]
    return bool(answers.holds[0])


def _restrict(lattice: Lattice, start: Cells, survey: Survey) -> Search[tuple[Lattice, Cells]]:
    """The lattice limited to the smallest number of best patches that keeps the target, found by bisection; its cells."""
    room = lattice.show(start)
    low, high = 0, len(survey.contribution)
    while high - low > 1:
        middle = (low + high) // 2
        lookahead = partial(_next_halves, room, survey, low, high)
        answers = yield with_hints((room & survey.best(middle))[None], lookahead=lookahead)
        low, high = (low, middle) if answers.holds[0] else (middle, high)
    return lattice.restrict(room & survey.best(high))


def _next_halves(room: Visible, survey: Survey, low: int, high: int, count: int) -> list[Visible]:
    """Up to `count` sets that the bisection of low..high may evaluate after its middle, the next ones first."""
    found: list[Visible] = []
    ranges = deque([(low, (low + high) // 2), ((low + high) // 2, high)])
    while ranges and len(found) < count:
        low, high = ranges.popleft()
        if high - low > 1:
            middle = (low + high) // 2
            found.append(room & survey.best(middle))
            ranges += [(low, middle), (middle, high)]
    return found


def _merge_costs(
    costs: NDArray[np.float64], finer: NDArray[np.intp], cell: NDArray[np.intp], visible: Visible
) -> NDArray[np.float64]:
    """Removal costs of cells from those of finer cells; each finer cell's cost is shared by its visible pixels."""
    count, finer, cell = int(cell.max()) + 1, finer[visible], cell[visible]
    share = costs / np.maximum(np.bincount(finer, minlength=len(costs)), 1)
    return np.bincount(cell, share[finer], minlength=count).astype(np.float64)


def _spawn(rng: np.random.Generator, count: int) -> list[np.random.Generator]:
    """Generators for `count` runs; a single run uses the generator itself."""
    return [rng] if count == 1 else rng.spawn(count)
