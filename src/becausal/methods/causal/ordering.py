"""The map of the search `causal` where it has no zones: by what the survey found, or by the sets that were evaluated."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Saliency, Visible
from becausal.search.survey import Survey

# Numbers in brackets are sections of docs/research-log.md. No claim about a set rests on any of these constants.
CONTRAST = 2.0  # exponent of values that are ranks: higher makes the first pixels stand out more; changes no order
CONTEXT, LEAST = 0.5, 0.6  # the highest value outside of the explanation, the lowest inside: a gap that shows where it ends
RANKED = 0.02  # share of a patch's value that depends on its rank alone: so little that only equal ones are parted by it
DIGITS = 6  # of values that are compared, so that rounding decides nothing


def draw_map(survey: Survey, levels: Sequence[Visible]) -> Saliency:
    """The map, (*grid,), with maximum 1, of nested sets, smallest first, and the patches around them."""
    # How much each patch adds per pixel, from 0 to 1 and rising with its rank: gains are noisy and the order counts, so
    # they are fitted by values that never fall along it.
    gain = survey.contribution / np.bincount(survey.patch.ravel())
    ranks = _ranks(gain)
    order, heights = np.argsort(ranks), np.empty(len(ranks))
    heights[order] = rising_fit(_share_of_highest(gain)[order])
    rest = ((1 - RANKED) * _share_of_highest(heights) + RANKED * ranks)[survey.patch]
    if not levels:
        return np.asarray(np.round(rest / rest.max(), DIGITS), np.float64)
    outer, inside = levels[-1], np.sum(levels, axis=0) + CONTEXT * rest  # the sets, and within each of them the patches
    low, high = inside[outer].min(initial=np.inf), inside[outer].max(initial=0.0)
    inside = (inside - low) / (high - low) if high > low else np.ones(outer.shape)
    return np.asarray(np.round(np.where(outer, LEAST + (1 - LEAST) * inside, CONTEXT * rest), DIGITS), np.float64)


def rising_fit(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The non-decreasing values nearest to these, by least squares: means of blocks (pool adjacent violators)."""
    blocks: list[tuple[float, int]] = []  # mean and length
    for value in values.tolist():
        mean, length = value, 1
        while blocks and blocks[-1][0] >= mean:
            before, more = blocks.pop()
            mean, length = (before * more + mean * length) / (more + length), more + length
        blocks.append((mean, length))
    return np.repeat([mean for mean, _ in blocks], [length for _, length in blocks])


def _share_of_highest(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Values divided by the highest one; 0 for those below 0."""
    return np.maximum(values, 0.0) / max(float(values.max()), 1e-12)


def order_map(rest: Saliency, levels: Sequence[Visible]) -> Saliency:
    """A map whose ranking shows nested levels, (*grid,) each, smallest first, and then the rest by its own values.

    Returns the map, (*grid,), with maximum 1: a power of the share of pixels that come later.
    """
    depth = np.sum([level.astype(np.intp) for level in levels], axis=0) if levels else np.zeros(rest.shape, np.intp)
    _, within = np.unique(rest, return_inverse=True)
    _, place, counts = np.unique(
        depth.ravel() * (int(within.max()) + 1) + within.ravel(), return_inverse=True, return_counts=True
    )
    values = ((np.cumsum(counts) - counts / 2) / rest.size) ** CONTRAST
    return np.asarray(np.round(values / values[-1], DIGITS)[place].reshape(rest.shape), np.float64)


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The place of each value among all, from 0 to 1."""
    ranks = np.empty(len(values))
    ranks[np.argsort(np.round(values, 12), kind="stable")] = np.linspace(0.0, 1.0, len(values))
    return ranks
