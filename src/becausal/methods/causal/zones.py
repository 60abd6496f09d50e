"""The map of an explanation, in zones: what is needed, what would carry the label without it, and what the rest does.

Two searches over patches of the view. *Backup*: with the core masked, and as long as a tenth of the confidence is left, the
patches whose masking costs most. *Context*: with the core and the backup shown, the patches that add most, in rounds, until
none is left; those of `enough` first. Once the confidence has been at its highest, what is still to come speaks against the
label.
"""

from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Saliency, Search, Visible, Zone
from becausal.core.patches import superpixels
from becausal.core.problem import Problem
from becausal.core.regions import box_blur

LEFT = 0.1  # of the confidence: as long as more is left without the explanation, there is backup
MATTERS = 0.1  # of the confidence, that masking a patch has to cost; where none does, others stand in for each
COSTLIEST = 0.15  # of the remaining patches are taken into the backup at a time
BEST = 0.34  # of the remaining patches are taken into the context at a time
ROUNDS = 8  # of backup, at most: each asks for every patch that is left
DROP = 0.02  # by which the confidence falls at the end, where something speaks against the label
DIGITS = 6  # of values that are compared, so that rounding decides nothing
# The values of each zone, with gaps between them. The rest of `enough` comes after the backup, some of which is in it: once
# the core is masked, the label hangs on the backup (insertion 0.516 and deletion 0.036, else 0.535 and 0.042).
BANDS = {
    Zone.AGAINST: (0.0, 0.05), Zone.CONTEXT: (0.1, 0.35), Zone.ENOUGH: (0.4, 0.55), Zone.BACKUP: (0.6, 0.75),
    Zone.CORE: (0.8, 1.0),
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Order:
    """Patches of the view outside of the core, (*grid,) the number of each pixel's, of the core -1.

    enough, backup, context, against: their numbers, those that come first in the map first.
    """

    patch: NDArray[np.intp]
    enough: tuple[int, ...]
    backup: tuple[int, ...]
    context: tuple[int, ...]
    against: tuple[int, ...]


def order_patches(problem: Problem, core: Visible, enough: Visible, expected: Saliency, count: int) -> Search[Order]:
    """Find the zones of what is not in the core, over about `count` patches of the view.

    core, enough: (*grid,). expected: (*grid,) what masking each pixel may cost, for patches none of which costs much alone.
    """
    patch = superpixels(problem.view, count)
    patch[enough] += int(patch.max()) + 1  # patches that lie in both are two
    patch[core] = -1
    areas = np.bincount(patch[~core]).astype(np.float64)
    numbers, inside = np.flatnonzero(areas), set(patch[enough & ~core].tolist())
    # A sliver of a patch would have an effect per pixel that is mostly noise.
    areas = np.maximum(areas, core.size / count / 4)
    expected_costs = np.bincount(patch[~core], expected[~core], len(areas))
    left, masked, backup = numbers.tolist(), core.copy(), list[int]()
    for _ in range(ROUNDS):
        # The whole view, too, whose answer is known: what is a tenth of its confidence.
        answers = yield np.stack([np.ones_like(core), ~masked, *(~masked & (patch != number) for number in left)])
        whole, now, without = answers.confidence[0], answers.confidence[1], answers.confidence[2:]
        if not left or not now >= LEFT * whole:
            break
        costs = now - without if now - without.min() >= MATTERS * now else expected_costs[left]
        chosen = [left[place] for place in _best(costs / areas[left], ceil(COSTLIEST * len(left)))]
        backup += chosen
        left = [number for number in left if number not in chosen]
        masked |= np.isin(patch, chosen)
    first, _ = yield from _add_in_rounds(patch, areas, masked & enough, [number for number in left if number in inside])
    rest = [number for number in left if number not in inside]
    context, levels = yield from _add_in_rounds(patch, areas, masked | enough, rest)
    highest = int(np.argmax(np.round(levels, DIGITS)))
    end = highest if levels[highest] - levels[-1] >= DROP else len(context)
    parts = [tuple(number for some in rounds for number in some) for rounds in (first, context[:end], context[end:])]
    return Order(patch, parts[0], tuple(backup), parts[1], parts[2])


def _add_in_rounds(
    patch: NDArray[np.intp], areas: NDArray[np.float64], shown: Visible, left: list[int]
) -> Search[tuple[list[list[int]], list[float]]]:
    """The patches that add most to the confidence beside what is shown, round by round; and the confidence before each."""
    rounds: list[list[int]] = []
    levels: list[float] = []
    while left:
        answers = yield np.stack([shown, *(shown | (patch == number) for number in left)])
        levels.append(float(answers.confidence[0]))
        gains = (answers.confidence[1:] - answers.confidence[0]) / areas[left]
        rounds.append([left[place] for place in _best(gains, ceil(BEST * len(left)))])
        left = [number for number in left if number not in rounds[-1]]
        shown = shown | np.isin(patch, rounds[-1])
    answers = yield shown[None]
    return rounds, [*levels, float(answers.confidence[0])]


def _best(values: NDArray[np.float64], count: int) -> NDArray[np.intp]:
    return np.argsort(-np.round(values, DIGITS), kind="stable")[:count]


def draw_zones(core: Visible, enough: Visible, costs: Saliency, order: Order) -> tuple[Saliency, NDArray[np.uint8]]:
    """The map, (*grid,), with maximum 1, and the zone of each pixel. costs: (*grid,) of masking the pixels of the core."""
    zones, place = np.full(core.shape, Zone.CORE, np.uint8), np.zeros(core.shape)
    for zone, numbers in zip(
        (Zone.ENOUGH, Zone.BACKUP, Zone.CONTEXT, Zone.AGAINST),
        (order.enough, order.backup, order.context, order.against), strict=True,
    ):  # fmt: skip
        for rank, number in enumerate(numbers):
            inside = order.patch == number
            zones[inside], place[inside] = zone, 1 - (rank + 1) / (len(numbers) + 1)
    ranks = np.unique(np.round(costs[core], DIGITS), return_inverse=True)[1]
    place[core] = ranks / max(1, ranks.max(initial=0))
    saliency = np.zeros(core.shape)
    side = max(1, max(core.shape) // 56)
    for zone, (low, high) in BANDS.items():
        own = zones == zone
        saliency[own] = low + (high - low) * _smooth(place, own, side)[own]
    zones[enough & ~core] = Zone.ENOUGH  # also what is backup: its values say so
    return np.asarray(np.round(saliency / float(saliency.max()), DIGITS), np.float64), zones


def _smooth(values: Saliency, own: Visible, side: int) -> Saliency:
    """Means over pixels nearby, of those that belong to a zone."""
    total, weight = np.where(own, values, 0.0), own.astype(np.float64)
    for axis in range(own.ndim):
        for _ in range(2):
            total, weight = (box_blur(each, side, axis) for each in (total, weight))
    return np.where(own, total / np.where(own, weight, 1.0), 0.0)
