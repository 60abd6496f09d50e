"""The answer: an explanation that draws, saves and verifies itself."""

import json
import os
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from becausal.api.saved import read_explanation
from becausal.api.verifying import verify
from becausal.core.checks import Verification
from becausal.core.explanation import ExplanationRecord
from becausal.core.files import write_files
from becausal.core.text import one_line
from becausal.images.backgrounds import BackgroundSpec
from becausal.render import figures, report
from becausal.render.endings import describe_stop
from becausal.render.likeness import name_score
from becausal.render.numbers import format_count
from becausal.render.wording import as_text, describe_set, headline

if TYPE_CHECKING:
    from matplotlib.figure import Figure


FILES = ("explanation.json", "arrays.npz", "explanation.png", "heatmap.png", "report.html")


@final
@dataclass(frozen=True, eq=False, repr=False)
class Explanation(ExplanationRecord):
    """Why a classifier gave a label to an image: the record of what was found, with ways to see, check and keep it."""

    def verify(self, model: Any, *, backgrounds: BackgroundSpec = None, image: Any = None) -> Verification:
        """Ask every claim of this explanation again, recompute the rest of its record, and say what holds.

        Args:
            model: The model to ask, as in `explain`.
            backgrounds: The folder or function that the random backgrounds came from, if they were not our own.
            image: The image that was explained, if its file has moved or it was not a file.
        """
        return verify(self, model, backgrounds=backgrounds, image=image)

    def plot(self) -> "Figure":
        """The image, the map and the explanation side by side, as a matplotlib figure."""
        return figures.plot(self)

    def __str__(self) -> str:
        """The headline, the numbers of every level or explanation, a warning where the search ended early, and all notes."""
        lines, noun = [as_text(headline(self))], name_score(self)
        if self.others:
            lines += [f"explanation {i}: {describe_set(found, noun)}" for i, found in enumerate(self.sets, start=1)]
        else:
            lines += [f"{level.name}: {describe_set(level, noun)}" for level in reversed(self.levels)]
        lines.append(f"{format_count(self.calls, 'model call')} by {self.origin.method}")
        lines += [describe_stop(self)] if self.stopped_by != "finished" else []
        return "\n".join(one_line(line) for line in [*lines, *(f"note: {note}" for note in self.notes)])

    def _repr_png_(self) -> bytes:
        return figures.png_bytes(self.plot())

    def files(self, *, render: bool = True) -> dict[str, bytes]:
        """The files that `save` writes, by name; without `render` only the record and the arrays, which `load` reads."""
        arrays: dict[str, NDArray[Any]] = {
            "visible": self.visible,
            "responsibility": self.responsibility,
            "view": self.view,
            "backgrounds": np.stack(self.backgrounds),
            "levels": np.stack([level.visible for level in self.levels]),
            "others": np.array([other.visible for other in self.others], bool).reshape(-1, *self.visible.shape),
        }
        if self.zones is not None:
            arrays["zones"] = self.zones
        if self.against is not None:
            arrays["against"] = self.against.visible
        packed = BytesIO()
        np.savez_compressed(packed, allow_pickle=False, **arrays)
        made = {
            "explanation.json": (json.dumps(self.record(), indent=2) + "\n").encode("utf-8"),
            "arrays.npz": packed.getvalue(),
        }
        if not render:
            return made
        return made | {
            "explanation.png": figures.explanation_png(self),
            "heatmap.png": figures.png_bytes(self.plot()),
            "report.html": report.render_report(self).encode("utf-8", errors="replace"),
        }

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the five files into a folder; each appears whole or not at all."""
        return write_files(Path(folder), self.files())

    @staticmethod
    def load(folder: str | os.PathLike[str]) -> "Explanation":
        """Read a saved explanation back."""
        return Explanation(**read_explanation(Path(folder)))
