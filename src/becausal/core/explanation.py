"""What an explanation holds: everything needed to see it, to trust it and to repeat it."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from becausal.core.checks import Checks
from becausal.core.components import count_components
from becausal.core.contracts import Pixels, Saliency, Visible
from becausal.core.errors import OptionError
from becausal.core.frames import Frame
from becausal.core.regions import cells
from becausal.core.request import Request
from becausal.core.stats import Stats
from becausal.core.targets import Target

SCHEMA = "becausal/explanation/2"


@dataclass(frozen=True)
class Origin:
    """Where the answer came from: everything needed to ask again.

    image, image_sha256: the image's name and the hash of its bytes. model, model_sha256: the model's spec and the hash
    of its file. preprocess: geometry and numbers in words. loading: the options the model was loaded with.
    """

    image: str
    image_sha256: str
    model: str
    model_sha256: str | None
    preprocess: str
    loading: Mapping[str, Any]
    request: Request
    method: str
    options: Mapping[str, Any]
    grain: int | None
    versions: Mapping[str, str]

    @property
    def fills(self) -> tuple[str, ...]:
        """What masked pixels became."""
        return self.request.fills

    @property
    def seed(self) -> int:
        """The random seed."""
        return self.request.seed

    @property
    def max_calls(self) -> int | None:
        """The limit on model calls."""
        return self.request.max_calls

    @property
    def contrast(self) -> bool:
        """Whether the set had to be necessary as well."""
        return self.request.contrast

    def record(self) -> dict[str, Any]:
        """The origin as JSON can hold it."""
        return {f.name: getattr(self, f.name) for f in fields(self)} | {"request": self.request.record()}

    @staticmethod
    def from_record(record: Mapping[str, Any]) -> "Origin":
        """The origin behind a `record`."""
        return Origin(**(dict(record) | {"request": Request.from_record(record["request"])}))


@dataclass(frozen=True, eq=False)
class Why:
    """The proof for one pixel: two mutants that differ in its cell alone, one that keeps the target and one that does not.

    part: whether the pixel belongs to the explanation; if not, `without` is None: the target holds without it anyway.
    """

    part: bool
    shown: Pixels
    without: Pixels | None
    cell: Visible | None
    text: str


@dataclass(frozen=True, eq=False)
class ExplanationRecord:
    """Why a classifier gave a label to a view.

    visible: (*grid,) bool, the explanation. responsibility: (*grid,) float, the map. others: further sufficient sets.
    view, backgrounds: what was asked about. frame: the way back to the original image. stopped_by: "finished",
    "budget", "interrupt", or "failure" (of the model; the last note says how).
    """

    label: str
    label_id: int
    confidence: float
    target: Target
    visible: Visible
    responsibility: Saliency
    checks: Checks
    stopped_by: str
    stats: Stats
    origin: Origin
    view: Pixels
    backgrounds: tuple[Pixels, ...]
    frame: Frame
    others: tuple[Visible, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def pixels(self) -> int:
        """How many pixels of the view the explanation has."""
        return int(np.count_nonzero(self.visible))

    @property
    def size(self) -> float:
        """The share of the view's pixels in the explanation."""
        return self.pixels / self.visible.size

    @property
    def pieces(self) -> int:
        """How many connected pieces the explanation has."""
        return count_components(self.visible)

    @property
    def calls(self) -> int:
        """How many mutants the classifier was shown."""
        return self.stats.calls

    @property
    def seconds(self) -> float:
        return self.stats.seconds

    def mutant(self, visible: Visible) -> Pixels:
        """The view with everything but `visible` masked by the (first) fill."""
        return np.where(visible[..., None], self.view, self.backgrounds[0])

    def why(self, *position: int) -> Why:
        """The proof for the pixel at (row, col), or at an index of the view's grid."""
        grid = self.visible.shape
        if len(position) != len(grid) or not all(0 <= p < side for p, side in zip(position, grid, strict=True)):
            raise OptionError(f"a position in the view needs {len(grid)} numbers within {grid}, not {position}")
        shown = self.mutant(self.visible)
        if not self.visible[position]:
            text = f"not part of the explanation: masked with all the rest, and the label is still {self.label}"
            return Why(False, shown, None, None, text)
        grain = self.checks.minimal_grain
        if grain is None:
            text = "part of a sufficient set whose minimality was not checked, so no proof for this pixel alone"
            return Why(True, shown, None, None, text)
        number = cells(grid, grain)
        cell = self.visible & (number == number[position])
        text = f"with this cell of {grain} px the label is {self.label}; without it, all else equal, it is lost"
        if self.target.floor > 0:
            text = f"with this cell of {grain} px the target holds; without it the label or its confidence is lost"
        if self.origin.contrast:
            text = f"without this cell of {grain} px the set is no longer sufficient and necessary at once"
        return Why(True, shown, self.mutant(self.visible & ~cell), cell, text)

    def on_original(self, values: Visible | Saliency) -> Any:
        """An array over the view's grid, mapped onto the original image; outside of the view False or 0."""
        return self.frame.to_original(values)

    def __repr__(self) -> str:
        return (
            f"<Explanation {self.label!r} ({self.confidence:.2f}) by {self.origin.method}: {self.size:.1%} of the view, "
            f"{self.pieces} pieces, {self.calls} calls, stopped by {self.stopped_by}>"
        )

    def summary(self) -> dict[str, Any]:
        """What `--json` prints of it."""
        return {
            "image": self.origin.image,
            "label": self.label,
            "label_id": self.label_id,
            "confidence": number_or_none(self.confidence),
            "method": self.origin.method,
            "calls": self.calls,
            "seconds": round(self.seconds, 4),
            "stopped_by": self.stopped_by,
            "explanation": {
                "size": self.size,
                "pixels": self.pixels,
                "pieces": self.pieces,
                "confidence": number_or_none(self.checks.confidence),
                "sufficient": self.checks.sufficient,
                "necessary": self.checks.necessary,
                "minimal_grain": self.checks.minimal_grain,
            },
            "further": [{"size": float(other.mean()), "pixels": int(other.sum())} for other in self.others],
            "notes": list(self.notes),
        }

    def record(self) -> dict[str, Any]:
        """Everything but the arrays, as JSON can hold it."""
        checks = asdict(self.checks) | {"confidence": number_or_none(self.checks.confidence)}
        return {
            "schema": SCHEMA,
            **self.summary(),
            "target": asdict(self.target),
            "checks": checks,
            "origin": self.origin.record(),
            "stats": asdict(self.stats),
            "frame": self.frame.record(),
            "view": {"shape": list(self.view.shape), "dtype": str(self.view.dtype)},
        }


def number_or_none(value: float) -> float | None:
    """JSON has no NaN."""
    return None if math.isnan(value) else float(value)
