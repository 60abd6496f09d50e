"""`greedy` and `phasewin`: superpixels, added one by one, always the one that helps most.

`greedy` is the search of Chen, Zhang, Liang, Li and Cao: Less is More: Fewer Interpretable Region via Submodular Subset
Selection, ICLR 2024 (SMDL-Attribution), simplified. Of the four terms of their score two are used: the confidence of what
is shown (consistency) and one minus the confidence of the rest (collaboration). Their confidence score needs a second
network, and their effectiveness score needs features of the model. Their regions come from a saliency map, ours from colour
and position.

`phasewin` is the same search in phases, with a window of candidates, for less than half of the model calls. It is a reading
of PhaseWin: An Efficient Search Algorithm for Faithful Visual Attribution (Gu, Chen, Zhang, Liu, Cao and Zhang,
2026, arXiv 2606.18008), from its abstract and the code that its authors released; the thresholds are the defaults of that
code. A phase has these steps:

1. Screening. Every patch that is left is tried and the best is added; then the others are tried once more.
2. Pruning. Patches whose score is below a small share of the best score are set aside until all others have been added.
3. Window. The best patches form a window. Again and again it is tried, the best patch is added together with those that
   are nearly as good, and the window is refilled.
4. End. The phase ends when no score in the window is near the best of the screening, or the score stops rising as it did.

Not reproduced: the random postponement of patches before they enter the window, random extra candidates, other ways to
accept patches, and a start with plain greedy steps, the last three of which are off by default in the authors' code. Their
published figures are for other models and regions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Answers, Finding, Needs, Saliency, Search, Stop
from becausal.core.errors import OptionError
from becausal.core.patches import superpixels
from becausal.core.problem import Problem
from becausal.methods.waves import WAVE, check_least, scores

PRUNED = 0.05  # of the best score of the screening: patches below are set aside
SELECTED = 0.6  # of the same score: patches above may enter the window, and are added from it
ALIKE = 0.99  # of the best score of the window: patches above are added together with the best
BEND = 0.02  # the phase ends when the ratio of successive scores rises by more
CLOSE = 0.98  # of the score before: a patch above is still added when the phase ends


class PatchOrder:
    """The patches that were added, in order, and what is known about the others.

    level: the score of what is shown, from which gains are counted. gains: (n,), the gain of each patch when it was last
    tried; minus infinity where it never was. Ties are broken at random, by `lots`.
    """

    def __init__(self, patch: NDArray[np.intp], *, rest: bool, rng: np.random.Generator) -> None:
        self.patch = patch
        self.count = int(patch.max()) + 1
        self.price = 2 if rest else 1  # model calls for a score
        self.level = 0.0
        self.added: list[int] = []
        self.shown = np.zeros(self.count, bool)
        self.gains = np.full(self.count, -np.inf)
        self.lots = rng.permutation(self.count)

    @property
    def others(self) -> NDArray[np.intp]:
        """The patches that were not added, the highest gain first."""
        return self.rank(np.flatnonzero(~self.shown))

    def rank(self, patches: NDArray[np.intp]) -> NDArray[np.intp]:
        """These patches, the highest gain first."""
        return patches[np.lexsort((self.lots[patches], -self.gains[patches]))]

    def start(self) -> Search[None]:
        """Set the level to the score of what is shown."""

        def learn(start: int, found: NDArray[np.float64]) -> None:
            self.level = float(found[0]) if len(found) else self.level

        yield from self._evaluate(self.shown[None], learn)

    def rate(self, candidates: NDArray[np.intp]) -> Search[None]:
        """Find the gains of the candidates; those found before a stop are kept."""
        bits = np.repeat(self.shown[None], len(candidates), axis=0)
        bits[np.arange(len(bits)), candidates] = True

        def learn(start: int, found: NDArray[np.float64]) -> None:
            self.gains[candidates[start : start + len(found)]] = found - self.level

        yield from self._evaluate(bits, learn)

    def add(self, number: int) -> None:
        """Show this patch from now on."""
        self.shown[number] = True
        self.added.append(number)

    def saliency(self) -> Saliency:
        """The map: patches in the order they were added, then by their last gain; those never tried share the value 0."""
        order = [*self.added, *(k for k in self.others if self.gains[k] > -np.inf)]
        values = np.zeros(self.count)
        values[order] = np.arange(self.count, self.count - len(order), -1) / self.count
        return values[self.patch]

    def _evaluate(self, bits: NDArray[np.bool_], learn: Callable[[int, NDArray[np.float64]], None]) -> Search[None]:
        """Pass the scores of sets of patches, (n, patches), to `learn`, with the number of the first set of each wave."""
        step = max(1, WAVE // self.price)
        for start in range(0, len(bits), step):
            rows = bits[start : start + step]
            if self.price == 2:
                rows = np.stack([rows, ~rows], axis=1).reshape(-1, self.count)
            try:
                answers = yield rows.take(self.patch, axis=1)
            except Stop as stop:
                learn(start, self._scores(stop.answers))
                raise
            learn(start, self._scores(answers))

    def _scores(self, answers: Answers) -> NDArray[np.float64]:
        """The confidence of each set plus, where the rest counts, one minus that of the complement after it."""
        values = scores(answers)
        if self.price == 1:
            return values
        pairs = values[: len(values) // 2 * 2].reshape(-1, 2)
        return np.asarray(pairs[:, 0] + 1.0 - pairs[:, 1], np.float64)


@dataclass(frozen=True, kw_only=True)
class Greedy:
    """Greedy search over superpixels: each step adds the one after which the score is highest; the order is the map.

    The score is the confidence of what is shown plus, with `rest`, one minus the confidence of what is not. With k patches
    and all candidates the search takes k (k + 1) model calls with `rest`, and half of that without. Under a limit on model
    calls, steps try fewer candidates, so that all patches are ordered within it.

    For a label-only classifier the confidence is 1 where the target is kept, else 0.

    Attributes:
        patches: Approximate number of superpixels.
        rest: Whether the rest of the view counts too: the patches added should also be missed there.
        candidates: Number of patches that a step tries, those with the highest gain when they were last tried; None for
            all that are left.
    """

    patches: int = 40
    rest: bool = True
    candidates: int | None = None

    name: ClassVar[str] = "greedy"
    needs: ClassVar[Needs] = "labels"

    def __post_init__(self) -> None:
        check_least(self, patches=2)
        if self.candidates is not None and self.candidates < 1:
            raise OptionError(f"candidates must be at least 1, or None for all, not {self.candidates}")

    def search(self, problem: Problem, rng: np.random.Generator) -> Search[Finding]:
        order = PatchOrder(superpixels(problem.view, self.patches), rest=self.rest, rng=rng)
        wanted = self.candidates or order.count
        left = None if problem.budget is None else problem.budget // order.price - 1 - order.count  # after the first step
        fewer = False
        try:
            yield from order.start()
            candidates = order.others
            while len(candidates):
                if len(candidates) > 1:
                    yield from order.rate(candidates)
                best = int(order.rank(candidates)[0])
                order.add(best)
                order.level += float(order.gains[best])
                others = order.others
                tried = min(wanted, len(others))
                if left is not None:
                    fit = min(tried, fit_candidates(len(others), left))
                    fewer = fewer or fit < tried
                    tried, left = fit, left - (fit if fit > 1 else 0)  # a single candidate needs no score
                candidates = others[:tried]
        except Stop:
            pass
        return Finding(order.saliency(), notes=("greedy tried fewer candidates, to keep to max_calls",) if fewer else ())


def fit_candidates(patches: int, most: int) -> int:
    """How many of the patches that are left a step tries, so that this number of scores lasts for it and all later steps.

    Steps try equally many, the first ones one more where this does not come out even. At least 1.
    """

    def needed(tried: int) -> int:
        return sum(min(tried, left) for left in range(2, patches + 1))

    even = next((tried for tried in range(patches, 1, -1) if needed(tried) <= most), 1)
    return max(1, min(even + 1, patches, most))


@dataclass(frozen=True, kw_only=True)
class PhaseWin:
    """The search of `greedy`, pruned: steps try a window of patches, and all patches at the start of a phase only.

    The score is that of `greedy`. For a label-only classifier the confidence is 1 where the target is kept, else 0; as long
    as no score is above 0, patches are added one at a time.

    Attributes:
        patches: Approximate number of superpixels.
        rest: Whether the rest of the view counts too: the patches added should also be missed there.
        window: Size of the window, as a share of the patches.
    """

    patches: int = 40
    rest: bool = True
    window: float = 0.3

    name: ClassVar[str] = "phasewin"
    needs: ClassVar[Needs] = "labels"

    def __post_init__(self) -> None:
        check_least(self, patches=2)
        if not 0.0 < self.window <= 1.0:
            raise OptionError(f"window must be a share of the patches, above 0 and at most 1, not {self.window}")

    def search(self, problem: Problem, rng: np.random.Generator) -> Search[Finding]:
        order = PatchOrder(superpixels(problem.view, self.patches), rest=self.rest, rng=rng)
        width = max(1, int(self.window * order.count))
        pruned = np.zeros(order.count, bool)
        try:
            while len(left := np.flatnonzero(~order.shown & ~pruned)):
                yield from run_phase(order, left, pruned, width)
            yield from order.rate(np.flatnonzero(pruned))
            for number in order.others:
                order.add(int(number))
        except Stop:
            pass
        return Finding(order.saliency())


def run_phase(order: PatchOrder, left: NDArray[np.intp], pruned: NDArray[np.bool_], width: int) -> Search[None]:
    """Add some of the patches that are left, at least one; mark those that are set aside."""
    if len(left) > 1:
        yield from order.rate(left)
    left = order.rank(left)
    first = int(left[0])
    order.add(first)
    recent = [float(order.gains[first])]  # the scores of the patches added in this phase
    yield from order.rate(left[1:])
    left = order.rank(left[1:])
    best = float(order.gains[left[0]]) if len(left) else 0.0
    if best <= 0.0:
        return
    pruned[left[order.gains[left] < PRUNED * best]] = True
    pool = left[order.gains[left] >= SELECTED * best]
    window, queue = pool[:width], pool[width:]
    while len(window) and accept(order, order.rank(window), SELECTED * best, recent):
        window = window[~order.shown[window]]
        room = width - len(window)
        window, queue = np.concatenate([window, queue[:room]]), queue[room:]
        yield from order.rate(window)


def accept(order: PatchOrder, window: NDArray[np.intp], least: float, recent: list[float]) -> bool:
    """Add the best patch of the window and those that are nearly as good; whether the phase goes on.

    window: the patches, the highest score first. least: the lowest score of a patch that is added.
    """
    cut = max(least, ALIKE * float(order.gains[window[0]]))
    taken = window[order.gains[window] >= cut]
    for number in taken:
        score = float(order.gains[number])
        ends = len(recent) > 1 and recent[-1] / score - recent[-2] / recent[-1] > BEND
        if ends and score < CLOSE * recent[-1]:
            return False
        order.add(int(number))
        recent.append(score)
        if ends:
            return False
    return len(taken) > 0
