"""What was checked of an explanation: its claims, its certificate, and what was found when they were checked again.

A certificate says on how many random backgrounds a set of pixels keeps its label, with a bound for all backgrounds.
Backgrounds are numbered, and each is drawn independently of the others. A certificate counts those from `first` on. They
must be fresh, i.e. no search may have seen them; otherwise the set was fitted to them and the bound claims too much. The
bound is valid at any time: the counting may end as soon as it is high enough. Where several sets are tried until one gets a
certificate, each try needs a part of the permitted error.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, final

import numpy as np

from becausal.core.contracts import Visible
from becausal.core.errors import OptionError
from becausal.core.intervals import MOST_CASES, anytime_bound
from becausal.core.metrics import Transfer
from becausal.core.regions import count_components
from becausal.core.schema import read_fields

_SLACK = 1e-9  # of a bound that went through JSON
_CONFIDENCE = 1e-3  # how far a confidence may be from the stated one


@dataclass(frozen=True)
class Checks:
    """The claims about one explanation E, each of them asked of the classifier.

    sufficient: E alone, all else masked, keeps the target. confidence: the label's probability then (NaN without
    scores). necessary: masking E, all else shown, loses the target; None where it was not evaluated. minimal_grain: the side
    of the cells, in pixels, of which none can be removed from E; None where that does not hold or was not evaluated. cells:
    how many it has; each was removed in turn. transfer: on how many fresh random backgrounds E keeps the label; None where
    that was not evaluated.
    """

    sufficient: bool
    confidence: float
    necessary: bool | None = None
    minimal_grain: int | None = None
    cells: int = 0
    transfer: Transfer | None = None

    def record(self) -> dict[str, Any]:
        """The checks as JSON can hold them."""
        return asdict(self) | {"confidence": number_or_none(self.confidence)}


@dataclass(frozen=True, eq=False)
class CheckedSet:
    """A set of pixels, (*grid,) bool, and what was checked of it; one explanation of possibly several."""

    visible: Visible
    checks: Checks

    @property
    def pixels(self) -> int:
        """How many pixels of the view the set has."""
        return int(np.count_nonzero(self.visible))

    @property
    def size(self) -> float:
        """The share of the view's pixels in the set."""
        return self.pixels / self.visible.size

    @cached_property
    def pieces(self) -> int:
        """How many connected pieces the set has."""
        return count_components(self.visible)

    @cached_property
    def holes(self) -> int:
        """How many connected gaps the set encloses."""
        return count_components(~np.pad(self.visible, 1)) - 1

    def set_summary(self) -> dict[str, Any]:
        """The size of the set and what was checked of it, as JSON can hold it."""
        return {
            "size": self.size,
            "pixels": self.pixels,
            "pieces": self.pieces,
            "holes": self.holes,
            "confidence": number_or_none(self.checks.confidence),
            "sufficient": self.checks.sufficient,
            "necessary": self.checks.necessary,
            "minimal_grain": self.checks.minimal_grain,
            "transfer": None if self.checks.transfer is None else asdict(self.checks.transfer),
        }


@dataclass(frozen=True)
class Certificate:
    """What was shown of a set of pixels: the share of backgrounds on which it keeps its label, at least.

    share: what was required, above 0 and below 1. asked: backgrounds that were evaluated, from number `first` on. failures:
    those among them on which the label was lost. bound: lower bound of the share of all backgrounds on which it is kept.
    confidence: how often such a bound is right, at least. backgrounds: what they were drawn from: the kind, the version, the
    seed, and what else identifies them.
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
        """The certificate behind a record, which is not trusted; where: its name in messages.

        Raises OptionError where a field is missing or unknown, or has a type or value that no certificate has.
        """
        fields = read_fields(Certificate, record, where, complete=True)
        try:
            return Certificate(**fields)
        except OptionError as error:
            raise OptionError(f"{where}: {error}") from None


@dataclass(frozen=True, eq=False)
class Level(CheckedSet):
    """One of two nested explanations, or the only one.

    Attributes:
        name: "enough", the set that holds on random backgrounds; "core", the set inside it that keeps most of the confidence
            (0.9) in the plain fill; "label" for the label alone; the percentage for another share of the confidence.
        share: Share of the original confidence that the set keeps in the plain fill; 0 for the label alone.
        certificate: On what share of random backgrounds it keeps the label; of "enough" only.
        panel: Numbers of random backgrounds, of "enough" only. It keeps the label on all of them. Without any of its cells
            (`Checks.minimal_grain`) it loses the label on one, or the share of the confidence in the plain fill.
    """

    name: str
    share: float
    certificate: Certificate | None = None
    panel: tuple[int, ...] = ()

    def level_summary(self) -> dict[str, Any]:
        """The level, its size and its checks, as JSON can hold them."""
        found = {"name": self.name, "share": self.share, **self.set_summary(), "cells": self.checks.cells}
        if self.certificate is None:
            return found
        return found | {"certificate": self.certificate.record(), "panel": list(self.panel)}


ENOUGH = "enough"  # the name of the level that keeps the label on random backgrounds
_NAMES = {0.0: "label", 0.9: "core"}


def level_name(share: float) -> str:
    """The name of a set that keeps this share of the confidence in the plain fill."""
    return _NAMES.get(share, f"{share:.0%}")


@dataclass(frozen=True, eq=False)
class Against:
    """What speaks against the label: pixels whose masking raises its confidence.

    Attributes:
        visible: The pixels, (*grid,) bool.
        confidence: With them masked and everything else shown.
        gain: By how much that is above the confidence of the whole view. Each of its patches matters: with any one of them
            shown again, at least `LEAST_GAIN` of this is lost.
        patches: How many patches it has.
    """

    visible: Visible
    confidence: float
    gain: float
    patches: int

    def record(self) -> dict[str, Any]:
        """Its size and its effect, as JSON can hold them."""
        pixels = int(np.count_nonzero(self.visible))
        own = {"confidence": self.confidence, "gain": self.gain, "patches": self.patches}
        return {"size": pixels / self.visible.size, "pixels": pixels, **own}


def number_or_none(value: float) -> float | None:
    """JSON has no NaN."""
    return None if math.isnan(value) else float(value)


@dataclass(frozen=True)
class Claim:
    """One claim, as it was stated and as it was found again."""

    name: str
    stated: str
    found: str
    holds: bool


@final
class Verification(list[Claim]):
    """The claims of an explanation, each as it was stated and as it was found again.

    A field of the record that was recomputed with another result is one of the claims, and does not hold.

    Attributes:
        recomputed: The fields that were recomputed with the same result.
        unchecked: The fields, and arrays, that were compared with nothing: they are as the record says.
        notes: What a reader should know besides.
    """

    def __init__(
        self, claims: Iterable[Claim] = (), *, recomputed: Sequence[str] = (), unchecked: Sequence[str] = (),
        notes: Sequence[str] = (),
    ) -> None:  # fmt: skip
        super().__init__(claims)
        self.recomputed, self.unchecked, self.notes = tuple(recomputed), tuple(unchecked), tuple(notes)

    @property
    def holds(self) -> bool:
        """Whether every claim holds."""
        return all(claim.holds for claim in self)


def compare(stated: Checks, found: Checks) -> list[Claim]:
    """The stated claims next to what was found when they were asked again."""

    def say(value: bool | None) -> str:
        return {True: "yes", False: "no", None: "not asked"}[value]

    claims = [Claim("sufficient", say(stated.sufficient), say(found.sufficient), stated.sufficient == found.sufficient)]
    if stated.minimal_grain is not None:
        text = f"at {stated.minimal_grain} px"
        same = found.minimal_grain == stated.minimal_grain
        claims.append(Claim("minimal", text, text if same else "a cell can be removed", same))
    if stated.necessary is not None:
        claims.append(Claim("necessary", say(stated.necessary), say(found.necessary), stated.necessary == found.necessary))
    if not np.isnan(stated.confidence):
        close = abs(stated.confidence - found.confidence) <= _CONFIDENCE
        claims.append(Claim("confidence", f"{stated.confidence:.4f}", f"{found.confidence:.4f}", close))
    return claims
