"""`rise`: the mean score over the random mutants in which a pixel is visible (Petsiuk, Das and Saenko, 2018); `d-rise`.

The masks of the paper are soft: a coarse random grid, interpolated, dims the image. Here a pixel is either visible or
masked, so each soft mask m is thresholded at one level u, drawn uniformly for the whole mask: pixel x is visible where
u < m(x). Then P(x visible | m) = m(x), and P(x visible) = p at every pixel, for all cells and shifts. The rounding is
unbiased, and the sets are as smooth as the masks whose level sets they are.

`d-rise` is RISE for the boxes of object detectors (Petsiuk, Jain, Manjunatha et al., 2021). Each random mutant is weighted
by how similar the detector's best box in it is to the box that is explained: the overlap (IoU) of the two, times the score.
The paper multiplies by the cosine of the two vectors of class probabilities as well; detectors report one class for a box,
so that is 1 for boxes of the same class and 0 for all others.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Answers, Finding, Grid, Needs, Search, Visible
from becausal.core.errors import ModelError, OptionError
from becausal.core.problem import Problem
from becausal.methods.waves import check_least, run_waves, scores, wave_sizes

Values = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Rise:
    """RISE: randomised input sampling.

    The estimate of E[score | pixel visible] is unbiased: each pixel's sum of scores is divided by the number of mutants
    in which it was visible, not by the expected number. For a label-only classifier the score is 1 where the target is
    kept, else 0.

    Attributes:
        masks: Number of random masks.
        cells: Number of cells of the coarse grid along each side of the view.
        share: Probability of a pixel to be visible (p).
    """

    masks: int = 2000
    cells: int = 7
    share: float = 0.5

    name: ClassVar[str] = "rise"
    needs: ClassVar[Needs] = "labels"

    def __post_init__(self) -> None:
        check_least(self, masks=1, cells=1)
        if not 0.0 < self.share < 1.0:
            raise OptionError(f"share must lie between 0 and 1, not {self.share}")

    def search(self, problem: Problem, rng: np.random.Generator) -> Search[Finding]:
        return (yield from self.average(problem.grid, rng, scores))

    def average(self, grid: Grid, rng: np.random.Generator, value_of: Callable[[Answers], Values]) -> Search[Finding]:
        """The mean value of the mutants in which a pixel is visible, as a map."""
        sums, counts = np.zeros(grid), np.zeros(grid, np.intp)
        total, answered = 0.0, 0

        def update(wave: Visible, answers: Answers) -> None:
            nonlocal total, answered
            values = value_of(answers)
            for visible, value in zip(wave, values, strict=True):
                sums[visible] += value
            counts[...] += np.count_nonzero(wave, axis=0)
            total, answered = total + float(values.sum()), answered + len(values)

        def waves() -> Iterator[Visible]:
            for count in wave_sizes(self.masks):
                yield np.stack([self.draw(grid, rng) for _ in range(count)])

        yield from run_waves(waves(), update)
        mean = total / max(answered, 1)  # for pixels that were never visible
        return Finding(np.where(counts > 0, sums / np.maximum(counts, 1), mean))

    def draw(self, grid: Grid, rng: np.random.Generator) -> Visible:
        """One random visible set, (*grid,)."""
        shifts = tuple(int(rng.integers(self.length(side))) for side in grid)
        coarse = rng.random((self.cells + 2,) * len(grid)) < self.share
        return self.field(grid, coarse, shifts) > rng.random()

    def length(self, side: int) -> int:
        """The side of a cell in pixels."""
        return -(-side // self.cells)

    def field(self, grid: Grid, coarse: NDArray[np.bool_], shifts: tuple[int, ...]) -> NDArray[np.float64]:
        """The soft mask, (*grid,) in 0..1: the coarse grid, cells + 2 along each axis, shifted and interpolated."""
        soft = coarse.astype(np.float64)
        for side, shift in zip(grid, shifts, strict=True):
            at = (np.arange(side) + shift) / self.length(side)  # in cells, below cells + 1
            low = at.astype(np.intp)
            weights = np.zeros((side, len(coarse)))
            weights[np.arange(side), low] = 1 - (at - low)
            weights[np.arange(side), low + 1] = at - low
            soft = np.tensordot(soft, weights, axes=(0, 1))  # moves the axis to the end, so that each is treated once
        return soft


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
        return (yield from self._sampling().average(problem.grid, rng, _similarities))

    def _sampling(self) -> Rise:
        return Rise(masks=self.masks, cells=self.cells, share=self.share)


def _similarities(answers: Answers) -> Values:
    if answers.similarity is None:
        raise ModelError("the method d-rise explains boxes of object detectors, and this model is a classifier")
    return answers.similarity
