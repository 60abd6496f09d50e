"""The definitions by brute force, for images of a few pixels.

The code follows the definitions literally: it evaluates all 2^n subsets of n pixels and serves as the reference
implementation in tests. A classifier is a table `holds`, (2^n,) bool: entry m tells whether the target is kept when
exactly the pixels i with bit i of m set are visible. Sets of pixels are integers, read as bits in the same way.
"""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Grid, Visible
from becausal.core.errors import OptionError

Table = NDArray[np.bool_]  # (2^n,), indexed by the bits of the visible pixels
MAX_PIXELS = 20  # a million subsets


def all_visible(grid: Grid) -> Visible:
    """Every subset of the grid's pixels, (2^n, *grid); row m shows pixel i (row-major) where bit i of m is set.

    Raises OptionError where the grid has more than 20 pixels.
    """
    n = int(np.prod(grid))
    if n > MAX_PIXELS:
        raise OptionError(f"brute force takes at most {MAX_PIXELS} pixels, the grid {grid} has {n}")
    return (np.arange(2**n)[:, None] >> np.arange(n) & 1).astype(bool).reshape(-1, *grid)


def tabulate(keeps: Callable[[Visible], NDArray[np.bool_]], grid: Grid) -> Table:
    """The table of a classifier that says of visible sets, (m, *grid), whether each keeps the target, (m,)."""
    return np.asarray(keeps(all_visible(grid)), bool)


def subsets(members: int) -> Iterator[int]:
    """All subsets of a set, the empty set first."""
    subset = 0
    while True:
        yield subset
        if subset == members:
            return
        subset = (subset - members) & members  # counts in the bits of the set: those outside pass the carry on


def witnesses(holds: Table, pixel: int) -> Iterator[int]:
    """Definition 1: the witnesses for the pixel being a cause, as bits of masked pixels.

    SC1: the pixel is not in the witness. SC2: masking any subset of the witness keeps the target. SC3: masking the
    witness and the pixel loses it.
    """
    everything = len(holds) - 1
    for witness in range(len(holds)):
        if witness >> pixel & 1:
            continue
        if not all(holds[everything & ~part] for part in subsets(witness)):
            continue
        if not holds[everything & ~(witness | 1 << pixel)]:
            yield witness


def is_cause(holds: Table, pixel: int) -> bool:
    """Whether the pixel is a (singleton) cause of the target."""
    return next(witnesses(holds, pixel), None) is not None


def degree(holds: Table, pixel: int) -> float:
    """Definition 2: 1/(k+1) with k the size of the smallest witness; 0 if the pixel is not a cause."""
    sizes = [witness.bit_count() for witness in witnesses(holds, pixel)]
    return 1.0 / (min(sizes) + 1) if sizes else 0.0


def responsibilities(holds: Table) -> NDArray[np.float64]:
    """The degree of responsibility of every pixel, (n,)."""
    return np.array([degree(holds, i) for i in range((len(holds) - 1).bit_length())])


def is_explanation(holds: Table, visible: int) -> bool:
    """Definition 3: whether the set is sufficient and no proper subset of it is."""
    return bool(holds[visible]) and not any(holds[part] for part in subsets(visible) if part != visible)


def explanations(holds: Table) -> list[int]:
    """All explanations, as bits of visible pixels, smallest first."""
    found = [m for m in range(len(holds)) if is_explanation(holds, m)]
    return sorted(found, key=lambda m: (m.bit_count(), m))


def smallest_size(holds: Table) -> int:
    """The size of the smallest sufficient set."""
    return int(min(m.bit_count() for m in range(len(holds)) if holds[m]))
