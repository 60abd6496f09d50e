"""The map of the search `causal`: the order in which the pixels are needed.

First come the pixels of the explanation, the innermost level before the others. The patches of the rest follow, by what they
add to the confidence beside the explanation, by what they keep alive without it, and by what the survey found.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Saliency, Search, Visible
from becausal.methods.causal.survey import Survey, ask_halves, balanced_halves, fit_effects

RIDGE = 3.0
REST_WEIGHT = 0.5  # of the rank without the explanation against the two other ranks
FAINT = 1e-4  # confidences below this are alike
CONTRAST = 2.0  # exponent of the map's values: higher makes the first pixels stand out more
DIGITS = 6  # of values that are compared, so that rounding decides nothing


@dataclass(frozen=True)
class PatchEffects:
    """What each patch adds, (patches,): `beside` the explanation to the confidence, `without` it to its logarithm."""

    beside: NDArray[np.float64]
    without: NDArray[np.float64]


def measure_effects(
    survey: Survey, explanation: Visible, *, context: int, rest: int, rng: np.random.Generator
) -> Search[PatchEffects]:
    """Evaluate balanced halves of the patches, with the explanation always shown, and with it always masked."""
    count = len(survey.contribution)
    shown = balanced_halves(count, context, rng)
    answers = yield from ask_halves(survey.patch, shown, always=explanation)
    beside = fit_effects(shown, answers.confidence, RIDGE)
    shown = balanced_halves(count, rest, rng)
    answers = yield from ask_halves(survey.patch, shown, never=explanation)
    return PatchEffects(beside, fit_effects(shown, np.log(np.maximum(answers.confidence, FAINT)), RIDGE))


def rank_patches(survey: Survey, effects: PatchEffects | None) -> NDArray[np.float64]:
    """The place of each patch in the order, from 0 for the least needed to 1, per pixel of its area."""
    area = np.bincount(survey.patch.ravel())
    score = _ranks(survey.contribution / area)
    if effects is not None:
        score = score + _ranks(effects.beside / area) + REST_WEIGHT * _ranks(effects.without / area)
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
