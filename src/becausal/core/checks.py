"""What was checked of an explanation, and how to check it again."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from becausal.core.components import count_components
from becausal.core.contracts import Answers, Search, Visible
from becausal.core.minimise import present
from becausal.core.regions import cells
from becausal.core.searches import contrastive


@dataclass(frozen=True)
class Checks:
    """The claims about one explanation E, each of them asked of the classifier.

    sufficient: E alone, all else masked, keeps the target. confidence: the label's probability then (NaN without
    scores). necessary: masking E, all else shown, loses the target; None where it was not evaluated. minimal_grain: the side
    of the cells, in pixels, of which none can be removed from E; None where that does not hold or was not evaluated.
    cells: how many cells E has, each of which was removed in turn.
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

    @property
    def pieces(self) -> int:
        """How many connected pieces the set has."""
        return count_components(self.visible)

    def set_summary(self) -> dict[str, Any]:
        """The size of the set and what was checked of it, as JSON can hold it."""
        return {
            "size": self.size,
            "pixels": self.pixels,
            "pieces": self.pieces,
            "confidence": number_or_none(self.checks.confidence),
            "sufficient": self.checks.sufficient,
            "necessary": self.checks.necessary,
            "minimal_grain": self.checks.minimal_grain,
        }


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


def removals(visible: Visible, grain: int) -> Visible:
    """The set less each of its cells in turn, (k, *grid)."""
    cell = cells(visible.shape, grain)
    return np.stack([visible & (cell != c) for c in present(visible, cell)])


def check(visible: Visible, *, grain: int | None, contrast: bool = False) -> Search[Checks]:
    """Ask every claim: sufficiency, necessity, and with a grain the removal of each cell.

    contrast: a removal loses the target also where what is left is no longer necessary.
    """
    answers = yield np.stack([visible, ~visible])
    lost, count = True, 0
    if grain is not None and visible.any():
        wave = removals(visible, grain)
        count = len(wave)
        asked = _ask_once(wave)
        kept = yield from contrastive(asked) if contrast else asked
        lost = not kept.holds.any()
    return Checks(
        sufficient=bool(answers.holds[0]),
        confidence=float(answers.confidence[0]),
        necessary=not bool(answers.holds[1]),
        minimal_grain=grain if lost else None,
        cells=count,
    )


def _ask_once(wave: Visible) -> Search[Answers]:
    return (yield wave)


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
