"""Algorithm 1: the responsibility of each part of a partition, from the answers to all 2^s mutants."""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Search, Visible
from becausal.core.regions import Region, shown_without


@cache
def hidden_table(parts: int) -> NDArray[np.bool_]:
    """(2^parts, parts) bool: row m hides part j where bit j of m is set."""
    return (np.arange(2**parts)[:, None] >> np.arange(parts) & 1).astype(bool)


def mutants(base: Visible, parts: tuple[Region, ...]) -> Visible:
    """All (2^s, *grid) ways to hide some of the parts; row 0 hides none."""
    rows = [
        shown_without(base, tuple(p for p, hidden in zip(parts, row, strict=True) if hidden))
        for row in hidden_table(len(parts))
    ]
    return np.stack(rows)


def degrees(holds: NDArray[np.bool_], parts: int, *, strict: bool = False) -> NDArray[np.float64]:
    """The degree of responsibility of each part, (parts,), from whether each mutant keeps the target, (2^parts,).

    r = 1/(k+1) with k the fewest parts hidden in a mutant that shows part j, keeps the target, and loses it when j is
    hidden too (SC3); 0 where there is none. With `strict`, every mutant that hides a subset of those k must keep the
    target as well (SC2 to the letter); the two agree wherever hiding more never restores the target.
    """
    rows = np.arange(2**parts)
    kept = holds
    if strict:
        kept = holds.copy()
        for j in range(parts):
            hides = rows & (1 << j) != 0
            kept[hides] &= kept[rows[hides] ^ (1 << j)]
    sizes = hidden_table(parts).sum(axis=1)
    result = np.zeros(parts)
    for j in range(parts):
        shows = rows & (1 << j) == 0
        decisive = shows & kept & ~holds[rows | (1 << j)]
        if decisive.any():
            result[j] = 1.0 / (sizes[decisive].min() + 1)
    return result


def responsibility(base: Visible, parts: tuple[Region, ...], *, strict: bool = False) -> Search[NDArray[np.float64]]:
    """Ask all mutants of one partition and return the parts' degrees of responsibility."""
    answers = yield mutants(base, parts)
    return degrees(answers.holds, len(parts), strict=strict)
