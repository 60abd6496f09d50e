"""One image of a run as the rules of a check see it: its row, its pixels, and the same image in the baseline."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from becausal.batch.differences import overlap_between
from becausal.batch.reading import BatchRun, IndexRow
from becausal.core.contracts import Visible
from becausal.core.frames import Frame


@dataclass(frozen=True)
class Evidence:
    """One image of the run, explained or not.

    Pixels are read when a rule needs them, at most once; then OutputError is raised if they cannot be read. earlier: the
    row of the same image in the baseline, None if there is none.
    """

    run: BatchRun
    row: IndexRow
    baseline: BatchRun | None = None
    earlier: IndexRow | None = None

    @property
    def is_explained(self) -> bool:
        return bool(self.row["state"] == "done")

    @property
    def why_not_explained(self) -> str:
        """Why there is no explanation: the error, or that the image was not tried."""
        if self.row["error"] is not None:
            return str(self.row["error"])
        limit = self.run.limit
        is_left_out = limit is not None and self.row["id"] >= limit * self.run.per_image
        return f"left out by --limit {limit}" if is_left_out else "not explained yet"

    @property
    def is_explained_twice(self) -> bool:
        """Whether the baseline has an explanation as well."""
        return self.is_explained and self.earlier is not None and self.earlier["state"] == "done"

    @cached_property
    def pixels(self) -> tuple[Visible, Frame]:
        """The explanation, (*grid,) bool, and the frame of its view."""
        return self.run.load_visible(self.row["id"])

    @property
    def overlap(self) -> float | None:
        """Intersection over union with the baseline's explanation; None where they cannot be compared."""
        if self.baseline is None or self.earlier is None:
            return None
        return overlap_between(self.pixels, self.baseline.load_visible(self.earlier["id"]))

    def share_in(self, area: Visible) -> float | None:
        """The share of the explanation in an area over the view's grid; None for an empty explanation."""
        visible, _ = self.pixels
        count = int(np.count_nonzero(visible))
        return int(np.count_nonzero(visible & area)) / count if count else None
