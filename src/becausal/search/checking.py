"""The claims about a set of pixels, asked of the model."""

import numpy as np

from becausal.core.checks import Checks
from becausal.core.contracts import Question, Search, Visible
from becausal.core.regions import cells
from becausal.search.drive import judge_pairs, pair
from becausal.search.minimise import present


def removals(visible: Visible, grain: int, inner: Visible | None = None) -> Visible:
    """The set less each of its cells in turn, (k, *grid); the pixels of the level `inner` stay."""
    cell = cells(visible.shape, grain)
    added = visible if inner is None else visible & ~inner
    return np.stack([visible & ~(added & (cell == c)) for c in present(added, cell)])


def check(visible: Visible, *, grain: int | None, contrast: bool = False, inner: Visible | None = None) -> Search[Checks]:
    """Ask every claim: sufficiency, necessity, and with a grain the removal of each cell.

    contrast: a removal loses the target also where what is left is no longer necessary. inner: the level inside this one,
    of which nothing is removed.
    """
    answers = yield Question(np.stack([visible, ~visible]), exact=True)
    lost, count = True, 0
    if grain is not None and (visible if inner is None else visible & ~inner).any():
        wave = removals(visible, grain, inner)
        count = len(wave)
        kept = judge_pairs((yield pair(Question(wave)))) if contrast else (yield wave)
        lost = not kept.holds.any()
    return Checks(
        sufficient=bool(answers.holds[0]),
        confidence=float(answers.confidence[0]),
        necessary=not bool(answers.holds[1]),
        minimal_grain=grain if lost else None,
        cells=count,
    )
