"""`occlusion`: the drop of the score when a sliding window is masked."""

from dataclasses import dataclass
from itertools import product
from typing import ClassVar

import numpy as np

from becausal.core.contracts import Answers, Finding, Grid, Needs, Search, Stop, Visible
from becausal.core.errors import OptionError
from becausal.core.problem import Problem
from becausal.core.regions import Region
from becausal.methods.waves import WAVE, run_waves, scores


@dataclass(frozen=True, kw_only=True)
class Occlusion:
    """A masked window slides over the view; a pixel's value is the mean drop of the score over the windows that cover it.

    The windows are evaluated in a seeded random order, so that a search that is stopped early covers the whole view
    sparsely. For a label-only classifier the drop is 1 where the label is lost, else 0.

    Attributes:
        window: Side of the window, as a share of each side of the view.
        stride: Step of the window, as a share of each side of the view.
    """

    window: float = 0.1
    stride: float = 0.05

    name: ClassVar[str] = "occlusion"
    needs: ClassVar[Needs] = "labels"

    def __post_init__(self) -> None:
        for option, value in (("window", self.window), ("stride", self.stride)):
            if not 0.0 < value < 1.0:
                raise OptionError(f"{option} must be a share of the view's side, between 0 and 1, not {value}")
        if self.stride > self.window:
            raise OptionError(
                f"stride ({self.stride}) must not exceed window ({self.window}): some pixels would never be masked"
            )

    def windows(self, grid: Grid) -> list[Region]:
        """Every position of the window, row-major, clipped to the view.

        The first and last windows of an axis extend over the edge, so that pixels at the edge lie in as many windows as
        those in the middle.
        """
        positions = []
        for side in grid:
            width = max(1, round(self.window * side))
            step = max(1, min(width, round(self.stride * side)))
            starts = range(step - width, side, step)
            positions.append([(max(start, 0), min(start + width, side)) for start in starts])
        return [Region(*zip(*position, strict=True)) for position in product(*positions)]

    def search(self, problem: Problem, rng: np.random.Generator) -> Search[Finding]:
        grid = problem.grid
        windows = self.windows(grid)
        windows = [windows[i] for i in rng.permutation(len(windows))]
        drops, covers = np.zeros(grid), np.zeros(grid, np.intp)
        try:
            intact = scores((yield np.ones((1, *grid), bool)))[0]
        except Stop:
            return Finding(drops)
        remaining = iter(windows)

        def update(wave: Visible, answers: Answers) -> None:
            for score, window in zip(scores(answers), remaining, strict=False):
                drops[window.slices] += intact - score
                covers[window.slices] += 1

        yield from run_waves((mask(grid, windows[i : i + WAVE]) for i in range(0, len(windows), WAVE)), update)
        return Finding(drops / np.maximum(covers, 1))


def mask(grid: Grid, windows: list[Region]) -> Visible:
    """One visible set per window, (n, *grid), with the window masked."""
    visible = np.ones((len(windows), *grid), bool)
    for row, window in zip(visible, windows, strict=True):
        row[window.slices] = False
    return visible
