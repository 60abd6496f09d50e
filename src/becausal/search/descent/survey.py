"""The survey: how much each patch of the view contributes to the target, estimated from balanced sets of patches.

Patches follow the image's edges, so that different objects are separated from the start. The survey only guides the
search; every claim about the result is evaluated on its own.
"""

from collections import deque
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Answers, Pixels, Question, Search, Visible
from becausal.core.patches import fit_ridge, superpixels
from becausal.search.descent.lattice import Lattice

RIDGE = 10.0
DIGITS = 6  # of the contributions, so that floating-point noise does not change their order
WAVE_BYTES = 1 << 23


@dataclass(frozen=True)
class Survey:
    """Patches and their estimated contributions.

    Attributes:
        patch: (*grid,) the number of each pixel's patch.
        contribution: (patches,) what showing each patch adds to the margin, in nats.
    """

    patch: NDArray[np.intp]
    contribution: NDArray[np.float64]

    def best(self, count: int) -> Visible:
        """The pixels of the `count` patches with the highest contribution, (*grid,)."""
        chosen = np.zeros(len(self.contribution), bool)
        chosen[np.argsort(-self.contribution, kind="stable")[:count]] = True
        return chosen[self.patch]

    @property
    def density(self) -> NDArray[np.float64]:
        """Contribution per pixel, (*grid,): that of a patch is shared equally by its pixels."""
        return (self.contribution / np.bincount(self.patch.ravel()))[self.patch]

    def removal_cost(self, lattice: Lattice) -> NDArray[np.float64]:
        """The expected cost of removing each cell, (*lattice,)."""
        return lattice.sum_cells(self.density)


def run_survey(view: Pixels, *, samples: int, patches: int, rng: np.random.Generator) -> Search[Survey]:
    """Evaluate balanced halves of the patches, and fit a linear model to the margins."""
    patch = superpixels(view, patches)
    shown = balanced_halves(int(patch.max()) + 1, samples, rng)
    answers = yield from ask_halves(patch, shown)
    return Survey(patch, fit_effects(shown, answers.margin, RIDGE))


def ask_halves(
    patch: NDArray[np.intp], shown: NDArray[np.bool_], *, always: Visible | None = None, never: Visible | None = None
) -> Search[Answers]:
    """Evaluate sets of patches, (n, patches); always, never: pixels that are shown, or masked, in all of them."""
    rows = max(1, WAVE_BYTES // patch.size)
    found: list[Answers] = []
    for start in range(0, len(shown), rows):
        wave = shown[start : start + rows].take(patch, axis=1)  # contiguous in memory, unlike [:, patch]
        if always is not None:
            wave |= always
        if never is not None:
            wave &= ~never
        found.append((yield wave))
    return Answers(
        np.concatenate([one.holds for one in found]),
        np.concatenate([one.margin for one in found]),
        np.concatenate([one.confidence for one in found]),
        found[-1].spent,
    )


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
        order = _largest_order(samples // copies)
        if order > count:
            shown = _paley(order)[:, 1 : 1 + count]
            return np.concatenate([shown, ~shown]) if copies == 2 else shown
    shown = rng.random(((samples + 1) // 2, count)) < 0.5
    return np.concatenate([shown, ~shown])[:samples]


def _largest_order(most: int) -> int:
    """The largest p + 1 up to `most` with a prime p that leaves 3 when divided by 4; 0 if there is none."""
    for order in range(most, 3, -1):
        prime = order - 1
        if prime % 4 == 3 and all(prime % d for d in range(2, int(prime**0.5) + 1)):
            return order
    return 0


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
    while high - low > 1:
        middle = (low + high) // 2
        lookahead = partial(_next_halves, room, survey, low, high)
        answers = yield Question((room & survey.best(middle))[None], lookahead=lookahead)
        low, high = (low, middle) if answers.holds[0] else (middle, high)
    return room & survey.best(high)


def _next_halves(room: Visible, survey: Survey, low: int, high: int, count: int) -> list[Visible]:
    """Up to `count` sets that the bisection of low..high may evaluate after its middle, the next ones first."""
    found: list[Visible] = []
    ranges = deque([(low, (low + high) // 2), ((low + high) // 2, high)])
    while ranges and len(found) < count:
        low, high = ranges.popleft()
        if high - low > 1:
            middle = (low + high) // 2
            found.append(room & survey.best(middle))
            ranges += [(low, middle), (middle, high)]
    return found
