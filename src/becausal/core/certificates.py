"""Certificates: on how many random backgrounds a set of pixels keeps its label, with a bound for all backgrounds.

Backgrounds are numbered, and each is drawn independently of the others. A certificate counts those from `first` on. They
must be fresh, i.e. no search may have seen them; otherwise the set was fitted to them and the bound claims too much. The
bound is valid at any time: the counting may end as soon as it is high enough. Where several sets are tried until one gets a
certificate, each try needs a part of the permitted error.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from becausal.core.errors import OptionError
from becausal.core.intervals import MOST_CASES, anytime_bound
from becausal.core.schema import read_fields

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
