"""The map of the search `causal`: the order in which the pixels are needed.

First come the pixels of the explanation, those before the others whose masking takes most from the confidence. The patches
of the rest follow, by what they add to the confidence beside the explanation and by what the survey found.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Saliency, Search, Visible
from becausal.core.regions import cells
from becausal.core.searches import gather
from becausal.methods.causal.survey import Survey, ask_halves, balanced_halves, fit_effects

RIDGE = 3.0
BESIDE = 2.0  # weight of the rank beside the explanation, against that in the survey
CONTRAST = 2.0  # exponent of the map's values: higher makes the first pixels stand out more
DIGITS = 6  # of values that are compared, so that rounding decides nothing


@dataclass(frozen=True, eq=False)
class MapEffects:
    """What parts of the view do to the confidence.

    Attributes:
        beside: (patches,) what each patch adds to it beside the explanation.
        inside: (*grid,) the place of each pixel of the explanation, from 0 to 1, by what masking its cell takes.
    """

    beside: NDArray[np.float64]
    inside: Saliency


def measure_effects(
    survey: Survey, explanation: Visible, side: int, *, context: int, inside: int, rng: np.random.Generator
) -> Search[MapEffects]:
    """Evaluate balanced halves: of the patches beside the explanation, and of its cells.

    Args:
        survey: The patches.
        explanation: (*grid,) a sufficient set.
        side: Of the explanation's cells, in pixels.
        context: Number of sets of patches beside the explanation.
        inside: Number of sets of its cells, with everything else visible.
        rng: For the sets.
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
    return MapEffects(beside, np.where(explanation, _ranks(taken)[cell], 0.0))


def rank_patches(survey: Survey, effects: MapEffects | None) -> NDArray[np.float64]:
    """The place of each patch in the order, from 0 for the least needed to 1, per pixel of its area."""
    area = np.bincount(survey.patch.ravel())
    score = _ranks(survey.contribution / area)
    if effects is not None:
        score = score + BESIDE * _ranks(effects.beside / area)
    return _ranks(np.round(score, DIGITS))


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
