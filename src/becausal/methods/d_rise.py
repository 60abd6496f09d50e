"""`d-rise`: RISE for the boxes of object detectors (Petsiuk, Jain, Manjunatha et al., 2021).

Each random mutant is weighted by how similar the detector's best box in it is to the box that is explained: the overlap
(IoU) of the two, times the score. The paper multiplies by the cosine of the two vectors of class probabilities as well;
detectors report one class for a box, so that is 1 for boxes of the same class and 0 for all others.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Answers, Finding, Needs, Search
from becausal.core.errors import ModelError
from becausal.core.problem import Problem
from becausal.methods.rise import Rise


@dataclass(frozen=True, kw_only=True)
class DRise:
    """D-RISE: randomised input sampling for object detectors.

    Attributes:
        masks: Number of random masks.
        cells: Number of cells of the coarse grid along each side of the view.
        share: Probability of a pixel to be visible (p).
    """

    masks: int = 5000
    cells: int = 16
    share: float = 0.5

    name: ClassVar[str] = "d-rise"
    needs: ClassVar[Needs] = "boxes"

    def __post_init__(self) -> None:
        self._sampling()  # which checks the options

    def search(self, problem: Problem, rng: np.random.Generator) -> Search[Finding]:
        return (yield from self._sampling().average(problem.grid, rng, similarities))

    def _sampling(self) -> Rise:
        return Rise(masks=self.masks, cells=self.cells, share=self.share)


def similarities(answers: Answers) -> NDArray[np.float64]:
    """How similar the best box of each mutant is to the explained one, (n,)."""
    if answers.similarity is None:
        raise ModelError("the method d-rise explains boxes of object detectors, and this model is a classifier")
    return answers.similarity
