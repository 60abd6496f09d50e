"""Occlusion: how much the score drops when a window is hidden, over every place of the window."""

from dataclasses import dataclass
from itertools import product
from typing import ClassVar

import numpy as np

from becausal.core.contracts import Answers, Finding, Grid, Needs, Search, Stop, Visible
from becausal.core.errors import OptionError
from becausal.core.problem import Problem
from becausal.core.regions import Region
from becausal.methods.waves import WAVE, scores, stream


@dataclass(frozen=True, kw_only=True)
class Occlusion:
    """A hidden window slides over the view; a pixel's value is the mean drop over the windows that cover it.

    window: its side, as a share of each side of the view. stride: how far it moves, as a share of each side.

    The windows are asked in a seeded random order, so that a search told to stop has looked everywhere, if thinly.
    Where the classifier gives labels only, a drop is 1 where the label is lost and 0 elsewhere.
    """

    window: float = 0.1
    stride: float = 0.05

    name: ClassVar[str] = "occlusion"
    needs: ClassVar[Needs] = "labels"

    def __post_init__(self) -> None:
        for option, value in (("window", self.window), ("stride", self.stride)):
            if not 0.0 < value < 1.0:
                raise OptionError(f"{option} is a share of the view's side, between 0 and 1, not {value}")
        if self.stride > self.window:
            raise OptionError(f"a stride ({self.stride}) above the window ({self.window}) leaves pixels never hidden")

    def windows(self, grid: Grid) -> list[Region]:
        """Every place of the window, row-major, clipped to the view.

        The first and last places of an axis stick out over the edge, so that a pixel at the edge lies in as many windows
        as one in the middle and its mean is no noisier.
        """
        places = []
        for side in grid:
            width = max(1, round(self.window * side))
            step = max(1, min(width, round(self.stride * side)))
            starts = range(step - width, side, step)
            places.append([(max(start, 0), min(start + width, side)) for start in starts])
        return [Region(*zip(*place, strict=True)) for place in product(*places)]

    def search(self, problem: Problem, rng: np.random.Generator) -> Search[Finding]:
        grid = problem.grid
        windows = self.windows(grid)
        windows = [windows[i] for i in rng.permutation(len(windows))]
        drops, covers = np.zeros(grid), np.zeros(grid, np.intp)
        try:
            intact = scores((yield np.ones((1, *grid), bool)))[0]
        except Stop:
            return Finding(drops)
        asked = iter(windows)

        def learn(wave: Visible, answers: Answers) -> None:
            for score, window in zip(scores(answers), asked, strict=False):
                drops[window.slices] += intact - score
                covers[window.slices] += 1

        yield from stream((hide(grid, windows[i : i + WAVE]) for i in range(0, len(windows), WAVE)), learn)
        return Finding(drops / np.maximum(covers, 1))


def hide(grid: Grid, windows: list[Region]) -> Visible:
    """One question per window, (n, *grid), each hiding its own."""
    visible = np.ones((len(windows), *grid), bool)
    for row, window in zip(visible, windows, strict=True):
        row[window.slices] = False
    return visible
