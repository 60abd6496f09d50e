"""Random backgrounds: what masked pixels become where an explanation has to hold on any background.

The distribution, version 1. Each of four families is drawn with the same probability:

- flat: one colour, uniform over all colours.
- field: a smooth field of colours, a lattice of 2 to 8 uniform colours along each side, interpolated linearly.
- blur: the view itself, blurred until its details are gone, with a radius of 1/16, 1/8 or 1/4 of each side.
- noise: uniform colours, independent for each channel and each square of 1, 2, 4, 8, 16 or 32 pixels.

Background k of a seed is always the same, whatever was drawn before.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from becausal.core.blur import box_blur
from becausal.core.contracts import Pixels
from becausal.images.fills import as_type, span

VERSION = 1
FAMILIES = ("flat", "field", "blur", "noise")
BLURS = (16, 8, 4)  # a radius is a side over one of these
SQUARES = (1, 2, 4, 8, 16, 32)  # pixels
MOST_COLOURS = 8  # of a field, along each side


@dataclass(frozen=True, eq=False)
class RandomBackgrounds:
    """The distribution for one view.

    Attributes:
        view: (*grid, channels).
        seed: Same seed, same backgrounds.
    """

    view: Pixels
    seed: int
    _blurred: dict[int, Pixels] = field(default_factory=dict, init=False, repr=False)

    def draw(self, number: int) -> Pixels:
        """The background with this number, of the view's shape and type."""
        rng, family = self._begin(number)
        make: dict[str, Callable[[np.random.Generator], Pixels]] = {
            "flat": self._flat, "field": self._field, "blur": self._blur, "noise": self._noise,
        }  # fmt: skip
        return make[family](rng)

    def family(self, number: int) -> str:
        """The family of the background with this number."""
        return self._begin(number)[1]

    def _begin(self, number: int) -> tuple[np.random.Generator, str]:
        rng = np.random.default_rng([self.seed, VERSION, number])
        return rng, FAMILIES[int(rng.integers(len(FAMILIES)))]

    def _colours(self, rng: np.random.Generator, grid: tuple[int, ...]) -> NDArray[np.float64]:
        low, high = span(self.view)
        return np.asarray(low + (high - low) * rng.random((*grid, self.view.shape[-1])), np.float64)

    def _flat(self, rng: np.random.Generator) -> Pixels:
        return as_type(np.broadcast_to(self._colours(rng, ()), self.view.shape), self.view)

    def _field(self, rng: np.random.Generator) -> Pixels:
        grid = self.view.shape[:-1]
        values = self._colours(rng, tuple(int(rng.integers(2, MOST_COLOURS + 1)) for _ in grid))
        for axis, side in enumerate(grid):
            values = _stretch(values, side, axis)
        return as_type(values, self.view)

    def _blur(self, rng: np.random.Generator) -> Pixels:
        width = BLURS[int(rng.integers(len(BLURS)))]
        if width not in self._blurred:
            values = self.view.astype(np.float64)
            for axis, side in enumerate(self.view.shape[:-1]):
                for _ in range(3):
                    values = box_blur(values, max(1, side // width), axis)
            self._blurred[width] = as_type(values, self.view)
        return self._blurred[width]

    def _noise(self, rng: np.random.Generator) -> Pixels:
        square, grid = SQUARES[int(rng.integers(len(SQUARES)))], self.view.shape[:-1]
        values = self._colours(rng, tuple(-(-side // square) for side in grid))
        for axis, side in enumerate(grid):
            values = np.repeat(values, square, axis).take(range(side), axis)
        return as_type(values, self.view)


def _stretch(values: NDArray[np.float64], side: int, axis: int) -> NDArray[np.float64]:
    """Linear interpolation along an axis to this many values, the first and the last one kept."""
    count = values.shape[axis]
    place = np.linspace(0.0, count - 1.0, side)
    left = np.minimum(place.astype(np.intp), count - 2)
    shape = [1] * values.ndim
    shape[axis] = side
    weight = (place - left).reshape(shape)
    return np.asarray(values.take(left, axis) * (1 - weight) + values.take(left + 1, axis) * weight, np.float64)
