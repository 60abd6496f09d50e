"""The responsibility map of the search `causal`, from the sufficient sets it evaluated."""

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Answers, Saliency, Visible
from becausal.methods.causal.lattice import Cells, Lattice, set_sizes, smooth, weighted_sum
from becausal.methods.causal.survey import Survey
from becausal.methods.causal.tuning import Tuning


class CoalitionIndex:
    """Deegan-Packel index over the sufficient sets (winning coalitions) evaluated by the search, weighted by confidence.

    Each set adds its confidence divided by its size to its cells; with a label-only classifier the confidence counts
    as 1. Cells in many sets, in small sets and in confident sets get high values.
    """

    def __init__(self, lattice: Lattice, tuning: Tuning) -> None:
        self.lattice = lattice
        self.tuning = tuning
        self.index = np.zeros(lattice.shape)

    def add(self, sets: Cells, answers: Answers) -> None:
        """Add those of the sets of cells, (n, *lattice), that are sufficient by their answers."""
        winning, confidence = sets[answers.holds], answers.confidence[answers.holds]
        weights = np.where(np.isnan(confidence), 1.0, confidence)
        self.index += weighted_sum(winning, weights / np.maximum(set_sizes(winning), 1))

    def saliency(self, survey: Survey | None, explanation: Visible | None = None) -> Saliency:
        """The map, (*grid,), with maximum 1.

        Args:
            survey: Its contribution per pixel is added to the smoothed index. Pixels with evidence against the target
                get the lowest values, in their order.
            explanation: (*grid,) pixels that are ranked above all others.
        """
        if survey is None:
            saliency = _scale(self.lattice.expand(self.index))
        else:
            index = smooth(self.index, self.tuning.smooth_radius)
            saliency = _scale(self.lattice.expand(index)) + _scale(survey.density)
            against = saliency / max(-float(saliency.min()), 1e-300)  # -1 to 0 where there is evidence against the target
            neutral = self.tuning.neutral
            saliency = neutral + np.where(saliency < 0, neutral * against, saliency)
        if explanation is not None:
            saliency = saliency + (float(saliency.max()) or 1.0) * explanation
        return _scale(saliency)


def _scale(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The values divided by their maximum; zeros where none is positive."""
    most = float(values.max())
    return values / most if most > 0 else np.zeros_like(values)
