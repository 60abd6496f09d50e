"""Methods side by side on one image: the same model, fill, target and extraction for all."""

import json
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from becausal.api import Failure, Request, Status, explain_many
from becausal.core.contracts import Classifier, ModelInfo, Visible
from becausal.core.errors import BecausalError, FillError, ImageError, OptionError, OutputError, TargetError
from becausal.core.explanation import Comparison, ExplanationRecord, Row
from becausal.core.files import write_files
from becausal.core.metrics import HELD_OUT, HELD_OUT_COUNT, Curves, Transfer, overlap
from becausal.core.problem import Problem
from becausal.engine.engine import Engine
from becausal.images.backgrounds import RandomBackgrounds
from becausal.images.loading import InputImage, load_image
from becausal.methods import METHODS
from becausal.models import as_classifier
from becausal.render.comparison import comparison_png, render_comparison
from becausal.search.checking import transfer
from becausal.search.pipeline import trace_curves

Watch = Callable[[Status], None]


def save_comparison(comparison: Comparison, folder: str | os.PathLike[str]) -> Path:
    """Write the table (JSON), the figure (PNG) and the page (HTML) of a comparison into a folder."""
    text = json.dumps(comparison.record(), indent=2, allow_nan=False) + "\n"
    files = {
        "comparison.json": text.encode("utf-8"),
        "comparison.png": comparison_png(comparison),
        "comparison.html": render_comparison(comparison).encode("utf-8"),
    }
    return write_files(Path(folder), files)


def choose_methods(text: str, info: ModelInfo | None = None) -> tuple[str, ...]:
    """The methods of a list with commas between, or all that are for this kind of model. Raises OptionError for others."""
    if text.strip().lower() == "all":
        is_detector = info is not None and info.output == "boxes"
        return tuple(name for name in METHODS if METHODS[name].needs != ("gradients" if is_detector else "boxes"))
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
    """Run methods one after the other on the same image, and measure what each finds.

    request: what is asked of all of them; its method and options are left aside, and its grain is "not at all" unless
    given. truth: the photobomber as an image or an array of the original's size, white where it is. A method that
    cannot run on this model gives a row that says why; what none of them could do, such as an image that cannot be
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
            if covered is None:
                pixels, frame = load_image(truth).pixels, row.explanation.frame
                if pixels.shape[:-1] != frame.original:
                    raise ImageError(
                        f"the truth has shape {pixels.shape[:-1]}; the image it belongs to has {frame.original}"
                    )
                covered = frame.from_original(pixels.max(axis=-1) > (127 if pixels.dtype == np.uint8 else 0))
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
        curves: Curves | None = None
        if not math.isnan(answer.confidence):  # insertion and deletion, asked apart from the method: not among its calls
            case = Problem(answer.view, answer.backgrounds, answer.target)
            search = trace_curves(answer.responsibility, np.random.default_rng(answer.origin.request.seed))
            curves = Engine(classifier).run(case, search).result
        kept = measure_transfer(answer, classifier)
        return Row(method, answer, curves, transfer=kept, seconds=seconds, needs=METHODS[method].needs)
    except (ImageError, TargetError, FillError, OutputError):
        raise  # the same for every method
    except BecausalError as error:
        return Row(method, error=" ".join(str(error).split()))
    except Exception as error:  # a library behind one method must not cost the others their rows
        return Row(method, error=f"unexpected {type(error).__name__}: {' '.join(str(error).split())[:200]}")


def measure_transfer(explanation: ExplanationRecord, classifier: Classifier) -> Transfer:
    """On how many held-out backgrounds, which no search has seen, the explanation keeps the label; not among its calls."""
    target = replace(explanation.target, floor=0.0)
    sampler = RandomBackgrounds(explanation.view, explanation.origin.request.seed)
    problem = Problem(explanation.view, explanation.backgrounds, target, sampler=sampler)
    search = transfer(explanation.visible, first=HELD_OUT, count=HELD_OUT_COUNT)
    return Engine(classifier).run(problem, search).result
