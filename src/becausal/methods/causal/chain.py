"""One greedy descent of the search `causal`: rounds of removing parts from the visible set."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Answers, Search, Visible
from becausal.methods.causal.coalitions import CoalitionIndex
from becausal.methods.causal.lattice import Cells, Lattice, RemovalCost, set_sizes
from becausal.methods.causal.parts import PartSampler
from becausal.methods.causal.tuning import Tuning

MARGIN_WEIGHT = 0.02  # of a nat of margin against the logarithm of the size, where chains are compared


class Chain:
    """The visible cells, their margin, and the removal costs observed so far.

    Attributes:
        visible: (*lattice,) the visible cells; they are sufficient.
        margin: Margin of the target with these cells; NaN before the first evaluation.
        calls_before: Model calls spent before the chain started.
        cost: Estimated cost of removing each cell.

    `ask` evaluates sets, (n, *grid), in another way than under the fills. `accepts` has the last word on the set, (*grid,),
    that the chain would go on with.
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
        ask: Callable[[Visible], Search[Answers]] | None = None,
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
        self._ask = ask or _ask_plainly
        self._accepts = accepts

    def rank(self) -> float:
        """Lower is better: small sets, and those with more margin left to lose."""
        return float(np.log(self.visible.mean()) - MARGIN_WEIGHT * self.margin)

    def shrink(self, share: float, *, stop_at: float = 0.0, least: float = 1.5) -> Search[None]:
        """Rounds of removals until the set is small enough, or no part of at least so many cells can be removed."""
        most = share
        if np.isnan(self.margin):
            answers = yield from self._ask(self.lattice.show(self.visible)[None])
            self.margin = float(answers.margin[0])
            self.calls_before = answers.spent
        while self.visible.mean() > stop_at and share * np.count_nonzero(self.visible) >= least:
            removed = yield from self.round(share)
            share = min(most, max(share, removed) * self.tuning.growth) if removed else share / 2

    def round(self, share: float) -> Search[float]:
        """Remove the part, or union of parts, with the best trade of margin for size.

        Returns:
            The share of the visible cells that was removed, 0 if no removal keeps the target.
        """
        tuning = self.tuning
        sampler = PartSampler(self.visible, self.cost.estimate(), self.rng, tuning.trust)
        parts = sampler.draw([tuning.kinds[i % len(tuning.kinds)] for i in range(tuning.parts)], share)
        if not len(parts):
            return 0.0
        answers = yield from self._evaluate_without(parts)
        trades = self._trades(parts, answers)
        order = [i for i in np.argsort(-trades, kind="stable") if answers.holds[i]]
        if not order:
            return 0.0
        trade, margin, part = trades[order[0]], answers.margin[order[0]], parts[order[0]]
        unions = self._unions(parts[order])
        if len(unions):
            more = yield from self._evaluate_without(unions)
            union_trades = np.where(more.holds, self._trades(unions, more), -np.inf)
            best = int(np.argmax(union_trades))
            if union_trades[best] > trade:
                margin, part = more.margin[best], unions[best]
        left = self.visible & ~part
        if self._accepts is not None and not (yield from self._accepts(self.lattice.show(left))):
            return 0.0
        removed = float(np.count_nonzero(part) / np.count_nonzero(self.visible))
        self.visible = left
        self.margin = float(margin)
        self.cost.decay(tuning.memory)
        return removed

    def _evaluate_without(self, parts: Cells) -> Search[Answers]:
        """Evaluate the visible cells without each part, (n, *lattice), and observe the cost of its removal."""
        left = self.visible & ~parts
        answers = yield from self._ask(self.lattice.show(left))
        if self.index is not None:
            self.index.add(left, answers)
        self.cost.observe(parts, self.margin - answers.margin)
        return answers

    def _trades(self, parts: Cells, answers: Answers) -> NDArray[np.float64]:
        """The value of each removal: the margin that is left, and the reduction in size at the given rate."""
        count = np.count_nonzero(self.visible)
        saved = np.log(count / (count - set_sizes(parts)))
        return np.round(answers.margin + self.tuning.rate * saved, 6)  # so that floating-point noise decides nothing

    def _unions(self, ordered: Cells) -> Cells:
        """Unions of the best two, three, ... parts, (n, *lattice), that differ in size and leave some cells."""
        most, least = np.count_nonzero(self.visible), np.count_nonzero(ordered[0])
        unions: dict[int, Cells] = {}  # by size
        together = ordered[0]
        for count, part in enumerate(ordered[1:], 2):
            together = together | part
            size = int(np.count_nonzero(together))
            if count in self.tuning.unions and least < size < most:
                unions.setdefault(size, together)
        return np.stack(list(unions.values())) if unions else ordered[:0]


def _ask_plainly(sets: Visible) -> Search[Answers]:
    return (yield sets)
