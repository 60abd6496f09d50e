"""What was checked of an explanation, and what was found when it was checked again."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, final

import numpy as np

from becausal.core.certificates import Certificate
from becausal.core.components import count_components
from becausal.core.contracts import Visible


@dataclass(frozen=True)
class Checks:
    """The claims about one explanation E, each of them asked of the classifier.

    sufficient: E alone, all else masked, keeps the target. confidence: the label's probability then (NaN without
    scores). necessary: masking E, all else shown, loses the target; None where it was not evaluated. minimal_grain: the side
    of the cells, in pixels, of which none can be removed from E; None where that does not hold or was not evaluated. Where E
    is a level around another one, this is about the cells that it adds. cells: how many these are; each was removed in turn.
    """

    sufficient: bool
    confidence: float
    necessary: bool | None = None
    minimal_grain: int | None = None
    cells: int = 0

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
        }


@dataclass(frozen=True, eq=False)
class Level(CheckedSet):
    """One of several nested explanations.

    Attributes:
        name: "label", "half" or "most", the percentage for another share, or "any": on any background.
        share: Share of the original confidence that the set has to keep; 0 for the label alone.
        certificate: On how many random backgrounds it keeps the label; of the level "any" only.
    """

    name: str
    share: float
    certificate: Certificate | None = None

    def level_summary(self) -> dict[str, Any]:
        """The level, its size and its checks, as JSON can hold them."""
        found = {"name": self.name, "share": self.share, **self.set_summary(), "cells": self.checks.cells}
        return found if self.certificate is None else found | {"certificate": self.certificate.record()}


ANY = "any"  # the name of the level that keeps the label on random backgrounds
LEVEL_NAMES = {0.0: "label", 0.5: "half", 0.9: "most"}


def level_name(share: float) -> str:
    """The name of the level that keeps this share of the confidence."""
    return LEVEL_NAMES.get(share, f"{share:.0%}")


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
        self,
        claims: Iterable[Claim] = (),
        *,
        recomputed: Sequence[str] = (),
        unchecked: Sequence[str] = (),
        notes: Sequence[str] = (),
    ) -> None:
        super().__init__(claims)
        self.recomputed, self.unchecked, self.notes = tuple(recomputed), tuple(unchecked), tuple(notes)

    @property
    def holds(self) -> bool:
        """Whether every claim holds."""
        return all(claim.holds for claim in self)


def compare(stated: Checks, found: Checks, *, tolerance: float = 1e-3) -> list[Claim]:
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
        close = abs(stated.confidence - found.confidence) <= tolerance
        claims.append(Claim("confidence", f"{stated.confidence:.4f}", f"{found.confidence:.4f}", close))
    return claims
