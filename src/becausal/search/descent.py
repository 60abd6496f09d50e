"""Descents: rounds that remove parts of a grid's cells, as the method `causal` and the set `enough` use them.

First a grid divided into cells: what their removal costs, how often they took part, and random parts that may be removed;
for any number of dimensions, with sampling weights that are integers, so that their sums are exact and every machine draws
the same. Then a chain of rounds, each of which removes the part with the best trade of margin for size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Answers, Grid, Saliency, Search, Visible
from becausal.core.errors import OptionError

BLOCK = 0.35  # side of a block, relative to that of a box of the same size
STRETCH = 0.35  # standard deviation of the logarithm of a box's side ratios
RADII = 96  # number of candidate sizes of a box
WEIGHT = 1 << 16  # of a cell with mean expected cost
MARGIN_WEIGHT = 0.02  # of a nat of margin against the logarithm of the size, where chains are compared

Cells = NDArray[np.bool_]  # over the lattice: True = visible
Kind = TypeVar("Kind", bound=np.generic)


@dataclass(frozen=True)
class Lattice:
    """A grid divided into cells of side `grain`, in pixels; the last cells along an axis may be shorter.

    within: (*grid,) pixels that may be visible, None for all; cells are cut off at their border.
    """

    grid: Grid
    grain: int
    within: Visible | None = field(default=None, compare=False, repr=False)

    @property
    def shape(self) -> Grid:
        return tuple(-(-side // self.grain) for side in self.grid)

    def expand(self, values: NDArray[Kind]) -> NDArray[Kind]:
        """One value per cell, (..., *lattice), as one per pixel, (..., *grid)."""
        before = (slice(None),) * (values.ndim - len(self.grid))
        for axis in range(-1, -len(self.grid) - 1, -1):  # last axis first: the others then repeat whole rows
            values = np.repeat(values, self.grain, axis=axis)
        return values[before + tuple(slice(0, side) for side in self.grid)]

    def show(self, cells: Cells) -> Visible:
        """Sets of cells, (..., *lattice), as sets of pixels, (..., *grid)."""
        pixels = self.expand(cells)
        return pixels if self.within is None else pixels & self.within

    def sum_cells(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """One value per pixel, (*grid,), summed per cell, (*lattice,)."""
        for axis, side in enumerate(self.grid):
            values = np.add.reduceat(values, np.arange(0, side, self.grain), axis=axis)
        return values

    def spread(self, values: NDArray[np.float64], finer: "Lattice") -> NDArray[np.float64]:
        """One value per cell, (*lattice,), divided among the cells of a finer lattice by their pixels, (*finer,)."""
        return finer.sum_cells(self.expand(values / self.sum_cells(np.ones(self.grid))))

    def restrict(self, within: Visible) -> tuple["Lattice", Cells]:
        """The lattice limited to these pixels, and the cells that have at least one of them."""
        return replace(self, within=within), self.sum_cells(within.astype(np.float64)) > 0


@dataclass
class RemovalCost:
    """Estimated cost of removing each cell, (*shape,): the observed loss of margin, shared by the cells removed together.

    expected: (*shape,) a prior estimate that counts for `weight` observations, None for none.
    """

    shape: Grid
    expected: NDArray[np.float64] | None = None
    weight: float = 0.0

    def __post_init__(self) -> None:
        self.loss, self.trials = np.zeros(self.shape), np.zeros(self.shape)

    def observe(self, parts: Cells, losses: NDArray[np.float64]) -> None:
        """Add the loss of margin, (n,), that the removal of each part, (n, *lattice), caused."""
        self.loss += weighted_sum(parts, losses / np.maximum(set_sizes(parts), 1))
        self.trials += weighted_sum(parts, np.ones(len(parts)))

    def decay(self, keep: float) -> None:
        """Trust what was observed less: it was observed with other cells visible. The prior estimate stays as it is."""
        self.loss *= keep
        self.trials *= keep

    def estimate(self) -> NDArray[np.float64]:
        """The expected loss per cell; the mean for cells without observations and prior."""
        if self.expected is not None:
            return np.asarray((self.loss + self.weight * self.expected) / (self.trials + self.weight), np.float64)
        total = self.trials.sum()
        mean = self.loss.sum() / total if total else 0.0
        return np.where(self.trials > 0, self.loss / np.maximum(self.trials, 1e-12), mean)


def set_sizes(sets: Cells) -> NDArray[np.intp]:
    """The number of cells in each of the sets, (n, *lattice)."""
    return np.array([np.count_nonzero(one) for one in sets], np.intp)  # faster than a sum over bool


def weighted_sum(sets: Cells, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each cell the summed weights of the sets, (n, *lattice), that contain it."""
    return np.asarray(np.einsum("i,i...->...", weights, sets), np.float64)  # a matrix product would start threads


class CoalitionIndex:
    """Deegan-Packel index over the sufficient sets (winning coalitions) evaluated by the search, weighted by confidence.

    Each set adds its confidence divided by its size to its cells; with a label-only classifier the confidence counts
    as 1. Cells in many sets, in small sets and in confident sets get high values.
    """

    def __init__(self, lattice: Lattice) -> None:
        self.lattice = lattice
        self.index = np.zeros(lattice.shape)

    def add(self, sets: Cells, answers: Answers) -> None:
        """Add those of the sets of cells, (n, *lattice), that are sufficient by their answers."""
        winning, confidence = sets[answers.holds], answers.confidence[answers.holds]
        weights = np.where(np.isnan(confidence), 1.0, confidence)
        self.index += weighted_sum(winning, weights / np.maximum(set_sizes(winning), 1))

    @property
    def saliency(self) -> Saliency:
        """The index of each pixel's cell, (*grid,)."""
        return self.lattice.expand(self.index)


class PartSampler:
    """Draws parts of a set of cells, (*lattice,), each with about a given share of it.

    cost: (*lattice,) expected cost of removing each cell. trust: how strongly cells with a low one are preferred; 0 draws
    cells uniformly.
    """

    def __init__(self, cells: Cells, cost: NDArray[np.float64], rng: np.random.Generator, trust: float = 1.0) -> None:
        self.cells, self._rng = cells, rng
        self._members = np.flatnonzero(cells)
        expected = cost.reshape(-1)[self._members]
        centred = expected - expected.mean()
        deviation = float(np.sqrt((centred * centred).mean()))
        self._weights = np.full(len(expected), WEIGHT)  # of each member
        if deviation > 0 and trust > 0:
            # Within three deviations, so that a few cells with extreme costs neither fill all draws nor never come up.
            score = np.minimum(np.maximum(centred / deviation, -3), 3)
            self._weights = np.rint(WEIGHT * np.exp(-trust * score)).astype(np.int64) + 1
        # Summed-area table: the number of members before each corner of the lattice.
        self._sums = np.zeros([side + 1 for side in cells.shape], np.intp)
        inner = self._sums[(slice(1, None),) * cells.ndim]
        inner[...] = cells
        for axis in range(cells.ndim):
            np.cumsum(inner, axis=axis, out=inner)

    def draw(self, kinds: Sequence[str], share: float) -> Cells:
        """One part of each of these kinds, (n, *lattice); empty parts and parts with all cells are left out."""
        count = len(self._members)
        wanted = max(1, round(share * count))
        parts = np.concatenate([PART_KINDS[kind](self, kinds.count(kind), wanted) for kind in dict.fromkeys(kinds)])
        sizes = set_sizes(parts)
        return np.asarray(parts[(sizes > 0) & (sizes < count)])

    def draw_cells(self, count: int) -> NDArray[np.intp]:
        """Flat indices of random members, likelier where the expected cost is low."""
        sums = np.cumsum(self._weights)
        chosen = np.searchsorted(sums, self._rng.integers(0, sums[-1], count), side="right")
        return np.asarray(self._members[chosen], np.intp)

    def boxes(self, count: int, wanted: int) -> Cells:
        """Boxes of random proportions around random cells, each just large enough to have the wanted number of cells."""
        sides = np.array(self.cells.shape)
        centres = np.stack(np.unravel_index(self.draw_cells(count), self.cells.shape), axis=1)[:, None, :] + 0.5
        stretch = np.exp(self._rng.normal(0.0, STRETCH, (count, 1, len(sides))))
        radii = np.geomspace(0.5, 2.0 * max(self.cells.shape), RADII)
        reach = radii[None, :, None] * stretch  # (boxes, radii, axes)
        low = np.maximum(np.floor(centres - reach), 0).astype(np.intp)
        high = np.minimum(low + np.maximum(np.rint(2 * reach), 1).astype(np.intp), sides)
        enough = self.count(low, high) >= wanted
        enough[:, -1] = True
        first = np.arange(count), np.argmax(enough, axis=1)
        return self.within(low[first], high[first])

    def strips(self, count: int, wanted: int) -> Cells:
        """Slabs along one side of the lattice, each just thick enough."""
        sides = self.cells.shape
        low, high = np.zeros((count, len(sides)), np.intp), np.tile(sides, (count, 1))
        axes, backwards = self._rng.integers(len(sides), size=count).tolist(), self._rng.integers(2, size=count).tolist()
        for i, axis in enumerate(axes):
            before = self._sums[tuple(slice(None) if a == axis else -1 for a in range(len(sides)))]
            if backwards[i]:
                low[i, axis] = np.searchsorted(before, before[-1] - wanted, side="right") - 1
            else:
                high[i, axis] = np.searchsorted(before, wanted)
        return self.within(low, high)

    def blocks(self, count: int, wanted: int) -> Cells:
        """Unions of just enough blocks of a coarser, randomly shifted lattice."""
        side = max(1, round(BLOCK * wanted ** (1 / self.cells.ndim)))
        places = np.unravel_index(self._members, self.cells.shape)
        parts = np.zeros((count, self.cells.size), bool)
        for part in parts:
            block = np.zeros(len(self._members), np.intp)
            shifts = self._rng.integers(0, side, self.cells.ndim).tolist()
            for at, along, shift in zip(places, self.cells.shape, shifts, strict=True):
                block = block * (along // side + 2) + (at + shift) // side
            sizes, weights = np.bincount(block), np.bincount(block, self._weights)
            order = np.flatnonzero(sizes)
            # Sorting by exponential times divided by weight is weighted sampling without replacement.
            order = order[np.argsort(self._rng.standard_exponential(len(order)) / weights[order])]
            enough = np.searchsorted(np.cumsum(sizes[order]), wanted) + 1
            chosen = np.zeros(len(sizes), bool)
            chosen[order[:enough]] = True
            part[self._members] = chosen[block]
        return parts.reshape(count, *self.cells.shape)

    def count(self, low: NDArray[np.intp], high: NDArray[np.intp]) -> NDArray[np.intp]:
        """The number of members in each box; low and high: (..., axes)."""
        steps = [step // self._sums.itemsize for step in self._sums.strides]
        ends = [((low[..., axis] * step, -1), (high[..., axis] * step, 1)) for axis, step in enumerate(steps)]
        found = np.zeros(low.shape[:-1], np.intp)
        for corner in product(*ends):  # inclusion and exclusion over the 2^axes corners of the table
            found += prod(sign for _, sign in corner) * self._sums.take(sum(at for at, _ in corner))
        return found

    def within(self, low: NDArray[np.intp], high: NDArray[np.intp]) -> Cells:
        """The members in each box, (n, *lattice); low and high: (n, axes)."""
        parts = self.cells[None]
        for axis, side in enumerate(self.cells.shape):
            inside = (np.arange(side) >= low[:, axis, None]) & (np.arange(side) < high[:, axis, None])  # (n, side)
            parts = parts & np.expand_dims(inside, tuple(1 + a for a in range(self.cells.ndim) if a != axis))
        return parts


PART_KINDS: dict[str, Callable[[PartSampler, int, int], Cells]] = {
    "box": PartSampler.boxes,
    "strip": PartSampler.strips,
    "blocks": PartSampler.blocks,
}


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """How the search `causal` spends its model calls; the set `enough` takes the defaults of those it has in common.

    For research: the defaults suit all models (see the research log).

    Attributes:
        survey: Number of patch sets evaluated first; 0 starts from the whole view.
        survey_fraction: The survey takes at most one n-th of the budget.
        min_survey: A survey with fewer samples than this is left out.
        patches: Approximate number of patches the view is divided into.
        prior: How many trials of a cell the survey's estimate counts for.
        runs: Number of independent searches, of which the smallest set is kept; None for 1 (`small_runs` on small lattices).
        small_lattice: A lattice of at most this many cells is small: no survey, several cheap runs.
        small_runs: Number of runs on a small lattice.
        chains: Number of coarse descents, of which the best is continued; None for 1 after a survey, else 2.
        coarse: Share of the view at which the chains are compared.
        parts: Number of parts drawn per round.
        kinds: Kinds of parts, drawn in turn.
        unions: How many of the best parts are also removed together.
        share: Share of the visible cells that a part has at first.
        fine_share: The same, where a descent with cells of twice the side came before.
        growth: Factor by which that share grows after a successful round; it is halved after a failed one.
        reheat: Shares the best chain starts again with, one after the other.
        rate: Value of a smaller set, in nats of margin per factor e of its size.
        trust: How strongly parts with a low expected removal cost are preferred; 0 draws them uniformly.
        memory: Share of the observed removal costs that is kept from round to round.
        effort: Number of calls, with the chain, after which minimality is proved for cells twice as large, unless a grain
            was asked for.
        core_effort: The same without the chain, for a set inside of `enough`.
        core_parts: Number of parts drawn per round for such a set.
        most_cells: Cells of such a set, with more of which minimality is proved for larger ones at once.
        zones: Number of patches of which the map in zones is made; 0 for none.
    """

    survey: int = 96
    survey_fraction: int = 5
    min_survey: int = 10
    patches: int = 40
    prior: float = 1.0
    runs: int | None = None
    small_lattice: int = 64
    small_runs: int = 12
    chains: int | None = None
    coarse: float = 0.1
    parts: int = 8
    kinds: tuple[str, ...] = ("box", "strip", "blocks")
    unions: tuple[int, ...] = (2, 3, 4, 8)
    share: float = 0.3
    fine_share: float = 0.2
    growth: float = 1.1
    reheat: tuple[float, ...] = (0.15, 0.15)
    rate: float = 1.0
    trust: float = 2.0
    memory: float = 0.7
    effort: int = 700
    core_effort: int = 200
    core_parts: int = 5
    most_cells: int = 60
    zones: int = 20

    def __post_init__(self) -> None:
        counts = (self.parts, self.small_runs, self.survey_fraction, len(self.kinds))
        if min(*counts, *(count for count in (self.chains, self.runs) if count is not None)) < 1:
            raise OptionError("chains, parts, kinds, runs, small_runs and survey_fraction must be at least 1")
        if self.survey < 0 or self.patches < 2 or not self.prior > 0.0:
            raise OptionError("survey must be 0 or more, patches at least 2, prior above 0")
        if not all(0.0 < share < 1.0 for share in (self.share, self.fine_share, *self.reheat)):
            raise OptionError("shares and reheat must lie between 0 and 1")

    def for_boxes(self) -> "Tuning":
        """The same for the boxes of a detector.

        An object is a small part of the image, so there are more and smaller patches, and no larger cells. All boxes of an
        image have the survey in common, so it is larger, and nothing else is measured for the map.
        """
        return replace(self, survey=self.survey + 24, patches=self.patches + 16, parts=6, zones=0)


class Removal(NamedTuple):
    """A part, (*lattice,), that can be removed: the value of doing so, and the margin that is left."""

    part: Cells
    trade: float
    margin: float


class Chain:
    """The visible cells, (*lattice,), which are sufficient, their margin, and the removal costs observed so far.

    margin: NaN before the first evaluation. calls_before: model calls spent before the chain started. expected: (*lattice,)
    costs that are expected, None for none. index: learns from all evaluations, None for none. accepts: has the last word on
    the set, (*grid,), that the chain would go on with.
    """

    def __init__(
        self, tuning: Tuning, lattice: Lattice, start: Cells, expected: NDArray[np.float64] | None,
        rng: np.random.Generator, index: CoalitionIndex | None, *, accepts: Callable[[Visible], Search[bool]] | None = None,
    ) -> None:  # fmt: skip
        self.tuning, self.lattice, self.rng, self.index = tuning, lattice, rng, index
        self.visible = start
        self.margin = float("nan")
        self.calls_before = 0
        self.cost = RemovalCost(lattice.shape, expected, tuning.prior)
        self._accepts = accepts

    def rank(self) -> float:
        """Lower is better: small sets, and those with more margin left to lose."""
        return float(np.log(self.visible.mean()) - MARGIN_WEIGHT * self.margin)

    def shrink(self, share: float, *, stop_at: float = 0.0, least: float = 1.5) -> Search[None]:
        """Rounds of removals until the set is small enough, or no part of at least so many cells can be removed.

        share: of the visible cells, that a part has at first. stop_at: share of all cells that is small enough. least: cells
        of the smallest part.
        """
        tuning, show, most = self.tuning, self.lattice.show, share
        if np.isnan(self.margin):
            answers = yield show(self.visible)[None]
            self.margin, self.calls_before = float(answers.margin[0]), answers.spent
        kinds = [tuning.kinds[i % len(tuning.kinds)] for i in range(tuning.parts)]
        while self.visible.mean() > stop_at and share * np.count_nonzero(self.visible) >= least:
            parts = PartSampler(self.visible, self.cost.estimate(), self.rng, tuning.trust).draw(kinds, share)
            able = self._learn(parts, (yield show(self.visible & ~parts))) if len(parts) else []
            # The unions of the best two, three, ... parts too, by size: they differ in it, and leave some cells.
            unions: dict[int, Cells] = {}
            together = able[0].part if able else self.visible
            for count, removal in enumerate(able[1:], 2):
                together = together | removal.part
                size = int(np.count_nonzero(together))
                if count in tuning.unions and np.count_nonzero(able[0].part) < size < np.count_nonzero(self.visible):
                    unions.setdefault(size, together)
            if unions:
                wave = np.stack(list(unions.values()))
                better = self._learn(wave, (yield show(self.visible & ~wave)))
                able = max(able, better, key=lambda some: some[0].trade if some else -np.inf)
            if able and (self._accepts is None or (yield from self._accepts(show(self.visible & ~able[0].part)))):
                part, _, self.margin = able[0]
                removed = float(np.count_nonzero(part) / np.count_nonzero(self.visible))
                self.visible = self.visible & ~part
                self.cost.decay(tuning.memory)
                share = min(most, max(share, removed) * tuning.growth)
            else:
                share /= 2

    def _learn(self, parts: Cells, answers: Answers) -> list[Removal]:
        """Observe what removing each part, (n, *lattice), has cost; those that keep the target, the best trade first."""
        if self.index is not None:
            self.index.add(self.visible & ~parts, answers)
        self.cost.observe(parts, self.margin - answers.margin)
        # A trade is the margin that is left, plus what the smaller size is worth. By size alone, a round would take the
        # largest part that keeps the label by a hair, after which nothing else can go; by margin alone, it takes crumbs.
        # The logarithm makes halving the set worth the same at every size.
        count = np.count_nonzero(self.visible)
        saved = np.log(count / (count - set_sizes(parts)))
        trades = np.round(answers.margin + self.tuning.rate * saved, 6)  # so that floating-point noise decides nothing
        order = [i for i in np.argsort(-trades, kind="stable") if answers.holds[i]]
        return [Removal(parts[i], float(trades[i]), float(answers.margin[i])) for i in order]
