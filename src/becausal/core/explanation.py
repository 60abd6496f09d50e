"""What an explanation holds: everything needed to see it, to trust it and to repeat it; and a comparison of several."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from becausal.core.checks import Against, CheckedSet, Level, level_name, number_or_none
from becausal.core.contracts import ModelInfo, Needs, Pixels, Saliency, Visible
from becausal.core.errors import OptionError
from becausal.core.frames import Frame
from becausal.core.metrics import STEPS, Curves, Transfer
from becausal.core.regions import cells
from becausal.core.request import Request
from becausal.core.schema import read_fields
from becausal.core.stats import Stats
from becausal.core.targets import Target

SCHEMA = "becausal/explanation/3"


@dataclass(frozen=True)
class Origin:
    """Where the answer came from: everything needed to ask again.

    image, image_sha256: the image's name and the hash of its bytes. model, model_sha256: the model's spec and the hash
    of its file. preprocess: resizing and normalisation as text. loading: the options the model was loaded with, class names
    among them. files: path and sha256 of the other files that were read, by their role: image, labels, toml, and each
    fill that is a file.
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
    files: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """The origin as JSON can hold it."""
        return {f.name: getattr(self, f.name) for f in fields(self)} | {"request": self.request.record()}

    @staticmethod
    def from_record(record: Mapping[str, Any]) -> "Origin":
        """The origin behind a `record`. Raises OptionError that names the field which cannot be read."""
        return Origin(**read_fields(Origin, record, "origin"))

    def path_of(self, role: str) -> str | None:
        """The path of one of the `files`, None where there was none."""
        return self.files.get(role, {}).get("path")


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


@dataclass(frozen=True)
class NamedScore:
    """A label and the model's confidence in it on the whole view; NaN from a model that returns labels only."""

    label: str
    label_id: int
    confidence: float

    @staticmethod
    def of(info: ModelInfo, answer: NDArray[Any], label_id: int | None = None) -> "NamedScore":
        """A label, or the top one, from the answer to the whole view: scores (classes,), or a label as a 0-d array."""
        has_scores = answer.ndim == 1
        if label_id is None:
            label_id = int(np.argmax(answer)) if has_scores else int(answer)
        return NamedScore(info.name_of(label_id), label_id, float(answer[label_id]) if has_scores else float("nan"))

    @staticmethod
    def next_to(info: ModelInfo, answer: NDArray[Any], label_id: int) -> "NamedScore | None":
        """The highest label besides one; None from a model that returns labels only, or has no other."""
        if answer.ndim != 1 or len(answer) < 2:
            return None
        others = np.where(np.arange(len(answer)) == label_id, -np.inf, answer)
        return NamedScore.of(info, answer, int(np.argmax(others)))

    def record(self) -> dict[str, Any]:
        """The label as JSON can hold it."""
        return {"label": self.label, "label_id": self.label_id, "confidence": number_or_none(self.confidence)}


@dataclass(frozen=True, eq=False, kw_only=True)
class ExplanationRecord(CheckedSet):
    """Why a classifier gave a label to a view.

    visible, checks: the explanation, (*grid,) bool, and what was checked of it. levels: the explanation, the last one, and
    the set `core` inside it, where it has one. others: further explanations, each with its own checks. responsibility:
    (*grid,) float, the map. zones: (*grid,) what each pixel is to the explanation, see `Zone`; None for a map without zones.
    against: the pixels whose masking raises the confidence; None where there are none, or nobody asked. top: the top label
    of the whole view, where it is known; rival: the label of `target.against`. runner_up: the highest label
    besides the explained one. view, backgrounds: what was evaluated. frame:
    maps the view to the original image. stopped_by: "finished", "budget", "interrupt", or "failure" (of the model; the last
    note says how). original: (h, w, 3) uint8, the original image, only for figures: reduced if large, None where it
    is the view. saved: the record that it was read from, for `verify`; None where it was made here.
    """

    label: str
    label_id: int
    confidence: float
    target: Target
    responsibility: Saliency
    stopped_by: str
    stats: Stats
    origin: Origin
    view: Pixels
    backgrounds: tuple[Pixels, ...]
    frame: Frame
    levels: tuple[Level, ...] = ()
    others: tuple[CheckedSet, ...] = ()
    zones: NDArray[np.uint8] | None = None
    against: Against | None = None
    notes: tuple[str, ...] = ()
    top: NamedScore | None = None
    rival: NamedScore | None = None
    runner_up: NamedScore | None = None
    original: Pixels | None = None
    saved: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        """The last level is the explanation itself; it is the only one where none is given."""
        if self.levels:
            last = replace(self.levels[-1], visible=self.visible, checks=self.checks)
        else:
            share = self.origin.request.share
            last = Level(self.visible, self.checks, level_name(share), share)
        object.__setattr__(self, "levels", (*self.levels[:-1], last))

    @property
    def level(self) -> Level:
        """The level that is the explanation: the last one."""
        return self.levels[-1]

    @property
    def sets(self) -> tuple[CheckedSet, ...]:
        """All explanations, the first one first."""
        return (CheckedSet(self.visible, self.checks), *self.others)

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
        """The proof for the pixel at (row, col), or at an index of the view's grid, at the smallest level that has it."""
        grid = self.visible.shape
        if len(position) != len(grid) or not all(0 <= p < side for p, side in zip(position, grid, strict=True)):
            raise OptionError(f"a position in the view needs {len(grid)} numbers within {grid}, not {position}")
        if not self.visible[position]:
            number = next((i for i, other in enumerate(self.others, start=2) if other.visible[position]), None)
            where = "not part of the explanation" if number is None else f"part of explanation {number}, not of the first"
            if self.against is not None and self.against.visible[position]:
                against = self.against
                text = f"it speaks against {self.label}: with it and the rest of that set masked, the confidence is "
                text += f"{against.confidence:.2f} and not {self.confidence:.2f}"
                return Why(False, self.mutant(~against.visible), None, against.visible, text)
            text = f"{where}: masked with all the rest, and {_tell_kept(self, ' still')}"
            return Why(False, self.mutant(self.visible), None, None, text)
        level = next(level for level in self.levels if level.visible[position])
        shown, grain = self.mutant(level.visible), level.checks.minimal_grain
        if grain is None:
            text = "part of a sufficient set whose minimality was not checked, so no proof for this pixel alone"
            return Why(True, shown, None, None, text)
        number_of = cells(grid, grain)
        cell = level.visible & (number_of == number_of[position])
        text = tell_cell(self, level) + tell_rise(self, position)
        return Why(True, shown, self.mutant(level.visible & ~cell), cell, text)

    def on_original(self, values: Visible | Saliency) -> Any:
        """An array over the view's grid, mapped onto the original image; outside of the view False or 0."""
        return self.frame.to_original(values)

    def __repr__(self) -> str:
        return (
            f"<Explanation {self.label!r} ({self.confidence:.2f}) by {self.origin.method}: {self.size:.1%} of the view "
            f"(level {self.level.name}), pieces: {self.pieces}, calls: {self.calls}, {self.stopped_by}>"
        )

    def summary(self) -> dict[str, Any]:
        """What `--json` prints of it."""
        return {
            "image": self.origin.image,
            "label": self.label,
            "label_id": self.label_id,
            "confidence": number_or_none(self.confidence),
            **({} if self.target.box is None else {"box": list(self.frame.box_to_original(self.target.box))}),
            "method": self.origin.method,
            "calls": self.calls,
            "seconds": round(self.seconds, 4),
            "stopped_by": self.stopped_by,
            "level": self.level.name,
            "explanation": self.set_summary(),
            "levels": [level.level_summary() for level in self.levels],
            "further": [other.set_summary() for other in self.others],
            "against": None if self.against is None else self.against.record(),
            "notes": list(self.notes),
        }

    def record(self) -> dict[str, Any]:
        """Everything but the arrays, as JSON can hold it."""
        return {
            "schema": SCHEMA,
            **self.summary(),
            "target": asdict(self.target),
            "top": None if self.top is None else self.top.record(),
            "rival": None if self.rival is None else self.rival.record(),
            "runner_up": None if self.runner_up is None else self.runner_up.record(),
            "checks": self.checks.record(),
            "further_checks": [other.checks.record() for other in self.others],
            "origin": self.origin.record(),
            "stats": asdict(self.stats),
            "frame": self.frame.record(),
            "view": {"shape": list(self.view.shape), "dtype": str(self.view.dtype)},
        }


def tell_cell(found: ExplanationRecord, level: Level, lost: Literal["background", "fill", "share"] | None = None) -> str:
    """Why a cell of a minimal level is needed. lost: what is lost without it, of a level on random backgrounds, if known."""
    request, target = found.origin.request, found.target
    cell = f"this cell of {level.checks.minimal_grain} px"
    if level.certificate is not None:
        rest = f"with everything else {request.describe_masked()}"
        is_label = target.top == 1 and target.against is None
        noun = "target" if target.noun == "label" and not is_label else target.noun
        share = f"less than {100 * level.share:g} % of the {_name_score(found)} is left" if level.share > 0 else ""
        cases = {
            "background": "not on this one",
            "fill": f"the {noun} is lost {rest}",
            "share": f"{share} {rest}",
            None: f"the {noun} is lost on one of them, or {rest}" + (f", or {share} there" if share else ""),
        }
        return f"with {cell} {_tell_kept(found)} on all recorded backgrounds; without it, {cases[lost]}"
    if request.contrast:
        return f"without {cell} the set is no longer sufficient and necessary at once"
    if level.share > 0:
        kept = f"the {target.noun} keeps {100 * level.share:g} % of its {_name_score(found)}"
        return f"with {cell} {kept}; without it, all else equal, it does not"
    return f"with {cell} {_tell_kept(found)}; without it, all else equal, it is lost"


def tell_rise(found: ExplanationRecord, position: tuple[int, ...]) -> str:
    """That a pixel of the explanation is one of those against it too, to be added to a text; empty where it is not."""
    if found.against is None or not found.against.visible[position]:
        return ""
    return f"; yet masking it, among others, in the whole image raises the confidence to {found.against.confidence:.2f}"


def _name_score(found: ExplanationRecord) -> str:
    if found.target.box is not None or found.target.segment is not None:
        return "score" if found.target.segment is None else "IoU"
    return "similarity" if {"like", "text"} & set(found.origin.loading) else "confidence"


def _tell_kept(found: ExplanationRecord, still: str = "") -> str:
    """That the target holds, in words. still: a word after the verb."""
    if found.target.noun != "label":
        return f"the {found.target.noun} is{still} found"
    if found.target.top == 1 and found.target.against is None:
        return f"the label is{still} {found.label}"
    return f"the target{still} holds"


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
        """Whether minimality was asked for, and not proved of the core or the only set, or only for larger cells."""
        found = self.explanation
        if found is None or found.origin.grain is None:
            return False
        grain = found.levels[0].checks.minimal_grain
        return grain is None or grain > found.origin.grain

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
            "schema": "becausal/comparison/1",
            "image": first.origin.image,
            "image_sha256": first.origin.image_sha256,
            "model": first.origin.model,
            "model_sha256": first.origin.model_sha256,
            "label": first.label,
            "label_id": first.label_id,
            "confidence": number_or_none(first.confidence),
            "fills": list(first.origin.request.fills),
            "seed": first.origin.request.seed,
            "grain": first.origin.grain,
            "max_calls": first.origin.request.max_calls,
            "metric_steps": STEPS,
            "truth_pixels": None if self.truth is None else int(np.count_nonzero(self.truth)),
            "rows": [row.record() for row in self.rows],
            "versions": first.origin.versions,
        }
