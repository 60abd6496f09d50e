"""One greedy descent of the search `causal`: rounds of removing parts from the visible set."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Answers, Search, Visible
from becausal.search.descent.lattice import Cells, CoalitionIndex, Lattice, RemovalCost, set_sizes
from becausal.search.descent.parts import PartSampler
from becausal.search.descent.tuning import Tuning

MARGIN_WEIGHT = 0.02  # of a nat of margin against the logarithm of the size, where chains are compared


class Removal(NamedTuple):
    """A part, (*lattice,), that can be removed: the value of doing so, and the margin that is left."""

    part: Cells
    trade: float
    margin: float


class Chain:
    """The visible cells, their margin, and the removal costs observed so far.

    Attributes:
        visible: (*lattice,) the visible cells; they are sufficient.
        margin: Margin of the target with these cells; NaN before the first evaluation.
        calls_before: Model calls spent before the chain started.
        cost: Estimated cost of removing each cell.

    `accepts` has the last word on the set, (*grid,), that the chain would go on with.
    """

    def __init__(
        self,
        tuning: Tuning,
        lattice: Lattice,
        start: Cells,
        expected: NDArray[np.float64] | None,
        rng: np.random.Generator,
        index: CoalitionIndex | None,
        *,
        accepts: Callable[[Visible], Search[bool]] | None = None,
    ) -> None:
        self.tuning = tuning
        self.lattice = lattice
        self.rng = rng
        self.index = index
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

        Each round removes the part, or union of parts, with the best trade of margin for size. share: of the visible cells,
        that a part has at first. stop_at: share of all cells that is small enough. least: cells of the smallest part.
        """
        most, show = share, self.lattice.show
        if np.isnan(self.margin):
            answers = yield show(self.visible)[None]
            self.margin = float(answers.margin[0])
            self.calls_before = answers.spent
        while self.visible.mean() > stop_at and share * np.count_nonzero(self.visible) >= least:
            parts, removed = self._draw_parts(share), 0.0
            able = self._learn(parts, (yield show(self.visible & ~parts))) if len(parts) else []
            unions = self._unions([removal.part for removal in able])
            if len(unions):
                together = self._learn(unions, (yield show(self.visible & ~unions)))
                able = max(able, together, key=lambda some: some[0].trade if some else -np.inf)
            if able and (self._accepts is None or (yield from self._accepts(show(self.visible & ~able[0].part)))):
                removed = self._remove(able[0])
            share = min(most, max(share, removed) * self.tuning.growth) if removed else share / 2

    def _draw_parts(self, share: float) -> Cells:
        tuning = self.tuning
        sampler = PartSampler(self.visible, self.cost.estimate(), self.rng, tuning.trust)
        return sampler.draw([tuning.kinds[i % len(tuning.kinds)] for i in range(tuning.parts)], share)

    def _learn(self, parts: Cells, answers: Answers) -> list[Removal]:
        """Observe what the removal of each part, (n, *lattice), has cost; those that keep the target, the best trade first.

        A trade is the margin that is left, and the reduction in size at the given rate.
        """
        if self.index is not None:
            self.index.add(self.visible & ~parts, answers)
        self.cost.observe(parts, self.margin - answers.margin)
        count = np.count_nonzero(self.visible)
        saved = np.log(count / (count - set_sizes(parts)))
        trades = np.round(answers.margin + self.tuning.rate * saved, 6)  # so that floating-point noise decides nothing
        order = [i for i in np.argsort(-trades, kind="stable") if answers.holds[i]]
        return [Removal(parts[i], float(trades[i]), float(answers.margin[i])) for i in order]

    def _remove(self, removal: Removal) -> float:
        """Go on without a part; the share of the visible cells that it had."""
        removed = float(np.count_nonzero(removal.part) / np.count_nonzero(self.visible))
        self.visible = self.visible & ~removal.part
        self.margin = removal.margin
        self.cost.decay(self.tuning.memory)
        return removed

    def _unions(self, ordered: Sequence[Cells]) -> Cells:
        """Unions of the best two, three, ... parts, (n, *lattice), that differ in size and leave some cells."""
        unions: dict[int, Cells] = {}  # by size
        if ordered:
            most, least, together = np.count_nonzero(self.visible), np.count_nonzero(ordered[0]), ordered[0]
            for count, part in enumerate(ordered[1:], 2):
                together = together | part
                size = int(np.count_nonzero(together))
                if count in self.tuning.unions and least < size < most:
                    unions.setdefault(size, together)
        return np.stack(list(unions.values())) if unions else self.visible[None][:0]
