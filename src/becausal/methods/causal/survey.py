"""A first look round: how much each patch of the view brings to the target, from random sets of patches.

Patches follow the image's own edges, so that what belongs to different things is told apart from the start. What the
survey says is a guess that steers the search; everything that is claimed in the end is asked.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Pixels, Search, Visible
from becausal.core.patches import fit_ridge, superpixels
from becausal.methods.causal.lattice import Lattice

RIDGE = 10.0
DIGITS = 6  # of the worths: so that noise in the last digits decides nothing
WAVE_BYTES = 1 << 23


@dataclass(frozen=True)
class Survey:
    """patch: (*grid,) the number of each pixel's patch. worth: what showing each patch adds to the margin, in nats."""

    patch: NDArray[np.intp]
    worth: NDArray[np.float64]

    def best(self, count: int) -> Visible:
        """The pixels of the `count` patches worth most, (*grid,)."""
        chosen = np.zeros(len(self.worth), bool)
        chosen[np.argsort(-self.worth, kind="stable")[:count]] = True
        return chosen[self.patch]

    @property
    def density(self) -> NDArray[np.float64]:
        """What each pixel is worth, (*grid,): a patch's worth is shared among its pixels."""
        return (self.worth / np.bincount(self.patch.ravel()))[self.patch]

    def harm(self, lattice: Lattice) -> NDArray[np.float64]:
        """What hiding each cell is expected to cost, (*lattice,)."""
        return lattice.collect(self.density)


def survey(view: Pixels, *, samples: int, patches: int, rng: np.random.Generator) -> Search[Survey]:
    """Ask random halves of the patches, and fit a linear model to their margins."""
    patch = superpixels(view, patches)
    count = int(patch.max()) + 1
    shown = rng.random((samples, count)) < 0.5
    margins: list[NDArray[np.float64]] = []
    rows = max(1, WAVE_BYTES // patch.size)
    for start in range(0, samples, rows):
        answers = yield shown[start : start + rows].take(patch, axis=1)  # in order in memory, unlike [:, patch]
        margins.append(answers.margin)
    worth = fit_ridge(shown, np.concatenate(margins), np.ones(samples), RIDGE)
    return Survey(patch, np.round(worth, DIGITS))
