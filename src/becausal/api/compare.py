"""Methods side by side on one picture: the same model, fill, target and extraction for all."""

import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from becausal.api import Failure, Request, Status, explain_many
from becausal.api.explanation import Explanation
from becausal.core.contracts import Classifier, Visible
from becausal.core.errors import BecausalError, FillError, ImageError, OptionError, OutputError, TargetError
from becausal.core.metrics import STEPS, Curves, overlap, trace_curves
from becausal.core.problem import Problem
from becausal.engine.engine import Engine
from becausal.images.loading import InputImage, load_image
from becausal.methods import METHODS
from becausal.models import as_classifier

SCHEMA = "becausal/comparison/1"
FILES = ("comparison.json", "comparison.png", "comparison.html")

Watch = Callable[[Status], None]


@dataclass(frozen=True)
class Row:
    """What one method found and how it measured up, or why it could not run.

    overlap: the share of the explanation on the photobomber; None without its truth. curves: insertion and deletion;
    None for a model that gives labels only. seconds: the method with extraction, and minimising where that was asked.
    """

    method: str
    explanation: Explanation | None = None
    curves: Curves | None = None
    overlap: float | None = None
    seconds: float = 0.0
    error: str | None = None

    def record(self) -> dict[str, Any]:
        """The row as JSON can hold it."""
        if self.explanation is None:
            return {"method": self.method, "error": self.error}
        found, curves = self.explanation, self.curves
        return {
            "method": self.method,
            "needs": METHODS[self.method].needs,
            "options": found.origin.options,
            "size": found.size,
            "pixels": found.pixels,
            "pieces": found.pieces,
            "overlap": self.overlap,
            "insertion": None if curves is None else curves.insertion_area,
            "deletion": None if curves is None else curves.deletion_area,
            "confidence": None if math.isnan(found.checks.confidence) else found.checks.confidence,
            "sufficient": found.checks.sufficient,
            "minimal_grain": found.checks.minimal_grain,
            "calls": found.calls,
            "seconds": round(self.seconds, 3),
            "stopped_by": found.stopped_by,
            "notes": list(found.notes),
        }


@dataclass(frozen=True)
class Comparison:
    """All rows, in the order of the methods. truth: (*grid,) the photobomber, None where it is not known."""

    rows: tuple[Row, ...]
    truth: Visible | None = None

    @property
    def first(self) -> Explanation:
        """Any of the explanations: they share picture, view, label and model."""
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
            "confidence": None if math.isnan(first.confidence) else first.confidence,
            "fills": list(first.origin.fills),
            "seed": first.origin.seed,
            "grain": first.origin.grain,
            "max_calls": first.origin.max_calls,
            "metric_steps": STEPS,
            "truth_pixels": None if self.truth is None else int(np.count_nonzero(self.truth)),
            "rows": [row.record() for row in self.rows],
            "versions": first.origin.versions,
        }

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write table, figure and page into a folder; each file appears whole or not at all."""
        from becausal.render.comparison import comparison_png
        from becausal.render.comparison_page import render_comparison

        folder = Path(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            made = Path(tempfile.mkdtemp(prefix=".comparison.", dir=folder))
        except OSError as error:
            raise OutputError(f"cannot write to {folder}: {error.strerror or error}") from error
        try:
            text = json.dumps(self.record(), indent=2, allow_nan=False)
            (made / "comparison.json").write_text(text + "\n", encoding="utf-8")
            (made / "comparison.png").write_bytes(comparison_png(self))
            (made / "comparison.html").write_text(render_comparison(self), encoding="utf-8")
            for name in FILES:
                os.replace(made / name, folder / name)
        except OSError as error:
            raise OutputError(f"cannot write to {folder}: {error.strerror or error}") from error
        finally:
            shutil.rmtree(made, ignore_errors=True)
        return folder


def choose_methods(text: str) -> tuple[str, ...]:
    """The methods of a list with commas between, or all. Raises OptionError for one that does not exist."""
    if text.strip().lower() == "all":
        return tuple(METHODS)
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    unknown = [name for name in names if name not in METHODS]
    if unknown or not names:
        what = ", ".join(unknown) or repr(text)
        raise OptionError(f"unknown method {what}: take all, or some of {', '.join(METHODS)}")
    return names


def compare_methods(
    image: Any,
    model: Any,
    methods: Sequence[str],
    *,
    request: Request | None = None,
    truth: Any = None,
    progress: Watch | None = None,
) -> Comparison:
    """Run methods one after the other on the same picture, and measure what each finds.

    request: what is asked of all of them; its method and options are left aside, and its grain is "not at all" unless
    given. truth: the photobomber as a picture or an array of the original's size, white where it is. A method that
    cannot run on this model gives a row that says why; what none of them could do, such as a picture that cannot be
    read, is raised.
    """
    classifier = as_classifier(model)
    base = request or Request(grain=None)
    if base.grain == "default":
        base = replace(base, grain=None)
    picture = image if isinstance(image, InputImage) else load_image(image)
    rows: list[Row] = []
    covered: Visible | None = None
    for name in methods:
        row = _run(picture, classifier, replace(base, method=name, options=None), progress)
        if truth is not None and row.explanation is not None:
            covered = _read_truth(truth, row.explanation) if covered is None else covered
            row = replace(row, overlap=overlap(row.explanation.visible, covered))
        rows.append(row)
        if row.explanation is not None and row.explanation.stopped_by == "interrupt":
            break
    if not any(row.explanation is not None for row in rows):
        raise OptionError("none of the methods could run: " + "; ".join(f"{row.method}: {row.error}" for row in rows))
    return Comparison(tuple(rows), covered)


def _run(picture: Any, classifier: Classifier, request: Request, progress: Watch | None) -> Row:
    method = str(request.method)
    begun = time.perf_counter()
    try:
        answer = next(explain_many([picture], classifier, request=request, progress=progress))
        if isinstance(answer, Failure):
            raise answer.error
        seconds = time.perf_counter() - begun
        return Row(method, answer, _measure(answer, classifier), seconds=seconds)
    except (ImageError, TargetError, FillError, OutputError):
        raise  # the same for every method
    except BecausalError as error:
        return Row(method, error=" ".join(str(error).split()))
    except Exception as error:  # a library behind one method must not cost the others their rows
        return Row(method, error=f"unexpected {type(error).__name__}: {' '.join(str(error).split())[:200]}")


def _measure(explanation: Explanation, classifier: Classifier) -> Curves | None:
    """Insertion and deletion, asked apart from the method: they are not among its calls."""
    if math.isnan(explanation.confidence):
        return None
    case = Problem(explanation.view, explanation.backgrounds, explanation.target)
    search = trace_curves(explanation.responsibility, np.random.default_rng(explanation.origin.seed))
    return Engine(classifier).run(case, search).result


def _read_truth(truth: Any, explanation: Explanation) -> Visible:
    """The photobomber over the view's grid."""
    pixels = load_image(truth).pixels
    wanted = explanation.frame.original
    if tuple(pixels.shape[:-1]) != tuple(wanted):
        raise ImageError(f"the truth has shape {pixels.shape[:-1]}; the picture it belongs to has {tuple(wanted)}")
    inside: Visible = pixels.max(axis=-1) > (127 if pixels.dtype == np.uint8 else 0)
    covered: Visible = explanation.frame.from_original(inside)
    return covered
