"""The answer: an explanation that draws, saves and verifies itself."""

import json
import math
import os
import zlib
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, final
from zipfile import BadZipFile

import numpy as np

from becausal.api.verifying import verify
from becausal.core.checks import Checks, Claim
from becausal.core.errors import OutputError
from becausal.core.explanation import SCHEMA, ExplanationRecord, Origin
from becausal.core.files import write_files
from becausal.core.frames import Frame
from becausal.core.stats import Stats
from becausal.core.targets import Target
from becausal.render import figures, report

if TYPE_CHECKING:
    from matplotlib.figure import Figure


FILES = ("explanation.json", "arrays.npz", "explanation.png", "heatmap.png", "report.html")


@final
@dataclass(frozen=True, eq=False, repr=False)
class Explanation(ExplanationRecord):
    """Why a classifier gave a label to an image: the record of what was found, with ways to see, check and keep it."""

    def verify(self, model: Any) -> list[Claim]:
        """Ask every claim of this explanation again and say which hold."""
        return verify(self, model)

    def plot(self) -> "Figure":
        """The image, the map and the explanation side by side, as a matplotlib figure."""
        return figures.plot(self)

    def _repr_png_(self) -> bytes:
        return figures.png_bytes(self.plot())

    def files(self, *, render: bool = True) -> dict[str, bytes]:
        """The files that `save` writes, by name; without `render` only the record and the arrays, which `load` reads."""
        arrays = BytesIO()
        np.savez_compressed(
            arrays,
            visible=self.visible,
            responsibility=self.responsibility,
            view=self.view,
            backgrounds=np.stack(self.backgrounds),
            others=np.stack(self.others) if self.others else np.zeros((0, *self.visible.shape), bool),
        )
        made = {
            "explanation.json": (json.dumps(self.record(), indent=2) + "\n").encode("utf-8"),
            "arrays.npz": arrays.getvalue(),
        }
        if not render:
            return made
        return made | {
            "explanation.png": figures.explanation_png(self),
            "heatmap.png": figures.png_bytes(figures.plot_map(self)),
            "report.html": report.render_report(self).encode("utf-8"),
        }

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the five files into a folder; each appears whole or not at all."""
        return write_files(Path(folder), self.files())

    @staticmethod
    def load(folder: str | os.PathLike[str]) -> "Explanation":
        """Read a saved explanation back."""
        folder = Path(folder)
        try:
            record = json.loads((folder / "explanation.json").read_text(encoding="utf-8"))
            with (folder / "arrays.npz").open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                data = {name: arrays[name] for name in arrays.files}
            if record["schema"] != SCHEMA:
                raise OutputError(f"{folder} has schema {record['schema']}; this version reads {SCHEMA}")
            return _from_record(record, data)
        except FileNotFoundError as error:
            raise OutputError(f"{folder} holds no saved explanation: {Path(str(error.filename)).name} is missing") from None
        except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile, zlib.error) as error:
            raise OutputError(f"{folder} holds no readable explanation: {type(error).__name__}: {error}") from None


def _from_record(record: dict[str, Any], data: dict[str, Any]) -> Explanation:
    def unknown_as_nan(value: float | None) -> float:
        return math.nan if value is None else value

    checks = record["checks"]
    return Explanation(
        label=record["label"],
        label_id=record["label_id"],
        confidence=unknown_as_nan(record["confidence"]),
        target=Target(**record["target"]),
        visible=data["visible"],
        responsibility=data["responsibility"],
        checks=Checks(**(checks | {"confidence": unknown_as_nan(checks["confidence"])})),
        stopped_by=record["stopped_by"],
        stats=Stats(**record["stats"]),
        origin=Origin.from_record(record["origin"]),
        view=data["view"],
        backgrounds=tuple(data["backgrounds"]),
        frame=Frame.from_record(record["frame"]),
        others=tuple(data["others"]),
        notes=tuple(record["notes"]),
    )
