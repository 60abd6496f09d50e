"""Sets of cells, and random parts of them to try to hide: pure, of any dimension."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import floor

import numpy as np
from numpy.typing import NDArray

from becausal.contracts import Grid, Visible

Cells = NDArray[np.bool_]  # over the lattice: True = shown
BLOCK = 0.35  # the side of a block, relative to that of a box of the same size


@dataclass(frozen=True)
class Lattice:
    """A grid seen in cells of side `grain`; the last ones along an axis may be cut short.

    within: pixels outside of these, (*grid,), are never shown; a cell that crosses their border is cut there.
    """

    grid: Grid
    grain: int
    within: Visible | None = field(default=None, compare=False, repr=False)

    @property
    def shape(self) -> Grid:
        return tuple(-(-side // self.grain) for side in self.grid)

    def show(self, cells: Cells) -> Visible:
        """Sets of cells, (..., *lattice), as sets of pixels, (..., *grid)."""
        pixels = cells
        for axis in range(-1, -len(self.grid) - 1, -1):  # the last one first: the others then repeat whole rows
            pixels = np.repeat(pixels, self.grain, axis=axis)
        before = (slice(None),) * (cells.ndim - len(self.grid))
        pixels = pixels[before + tuple(slice(0, side) for side in self.grid)]
        return pixels if self.within is None else pixels & self.within

    def collect(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """One number per pixel, (*grid,), added up per cell."""
        for axis, side in enumerate(self.grid):
            values = np.add.reduceat(values, np.arange(0, side, self.grain), axis=axis)
        return values

    def enclose(self, within: Visible) -> tuple["Lattice", Cells]:
        """The lattice with nothing outside of these pixels, and the cells that have any of them."""
        return replace(self, within=within), self.collect(within.astype(np.float64)) > 0

    def spread(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """One number per cell as one per pixel, (*grid,)."""
        for axis in range(values.ndim):
            values = np.repeat(values, self.grain, axis=axis)
        return values[tuple(slice(0, side) for side in self.grid)]


@dataclass
class Harm:
    """What hiding has cost so far, per cell: the loss of margin, shared among the cells that were hidden for it.

    Old experience fades as the set changes, since it was had in other company. expected: what was thought before, per
    cell; it counts as much as `weight` trials, and does not fade.
    """

    shape: Grid
    expected: NDArray[np.float64] | None = None
    weight: float = 0.0
    loss: NDArray[np.float64] = field(init=False)
    trials: NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        self.loss = np.zeros(self.shape)
        self.trials = np.zeros(self.shape)

    def learn(self, part: Cells, loss: float) -> None:
        np.add(self.loss, loss / max(1, int(np.count_nonzero(part))), out=self.loss, where=part)
        self.trials += part

    def fade(self, keep: float) -> None:
        self.loss *= keep
        self.trials *= keep

    def estimate(self) -> NDArray[np.float64]:
        """The expected loss per cell; cells never tried, of which nothing was thought before, get the mean."""
        if self.expected is not None:
            return np.asarray((self.loss + self.weight * self.expected) / (self.trials + self.weight), np.float64)
        total = self.trials.sum()
        mean = self.loss.sum() / total if total else 0.0
        return np.where(self.trials > 0, self.loss / np.maximum(self.trials, 1e-12), mean)


@dataclass(frozen=True)
class Proposer:
    """Draws parts of a set of cells that may be hidden: about a stated share of it, where little harm is expected.

    trust: how strongly places of little expected harm are preferred; 0 draws places evenly.
    """

    cells: Cells
    harm: NDArray[np.float64]
    rng: np.random.Generator
    trust: float = 1.0

    def draw(self, kind: str, share: float) -> Cells | None:
        """A part of that kind; None if nothing, or everything, would go."""
        count = np.count_nonzero(self.cells)
        wanted = max(1, round(share * count))
        part = KINDS[kind](self, wanted) & self.cells
        return part if 0 < np.count_nonzero(part) < count else None

    @cached_property
    def _weighted(self) -> tuple[NDArray[np.intp], NDArray[np.float64], float]:
        """The numbers of the shown cells, their weights added up from the first on, and the sum of all."""
        members = np.flatnonzero(self.cells)
        expected = self.harm.reshape(-1)[members]
        spread = float(expected.std())
        weights = np.ones(len(members))
        if spread > 0 and self.trust > 0:
            weights = np.exp(-self.trust * np.clip((expected - expected.mean()) / spread, -3, 3))
        return members, np.cumsum(weights), float(weights.sum())

    def place(self) -> list[int]:
        """A shown cell, likelier where little harm is expected: its position on the lattice."""
        members, sums, total = self._weighted
        chosen = int(members[sums.searchsorted(self.rng.random() * total, side="right")])
        position = []
        for side in self.cells.shape[::-1]:
            chosen, at = divmod(chosen, side)
            position.append(at)
        return position[::-1]

    def box(self, wanted: int) -> Cells:
        """A box around a place, of random proportions, just large enough to hold the wanted number of shown cells."""
        centre = [at + 0.5 for at in self.place()]
        proportions = np.exp(self.rng.normal(0.0, 0.35, self.cells.ndim)).tolist()
        around = list(zip(centre, proportions, strict=True))

        def slices(radius: float) -> tuple[slice, ...]:
            found = []
            for at, stretch in around:
                low = floor(at - radius * stretch)
                low = low if low > 0 else 0
                found.append(slice(low, low + (round(2 * radius * stretch) or 1)))
            return tuple(found)

        small, large = 0.5, 2.0 * max(self.cells.shape)
        for _ in range(9):
            middle = (small + large) / 2
            enough = np.count_nonzero(self.cells[slices(middle)]) >= wanted
            small, large = (small, middle) if enough else (middle, large)
        part = np.zeros(self.cells.shape, bool)
        part[slices(large)] = True
        return part

    def strip(self, wanted: int) -> Cells:
        """A slab from one of the sides, just thick enough."""
        axis = int(self.rng.integers(self.cells.ndim))
        backwards = bool(self.rng.integers(2))
        others = tuple(a for a in range(self.cells.ndim) if a != axis)
        counts = np.cumsum(self.cells.sum(axis=others)[:: -1 if backwards else 1])
        thick = int(np.searchsorted(counts, wanted)) + 1
        part = np.zeros(self.cells.shape, bool)
        part[(slice(None),) * axis + (slice(-thick, None) if backwards else slice(thick),)] = True
        return part

    def blocks(self, wanted: int) -> Cells:
        """Several smaller blocks, each around a place of its own."""
        side = max(1, round(BLOCK * wanted ** (1 / self.cells.ndim)))
        part = np.zeros(self.cells.shape, bool)
        have = 0
        for _ in range(4 * wanted):
            place, shift = self.place(), self.rng.integers(0, side, self.cells.ndim).tolist()
            low = [a - b if a > b else 0 for a, b in zip(place, shift, strict=True)]
            block = tuple([slice(a, a + side) for a in low])
            have += int(np.count_nonzero(self.cells[block] > part[block]))  # shown, and not in a block before
            part[block] = True
            if have >= wanted:
                break
        return part


KINDS: dict[str, Callable[[Proposer, int], Cells]] = {
    "box": Proposer.box,
    "strip": Proposer.strip,
    "blocks": Proposer.blocks,
}


def unite(parts: Sequence[Cells]) -> Cells:
    """All parts as one."""
    return np.asarray(np.logical_or.reduce(list(parts)), bool)


def smooth(values: NDArray[np.float64], radius: int) -> NDArray[np.float64]:
    """Each cell's mean over the cells up to `radius` away along every axis; the border's values go on beyond it."""
    for axis in range(values.ndim):
        padding = [(0, 0)] * values.ndim
        padding[axis] = (radius + 1, radius)
        sums = np.cumsum(np.pad(values, padding, mode="edge"), axis=axis)
        along = np.moveaxis(sums, axis, 0)
        values = np.moveaxis(along[2 * radius + 1 :] - along[: -2 * radius - 1], 0, axis) / (2 * radius + 1)
    return values
