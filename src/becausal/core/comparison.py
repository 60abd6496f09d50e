"""What a comparison of methods on one image holds."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from becausal.core.checks import number_or_none
from becausal.core.contracts import Needs, Visible
from becausal.core.explanation import ExplanationRecord
from becausal.core.metrics import STEPS, Curves, Transfer

SCHEMA = "becausal/comparison/1"


@dataclass(frozen=True, eq=False)
class Row:
    """What one method found and how it measured up, or why it could not run.

    overlap: the share of the explanation on the photobomber; None without its truth. curves: insertion and deletion;
    None for a model that returns labels only. transfer: on how many held-out random backgrounds the label is kept.
    seconds: the method with extraction, and minimising where that was asked.
    """

    method: str
    explanation: ExplanationRecord | None = None
    curves: Curves | None = None
    overlap: float | None = None
    transfer: Transfer | None = None
    seconds: float = 0.0
    needs: Needs = "labels"
    error: str | None = None

    @property
    def is_coarser(self) -> bool:
        """Whether minimality was asked for, and not proved, or only for larger cells."""
        found = self.explanation
        if found is None or found.origin.grain is None:
            return False
        return found.checks.minimal_grain is None or found.checks.minimal_grain > found.origin.grain

    def record(self) -> dict[str, Any]:
        """The row as JSON can hold it."""
        if self.explanation is None:
            return {"method": self.method, "error": self.error}
        found, curves = self.explanation, self.curves
        return {
            "method": self.method,
            "needs": self.needs,
            "options": found.origin.options,
            "size": found.size,
            "pixels": found.pixels,
            "pieces": found.pieces,
            "overlap": self.overlap,
            "insertion": None if curves is None else curves.insertion_area,
            "deletion": None if curves is None else curves.deletion_area,
            "backgrounds": None if self.transfer is None else self.transfer.share,
            "confidence": number_or_none(found.checks.confidence),
            "sufficient": found.checks.sufficient,
            "minimal_grain": found.checks.minimal_grain,
            "calls": found.calls,
            "seconds": round(self.seconds, 3),
            "stopped_by": found.stopped_by,
            "levels": [level.level_summary() for level in found.levels],
            "notes": list(found.notes),
        }


@dataclass(frozen=True, eq=False)
class Comparison:
    """All rows, in the order of the methods. truth: (*grid,) the photobomber, None where it is not known."""

    rows: tuple[Row, ...]
    truth: Visible | None = None

    @property
    def first(self) -> ExplanationRecord:
        """Any of the explanations: they share image, view, label and model."""
        return next(row.explanation for row in self.rows if row.explanation is not None)

    def record(self) -> dict[str, Any]:
        """Everything but the arrays, as JSON can hold it."""
        first = self.first
        return {
            "schema": SCHEMA,
            "image": first.origin.image,
            "image_sha256": first.origin.image_sha256,
            "model": first.origin.model,
            "model_sha256": first.origin.model_sha256,
            "label": first.label,
            "label_id": first.label_id,
            "confidence": number_or_none(first.confidence),
            "fills": list(first.origin.fills),
            "seed": first.origin.seed,
            "grain": first.origin.grain,
            "max_calls": first.origin.max_calls,
            "metric_steps": STEPS,
            "truth_pixels": None if self.truth is None else int(np.count_nonzero(self.truth)),
            "rows": [row.record() for row in self.rows],
            "versions": first.origin.versions,
        }
