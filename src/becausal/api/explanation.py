"""The answer: an explanation with everything needed to see it, to trust it and to repeat it."""

import json
import math
import os
import shutil
import tempfile
import zlib
from dataclasses import asdict, dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np

from becausal.core.checks import Checks, Claim
from becausal.core.contracts import Pixels, Saliency, Visible
from becausal.core.errors import OptionError, OutputError
from becausal.core.regions import cells, pieces
from becausal.core.targets import Target
from becausal.engine.engine import Stats
from becausal.images.loading import Frame

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCHEMA = "becausal/explanation/1"
FILES = ("explanation.json", "arrays.npz", "explanation.png", "heatmap.png", "report.html")


@dataclass(frozen=True)
class Origin:
    """Where the answer came from: everything needed to ask again.

    image, image_sha256: the picture's name and the hash of its bytes. model, model_sha256: the model's spec and the hash
    of its file. preprocess: geometry and numbers in words. loading: the options the model was loaded with.
    """

    image: str
    image_sha256: str
    model: str
    model_sha256: str | None
    preprocess: str
    loading: dict[str, Any]
    method: str
    options: dict[str, Any]
    fills: tuple[str, ...]
    seed: int
    max_calls: int | None
    grain: int | None
    versions: dict[str, str]
    contrast: bool = False


@dataclass(frozen=True)
class Why:
    """The proof for one pixel: two mutants that differ in its cell alone, one that keeps the target and one that does not.

    part: whether the pixel belongs to the explanation; if not, `without` is None: the target holds without it anyway.
    """

    part: bool
    shown: Pixels
    without: Pixels | None
    cell: Visible | None
    text: str


@dataclass(frozen=True)
class Explanation:
    """Why a classifier gave a label to a view.

    visible: (*grid,) bool, the explanation. responsibility: (*grid,) float, the map. others: further sufficient sets.
    view, backgrounds: what was asked about. frame: the way back to the original picture. stopped_by: "finished",
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
    notes: tuple[str, ...] = field(default=())

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
        return pieces(self.visible)

    @property
    def calls(self) -> int:
        """How many mutants the classifier was shown."""
        return self.stats.calls

    @property
    def seconds(self) -> float:
        return self.stats.seconds

    def mutant(self, visible: Visible) -> Pixels:
        """The view with everything but `visible` hidden by the (first) fill."""
        return np.where(visible[..., None], self.view, self.backgrounds[0])

    def why(self, *position: int) -> Why:
        """The proof for the pixel at (row, col), or at an index of the view's grid."""
        grid = self.visible.shape
        if len(position) != len(grid) or not all(0 <= p < side for p, side in zip(position, grid, strict=True)):
            raise OptionError(f"a position in the view needs {len(grid)} numbers within {grid}, not {position}")
        shown = self.mutant(self.visible)
        if not self.visible[position]:
            text = f"not part of the explanation: hidden with all the rest, and the label is still {self.label}"
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
        """An array over the view's grid, mapped onto the original picture; outside of the view False or 0."""
        return self.frame.to_original(values)

    def verify(self, model: Any) -> list[Claim]:
        """Ask every claim of this explanation again and say which hold."""
        from becausal.api import verify

        return verify(self, model)

    def plot(self) -> "Figure":
        """The picture, the map and the explanation side by side, as a matplotlib figure."""
        from becausal.render.figures import plot

        return plot(self)

    def _repr_png_(self) -> bytes:
        from becausal.render.figures import png_bytes

        return png_bytes(self.plot())

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
            "confidence": _number(self.confidence),
            "method": self.origin.method,
            "calls": self.calls,
            "seconds": round(self.seconds, 4),
            "stopped_by": self.stopped_by,
            "explanation": {
                "size": self.size,
                "pixels": self.pixels,
                "pieces": self.pieces,
                "confidence": _number(self.checks.confidence),
                "sufficient": self.checks.sufficient,
                "necessary": self.checks.necessary,
                "minimal_grain": self.checks.minimal_grain,
            },
            "further": [{"size": float(other.mean()), "pixels": int(other.sum())} for other in self.others],
            "notes": list(self.notes),
        }

    def record(self) -> dict[str, Any]:
        """Everything but the arrays, as JSON can hold it."""
        checks = asdict(self.checks) | {"confidence": _number(self.checks.confidence)}
        return {
            "schema": SCHEMA,
            **self.summary(),
            "target": asdict(self.target),
            "checks": checks,
            "origin": asdict(self.origin) | {"fills": list(self.origin.fills)},
            "stats": asdict(self.stats),
            "frame": self.frame.record(),
            "view": {"shape": list(self.view.shape), "dtype": str(self.view.dtype)},
        }

    def files(self, *, pictures: bool = True) -> dict[str, bytes]:
        """The files that `save` writes, by name; without `pictures` only the record and the arrays, which `load` reads."""
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
        if not pictures:
            return made
        from becausal.render.figures import explanation_png, plot_map, png_bytes
        from becausal.render.report import render_report

        return made | {
            "explanation.png": explanation_png(self),
            "heatmap.png": png_bytes(plot_map(self)),
            "report.html": render_report(self).encode("utf-8"),
        }

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the five files into a folder; each appears whole or not at all."""
        folder = Path(folder)
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            made = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        except OSError as error:
            raise OutputError(f"cannot write to {folder}: {error.strerror or error}") from error
        try:
            for name, content in self.files().items():
                (made / name).write_bytes(content)
            if folder.is_dir():
                for name in FILES:
                    os.replace(made / name, folder / name)
            else:
                made.chmod(0o755)
                os.replace(made, folder)
        except OSError as error:
            raise OutputError(f"cannot write to {folder}: {error.strerror or error}") from error
        finally:
            shutil.rmtree(made, ignore_errors=True)
        return folder

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

    def renamed(self, image: str) -> "Explanation":
        """The same answer under another picture's name."""
        return replace(self, origin=replace(self.origin, image=image))


def _number(value: float) -> float | None:
    """JSON has no NaN."""
    return None if math.isnan(value) else float(value)


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
        origin=Origin(**(record["origin"] | {"fills": tuple(record["origin"]["fills"])})),
        view=data["view"],
        backgrounds=tuple(data["backgrounds"]),
        frame=Frame.from_record(record["frame"]),
        others=tuple(data["others"]),
        notes=tuple(record["notes"]),
    )
