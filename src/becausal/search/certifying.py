"""The evaluations behind a certificate: one set of pixels on numbered random backgrounds (`core.certificates`)."""

from dataclasses import dataclass
from math import log

import numpy as np

from becausal.core.contracts import Question, Search, Stop, Visible
from becausal.core.intervals import EXPECTED, MOST_CASES, exact_interval, log_evidence
from becausal.core.metrics import Transfer

WAVE = 32  # backgrounds evaluated at a time, at most
LEAST_WAVE = 4  # and at least
FAILURES = 40  # a certificate takes no more backgrounds than so many failures would be permitted on
HOPELESS = 5.0  # the counts fit the share itself so many times better than the failure rate that is hoped for


@dataclass(frozen=True)
class Tally:
    """How often a set kept its label.

    Attributes:
        first: Number of the first background.
        asked: Backgrounds that were evaluated.
        failed: The numbers of the backgrounds on which the label was lost.
    """

    first: int
    asked: int
    failed: tuple[int, ...]

    @property
    def failures(self) -> int:
        """Backgrounds on which the label was lost."""
        return len(self.failed)

    @property
    def kept(self) -> int:
        """Backgrounds on which the label was kept."""
        return self.asked - self.failures


def count_kept(visible: Visible, *, first: int, count: int) -> Search[Tally]:
    """Evaluate a set, (*grid,), on the backgrounds `first` to `first + count - 1`. Stopped, it counts what there is."""
    tally = Tally(first, 0, ())
    while tally.asked < count:
        tally, is_stopped = yield from _evaluate(visible, tally, min(WAVE, count - tally.asked))
        if is_stopped:
            break
    return tally


def certify(visible: Visible, *, first: int, share: float, confidence: float) -> Search[Tally]:
    """Evaluate a set on backgrounds until it is shown to keep its label on a share of all, or this has become hopeless.

    visible: (*grid,). first: number of the first background. confidence: of the bound that has to reach the share.
    """
    tally, enough, most = Tally(first, 0, ()), -log(1 - confidence), most_backgrounds(share)
    while tally.asked < most and not is_hopeless(tally, share):
        if tally.kept > share * tally.asked and log_evidence(tally.kept, tally.failures, share, share) >= enough:
            break
        missing = next(
            more for more in range(1, WAVE + 1)
            if more == WAVE or log_evidence(tally.kept + more, tally.failures, share, share) >= enough
        )  # fmt: skip
        tally, is_stopped = yield from _evaluate(visible, tally, min(max(missing, LEAST_WAVE), most - tally.asked))
        if is_stopped:
            break
    return tally


def most_backgrounds(share: float) -> int:
    """How many backgrounds a certificate of this share takes at most."""
    return min(MOST_CASES, round(FAILURES / (1 - share)))


def is_hopeless(tally: Tally, share: float) -> bool:
    """Whether a set fails so often that it will hardly be shown to keep its label on this share of backgrounds."""
    hoped = 1 - EXPECTED * (1 - share)
    return tally.kept * log(share / hoped) + tally.failures * log(1 / EXPECTED) >= log(HOPELESS)


def _evaluate(visible: Visible, tally: Tally, count: int) -> Search[tuple[Tally, bool]]:
    """The tally after so many more backgrounds, and whether the search was stopped."""
    start = tally.first + tally.asked
    try:
        answers = yield Question(np.repeat(visible[None], count, axis=0), draws=np.arange(start, start + count), exact=True)
        is_stopped = False
    except Stop as stop:
        answers, is_stopped = stop.answers, True
    failed = tuple(start + int(row) for row in np.flatnonzero(~answers.holds))
    return Tally(tally.first, tally.asked + len(answers), tally.failed + failed), is_stopped


def transfer(visible: Visible, *, first: int, count: int, confidence: float = 0.95) -> Search[Transfer]:
    """Evaluate a set, (*grid,), on the backgrounds `first` to `first + count - 1`; confidence: of the interval.

    The backgrounds must be held out: drawn neither by the search nor for a certificate of this set.
    """
    tally = yield from count_kept(visible, first=first, count=count)
    low, high = exact_interval(tally.kept, tally.asked, confidence) if tally.asked else (0.0, 1.0)
    return Transfer(tally.kept, tally.asked, low, high)
