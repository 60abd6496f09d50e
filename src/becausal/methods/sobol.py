"""`sobol`: the share of the variance of the score that a grid cell takes part in.

After Fel, Cadène, Chalvidal, Cord, Vigouroux and Serre: Look at the Variance! Efficient Black-box Explanations with
Sobol-based Sensitivity Analysis, NeurIPS 2021. The masks of the paper are real-valued points of a quasi-random sequence.
Here a pixel is either visible or masked, so points are thresholded at 1/2. Thresholded, a Sobol sequence repeats itself in
many of its coordinates and a Halton sequence is nearly constant, so the points are a Latin hypercube instead.
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

Bits = NDArray[np.bool_]  # (designs, cells)


@dataclass(frozen=True, kw_only=True)
class Sobol:
    """Total Sobol indices of the cells of a grid, by the estimator of Jansen.

    A design is a random mask a, another one b, and for every cell the mask c that is a with this cell taken from b. The
    index of a cell is the mean of (score(a) - score(c))² over the designs, divided by twice the variance of the score.
    Where a and b agree, c is a and is not evaluated again: a design of k cells takes about k / 2 + 2 model calls. Designs
    are evaluated one after the other; a search that is stopped early uses those that are complete.

    For a label-only classifier the score is 1 where the target is kept, else 0.

    Attributes:
        designs: Number of designs.
        grid: Number of cells along each side of the view.
    """

    designs: int = 32
    grid: int = 8

    name: ClassVar[str] = "sobol"
    needs: ClassVar[Needs] = "labels"

    def __post_init__(self) -> None:
        for option in ("designs", "grid"):
            if getattr(self, option) < 1:
                raise OptionError(f"{option} must be at least 1, not {getattr(self, option)}")

    def search(self, problem: Problem, rng: np.random.Generator) -> Search[Finding]:
        coarse = CoarseGrid(problem.grid, self.grid)
        a, b = (draw_points(self.designs, coarse.count, rng) < 0.5 for _ in range(2))
        design, cell = list_masks(a, b)
        answered: list[NDArray[np.float64]] = []

        def update(wave: Visible, answers: Answers) -> None:
            answered.append(scores(answers))

        def waves() -> Iterator[Visible]:
            for start in range(0, len(design), WAVE):
                rows, flipped = design[start : start + WAVE], cell[start : start + WAVE]
                bits = np.where((flipped == B)[:, None], b[rows], a[rows])
                one = flipped >= 0
                bits[one, flipped[one]] ^= True
                yield coarse.show(bits)

        yield from run_waves(waves(), update)
        values = np.concatenate(answered)
        return Finding(coarse.interpolate(total_indices(design, cell, values, coarse.count)))


A, B = -2, -1  # in place of the number of a cell: the mask a, the mask b


def list_masks(a: Bits, b: Bits) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The masks to evaluate: for each its design, (n,), and the cell that is flipped in a, or `A` or `B`, (n,)."""
    kinds = [np.concatenate([[A, B], np.flatnonzero(one != other)]) for one, other in zip(a, b, strict=True)]
    return np.repeat(np.arange(len(a)), [len(kind) for kind in kinds]), np.concatenate(kinds).astype(np.intp)


def total_indices(
    design: NDArray[np.intp], cell: NDArray[np.intp], values: NDArray[np.float64], count: int
) -> NDArray[np.float64]:
    """The total Sobol indices of the cells, (count,), from the scores of the first masks of the list.

    The last design is left out if it is incomplete, unless it is the only one. Where the scores of the masks a and b are
    all alike, the indices are not divided by their variance.
    """
    known = len(values)
    if 0 < known < len(design):
        complete = int(np.searchsorted(design, design[known]))
        known = complete or known
    design, cell, values = design[:known], cell[:known], values[:known]
    if not known:
        return np.zeros(count)
    base, flips = values[cell == A], cell >= 0
    squares = (base[design[flips]] - values[flips]) ** 2
    means = np.bincount(cell[flips], squares, minlength=count) / len(base)
    plain = values[~flips]
    variance = float(plain.var(ddof=1)) if len(plain) > 1 else 0.0
    return np.asarray(means / (2 * variance if variance > 0.0 else 1.0), np.float64)
