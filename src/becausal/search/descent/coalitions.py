"""An index of power over the sufficient sets that the search `causal` evaluated; the map where there is no survey."""

import numpy as np

from becausal.core.contracts import Answers, Saliency
from becausal.search.descent.lattice import Cells, Lattice, set_sizes, weighted_sum


class CoalitionIndex:
    """Deegan-Packel index over the sufficient sets (winning coalitions) evaluated by the search, weighted by confidence.

    Each set adds its confidence divided by its size to its cells; with a label-only classifier the confidence counts
    as 1. Cells in many sets, in small sets and in confident sets get high values.
    """

    def __init__(self, lattice: Lattice) -> None:
        self.lattice = lattice
        self.index = np.zeros(lattice.shape)

    def add(self, sets: Cells, answers: Answers) -> None:
        """Add those of the sets of cells, (n, *lattice), that are sufficient by their answers."""
        winning, confidence = sets[answers.holds], answers.confidence[answers.holds]
        weights = np.where(np.isnan(confidence), 1.0, confidence)
        self.index += weighted_sum(winning, weights / np.maximum(set_sizes(winning), 1))

    @property
    def saliency(self) -> Saliency:
        """The index of each pixel's cell, (*grid,)."""
        return self.lattice.expand(self.index)
