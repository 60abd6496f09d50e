"""Sets of cells, and random parts of them to try to hide: pure, of any dimension."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from becausal.contracts import Grid, Visible

Cells = NDArray[np.bool_]  # over the lattice: True = shown
BLOCK = 0.35  # the side of a block, relative to that of a box of the same size


@dataclass(frozen=True)
class Lattice:
    """A grid seen in cells of side `grain`; the last ones along an axis may be cut short."""

    grid: Grid
    grain: int

    @property
    def shape(self) -> Grid:
        return tuple(-(-side // self.grain) for side in self.grid)

    def show(self, cells: Cells) -> Visible:
        """A set of cells as a set of pixels, (*grid,)."""
        pixels = cells
        for axis in range(cells.ndim):
            pixels = np.repeat(pixels, self.grain, axis=axis)
        return pixels[tuple(slice(0, side) for side in self.grid)]

    def spread(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """One number per cell as one per pixel, (*grid,)."""
        for axis in range(values.ndim):
            values = np.repeat(values, self.grain, axis=axis)
        return values[tuple(slice(0, side) for side in self.grid)]


@dataclass
class Harm:
    """What hiding has cost so far, per cell: the loss of margin, shared among the cells that were hidden for it.

    Old experience fades as the set changes, since it was had in other company.
    """

    shape: Grid
    loss: NDArray[np.float64] = field(init=False)
    trials: NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        self.loss = np.zeros(self.shape)
        self.trials = np.zeros(self.shape)

    def learn(self, part: Cells, loss: float) -> None:
        self.loss[part] += loss / max(1, int(part.sum()))
        self.trials[part] += 1

    def fade(self, keep: float) -> None:
        self.loss *= keep
        self.trials *= keep

    def estimate(self) -> NDArray[np.float64]:
        """The expected loss per cell; cells never tried get the mean."""
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
        count = int(self.cells.sum())
        wanted = max(1, round(share * count))
        part = KINDS[kind](self, wanted) & self.cells
        return part if 0 < part.sum() < count else None

    def place(self) -> NDArray[np.intp]:
        """A shown cell, likelier where little harm is expected."""
        members = np.flatnonzero(self.cells)
        expected = self.harm.reshape(-1)[members]
        spread = float(expected.std())
        weights = np.ones(len(members))
        if spread > 0 and self.trust > 0:
            weights = np.exp(-self.trust * np.clip((expected - expected.mean()) / spread, -3, 3))
        chosen = members[np.searchsorted(np.cumsum(weights), self.rng.random() * weights.sum(), side="right")]
        return np.array(np.unravel_index(chosen, self.cells.shape))

    def box(self, wanted: int) -> Cells:
        """A box around a place, of random proportions, just large enough to hold the wanted number of shown cells."""
        centre = self.place() + 0.5
        proportions = np.exp(self.rng.normal(0.0, 0.35, self.cells.ndim))

        def slices(radius: float) -> tuple[slice, ...]:
            low = np.floor(centre - radius * proportions).astype(int)
            side = np.maximum(1, np.rint(2 * radius * proportions).astype(int))
            return tuple(slice(max(0, a), max(0, a) + b) for a, b in zip(low, side, strict=True))

        small, large = 0.5, 2.0 * max(self.cells.shape)
        for _ in range(9):
            middle = (small + large) / 2
            enough = self.cells[slices(middle)].sum() >= wanted
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
        for _ in range(4 * wanted):
            low = self.place() - self.rng.integers(0, side, self.cells.ndim)
            part[tuple(slice(max(0, a), max(0, a) + side) for a in low)] = True
            if (part & self.cells).sum() >= wanted:
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
