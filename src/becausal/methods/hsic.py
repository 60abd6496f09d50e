"""`hsic`: dependence between the visibility of a grid cell and the score.

After Novello, Fel and Vigouroux: Making Sense of Dependence: Efficient Black-box Explanations Using Dependence Measure,
NeurIPS 2022. The masks are those of the paper, a Latin hypercube of binary grids. The map is interpolated linearly.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Answers, Finding, Needs, Search, Visible
from becausal.core.errors import OptionError
from becausal.core.problem import Problem
from becausal.methods.cell_masks import CoarseGrid, draw_points
from becausal.methods.waves import WAVE, run_waves, scores

ROWS = 512  # rows of the kernel matrix that are in memory at a time


@dataclass(frozen=True, kw_only=True)
class Hsic:
    """HSIC attribution: the Hilbert-Schmidt independence criterion between each cell's mask and the score.

    The criterion is 0 where the score does not depend on the cell. It has no sign: a cell that lowers the score is as
    important as one that raises it. For a label-only classifier the score is 1 where the target is kept, else 0.

    Attributes:
        samples: Number of random masks.
        grid: Number of cells along each side of the view.
    """

    samples: int = 1500
    grid: int = 7

    name: ClassVar[str] = "hsic"
    needs: ClassVar[Needs] = "labels"

    def __post_init__(self) -> None:
        for option, least in (("samples", 2), ("grid", 1)):
            if getattr(self, option) < least:
                raise OptionError(f"{option} must be at least {least}, not {getattr(self, option)}")

    def search(self, problem: Problem, rng: np.random.Generator) -> Search[Finding]:
        coarse = CoarseGrid(problem.grid, self.grid)
        shown = draw_points(self.samples, coarse.count, rng) < 0.5
        answered: list[NDArray[np.float64]] = []

        def update(wave: Visible, answers: Answers) -> None:
            answered.append(scores(answers))

        def waves() -> Iterator[Visible]:
            for start in range(0, self.samples, WAVE):
                yield coarse.show(shown[start : start + WAVE])

        yield from run_waves(waves(), update)
        values = np.concatenate(answered)
        return Finding(coarse.interpolate(dependence(shown[: len(values)], values)))


def dependence(shown: NDArray[np.bool_], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """HSIC of each cell's mask and the score, (k,), from n masks, (n, k), and their scores, (n,): tr(KHLH) / (n - 1)².

    K is the Dirac kernel of the masks, L the Gaussian kernel of the scores, with their median as its width, as in the
    paper; H centres. The centred Dirac kernel of a binary variable is 2 z zᵀ, z the centred variable, so that
    tr(KHLH) = 2 zᵀLz and no matrix is needed for a cell.
    """
    n = len(values)
    if n < 2:
        return np.zeros(shown.shape[1])
    width = float(np.median(values)) or 1.0  # all widths rank alike where the scores are 0 and 1
    centred = shown - shown.mean(axis=0)
    total = np.zeros(shown.shape[1])
    for start in range(0, n, ROWS):
        rows = slice(start, start + ROWS)
        kernel = np.exp(-(((values[rows, None] - values) / width) ** 2) / 2)  # (rows, n)
        total += np.einsum("ik,ik->k", centred[rows], kernel @ centred)
    return 2 * total / (n - 1) ** 2
