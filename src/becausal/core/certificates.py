"""Certificates: on how many random backgrounds a set of pixels keeps its label, with a bound for all backgrounds.

Backgrounds are numbered, and each is drawn independently of the others. A certificate counts those from `first` on. They
must be fresh, i.e. no search may have seen them; otherwise the set was fitted to them and the bound claims too much. The
bound is valid at any time: the counting may end as soon as it is high enough. Where several sets are tried until one gets a
certificate, each try needs a part of the permitted error.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import log
from typing import Any

import numpy as np

from becausal.core.contracts import Search, Stop, Visible, with_hints
from becausal.core.errors import OptionError
from becausal.core.intervals import EXPECTED, MOST_CASES, anytime_bound, log_evidence
from becausal.core.schema import read_fields

WAVE = 32  # backgrounds evaluated at a time, at most
LEAST_WAVE = 4  # and at least
FAILURES = 40  # a certificate takes no more backgrounds than so many failures would be permitted on
HOPELESS = 5.0  # the counts fit the share itself so many times better than the failure rate that is hoped for
_SLACK = 1e-9  # of a bound that went through JSON


@dataclass(frozen=True)
class Certificate:
    """What was shown of a set of pixels: the share of backgrounds on which it keeps its label, at least.

    Attributes:
        share: Share of backgrounds that was required, above 0 and below 1.
        asked: Backgrounds that were evaluated.
        failures: Backgrounds among them on which the label was lost.
        bound: Lower bound of the share of all backgrounds on which the label is kept.
        confidence: How often such a bound is right, at least.
        first: Number of the first background.
        backgrounds: What they were drawn from: the kind, the version, the seed, and what else identifies them.
    """

    share: float
    asked: int
    failures: int
    bound: float
    confidence: float
    first: int
    backgrounds: Mapping[str, str | int] = field(hash=False)

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise OptionError(f"share must be above 0 and below 1, not {self.share}")
        if not 0 < self.confidence < 1:
            raise OptionError(f"confidence must be above 0 and below 1, not {self.confidence}")
        if not 0 <= self.asked <= MOST_CASES:
            raise OptionError(f"asked must be 0 to {MOST_CASES:,} backgrounds, not {self.asked:,}")
        if not 0 <= self.failures <= self.asked:
            raise OptionError(f"failures must be 0 to {self.asked:,}, the number of backgrounds, not {self.failures:,}")
        if self.first < 0:
            raise OptionError(f"first is the number of a background, 0 or more, not {self.first}")
        most = anytime_bound(self.kept, self.failures, self.share, self.confidence)
        if not 0 <= self.bound <= most + _SLACK:
            raise OptionError(f"bound must be 0 to {most:.6f}, which the evaluated backgrounds show, not {self.bound}")

    @property
    def kept(self) -> int:
        """Backgrounds on which the label was kept."""
        return self.asked - self.failures

    @property
    def holds(self) -> bool:
        """Whether the required share was shown."""
        return self.bound >= self.share

    def record(self) -> dict[str, Any]:
        """The certificate as JSON can hold it."""
        return asdict(self)

    @staticmethod
    def from_record(record: Any, where: str = "certificate") -> "Certificate":
        """The certificate behind a record, which is not trusted.

        Args:
            record: What was read from JSON.
            where: The name of the record in messages.

        Raises:
            OptionError: A field is missing or unknown, or has a type or value that no certificate has.
        """
        fields = read_fields(Certificate, record, where, complete=True)
        try:
            return Certificate(**fields)
        except OptionError as error:
            raise OptionError(f"{where}: {error}") from None


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

    Args:
        visible: The set, (*grid,).
        first: Number of the first background.
        share: Share of all backgrounds.
        confidence: Of the bound that has to reach it.
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
        answers = yield with_hints(np.repeat(visible[None], count, axis=0), draws=range(start, start + count), exact=True)
        is_stopped = False
    except Stop as stop:
        answers, is_stopped = stop.answers, True
    failed = tuple(start + int(row) for row in np.flatnonzero(~answers.holds))
    return Tally(tally.first, tally.asked + len(answers), tally.failed + failed), is_stopped
