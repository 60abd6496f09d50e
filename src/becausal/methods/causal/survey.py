"""The survey: how much each patch of the view contributes to the target, estimated from random sets of patches.

Patches follow the image's edges, so that different objects are separated from the start. The survey only guides the
search; every claim about the result is evaluated on its own.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Pixels, Search, Visible
from becausal.core.patches import fit_ridge, superpixels
from becausal.methods.causal.lattice import Lattice

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
    """Evaluate random halves of the patches, and fit a linear model to the margins."""
    patch = superpixels(view, patches)
    count = int(patch.max()) + 1
    shown = rng.random((samples, count)) < 0.5
    margins: list[NDArray[np.float64]] = []
    rows = max(1, WAVE_BYTES // patch.size)
    for start in range(0, samples, rows):
        answers = yield shown[start : start + rows].take(patch, axis=1)  # contiguous in memory, unlike [:, patch]
        margins.append(answers.margin)
    contribution = fit_ridge(shown, np.concatenate(margins), np.ones(samples), RIDGE)
    return Survey(patch, np.round(contribution, DIGITS))
