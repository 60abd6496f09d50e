"""Certificates: on how many random backgrounds a set of pixels keeps its label, with an exact bound.

Backgrounds are numbered, and each is drawn independently of the others. A certificate counts those from `first` on. They
must be fresh, i.e. no search may have seen them; otherwise the set was fitted to them and the bound claims too much. Where
several sets are tried until one gets a certificate, each try needs a share of the permitted error, too: with `tries` of
them, a confidence of 1 - error / tries.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from becausal.core.contracts import Search, Stop, Visible, with_hints
from becausal.core.errors import OptionError
from becausal.core.intervals import MOST_CASES, lower_bound
from becausal.core.schema import read_fields

WAVE = 32  # backgrounds evaluated before the failures are counted
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
        most = lower_bound(self.kept, self.asked, self.confidence) if self.asked else 0.0
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
        count: Backgrounds that were to be evaluated.
        asked: Backgrounds that were evaluated: fewer where enough had failed, or the search was stopped.
        failed: The numbers of the backgrounds on which the label was lost.
    """

    first: int
    count: int
    asked: int
    failed: tuple[int, ...]

    @property
    def failures(self) -> int:
        """Backgrounds on which the label was lost."""
        return len(self.failed)

    def certificate(self, share: float, confidence: float, backgrounds: Mapping[str, str | int]) -> Certificate:
        """The certificate that follows from the counts.

        Backgrounds that were not evaluated count as failures in the bound: so it is right whenever the evaluation ended.
        """
        bound = lower_bound(self.asked - self.failures, self.count, confidence)
        return Certificate(share, self.asked, self.failures, bound, confidence, self.first, dict(backgrounds))


def certify(visible: Visible, *, first: int, count: int, allowed: int) -> Search[Tally]:
    """Evaluate a set on the backgrounds `first` to `first + count - 1`.

    Args:
        visible: The set, (*grid,).
        first: Number of the first background.
        count: How many backgrounds.
        allowed: The evaluation ends once more have failed than this.
    """
    asked, failed = 0, tuple[int, ...]()
    while asked < count and len(failed) <= allowed:
        draws = range(first + asked, first + min(asked + WAVE, count))
        try:
            answers = yield with_hints(np.repeat(visible[None], len(draws), axis=0), draws=draws)
            is_stopped = False
        except Stop as stop:
            answers, is_stopped = stop.answers, True
        failed += tuple(first + asked + int(row) for row in np.flatnonzero(~answers.holds))
        asked += len(answers)
        if is_stopped:
            break
    return Tally(first, count, asked, failed)
