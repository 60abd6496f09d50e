"""Our search, `causal`: hide what can be hidden, large parts first, until every cell left is needed.

A survey asks random sets of patches that follow the image's edges, and the fewest of the best that hold together are
where it begins. From there a chain grows the hidden set, the witness. In each round it draws a few random parts of
what is still shown, about a stated share of it, and asks what is left without each, then without the best of them
together. It goes on from the one that trades margin for size best. Where nothing can go, smaller parts are drawn. At the
end cells are tried one by one until each has failed (`settle`), so that every cell that is left is a cause: the target
holds with it and is lost without it, all that is hidden being the witness.

What is shown is sufficient at every moment. The map adds up the sufficient sets that were met on the way, each with its
confidence over its size, and what the survey thinks of each pixel; the explanation is on top.
"""

from collections import deque
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Answers, Finding, Grid, Needs, Saliency, Search, Stop, Visible, with_hints
from becausal.core.errors import OptionError
from becausal.core.minimise import Settled, settle
from becausal.core.problem import Problem
from becausal.core.regions import cells, default_grain
from becausal.core.searches import BudgetedRun
from becausal.methods.causal.lattice import Cells, Lattice, RemovalCost, add_up, sizes_of, smooth
from becausal.methods.causal.parts import Proposer
from becausal.methods.causal.survey import Survey, survey

SMALL, SMALL_RUNS = (
    64,
    12,
)  # on a lattice of so few cells a run costs next to nothing, and the best of several is near the optimum
LEAST_SURVEY = 10  # fewer samples say nothing
FAINT = 0.02  # what a pixel has on the map that speaks neither for nor against
SMOOTH = 2  # cells to each side that the index is averaged over for the map


@dataclass(frozen=True, kw_only=True)
class Causal:
    """The search and its options.

    grain: the side of the cells in pixels; None for a 56th of the view's longest side.
    survey: how many random sets of patches are asked first, at most a fifth of the budget; 0 begins with the whole view.
    patches: about how many patches the view is cut into for it.
    prior: how many trials of a cell the survey's word on it counts for.
    chains: how many coarse descents are made; the most promising goes on. None: one after a survey, two without.
    coarse: the share of the view at which they are compared.
    parts: how many parts are drawn in a round.
    share: how much of what is shown a part has at first.
    reheat: the shares to begin again with, one after the other, once the best chain goes on.
    rate: how many nats of margin a halving of the size is worth, divided by log 2.
    trust: how strongly parts that did little harm so far are preferred.
    memory: how much of that experience lasts from round to round.
    effort: after so many calls no more cells of the grain are tried; minimality is then shown of cells twice as large.
    None: never.
    runs: how many times it is done from the beginning, the smallest counting; None: once, more often on tiny lattices.
    several: how many explanations to look for, each in what the others leave.
    overlap: the share of an explanation's cells that the next may have too.
    """

    grain: int | None = None
    survey: int = 64
    patches: int = 40
    prior: float = 1.0
    chains: int | None = None
    coarse: float = 0.1
    parts: int = 8
    share: float = 0.3
    reheat: tuple[float, ...] = (0.15, 0.15)
    rate: float = 1.0
    trust: float = 1.0
    memory: float = 0.7
    effort: int | None = 1100
    runs: int | None = None
    several: int = 1
    overlap: float = 0.0

    name: ClassVar[str] = "causal"
    needs: ClassVar[Needs] = "labels"
    kinds: ClassVar[tuple[str, ...]] = ("box", "strip", "blocks")
    unions: ClassVar[tuple[int, ...]] = (2, 3, 4, 8)

    def __post_init__(self) -> None:
        if self.grain is not None and self.grain < 1:
            raise OptionError(f"grain must be at least 1 pixel, not {self.grain}")
        if min(1 if self.chains is None else self.chains, self.parts, self.several, self.runs or 1) < 1:
            raise OptionError("chains, parts, runs and several must be at least 1")
        if self.survey < 0 or self.patches < 2 or not self.prior > 0.0:
            raise OptionError("survey must be 0 or more, patches at least 2, prior above 0")
        if not 0.0 <= self.overlap < 1.0:
            raise OptionError(f"overlap must lie in 0..1, 1 not included, not {self.overlap}")
        if not 0.0 < self.share < 1.0 or not all(0.0 < s < 1.0 for s in self.reheat):
            raise OptionError("shares must lie between 0 and 1")

    def cell_side(self, grid: Grid) -> int:
        """The side of the cells at which its sets are minimal."""
        return self.grain or default_grain(grid)

    def configured(self, *, grain: int | None, several: int) -> "Causal":
        """The same search for cells of this side and so many sets; what was said of the search itself wins."""
        return replace(self, grain=self.grain or grain, several=self.several if self.several > 1 else several)

    def search(self, problem: Problem, rng: np.random.Generator) -> Search[Finding]:
        """One explanation after the other, each in what the others leave."""
        lattice = Lattice(problem.grid, self.cell_side(problem.grid))
        seen, course = Seen(lattice), BudgetedRun(problem.grid)
        found: list[tuple[Settled, int | None]] = []
        start = np.ones(lattice.shape, bool)
        looked: Survey | None = None
        try:
            looked = yield from self._look_round(problem, lattice, rng, course)
            for own in spawn(rng, self.several):
                if found and not (yield from self._still_holds(lattice.show(start))):
                    break
                runs = spawn(own, self.runs or (SMALL_RUNS if start.size <= SMALL else 1))
                tries = []
                for each in runs:
                    tries.append((yield from self._descend(lattice, start, looked, each, seen, course)))
                found.append(min(tries, key=lambda one: int(one[0].visible.sum())))
                start = start & ~self._taken(lattice, found[-1][0].visible, own)
        except Stop:
            if not found:
                best = course.visible
                return Finding(seen.map(looked), ()) if best.all() else Finding(seen.map(looked, best), (best,))
        grain = found[0][1]
        notes = () if self.several == 1 else (f"{len(found)} of {self.several} explanations were found",)
        sets = tuple(settled.visible for settled, _ in found)
        return Finding(seen.map(looked, sets[0]), sets, grain, notes)

    def _look_round(
        self, problem: Problem, lattice: Lattice, rng: np.random.Generator, course: BudgetedRun
    ) -> Search[Survey | None]:
        """The survey, where it can pay: not on tiny lattices, nor with next to no budget."""
        samples = self.survey if problem.budget is None else min(self.survey, problem.budget // 5)
        if samples < LEAST_SURVEY or np.prod(lattice.shape) <= SMALL:
            return None
        looking = survey(problem.view, samples=samples, patches=self.patches, rng=rng.spawn(1)[0])
        return (yield from course.follow(looking))

    def _enclose(self, lattice: Lattice, start: Cells, looked: Survey) -> Search[tuple[Lattice, Cells]]:
        """The fewest of the best patches that hold, by bisection: the pixels to stay within, and their cells."""
        room = lattice.show(start)
        low, high = 0, len(looked.worth)
        while high - low > 1:
            middle = (low + high) // 2
            next_ones = partial(self._next_halves, room, looked, low, high)
            answers = yield with_hints((room & looked.best(middle))[None], lookahead=next_ones)
            low, high = (low, middle) if answers.holds[0] else (middle, high)
        return lattice.enclose(room & looked.best(high))

    @staticmethod
    def _next_halves(room: Visible, looked: Survey, low: int, high: int, count: int) -> list[Visible]:
        """What a bisection may ask after the middle of low and high, the next questions first."""
        found: list[Visible] = []
        ranges = deque([(low, (low + high) // 2), ((low + high) // 2, high)])
        while ranges and len(found) < count:
            low, high = ranges.popleft()
            if high - low > 1:
                middle = (low + high) // 2
                found.append(room & looked.best(middle))
                ranges += [(low, middle), (middle, high)]
        return found

    def _descend(
        self,
        lattice: Lattice,
        start: Cells,
        looked: Survey | None,
        rng: np.random.Generator,
        seen: "Seen",
        course: BudgetedRun,
    ) -> Search[tuple[Settled, int | None]]:
        """Chains to a coarse size, the best of them to the end, then cell by cell."""
        if looked is not None:
            lattice, start = yield from course.follow(self._enclose(lattice, start, looked))
        count = self.chains or (2 if looked is None else 1)
        chains = [Chain(self, lattice, start, looked, own, seen) for own in rng.spawn(count)]
        for chain in chains:
            yield from course.follow(chain.shrink(self.share, stop_at=self.coarse))
        best = min(chains, key=Chain.promise)
        for share in self.reheat:
            yield from course.follow(best.shrink(share))
        return (yield from self._settle(best, course))

    def _still_holds(self, visible: Visible) -> Search[bool]:
        answers = yield visible[None]
        return bool(answers.holds[0])

    def _taken(self, lattice: Lattice, found: Visible, rng: np.random.Generator) -> Cells:
        """The cells of an explanation that the next one may not have."""
        numbers = np.unique(cells(lattice.grid, lattice.grain)[found])
        allowed = rng.permutation(numbers)[: int(self.overlap * len(numbers))]
        taken = np.zeros(int(np.prod(lattice.shape)), bool)
        taken[np.setdiff1d(numbers, allowed)] = True
        return taken.reshape(lattice.shape)

    def _settle(self, chain: "Chain", course: BudgetedRun) -> Search[tuple[Settled, int | None]]:
        """Try cells one by one until none can go; where that takes too long, prove it of larger cells instead."""
        grid, grain = chain.lattice.grid, chain.lattice.grain
        cell, expected = cells(grid, grain), chain.harm.estimate().reshape(-1)
        search = settle(chain.lattice.show(chain.shown), cell, expected, margin=chain.margin)
        limit = None if self.effort is None else chain.began + self.effort
        settled = yield from course.follow(search, limit=limit)
        while not settled.finished and 2 * grain <= max(grid):
            grain, finer = 2 * grain, cell
            cell = cells(grid, grain)
            expected = _pool(np.where(np.isnan(settled.harm), expected, settled.harm), finer, cell, settled.visible)
            settled = yield from settle(settled.visible, cell, expected, margin=settled.margin)
        return settled, grain if settled.finished else None


def _pool(
    harm: NDArray[np.float64], finer: NDArray[np.intp], cell: NDArray[np.intp], visible: Visible
) -> NDArray[np.float64]:
    """What is expected of cells, from what is expected of finer ones: each gives its pixels in the set an equal share."""
    count, finer, cell = int(cell.max()) + 1, finer[visible], cell[visible]
    share = harm / np.maximum(np.bincount(finer, minlength=len(harm)), 1)
    return np.bincount(cell, share[finer], minlength=count).astype(np.float64)


def spawn(rng: np.random.Generator, count: int) -> list[np.random.Generator]:
    """Generators for `count` runs; a single run has the generator itself."""
    return [rng] if count == 1 else rng.spawn(count)


class Seen:
    """The sufficient sets the chains have asked, as an index: each gives its cells its confidence over its size.

    It is the Deegan-Packel index of the winning coalitions that were met, weighted by how well they win (labels alone
    weigh 1): high where a cell is in many sets, and in small and sure ones.
    """

    def __init__(self, lattice: Lattice) -> None:
        self.lattice = lattice
        self.index = np.zeros(lattice.shape)

    def note(self, sets: Cells, answers: Answers) -> None:
        """Learn from the answers to these sets of cells, (n, *lattice)."""
        winning, confidence = sets[answers.holds], answers.confidence[answers.holds]
        worth = np.where(np.isnan(confidence), 1.0, confidence)
        self.index += add_up(winning, worth / np.maximum(sizes_of(winning), 1))

    def map(self, looked: Survey | None, found: Visible | None = None) -> Saliency:
        """The index; after a survey smoothed, and what the survey thinks of each pixel added to it, those lowest, in their
        order, that speak against the target. found: the explanation, on top of all. The highest is 1.
        """
        if looked is None:
            saliency = _scaled(self.lattice.spread(self.index))
        else:
            saliency = _scaled(self.lattice.spread(smooth(self.index, SMOOTH))) + _scaled(looked.density)
            against = saliency / max(-float(saliency.min()), 1e-300)  # -1 to 0 where the survey speaks against
            saliency = FAINT + np.where(saliency < 0, FAINT * against, saliency)
        if found is not None:
            saliency = saliency + (float(saliency.max()) or 1.0) * found
        return _scaled(saliency)


def _scaled(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The values, the highest 1; all 0 where none is above it."""
    most = float(values.max())
    return values / most if most > 0 else np.zeros_like(values)


class Chain:
    """One way down: the cells still shown, the margin they leave, and what was learnt about harm."""

    def __init__(
        self,
        options: Causal,
        lattice: Lattice,
        start: Cells,
        looked: Survey | None,
        rng: np.random.Generator,
        seen: Seen,
    ) -> None:
        self.options = options
        self.lattice = lattice
        self.rng = rng
        self.seen = seen
        self.shown = start
        self.margin = float("nan")
        self.began = 0  # calls that were spent before
        self.harm = RemovalCost(lattice.shape, None if looked is None else looked.harm(lattice), options.prior)

    def promise(self) -> float:
        """Lower is better: how small the set is, and how much margin it has left to lose."""
        return float(np.log(self.shown.mean()) - 0.02 * self.margin)

    def shrink(self, share: float, *, stop_at: float = 0.0) -> Search[None]:
        """Rounds of hiding until the set is small enough, or nothing of two cells or more can go."""
        most = share
        if np.isnan(self.margin):
            answers = yield self.lattice.show(self.shown)[None]
            self.margin = float(answers.margin[0])
            self.began = answers.spent
        while self.shown.mean() > stop_at and share * np.count_nonzero(self.shown) >= 1.5:
            gone = yield from self.round(share)
            share = min(most, max(share, gone) * 1.1) if gone else share / 2

    def round(self, share: float) -> Search[float]:
        """Draw parts, ask each and the best together, go on from the best trade; the share that went, 0 if none."""
        options = self.options
        proposer = Proposer(self.shown, self.harm.estimate(), self.rng, options.trust)
        parts = proposer.draw([options.kinds[i % len(options.kinds)] for i in range(options.parts)], share)
        if not len(parts):
            return 0.0
        answers = yield from self._ask_without(parts)
        trades = self._trades(parts, answers)
        order = [i for i in np.argsort(-trades, kind="stable") if answers.holds[i]]
        if not order:
            return 0.0
        trade, margin, part = trades[order[0]], answers.margin[order[0]], parts[order[0]]
        unions = self._unions(parts[order])
        if len(unions):
            more = yield from self._ask_without(unions)
            found = np.where(more.holds, self._trades(unions, more), -np.inf)
            best = int(np.argmax(found))
            if found[best] > trade:
                margin, part = more.margin[best], unions[best]
        gone = float(np.count_nonzero(part) / np.count_nonzero(self.shown))
        self.shown = self.shown & ~part
        self.margin = float(margin)
        self.harm.fade(options.memory)
        return gone

    def _ask_without(self, parts: Cells) -> Search[Answers]:
        """Ask what is left without each part, (n, *lattice), and learn what its loss costs."""
        left = self.shown & ~parts
        answers = yield self.lattice.show(left)
        self.seen.note(left, answers)
        self.harm.learn(parts, self.margin - answers.margin)
        return answers

    def _trades(self, parts: Cells, answers: Answers) -> NDArray[np.float64]:
        """How good each choice is: the margin it leaves, and the size it saves at the going rate."""
        count = np.count_nonzero(self.shown)
        saved = np.log(count / (count - sizes_of(parts)))
        return np.round(answers.margin + self.options.rate * saved, 6)  # so that noise in the last digits decides nothing

    def _unions(self, ordered: Cells) -> Cells:
        """The best two, three, ... parts together, those that differ and leave something, (n, *lattice)."""
        most, least = np.count_nonzero(self.shown), np.count_nonzero(ordered[0])
        unions: dict[int, Cells] = {}  # by size
        together = ordered[0]
        for count, part in enumerate(ordered[1:], 2):
            together = together | part
            size = int(np.count_nonzero(together))
            if count in self.options.unions and least < size < most:
                unions.setdefault(size, together)
        return np.stack(list(unions.values())) if unions else ordered[:0]
