"""Any Python function as an object detector: `detect:python:FILE.py:FUNCTION`.

The function gets images as (n, h, w, 3) uint8, at their own size unless the file defines `SIZE`, and returns a list with one
item per image: a dictionary with boxes, scores and labels, a tuple of these three, or an array (k, 6). Boxes are left, top,
right, bottom in pixels. Labels are ids or names. Scores may be missing, they are then 1.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from becausal.core.boxes import Detections, pack_boxes
from becausal.core.contracts import Geometry, ModelInfo, Pixels, Visible
from becausal.models.compose import StagedArrays
from becausal.models.detect.answers import read_answers
from becausal.models.detect.choosing import OTHER_THRESHOLD
from becausal.models.detect.inputs import check_colour, choose_threshold, plan_any_size, refuse_returns
from becausal.models.outputs import make_probe_images
from becausal.models.python_function import FunctionModel, Predict
from becausal.models.settings import ModelSettings
from becausal.models.user_code import call, file_sha256, load_function, read_constants, split_target, stdout_to_stderr


@final
class PythonDetector(FunctionModel):
    """A function from images to boxes."""

    def stage(self, view: Pixels, background: Pixels) -> StagedArrays:
        check_colour(view)
        return self._composer.stage(view, background)

    def ask(self, staged: Sequence[StagedArrays], which: NDArray[np.intp], visible: Visible) -> Detections:
        return self._detect(self._composer.compose(staged, which, visible))

    def classify(self, pixels: Pixels) -> Detections:
        return np.concatenate([self._detect(batch) for batch in self.batches(pixels)])

    def _detect(self, batch: NDArray[Any]) -> Detections:
        rows = len(batch)
        with stdout_to_stderr():
            answer = self._function(batch)
        with self._lock:
            return pack_boxes(read_answers(answer, rows, self.find_id))


def load(target: str, settings: ModelSettings) -> PythonDetector:
    """The function of a Python file as a detector. Raises ModelError for any error while loading it."""
    path, name, _ = split_target(target, "detect:python")
    function, module = load_function(path, name)
    own = read_constants(module, function, path.parent)
    detector = wrap(function, settings, own, spec=f"detect:python:{target}", sha256=file_sha256(path))
    if (geometry := detector.info.geometry) is not None:
        call(detector.classify, path, make_probe_images(geometry.grid, 3))
    return detector


def wrap(
    function: Predict,
    settings: ModelSettings,
    own: ModelSettings | None = None,
    *,
    spec: str | None = None,
    sha256: str | None = None,
) -> PythonDetector:
    """A function as a detector. own: what its file states; None to read the function's attributes."""
    settings = settings.over(own or read_constants(None, function, Path()))
    refuse_returns(settings)
    geometry: Geometry | None
    geometry, notes = plan_any_size(settings)
    threshold, threshold_notes = choose_threshold(settings.threshold, OTHER_THRESHOLD)
    info = ModelInfo(
        spec=spec or f"function {getattr(function, '__name__', type(function).__name__)}",
        kind="detect:python",
        geometry=geometry,
        channels=3 if geometry is not None else None,
        labels=settings.labels,
        output="boxes",
        normalisation=str(settings.normalisation) if settings.normalisation is not None else "none",
        sha256=sha256,
        inputs="array of n images",
        outputs="list of n items with boxes, scores, labels",
        notes=(*settings.notes, *notes, *threshold_notes),
        loading=settings.loading.record(),
        threshold=threshold,
    )
    return PythonDetector(function, info, settings)
