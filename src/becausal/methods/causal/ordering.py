"""The map of the search `causal`: the order in which the pixels are needed.

First come the pixels of the explanation, those before the others whose masking takes most from the confidence. The patches
of the rest follow, by what they add to the confidence beside the explanation and by what the survey found. Values say how
much: patches that add nothing are near 0, however many there are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from becausal.core.blur import box_blur
from becausal.core.contracts import Saliency, Search, Visible
from becausal.core.regions import cells
from becausal.search.descent.survey import Survey, ask_halves, balanced_halves, fit_effects
from becausal.search.drive import gather

RIDGE = 3.0
BESIDE = 2.0  # weight of the rank beside the explanation, against that in the survey
CONTRAST = 2.0  # exponent of values that are ranks: higher makes the first pixels stand out more
CONTEXT, LEAST = 0.5, 0.6  # the highest value outside of the explanation, the lowest inside
RANKED = 0.02  # share of a patch's value that depends on its rank alone, so that no two are equal
DIGITS = 6  # of values that are compared, so that rounding decides nothing


@dataclass(frozen=True, eq=False)
class MapEffects:
    """What parts of the view do to the confidence.

    Attributes:
        beside: (patches,) what each patch adds to it beside the explanation.
        inside: (*grid,) the place of each pixel of the explanation, from 0 to 1, by what masking its cell takes; smooth.
    """

    beside: NDArray[np.float64]
    inside: Saliency


def measure_effects(
    survey: Survey, explanation: Visible, side: int, *, context: int, inside: int, rng: np.random.Generator
) -> Search[MapEffects]:
    """Evaluate balanced halves: of the patches beside the explanation, and of its cells.

    explanation: (*grid,) a sufficient set. side: of its cells, in pixels. context: number of sets of patches beside it.
    inside: number of sets of its cells, with everything else visible.
    """
    _, place = np.unique(cells(explanation.shape, side)[explanation], return_inverse=True)
    cell = np.zeros(explanation.shape, np.intp)
    cell[explanation] = place
    area = np.bincount(place)
    patches, own = balanced_halves(len(survey.contribution), context, rng), balanced_halves(len(area), inside, rng)
    with_patches, with_own = yield from gather(
        [ask_halves(survey.patch, patches, always=explanation), ask_halves(cell, own, always=~explanation)]
    )
    beside = fit_effects(patches, with_patches.confidence, RIDGE)
    taken = fit_effects(own, with_own.confidence, RIDGE) / area
    return MapEffects(beside, _smooth(_ranks(taken)[cell], explanation, side // 4))


def rank_patches(survey: Survey, effects: MapEffects | None) -> NDArray[np.float64]:
    """The place of each patch in the order, from 0 for the least needed to 1, per pixel of its area."""
    area = np.bincount(survey.patch.ravel())
    score = _ranks(survey.contribution / area)
    if effects is not None:
        score = score + BESIDE * _ranks(effects.beside / area)
    return _ranks(np.round(score, DIGITS))


def draw_map(survey: Survey, effects: MapEffects | None, levels: Sequence[Visible]) -> Saliency:
    """The map, (*grid,), with maximum 1, of nested sets, smallest first, and the patches around them."""
    rest = _heights(survey, effects)[survey.patch]
    if not levels:
        return np.asarray(np.round(rest / rest.max(), DIGITS), np.float64)
    outer = levels[-1]
    if effects is not None:
        inside = effects.inside
    else:  # the levels, and within each of them the patches
        inside = np.sum(levels, axis=0) + CONTEXT * rest
    low, high = inside[outer].min(initial=np.inf), inside[outer].max(initial=0.0)
    inside = (inside - low) / (high - low) if high > low else np.ones(outer.shape)
    return np.asarray(np.round(np.where(outer, LEAST + (1 - LEAST) * inside, CONTEXT * rest), DIGITS), np.float64)


def _heights(survey: Survey, effects: MapEffects | None) -> NDArray[np.float64]:
    """How much each patch adds per pixel, from 0 to 1 and rising with its rank."""
    area, ranks = np.bincount(survey.patch.ravel()), rank_patches(survey, effects)
    gain = _share_of_highest(survey.contribution / area)
    if effects is not None:
        gain = gain + BESIDE * _share_of_highest(effects.beside / area)
    order = np.argsort(ranks)
    heights = np.empty(len(ranks))
    heights[order] = rising_fit(gain[order])
    return (1 - RANKED) * _share_of_highest(heights) + RANKED * ranks


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


def _smooth(values: Saliency, inside: Visible, radius: int) -> Saliency:
    """Values inside a set, (*grid,), averaged over those of the set nearby; 0 outside."""
    total, weight = np.where(inside, values, 0.0), inside.astype(np.float64)
    for axis in range(inside.ndim):
        for _ in range(2):
            total, weight = (box_blur(each, radius, axis) for each in (total, weight))
    return np.where(inside, total / np.where(inside, weight, 1.0), 0.0)


def order_map(rest: Saliency, levels: Sequence[Visible]) -> Saliency:
    """A map whose ranking shows the levels first, smallest first, and then the rest by its own values.

    Args:
        rest: (*grid,) values of the pixels outside of the levels.
        levels: Nested sets, (*grid,) each.

    Returns:
        The map, (*grid,), with maximum 1: a power of the share of pixels that come later.
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
