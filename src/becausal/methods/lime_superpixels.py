"""`lime`: a linear surrogate model over superpixels (Ribeiro, Singh and Guestrin, 2016).

Implemented here, since the lime package calls the model itself, without the engine's batches, cache and budget.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Finding, Needs, Search
from becausal.core.errors import OptionError
from becausal.core.patches import fit_ridge, superpixels
from becausal.core.problem import Problem
from becausal.methods.waves import WAVE, check_least, score_all


@dataclass(frozen=True, kw_only=True)
class Lime:
    """LIME: a linear model fitted to random sets of superpixels; a pixel's value is its superpixel's weight.

    For a label-only classifier the score is 1 where the target is kept, else 0.

    Attributes:
        samples: Number of random sets of superpixels.
        patches: Approximate number of superpixels.
        kernel: Width of the exponential kernel: a sample has weight exp(-d²/kernel²), with d its cosine distance from
            the whole view.
        ridge: Penalty on the squared weights.
    """

    samples: int = 1000
    patches: int = 50
    kernel: float = 0.25
    ridge: float = 1.0

    name: ClassVar[str] = "lime"
    needs: ClassVar[Needs] = "labels"

    def __post_init__(self) -> None:
        check_least(self, samples=1, patches=2)
        if not self.kernel > 0.0:
            raise OptionError(f"kernel must be above 0, not {self.kernel}")
        if not self.ridge >= 0.0:
            raise OptionError(f"ridge must be 0 or more, not {self.ridge}")

    def search(self, problem: Problem, rng: np.random.Generator) -> Search[Finding]:
        patch = superpixels(problem.view, self.patches)
        count = int(patch.max()) + 1
        shown = rng.random((self.samples, count)) < 0.5
        shown[0] = True
        starts = range(0, self.samples, WAVE)
        values = yield from score_all(shown[start : start + WAVE].take(patch, axis=1) for start in starts)
        return Finding(self.weights(shown[: len(values)], values)[patch])

    def weights(self, shown: NDArray[np.bool_], values: NDArray[np.float64]) -> NDArray[np.float64]:
        """The weights of the superpixels, (k,), from the samples, (n, k), and their scores, (n,)."""
        distance = 1 - np.sqrt(shown.mean(axis=1))  # cosine distance of each sample from all ones
        return fit_ridge(shown, values, np.exp(-((distance / self.kernel) ** 2)), self.ridge)
