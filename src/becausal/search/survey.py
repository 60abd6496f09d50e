"""The survey: how much each patch of the view contributes to the target, estimated from balanced sets of patches.

Patches follow the image's edges, so that different objects are separated from the start. The survey only guides the
search; every claim about the result is evaluated on its own.
"""

from collections import deque
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Answers, Pixels, Question, Search, Visible
from becausal.core.patches import fit_ridge, superpixels
from becausal.search.descent import Lattice

RIDGE = 10.0  # the penalty of the linear model, see `fit_ridge`
DIGITS = 6  # of the contributions, so that floating-point noise does not change their order
WAVE_BYTES = 1 << 23  # of a question, at most


@dataclass(frozen=True)
class Survey:
    """Patches, (*grid,) the number of each pixel's, and what showing each one adds to the margin, (patches,) in nats."""

    patch: NDArray[np.intp]
    contribution: NDArray[np.float64]

    def best(self, count: int) -> Visible:
        """The pixels of the `count` patches with the highest contribution, (*grid,)."""
        chosen = np.zeros(len(self.contribution), bool)
        chosen[np.argsort(-self.contribution, kind="stable")[:count]] = True
        return chosen[self.patch]

    def removal_cost(self, lattice: Lattice) -> NDArray[np.float64]:
        """The expected cost of removing each cell, (*lattice,): the contribution of a patch is shared by its pixels."""
        return lattice.sum_cells((self.contribution / np.bincount(self.patch.ravel()))[self.patch])


def run_survey(view: Pixels, *, samples: int, patches: int, rng: np.random.Generator) -> Search[Survey]:
    """Evaluate balanced halves of the patches, and fit a linear model to the margins."""
    patch = superpixels(view, patches)
    shown = balanced_halves(int(patch.max()) + 1, samples, rng)
    answers = yield from ask_halves(patch, shown)
    return Survey(patch, fit_effects(shown, answers.margin, RIDGE))


def ask_halves(patch: NDArray[np.intp], shown: NDArray[np.bool_]) -> Search[Answers]:
    """Evaluate sets of patches, (n, patches), in questions of bounded memory."""
    rows = max(1, WAVE_BYTES // patch.size)
    found: list[Answers] = []
    for start in range(0, len(shown), rows):
        wave = shown[start : start + rows].take(patch, axis=1)  # contiguous in memory, unlike [:, patch]
        found.append((yield wave))
    holds, margin, confidence = zip(*((one.holds, one.margin, one.confidence) for one in found), strict=True)
    return Answers(np.concatenate(holds), np.concatenate(margin), np.concatenate(confidence), found[-1].spent)


def fit_effects(shown: NDArray[np.bool_], values: NDArray[np.float64], penalty: float) -> NDArray[np.float64]:
    """What showing each patch adds to the values, (patches,), by a linear model."""
    return np.round(fit_ridge(shown, values, np.ones(len(values)), penalty), DIGITS)


def balanced_halves(count: int, samples: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """About `samples` sets of half of the patches, (n, count), that tell the effects of the patches best.

    An orthogonal design: over all sets, every two patches are shown together as often as one without the other. Each set
    comes with its complement where there are enough samples for it, so that effects of pairs cancel out. Nothing is
    random. Random halves, with their complements, where there are fewer samples than patches.
    """
    for copies in (2, 1):
        # Paley's construction has an order p + 1 for every prime p that leaves 3 when divided by 4; the largest is taken.
        order = samples // copies // 4 * 4
        while order > 3 and not all((order - 1) % divisor for divisor in range(2, int((order - 1) ** 0.5) + 1)):
            order -= 4
        if order > count:
            shown = _paley(order)[:, 1 : 1 + count]
            return np.concatenate([shown, ~shown]) if copies == 2 else shown
    shown = rng.random(((samples + 1) // 2, count)) < 0.5
    return np.concatenate([shown, ~shown])[:samples]


@cache
def _paley(order: int) -> NDArray[np.bool_]:
    """A Hadamard matrix of this order, True for 1: Paley's first construction, from the squares modulo order - 1."""
    prime = order - 1
    squares = np.zeros(prime, bool)
    squares[np.arange(1, prime) ** 2 % prime] = True
    numbers = np.arange(prime)
    matrix = np.ones((order, order), bool)
    matrix[1:, 1:] = squares[(numbers[None, :] - numbers[:, None]) % prime]
    return matrix


def restrict(room: Visible, survey: Survey) -> Search[Visible]:
    """The smallest number of best patches that keeps the target inside `room`, (*grid,), found by bisection."""
    low, high = 0, len(survey.contribution)

    def next_halves(count: int) -> list[Visible]:
        """Up to `count` sets that the bisection may evaluate after its middle, the next ones first."""
        found: list[Visible] = []
        ranges = deque([(low, middle), (middle, high)])
        while ranges and len(found) < count:
            start, end = ranges.popleft()
            if end - start > 1:
                half = (start + end) // 2
                found.append(room & survey.best(half))
                ranges += [(start, half), (half, end)]
        return found

    while high - low > 1:
        middle = (low + high) // 2
        answers = yield Question((room & survey.best(middle))[None], lookahead=next_halves)
        low, high = (low, middle) if answers.holds[0] else (middle, high)
    return room & survey.best(high)
