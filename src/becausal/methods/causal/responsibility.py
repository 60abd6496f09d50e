"""Algorithm 1: the responsibility of each part of a partition, from all 2^s mutants."""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Search, Visible
from becausal.core.regions import Region, shown_without


@cache
def masked_table(parts: int) -> NDArray[np.bool_]:
    """(2^parts, parts) bool: row m masks part j where bit j of m is set."""
    return (np.arange(2**parts)[:, None] >> np.arange(parts) & 1).astype(bool)


def mutants(base: Visible, parts: tuple[Region, ...]) -> Visible:
    """All (2^s, *grid) ways to mask some of the parts; row 0 masks none."""
    rows = [
        shown_without(base, tuple(p for p, masked in zip(parts, row, strict=True) if masked))
        for row in masked_table(len(parts))
    ]
    return np.stack(rows)


def degrees(holds: NDArray[np.bool_], parts: int, *, strict: bool = False) -> NDArray[np.float64]:
    """The degree of responsibility of each part, (parts,), from whether each mutant keeps the target, (2^parts,).

    r = 1/(k+1), where k is the smallest number of masked parts in a mutant that shows part j, keeps the target, and
    loses it when j is masked too (SC3); 0 where there is no such mutant. With `strict`, every mutant that masks a subset
    of those k parts must keep the target as well (SC2 in full). The two agree where masking more never restores the target.
    """
    rows = np.arange(2**parts)
    kept = holds
    if strict:
        kept = holds.copy()
        for j in range(parts):
            masks = rows & (1 << j) != 0
            kept[masks] &= kept[rows[masks] ^ (1 << j)]
    sizes = masked_table(parts).sum(axis=1)
    result = np.zeros(parts)
    for j in range(parts):
        shows = rows & (1 << j) == 0
        decisive = shows & kept & ~holds[rows | (1 << j)]
        if decisive.any():
            result[j] = 1.0 / (sizes[decisive].min() + 1)
    return result


def responsibility(base: Visible, parts: tuple[Region, ...], *, strict: bool = False) -> Search[NDArray[np.float64]]:
    """Evaluate all mutants of one partition and return the degrees of responsibility of its parts."""
    answers = yield mutants(base, parts)
    return degrees(answers.holds, len(parts), strict=strict)
