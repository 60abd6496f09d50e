"""Our search, `causal`: hide what can be hidden, large parts first, until every cell left is needed.

A chain begins with the whole view and grows the hidden set, the witness. In each round it draws a few random parts of
what is still shown, about a stated share of it, and asks what is left without each, then without the best of them
together. It goes on from the one that trades margin for size best. Where nothing can go, smaller parts are drawn. At the
end cells are tried one by one until each has failed (`settle`), so that every cell that is left is a cause: the target
holds with it and is lost without it, all that is hidden being the witness.

What is shown is sufficient at every moment. The map adds 1/|S| to the pixels of every sufficient set S that the search
went through, a Deegan-Packel index of the sets it has seen, and orders the explanation's own cells by what their removal
costs.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from becausal.causal.lattice import Cells, Harm, Lattice, Proposer, unite
from becausal.contracts import Answers, Finding, Needs, Problem, Saliency, Search, Stop, Visible
from becausal.errors import OptionError
from becausal.minimise import settle
from becausal.regions import cells as number_cells
from becausal.regions import default_grain


@dataclass(frozen=True, kw_only=True)
class Causal:
    """The search and its options.

    grain: the side of the cells in pixels; None for a 56th of the view's longest side.
    chains: how many coarse descents are made; the most promising goes on.
    coarse: the share of the view at which they are compared.
    parts: how many parts are drawn in a round.
    share: how much of what is shown a part has at first. reheat: the share to begin again with, several times, once a
    chain goes on from there.
    rate: how many nats of margin a halving of the size is worth, divided by log 2.
    trust: how strongly parts that did little harm so far are preferred. memory: how much of that experience lasts.
    survey: before cells are tried one by one, ask for each block of two by two what its removal costs.
    """

    grain: int | None = None
    chains: int = 2
    coarse: float = 0.1
    parts: int = 8
    share: float = 0.3
    reheat: tuple[float, ...] = (0.15, 0.15)
    rate: float = 1.0
    trust: float = 1.0
    memory: float = 0.7
    survey: bool = False

    name: ClassVar[str] = "causal"
    needs: ClassVar[Needs] = "labels"
    kinds: ClassVar[tuple[str, ...]] = ("box", "strip", "blocks")
    unions: ClassVar[tuple[int, ...]] = (2, 3, 4, 8)

    def __post_init__(self) -> None:
        if self.grain is not None and self.grain < 1:
            raise OptionError(f"grain must be at least 1 pixel, not {self.grain}")
        if self.chains < 1 or self.parts < 1:
            raise OptionError("chains and parts must be at least 1")
        if not 0.0 < self.share < 1.0 or not all(0.0 < s < 1.0 for s in self.reheat):
            raise OptionError("shares must lie between 0 and 1")

    def search(self, problem: Problem, rng: np.random.Generator) -> Search[Finding]:
        """Chains to a coarse size, the best of them to the end, then cell by cell."""
        lattice = Lattice(problem.grid, self.grain or default_grain(problem.grid))
        seen = Seen(lattice)
        chains = [Chain(self, lattice, own, seen) for own in rng.spawn(self.chains)]
        best = chains[0]
        harm = np.zeros(lattice.shape)
        try:
            for chain in chains:
                yield from chain.shrink(self.share, stop_at=self.coarse)
            best = min(chains, key=Chain.promise)
            for share in self.reheat:
                yield from best.shrink(share)
            if self.survey:
                yield from best.look_closer()
            numbers = number_cells(problem.grid, lattice.grain)
            settled = yield from settle(
                lattice.show(best.shown), numbers, best.harm.estimate().reshape(-1), margin=best.margin
            )
            harm = np.nan_to_num(settled.harm).reshape(lattice.shape)
            found = settled.visible
        except Stop:
            found = lattice.show(min((c.shown for c in chains), key=lambda s: int(s.sum())))
        return Finding(seen.map_with(found, harm), (found,) if not found.all() else ())


class Seen:
    """The sufficient sets the search went through, summed up as a map."""

    def __init__(self, lattice: Lattice) -> None:
        self.lattice = lattice
        self.index = np.zeros(lattice.shape)

    def add(self, shown: Cells) -> None:
        self.index[shown] += 1.0 / shown.sum()

    def map_with(self, found: Visible, harm: NDArray[np.float64]) -> Saliency:
        """The index over the pixels; the explanation's cells come first, in the order of what their removal costs."""
        saliency = self.lattice.spread(self.index)
        top = saliency.max() or 1.0
        cost = self.lattice.spread(harm)
        cost = np.clip(cost, 0.0, None)
        most = cost[found].max() if found.any() else 0.0
        saliency = saliency / top
        saliency[found] = 1.0 + (cost[found] / most if most > 0 else 0.0)
        return saliency / 2.0


class Chain:
    """One way down: the cells still shown, the margin they leave, and what was learnt about harm."""

    def __init__(self, options: Causal, lattice: Lattice, rng: np.random.Generator, seen: Seen) -> None:
        self.options = options
        self.lattice = lattice
        self.rng = rng
        self.seen = seen
        self.shown: Cells = np.ones(lattice.shape, bool)
        self.margin = float("nan")
        self.harm = Harm(lattice.shape)

    def promise(self) -> float:
        """Lower is better: how small the set is, and how much margin it has left to lose."""
        return float(np.log(self.shown.mean()) - 0.02 * self.margin)

    def shrink(self, share: float, *, stop_at: float = 0.0) -> Search[None]:
        """Rounds of hiding until the set is small enough, or nothing of two cells or more can go."""
        most = share
        if np.isnan(self.margin):
            answers = yield self.lattice.show(self.shown)[None]
            self.margin = float(answers.margin[0])
        while self.shown.mean() > stop_at and share * self.shown.sum() >= 1.5:
            gone = yield from self.round(share)
            share = min(most, max(share, gone) * 1.1) if gone else share / 2

    def round(self, share: float) -> Search[float]:
        """Draw parts, ask each and the best together, go on from the best trade; the share that went, 0 if none."""
        options = self.options
        proposer = Proposer(self.shown, self.harm.estimate(), self.rng, options.trust)
        drawn = [proposer.draw(options.kinds[i % len(options.kinds)], share) for i in range(options.parts)]
        parts = [part for part in drawn if part is not None]
        if not parts:
            return 0.0
        answers = yield self._without(parts)
        self._learn(parts, answers)
        trades = self._trades(parts, answers)
        order = [i for i in np.argsort(-trades, kind="stable") if answers.holds[i]]
        if not order:
            return 0.0
        choices = [(trades[i], answers.margin[i], parts[i]) for i in order]
        unions = self._unions([parts[i] for i in order])
        if unions:
            more = yield self._without(unions)
            self._learn(unions, more)
            found = self._trades(unions, more)
            choices += [(found[i], more.margin[i], unions[i]) for i in np.flatnonzero(more.holds)]
        _, margin, part = max(choices, key=lambda choice: choice[0])
        gone = float(part.sum() / self.shown.sum())
        self.shown = self.shown & ~part
        self.margin = float(margin)
        self.harm.fade(options.memory)
        self.seen.add(self.shown)
        return gone

    def look_closer(self) -> Search[None]:
        """Ask what the removal of each block of two cells a side costs, and expect that of its cells."""
        block = number_cells(self.lattice.shape, 2)
        parts = [self.shown & (block == number) for number in np.unique(block[self.shown])]
        if len(parts) < 2:
            return
        answers = yield self._without(parts)
        self.harm = Harm(self.lattice.shape)
        self._learn(parts, answers)

    def _without(self, parts: list[Cells]) -> Visible:
        return np.stack([self.lattice.show(self.shown & ~part) for part in parts])

    def _learn(self, parts: list[Cells], answers: Answers) -> None:
        for part, margin in zip(parts, answers.margin, strict=True):
            self.harm.learn(part, self.margin - float(margin))

    def _trades(self, parts: list[Cells], answers: Answers) -> NDArray[np.float64]:
        """How good each choice is: the margin it leaves, and the size it saves at the going rate."""
        count = self.shown.sum()
        saved = np.array([np.log(count / (count - part.sum())) for part in parts])
        return np.round(answers.margin + self.options.rate * saved, 6)  # so that noise in the last digits decides nothing

    def _unions(self, ordered: list[Cells]) -> list[Cells]:
        """The best two, three, ... parts together, those that differ and leave something."""
        unions: list[Cells] = []
        sizes: set[int] = set()
        for count in self.options.unions:
            if count > len(ordered):
                break
            union = unite(ordered[:count])
            size = int(union.sum())
            if size < self.shown.sum() and size not in sizes and size > ordered[0].sum():
                unions.append(union)
                sizes.add(size)
        return unions
