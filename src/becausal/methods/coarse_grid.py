"""`hsic` and `sobol`: which cells of a coarse grid the score depends on, from balanced random sets of cells.

`hsic` is after Novello, Fel and Vigouroux: Making Sense of Dependence: Efficient Black-box Explanations Using Dependence
Measure, NeurIPS 2022. The masks are those of the paper, a Latin hypercube of binary grids.

`sobol` is after Fel, Cadène, Chalvidal, Cord, Vigouroux and Serre: Look at the Variance! Efficient Black-box Explanations
with Sobol-based Sensitivity Analysis, NeurIPS 2021. The masks of the paper are real-valued points of a quasi-random
sequence. Here a pixel is either visible or masked, so points are thresholded at 1/2. Thresholded, a Sobol sequence repeats
itself in many of its coordinates and a Halton sequence is nearly constant, so the points are a Latin hypercube instead.

The maps are interpolated linearly.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Finding, Grid, Needs, Saliency, Search, Visible
from becausal.core.problem import Problem
from becausal.methods.waves import WAVE, check_least, score_all

ROWS = 512  # rows of the kernel matrix of `hsic` that are in memory at a time
A, B = -2, -1  # in place of the number of a cell: the mask a, the mask b of a design of `sobol`


@dataclass(frozen=True)
class CoarseGrid:
    """A view of shape `grid`, divided into at most `cells` cells along each side; cells are numbered row by row."""

    grid: Grid
    cells: int

    @property
    def shape(self) -> Grid:
        """The number of cells along each axis: a short axis has one cell per pixel."""
        return tuple(min(side, self.cells) for side in self.grid)

    @property
    def count(self) -> int:
        return prod(self.shape)

    @cached_property
    def number(self) -> NDArray[np.intp]:
        """The number of the cell each pixel lies in, (*grid,)."""
        along = [np.arange(side) * parts // side for side, parts in zip(self.grid, self.shape, strict=True)]
        return np.asarray(np.ravel_multi_index(np.meshgrid(*along, indexing="ij"), self.shape), np.intp)

    def show(self, bits: NDArray[np.bool_]) -> Visible:
        """Visible sets, (n, *grid), from sets of cells, (n, cells)."""
        return bits.take(self.number, axis=1)

    def interpolate(self, values: NDArray[np.float64]) -> Saliency:
        """A map, (*grid,), from one value per cell, (cells,): linear between the centres of cells, constant outside."""
        found = values.reshape(self.shape)
        for side, parts in zip(self.grid, self.shape, strict=True):
            at = np.clip((np.arange(side) + 0.5) * parts / side - 0.5, 0, parts - 1)  # in cells, 0 is the first centre
            low = np.minimum(at.astype(np.intp), max(parts - 2, 0))
            weights = np.zeros((side, parts))
            weights[np.arange(side), low] = 1 - (at - low)
            weights[np.arange(side), np.minimum(low + 1, parts - 1)] += at - low
            found = np.tensordot(found, weights, axes=(0, 1))  # moves the axis to the end, so that each is treated once
        return found


def draw_points(samples: int, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """A Latin hypercube, (samples, count) in 0..1: each column has one point in every interval of length 1 / samples."""
    strata = rng.permuted(np.tile(np.arange(samples), (count, 1)), axis=1).T
    return np.asarray((strata + rng.random((samples, count))) / samples, np.float64)


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
        check_least(self, samples=2, grid=1)

    def search(self, problem: Problem, rng: np.random.Generator) -> Search[Finding]:
        coarse = CoarseGrid(problem.grid, self.grid)
        shown = draw_points(self.samples, coarse.count, rng) < 0.5
        values = yield from score_all(coarse.show(shown[start : start + WAVE]) for start in range(0, self.samples, WAVE))
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
        check_least(self, designs=1, grid=1)

    def search(self, problem: Problem, rng: np.random.Generator) -> Search[Finding]:
        coarse = CoarseGrid(problem.grid, self.grid)
        a, b = (draw_points(self.designs, coarse.count, rng) < 0.5 for _ in range(2))
        # The masks to evaluate: for each its design, (n,), and the cell that is flipped in a, or `A` or `B`, (n,).
        kinds = [np.concatenate([[A, B], np.flatnonzero(one != other)]) for one, other in zip(a, b, strict=True)]
        design = np.repeat(np.arange(self.designs), [len(kind) for kind in kinds])
        cell = np.concatenate(kinds).astype(np.intp)

        def waves() -> Iterator[Visible]:
            for start in range(0, len(design), WAVE):
                rows, flipped = design[start : start + WAVE], cell[start : start + WAVE]
                bits = np.where((flipped == B)[:, None], b[rows], a[rows])
                one = flipped >= 0
                bits[one, flipped[one]] ^= True
                yield coarse.show(bits)

        values = yield from score_all(waves())
        return Finding(coarse.interpolate(total_indices(design, cell, values, coarse.count)))


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
