"""The method `causal`: mask everything that can be masked, large parts first, until every remaining cell is needed.

1. Where the answer has to hold on random backgrounds, the set `enough` comes first (`search.enough`), and what follows is
   searched for inside it. Otherwise a survey evaluates balanced sets of patches that follow the image's edges.
2. The search starts from the smallest number of best patches that keeps the target. Patches, then larger cells, then random
   parts of the set are removed. A chain of rounds draws parts, evaluates the set without each part and without unions of the
   best parts, and continues with the best trade of margin for size. Where no part can go, smaller parts follow.
3. Cells are tried one by one until each single removal has failed (`settle`). Every remaining cell is then a cause: the
   target holds with it and is lost without it, with all masked pixels as the witness.

The visible set is sufficient at every moment. The map says what the pixels are to the explanation (`zones`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from becausal.core.contracts import Finding, Grid, Held, Needs, Saliency, Search, Stop, Visible
from becausal.core.errors import OptionError
from becausal.core.problem import Problem
from becausal.core.regions import cells, default_grain
from becausal.methods.causal.ordering import draw_map, order_map
from becausal.methods.causal.zones import draw_zones, order_patches
from becausal.search.descent import Cells, Chain, CoalitionIndex, Lattice, Tuning
from becausal.search.drive import BudgetedRun, drive
from becausal.search.enough import LEAST_CALLS, DescentWay, choose_rules, find_enough
from becausal.search.minimise import Settled, settle_within
from becausal.search.survey import Survey, restrict, run_survey

LEAST_ROUNDS = 7  # of all patches, that the zones of a map may take


@dataclass(frozen=True, kw_only=True)
class Causal:
    """Search for small sufficient sets of pixels that are minimal at a stated grain.

    Attributes:
        grain: Side of a cell in pixels; None for 1/28 of the view's longest side, 1/56 with `smallest`.
        several: Number of explanations to look for, each in the pixels that the previous ones leave.
        smallest: Whether a set that keeps the label alone is looked for, with smaller cells.
        overlap: Share of an explanation's cells that the next one may use again.
        tuning: Constants of the search, for research.
    """

    grain: int | None = None
    several: int = 1
    smallest: bool = False
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
        return self.grain or default_grain(grid, 56 if self.smallest else 28)

    def configured(self, *, grain: int | None, several: int, smallest: bool) -> "Causal":
        """The same search with this grain and number of explanations, where its own options do not set them."""
        several = self.several if self.several > 1 else several
        return replace(self, grain=self.grain or grain, several=several, smallest=self.smallest or smallest)

    def search(self, problem: Problem, rng: np.random.Generator) -> Search[Finding]:
        """Find the explanation, or several one after the other, each in the pixels that the previous ones leave."""
        tuning = self.tuning if problem.target.box is None else self.tuning.for_boxes()
        return CausalSearch(self, tuning, problem, rng).find()


class CausalSearch:
    """One search of the method.

    lattice: its cells. room: (*grid,) the pixels that may be shown, None for all. index: learns from all evaluations, where
    there is no survey.
    """

    def __init__(self, method: Causal, tuning: Tuning, problem: Problem, rng: np.random.Generator) -> None:
        self.method, self.tuning, self.problem, self.rng = method, tuning, problem, rng
        self.lattice = Lattice(problem.grid, method.cell_side(problem.grid))
        self.index = CoalitionIndex(self.lattice)
        self.survey: Survey | None = None
        self.enough: Held | None = None
        self.room: Visible | None = None
        self.run = BudgetedRun(problem.grid)

    def find(self) -> Search[Finding]:
        """`enough`, then one set inside it; or one set, or several that share few cells or none; then the map."""
        run, method = self.run, self.method
        found: list[tuple[Settled, int | None]] = []
        try:
            yield from drive(self._begin(), run=run)
        except Stop as stop:
            best = () if stop.reason == "budget" else self._best()
            return Finding(self._draw(best), best, enough=self.enough)
        start = np.ones(self.lattice.shape, bool) if self.room is None else self.lattice.restrict(self.room)[1]
        try:
            for own in _spawn(self.rng, method.several):
                if found and not (yield self._show(start)[None]).holds[0]:
                    break
                found.append((yield from self._find_one(start, own)))
                numbers = np.unique(cells(self.lattice.grid, self.lattice.grain)[found[-1][0].visible])
                allowed = own.permutation(numbers)[: int(method.overlap * len(numbers))]
                start = start.copy()
                start.reshape(-1)[np.setdiff1d(numbers, allowed)] = False  # the next one may not use these cells
        except Stop:
            if not found:
                best = self._best()
                return Finding(self._draw(best), best, enough=self.enough)
        notes = () if method.several == 1 else (f"{len(found)} of {method.several} explanations were found",)
        sets, grains = tuple(settled.visible for settled, _ in found), tuple(grain for _, grain in found)
        finding = Finding(self._draw(sets[:1]), sets, grains, notes, self.enough)
        try:
            return (yield from self._add_zones(finding, found[0][0]))
        except Stop:
            return finding

    def _begin(self) -> Search[None]:
        """`enough`, where it is asked for, or a survey; on small lattices and with a small budget there is none."""
        tuning, budget, problem = self.tuning, self.problem.budget, self.problem
        if problem.holds is not None and (budget is None or budget >= LEAST_CALLS):
            rules = choose_rules(budget)
            limit = None if budget is None else self.run.spent + round(rules.share * budget)
            way = DescentWay(problem, self.rng.spawn(1)[0], rules, limit)
            try:
                self.enough = yield from find_enough(way, run=self.run, limit=limit, reserve=rules.certificate)
            finally:
                self.survey = way.survey
                self.room = way.seen[-1]
            if self.run.stopped_by not in (None, "budget"):
                raise Stop(self.run.stopped_by)
            return
        samples = tuning.survey if budget is None else min(tuning.survey, budget // tuning.survey_fraction)
        if samples >= tuning.min_survey and np.prod(self.lattice.shape) > tuning.small_lattice:
            own = self.rng.spawn(1)[0]
            self.survey = yield from run_survey(problem.view, samples=samples, patches=tuning.patches, rng=own)

    def _find_one(self, start: Cells, rng: np.random.Generator) -> Search[tuple[Settled, int | None]]:
        """The smallest of some runs, and the side of the cells at which it is minimal."""
        run, results = self.run, []
        small = self.tuning.small_runs if start.size <= self.tuning.small_lattice else 1
        for each in _spawn(rng, self.tuning.runs or small):
            if self.survey is None:
                chain = yield from self._descend(start, each)
            else:
                chain = yield from self._descend_twice(self._show(start), self.survey, each)
            visible, expected = chain.lattice.show(chain.visible), chain.cost.estimate()
            limit = None if self.method.grain is not None else self._limit(chain)
            search = settle_within(visible, chain.lattice.grain, expected, run, limit=limit, margin=chain.margin)
            results.append((yield from search))
            if run.stopped_by not in (None, "budget"):
                break
        return min(results, key=lambda result: int(result[0].visible.sum()))

    def _limit(self, chain: Chain) -> int:
        """The calls after which minimality is proved for larger cells: at once where there are too many of these."""
        tuning, spent = self.tuning, self.run.spent
        if self.room is None:
            return chain.calls_before + tuning.effort
        return spent + (tuning.core_effort if int(chain.visible.sum()) <= tuning.most_cells else 0)

    def _descend(self, start: Cells, rng: np.random.Generator) -> Search[Chain]:
        """Shrink several chains to a coarse size, and continue with the best of them."""
        tuning, run = self.tuning, self.run
        lattice = replace(self.lattice, within=self.room)
        chains = [Chain(tuning, lattice, start, None, own, self.index) for own in rng.spawn(tuning.chains or 2)]
        for chain in chains:
            yield from drive(chain.shrink(tuning.share, stop_at=tuning.coarse), run=run)
        best = min(chains, key=Chain.rank)
        for share in tuning.reheat:
            yield from drive(best.shrink(share), run=run)
        return best

    def _descend_twice(self, start: Visible, survey: Survey, rng: np.random.Generator) -> Search[Chain]:
        """Shrink the best patches with cells of twice the side, then with the cells themselves."""
        tuning, run, lattice = self.tuning, self.run, self.lattice
        if self.room is not None:  # inside of `enough` much has gone already
            tuning = replace(tuning, parts=tuning.core_parts, reheat=())
        visible = yield from drive(restrict(start, survey), run=run)
        first, second = rng.spawn(2)
        coarse, cells_left = replace(lattice, grain=2 * lattice.grain).restrict(visible)
        chain = Chain(tuning, coarse, cells_left, survey.removal_cost(coarse), first, None)
        for share in (tuning.share, *tuning.reheat):
            yield from drive(chain.shrink(share), run=run)
        finer, cells_left = lattice.restrict(coarse.show(chain.visible))
        fine = Chain(tuning, finer, cells_left, coarse.spread(chain.cost.estimate(), lattice), second, None)
        yield from drive(fine.shrink(tuning.fine_share), run=run)
        fine.calls_before = chain.calls_before
        return fine

    def _show(self, start: Cells) -> Visible:
        return self.lattice.show(start) if self.room is None else self.lattice.show(start) & self.room

    def _best(self) -> tuple[Visible, ...]:
        """The smallest set that was seen to be sufficient, inside `enough` where there is one; none for the whole view."""
        best, outer = self.run.visible, self._certified
        best = best if outer is None or not (best & ~outer).any() else outer
        return () if best.all() else (best,)

    @property
    def _certified(self) -> Visible | None:
        """The set `enough`, where it was shown that it holds and something is left out."""
        held, share = self.enough, self.problem.holds
        return None if held is None or share is None or held.bound < share or held.visible.all() else held.visible

    def _add_zones(self, finding: Finding, core: Settled) -> Search[Finding]:
        """The finding with a map in zones; as it is for the label alone, without a survey, or with a small budget.

        As it is too where the set is empty, since the background alone keeps the target; `explain` refuses such a fill.
        """
        tuning, budget, visible = self.tuning, self.problem.budget, core.visible
        enough = visible if self._certified is None else self._certified
        asks_confidence = self.problem.has_scores and self.problem.floor > 0
        if self.survey is None or not tuning.zones or not asks_confidence or not visible.any():
            return finding
        if budget is not None and budget - self.run.spent < LEAST_ROUNDS * tuning.zones:
            return finding
        costs = (self.survey.contribution / np.bincount(self.survey.patch.ravel()))[self.survey.patch]
        order = yield from order_patches(self.problem, visible, enough, costs, tuning.zones)
        saliency, zones = draw_zones(visible, enough, costs, order)
        return replace(finding, saliency=saliency, zones=zones)

    def _draw(self, sets: Sequence[Visible]) -> Saliency:
        """The map; without a survey from the sets that were evaluated."""
        levels = list(sets) if self._certified is None else [*sets, self._certified]
        return order_map(self.index.saliency, levels) if self.survey is None else draw_map(self.survey, levels)


def _spawn(rng: np.random.Generator, count: int) -> list[np.random.Generator]:
    """Generators for `count` runs; a single run uses the generator itself."""
    return [rng] if count == 1 else rng.spawn(count)
