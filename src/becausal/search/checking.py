"""The claims about a set of pixels, asked of the model: its checks, and its certificate on numbered random backgrounds."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log

import numpy as np

from becausal.core.checks import Checks
from becausal.core.contracts import Question, Search, Stop, Visible
from becausal.core.intervals import EXPECTED, MOST_CASES, exact_interval, log_evidence
from becausal.core.metrics import Transfer
from becausal.core.regions import cells
from becausal.search.drive import judge_pairs, pair
from becausal.search.minimise import Minimal, present

WAVE = 32  # backgrounds evaluated at a time, at most
LEAST_WAVE = 4  # and at least
FAILURES = 40  # a certificate takes no more backgrounds than so many failures would be permitted on
HOPELESS = 5.0  # the counts fit the share itself so many times better than the failure rate that is hoped for


def removals(visible: Visible, grain: int | None) -> Visible:
    """The set less each of its cells in turn, (k, *grid), none without a grain."""
    if grain is None or not visible.any():
        return visible[None][:0]
    cell = cells(visible.shape, grain)
    return np.stack([visible & (cell != c) for c in present(visible, cell)])


def claims(minimal: Minimal) -> Visible:
    """The questions behind the claims on a set: itself, its complement, and with a grain the removal of each cell."""
    return np.concatenate([[minimal.visible, ~minimal.visible], removals(minimal.visible, minimal.grain)])


def check(visible: Visible, *, grain: int | None, contrast: bool = False) -> Search[Checks]:
    """Ask every claim: sufficiency, necessity, and with a grain the removal of each cell.

    contrast: a removal loses the target also where what is left is no longer necessary.
    """
    answers = yield Question(np.stack([visible, ~visible]), exact=True)
    lost, wave = True, removals(visible, grain)
    if len(wave):
        kept = judge_pairs((yield pair(Question(wave)))) if contrast else (yield wave)
        lost = not kept.holds.any()
    necessary = not bool(answers.holds[1])
    return Checks(bool(answers.holds[0]), float(answers.confidence[0]), necessary, grain if lost else None, len(wave))


def check_panel(visible: Visible, panel: Sequence[int], grain: int | None) -> Search[bool]:
    """Whether a set holds on all backgrounds with these numbers, and with a grain, without any of its cells not on all.

    What is left without a cell may also fail in the fills. A set that has failed is asked no more, so most cost one call.
    """
    asked = np.concatenate([visible[None], removals(visible, grain)])
    holds = np.ones(len(asked), bool)
    for number in (None, *panel):
        left = np.flatnonzero(holds)
        draws = None if number is None else np.full(len(left), number)
        if len(left):
            holds[left] = (yield Question(asked[left], draws=draws, exact=True)).holds
    return bool(holds[0] and not holds[1:].any())


def last_checks(minimal: Minimal, *, is_guided: bool = False) -> Search[Checks]:
    """Sufficiency and necessity; minimality was asked on the way, removal by removal.

    is_guided: whether a twin found the set, so that without an answer of the model itself nothing is known of it.
    """
    visible, grain = minimal.visible, minimal.grain
    count = len(present(visible, cells(visible.shape, grain))) if grain else 0
    try:
        answers = yield Question(np.stack([visible, ~visible]), exact=True)
    except Stop as stop:
        answers = stop.answers
    sufficient = bool(answers.holds[0]) if len(answers) else not is_guided  # every set on the way was seen to be sufficient
    confidence = float(answers.confidence[0]) if len(answers) else float("nan")
    necessary = not bool(answers.holds[1]) if len(answers) > 1 else None
    return Checks(sufficient, confidence, necessary, grain, count)


@dataclass(frozen=True)
class Tally:
    """How often a set kept its label, on `asked` backgrounds from number `first` on.

    failed, margins: the numbers of the others, and the margins there.
    """

    first: int
    asked: int = 0
    failed: tuple[int, ...] = ()
    margins: tuple[float, ...] = field(default=(), compare=False)

    @property
    def failures(self) -> int:
        return len(self.failed)

    @property
    def kept(self) -> int:
        return self.asked - self.failures


def certify(
    visible: Visible, *, first: int, share: float, confidence: float, wave: int = WAVE, most_failures: int = MOST_CASES
) -> Search[Tally]:
    """Evaluate a set on backgrounds until it is shown to keep its label on a share of all, or this has become hopeless.

    visible: (*grid,). first: number of the first background. confidence: of the bound that has to reach the share.
    """
    tally, enough, most = Tally(first), -log(1 - confidence), most_backgrounds(share)
    while tally.asked < most and tally.failures < most_failures and not is_hopeless(tally, share):
        kept, failures = tally.kept, tally.failures
        if kept > share * tally.asked and log_evidence(kept, failures, share, share) >= enough:
            break
        # No more than it takes if all of them are kept: the bound is valid whenever one looks, so that one may look often,
        # and each look saves the calls that would have followed.
        reaches = (more for more in range(1, wave) if log_evidence(kept + more, failures, share, share) >= enough)
        count = min(max(next(reaches, wave), LEAST_WAVE), most - tally.asked)
        tally, is_stopped = yield from _evaluate(visible, tally, count)
        if is_stopped:
            break
    return tally


def most_backgrounds(share: float) -> int:
    """How many backgrounds a certificate of this share takes at most."""
    return min(MOST_CASES, round(FAILURES / (1 - share)))


def is_hopeless(tally: Tally, share: float) -> bool:
    """Whether a set fails so often that it will hardly be shown to keep its label on this share of backgrounds."""
    # A likelihood ratio of two hypotheses: the label is kept on just the share, or fails as rarely as is hoped for.
    hoped = 1 - EXPECTED * (1 - share)
    return tally.kept * log(share / hoped) + tally.failures * log(1 / EXPECTED) >= log(HOPELESS)


def _evaluate(visible: Visible, tally: Tally, count: int) -> Search[tuple[Tally, bool]]:
    """The tally after so many more backgrounds, and whether the search was stopped."""
    start = tally.first + tally.asked
    is_stopped = False
    try:
        answers = yield Question(np.repeat(visible[None], count, axis=0), draws=np.arange(start, start + count), exact=True)
    except Stop as stop:
        answers, is_stopped = stop.answers, True
    rows = np.flatnonzero(~answers.holds)
    failed, margins = tuple((start + rows).tolist()), tuple(answers.margin[rows].tolist())
    return Tally(tally.first, tally.asked + len(answers), tally.failed + failed, tally.margins + margins), is_stopped


def count_kept(visible: Visible, *, first: int, count: int) -> Search[Tally]:
    """Evaluate a set, (*grid,), on the backgrounds `first` to `first + count - 1`. Stopped, it counts what there is."""
    tally, is_stopped = Tally(first), False
    while tally.asked < count and not is_stopped:
        tally, is_stopped = yield from _evaluate(visible, tally, min(WAVE, count - tally.asked))
    return tally


def transfer(visible: Visible, *, first: int, count: int) -> Search[Transfer]:
    """Evaluate a set, (*grid,), on the backgrounds `first` to `first + count - 1`.

    The backgrounds must be held out: drawn neither by the search nor for a certificate of this set.
    """
    tally = yield from count_kept(visible, first=first, count=count)
    low, high = exact_interval(tally.kept, tally.asked) if tally.asked else (0.0, 1.0)
    return Transfer(tally.kept, tally.asked, low, high)
