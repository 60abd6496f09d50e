"""`phasewin`: the search of `greedy` in phases, with a window of candidates, for less than half of its model calls.

A reading of PhaseWin: An Efficient Search Algorithm for Faithful Visual Attribution (Gu, Chen, Zhang, Liu, Cao and Zhang,
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

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Finding, Needs, Search, Stop
from becausal.core.errors import OptionError
from becausal.core.patches import superpixels
from becausal.core.problem import Problem
from becausal.methods.greedy import PatchOrder

PRUNED = 0.05  # of the best score of the screening: patches below are set aside
SELECTED = 0.6  # of the same score: patches above may enter the window, and are added from it
ALIKE = 0.99  # of the best score of the window: patches above are added together with the best
BEND = 0.02  # the phase ends when the ratio of successive scores rises by more
CLOSE = 0.98  # of the score before: a patch above is still added when the phase ends


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
        if self.patches < 2:
            raise OptionError(f"patches must be at least 2, not {self.patches}")
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
    """Add some of the patches that are left, at least one; mark those that are set aside.

    Raises:
        Stop: The search was stopped.
    """
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
