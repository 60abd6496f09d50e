"""The method `causal`: mask everything that can be masked, large parts first, until every remaining cell is needed.

1. A survey evaluates balanced sets of patches that follow the image's edges. The search starts from the smallest number
   of best patches that keeps the target.
2. Patches, then larger cells, then random parts of the set are removed. A chain of rounds draws parts, evaluates the set
   without each part and without unions of the best parts, and continues with the best trade of margin for size. Where no
   part can go, smaller parts follow.
3. Cells are tried one by one until each single removal has failed (`settle`). Every remaining cell is then a cause: the
   target holds with it and is lost without it, with all masked pixels as the witness.

Where nested levels are asked for, see `levels`. The visible set is sufficient at every moment. The map is the order in
which the pixels are needed (`ordering`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from becausal.core.contracts import Finding, Grid, Needs, Saliency, Search, Stop, Visible
from becausal.core.errors import OptionError
from becausal.core.problem import Problem
from becausal.core.regions import cells, default_grain
from becausal.methods.causal.levels import LevelSearch
from becausal.methods.causal.ordering import MapEffects, draw_map, measure_effects, order_map
from becausal.search.descent.chain import Chain
from becausal.search.descent.lattice import Cells, CoalitionIndex, Lattice
from becausal.search.descent.survey import Survey, restrict, run_survey
from becausal.search.descent.tuning import Tuning
from becausal.search.drive import BudgetedRun
from becausal.search.minimise import Result, settle_within


@dataclass(frozen=True, kw_only=True)
class Causal:
    """Search for small sufficient sets of pixels that are minimal at a stated grain.

    Attributes:
        grain: Side of a cell in pixels; None for 1/28 of the view's longest side, 1/56 with `smallest`.
        effort: Number of model calls after which minimality is proved for cells twice as large; None for no limit.
        several: Number of explanations to look for, each in the pixels that the previous ones leave.
        smallest: Whether a set that keeps the label alone is looked for, with smaller cells.
        overlap: Share of an explanation's cells that the next one may use again.
        tuning: Constants of the search, for research.
    """

    grain: int | None = None
    effort: int | None = 700
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
        """Find nested levels, or explanations one after the other, each in the pixels that the previous ones leave."""
        own = self if problem.target.box is None else replace(self, tuning=self.tuning.for_boxes())
        return own._search(problem, rng)

    def _search(self, problem: Problem, rng: np.random.Generator) -> Search[Finding]:
        lattice = Lattice(problem.grid, self.cell_side(problem.grid))
        run, index = BudgetedRun(problem.grid), CoalitionIndex(lattice)
        try:
            survey = yield from run.follow(self._survey(problem, lattice, rng))
        except Stop:
            return Finding(_draw(index, None, ()))
        if not problem.floors:
            return (yield from self._find_sets(problem, lattice, survey, rng, index, run))
        needed = index if survey is None else None  # the map of a survey makes no use of it
        levels, effects = LevelSearch(self.tuning, lattice, problem.floors, rng, needed, self.effort), None
        try:
            yield from levels.run(survey)
            effects = yield from self._effects(problem, lattice, survey, levels.sets[-1], rng)
        except Stop:
            if levels.sets[-1].all():
                return Finding(_draw(index, survey, ()))
        *inner, last = levels.sets
        *inner_grains, grain = levels.grains
        saliency = _draw(index, survey, levels.sets, effects)
        return Finding(saliency, (last,), (grain,), inner=tuple(inner), inner_grains=tuple(inner_grains))

    def _find_sets(
        self,
        problem: Problem,
        lattice: Lattice,
        survey: Survey | None,
        rng: np.random.Generator,
        index: CoalitionIndex,
        run: BudgetedRun,
    ) -> Search[Finding]:
        """One set, or several that share few cells or none."""
        found: list[Result] = []
        start, effects = np.ones(lattice.shape, bool), None
        try:
            for own in _spawn(rng, self.several):
                if found and not (yield lattice.show(start)[None]).holds[0]:
                    break
                results = []
                for each in _spawn(own, self._count_runs(start.size)):
                    if survey is None:
                        chain = yield from self._descend(lattice, start, each, index, run)
                    else:
                        chain = yield from self._descend_twice(lattice, lattice.show(start), survey, each, run)
                    limit = None if self.effort is None else chain.calls_before + self.effort
                    visible, expected = chain.lattice.show(chain.visible), chain.cost.estimate()
                    search = settle_within(visible, chain.lattice.grain, expected, run, limit=limit, margin=chain.margin)
                    results.append((yield from search))
                found.append(min(results, key=lambda result: int(result[0].visible.sum())))
                start = start & ~self._used(lattice, found[-1][0].visible, own)
            if problem.target.floor > 0:
                effects = yield from self._effects(problem, lattice, survey, found[0][0].visible, rng)
        except Stop:
            if not found:
                best = () if run.visible.all() else (run.visible,)
                return Finding(_draw(index, survey, best), best)
        notes = () if self.several == 1 else (f"{len(found)} of {self.several} explanations were found",)
        sets, grains = tuple(settled.visible for settled, _ in found), tuple(grain for _, grain in found)
        return Finding(_draw(index, survey, sets[:1], effects), sets, grains, notes)

    def _count_runs(self, lattice_size: int) -> int:
        tuning = self.tuning
        return tuning.runs or (tuning.small_runs if lattice_size <= tuning.small_lattice else 1)

    def _survey(self, problem: Problem, lattice: Lattice, rng: np.random.Generator) -> Search[Survey | None]:
        """The survey; None on small lattices and with a small budget."""
        tuning, samples = self.tuning, self.tuning.survey
        if problem.budget is not None:
            samples = min(samples, problem.budget // tuning.survey_fraction)
        if samples < tuning.min_survey or np.prod(lattice.shape) <= tuning.small_lattice:
            return None
        return (yield from run_survey(problem.view, samples=samples, patches=tuning.patches, rng=rng.spawn(1)[0]))

    def _effects(
        self,
        problem: Problem,
        lattice: Lattice,
        survey: Survey | None,
        explanation: Visible,
        rng: np.random.Generator,
    ) -> Search[MapEffects | None]:
        """What parts of the view do to the confidence, for the map; None without a survey, or with a small budget.

        None too where the explanation is empty, since the background alone keeps the target; `explain` refuses such a fill.
        """
        tuning = self.tuning
        if survey is None or not tuning.inside or not explanation.any():
            return None
        if problem.budget is not None and problem.budget < 4 * (tuning.context + tuning.inside):
            return None
        search = measure_effects(
            survey, explanation, 2 * lattice.grain, context=tuning.context, inside=tuning.inside, rng=rng.spawn(1)[0]
        )
        return (yield from search)

    def _descend(
        self, lattice: Lattice, start: Cells, rng: np.random.Generator, index: CoalitionIndex, run: BudgetedRun
    ) -> Search[Chain]:
        """Shrink several chains to a coarse size, and continue with the best of them."""
        tuning = self.tuning
        chains = [Chain(tuning, lattice, start, None, own, index) for own in rng.spawn(tuning.chains or 2)]
        for chain in chains:
            yield from run.follow(chain.shrink(tuning.share, stop_at=tuning.coarse))
        best = min(chains, key=Chain.rank)
        for share in tuning.reheat:
            yield from run.follow(best.shrink(share))
        return best

    def _descend_twice(
        self, lattice: Lattice, start: Visible, survey: Survey, rng: np.random.Generator, run: BudgetedRun
    ) -> Search[Chain]:
        """Shrink the best patches with cells of twice the side, then with the cells themselves."""
        tuning, coarse = self.tuning, replace(lattice, grain=2 * lattice.grain)
        visible = yield from run.follow(restrict(start, survey))
        first, second = rng.spawn(2)
        coarse, cells_left = coarse.restrict(visible)
        chain = Chain(tuning, coarse, cells_left, survey.removal_cost(coarse), first, None)
        for share in (tuning.share, *tuning.reheat):
            yield from run.follow(chain.shrink(share))
        finer, cells_left = lattice.restrict(coarse.show(chain.visible))
        fine = Chain(tuning, finer, cells_left, coarse.spread(chain.cost.estimate(), lattice), second, None)
        yield from run.follow(fine.shrink(tuning.fine_share))
        fine.calls_before = chain.calls_before
        return fine

    def _used(self, lattice: Lattice, found: Visible, rng: np.random.Generator) -> Cells:
        """The cells of an explanation that the next one may not use."""
        numbers = np.unique(cells(lattice.grid, lattice.grain)[found])
        allowed = rng.permutation(numbers)[: int(self.overlap * len(numbers))]
        used = np.zeros(int(np.prod(lattice.shape)), bool)
        used[np.setdiff1d(numbers, allowed)] = True
        return used.reshape(lattice.shape)


def _spawn(rng: np.random.Generator, count: int) -> list[np.random.Generator]:
    """Generators for `count` runs; a single run uses the generator itself."""
    return [rng] if count == 1 else rng.spawn(count)


def _draw(
    index: CoalitionIndex, survey: Survey | None, levels: Sequence[Visible], effects: MapEffects | None = None
) -> Saliency:
    """The map; without a survey from the sets that were evaluated."""
    return order_map(index.saliency, levels) if survey is None else draw_map(survey, effects, levels)
