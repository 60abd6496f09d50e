"""Any Python function as an object detector: `detect:python:FILE.py:FUNCTION`.

The function gets images as (n, h, w, 3) uint8, at their own size unless the file defines `SIZE`, and returns a list with one
item per image: a dictionary with boxes, scores and labels, a tuple of these three, or an array (k, 6). Boxes are left, top,
right, bottom in pixels. Labels are ids or names. Scores may be missing, they are then 1.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from becausal.core.boxes import Detections, pack_boxes
from becausal.core.contracts import Geometry, ModelInfo, Pixels, Visible, name_id
from becausal.core.errors import AnswerError
from becausal.models.compose import Composer, StagedArrays
from becausal.models.detect.answers import read_answers
from becausal.models.detect.choosing import OTHER_THRESHOLD
from becausal.models.detect.inputs import check_colour, choose_threshold, plan_any_size, refuse_returns
from becausal.models.outputs import make_probe_images
from becausal.models.settings import ModelSettings
from becausal.models.user_code import call, file_sha256, load_function, read_constants, split_target, stdout_to_stderr


@final
class PythonDetector:
    """A function from images to boxes. `info.names` grows when it returns a name that is not among the labels."""

    def __init__(self, function: Callable[[NDArray[Any]], Any], info: ModelInfo, settings: ModelSettings) -> None:
        self._function = function
        self._info = info
        self._ids = {name: i for i, name in reversed(list(enumerate(settings.labels or ())))}  # the first of equal names
        self._names: dict[int, str] = {}
        self._batch_size = settings.loading.batch_size or 32
        self._lock = threading.Lock()
        prepare = settings.normalisation.apply if settings.normalisation is not None else np.asarray
        # A new batch each time: the function may keep it, or write to it.
        self._composer = Composer(prepare, reuses_buffer=False)

    def __repr__(self) -> str:
        return f"<PythonDetector {self.info}>"

    @property
    def info(self) -> ModelInfo:
        return replace(self._info, names=dict(self._names))

    @property
    def batch_size(self) -> int:
        return self._batch_size

    @property
    def fixed_sizes(self) -> tuple[int, ...]:
        return ()

    def stage(self, view: Pixels, background: Pixels) -> StagedArrays:
        check_colour(view)
        return self._composer.stage(view, background)

    def ask(self, staged: Sequence[StagedArrays], which: NDArray[np.intp], visible: Visible) -> Detections:
        return self._detect(self._composer.compose(staged, which, visible))

    def classify(self, pixels: Pixels) -> Detections:
        starts = range(0, len(pixels), self._batch_size)
        return np.concatenate([self._detect(self._composer.batch(pixels[i : i + self._batch_size])) for i in starts])

    def _detect(self, batch: NDArray[Any]) -> Detections:
        rows = len(batch)
        with stdout_to_stderr():
            answer = self._function(batch)
        with self._lock:
            return pack_boxes(read_answers(answer, rows, self._find_id))

    def _find_id(self, name: str) -> int:
        """A label's id: its place among the given labels, or that of its name."""
        if name not in self._ids:
            number = name_id(name, size=3)
            if self._names.setdefault(number, name) != name:
                raise AnswerError(
                    f"the names {name!r} and {self._names[number]!r} get the same id: list all names as labels"
                )
            self._ids[name] = number
        return self._ids[name]


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
    function: Callable[[NDArray[Any]], Any],
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
