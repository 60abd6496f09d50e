"""Any Python function as a classifier or a detector: `predict(batch)` with a batch (n, *shape) of the image's own type.

Images are passed as (n, h, w, 3) uint8, at their own size unless the file defines `SIZE`; arrays are passed unchanged.
A classifier returns (n, classes) scores, or labels: n integers or n names, as a numpy array, a list or a torch tensor.
A detector, `detect:python:FILE.py:FUNCTION`, returns a list with one item per image: a dictionary with boxes, scores and
labels, a tuple of these three, or an array (k, 6). Boxes are left, top, right, bottom in pixels. Labels are ids or names.
Scores may be missing, they are then 1.

`settings.read_constants` has the constants that describe the function. One more is `CHANNEL_AXIS`, or the attribute
`channel_axis`: True if it expects the channel axis of an array with one channel, which is dropped otherwise.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import UNWRITABLE, Geometry, ModelInfo, Pixels, Visible, name_id
from becausal.core.errors import AnswerError
from becausal.core.text import replace_surrogates
from becausal.models.array_model import Composer, StagedArrays
from becausal.models.boxes import check_colour, choose_threshold, plan_any_size, read_answers
from becausal.models.loading import ModelSettings, read_constants
from becausal.models.outputs import OutputClues, OutputDecoder, as_numbers, make_decoder, make_probe_images, name_classes
from becausal.models.preprocess import plan_geometry
from becausal.models.user_code import call, file_sha256, load_function, split_target, stdout_to_stderr

Predict = Callable[[NDArray[Any]], Any]


@final
class PythonClassifier:
    """A function, called with batches.

    What its scores mean is detected with the first image, unless it is stated; until then `info.output` may change.
    `info.names` grows when the function returns a name that is not among the labels; its id follows from the name alone.
    keeps_channel_axis: whether arrays with one channel keep the channel axis; it is dropped otherwise, since arrays
    without one have it only inside this package.
    """

    def __init__(
        self,
        function: Predict,
        info: ModelInfo,
        settings: ModelSettings,
        *,
        keeps_channel_axis: bool = False,
        clues: OutputClues | None = None,
    ) -> None:
        self._function = function
        self._info = info
        self._ids = {name: i for i, name in reversed(list(enumerate(settings.labels or ())))}  # the first of equal names
        self._names: dict[int, str] = {}
        self.batch_size = settings.loading.batch_size or 32
        self.fixed_sizes: tuple[int, ...] = ()
        self._lock = threading.RLock()
        prepare = settings.normalisation.apply if settings.normalisation is not None else np.asarray
        # A new batch each time: the function may keep it, or write to it.
        self._composer = Composer(prepare, reuses_buffer=False)
        self._detects = settings.detects
        self._returns = settings.returns
        self._decoder: OutputDecoder | None = None
        self._clues = clues
        self._keeps_channel_axis = keeps_channel_axis

    def __repr__(self) -> str:
        return f"<PythonClassifier {self.info}>"

    @property
    def info(self) -> ModelInfo:
        return replace(self._info, names=dict(self._names))

    def stage(self, view: Pixels, background: Pixels) -> StagedArrays:
        if self._detects:
            check_colour(view)
        self.detect_output(np.stack([view, background, view[::-1], np.full_like(view, view.min())]))
        return self._composer.stage(view, background)

    def ask(self, staged: Sequence[StagedArrays], which: NDArray[np.intp], visible: Visible) -> NDArray[Any]:
        return self._answer(self._composer.compose(staged, which, visible))

    def classify(self, pixels: Pixels) -> NDArray[Any]:
        self.detect_output(np.concatenate([pixels[:2], pixels[:1, ::-1]]))
        starts = range(0, len(pixels), self.batch_size)
        return np.concatenate([self._answer(self._composer.batch(pixels[i : i + self.batch_size])) for i in starts])

    def detect_output(self, probe: Pixels) -> None:
        """Find out what the function's scores mean, from those for a few images; boxes need no such probe."""
        with self._lock:
            if self._decoder is not None or self._detects:
                return
            raw = self._call(self._composer.batch(probe))
            source = "RETURNS or --returns"
            decoder, notes = make_decoder(raw, returns=self._returns, source=source, clues=self._clues)
            labels = name_classes(decoder, self._info.labels)
            self._info = replace(self._info, output=decoder.kind, labels=labels, notes=(*self._info.notes, *notes))
            self._decoder = decoder

    def _answer(self, batch: NDArray[Any]) -> NDArray[Any]:
        if not self._detects:
            assert self._decoder is not None  # set by stage and classify
            return self._decoder.scores(self._call(batch))
        rows = len(batch)
        with stdout_to_stderr():
            returned = self._function(batch)
        with self._lock:
            return read_answers(returned, rows, self._find_id)

    def _call(self, batch: NDArray[Any]) -> NDArray[Any]:
        """The function's output as an array; names become ids."""
        if batch.shape[-1] == 1 and not self._keeps_channel_axis:
            batch = batch[..., 0]
        rows = len(batch)
        with stdout_to_stderr():
            returned = self._function(batch)
        if isinstance(returned, (list, tuple)) and returned:
            first = returned[0]
            is_triple = isinstance(first, tuple) and len(first) == 3
            has_parts = is_triple and any(isinstance(part, (list, tuple, np.ndarray)) for part in first)
            if isinstance(first, dict) or has_parts:
                raise AnswerError("the function returns boxes, as object detectors do: use detect:python: or as_detector")
        if hasattr(returned, "detach"):
            returned = returned.detach().cpu()
        elif isinstance(returned, (list, tuple)):
            returned = [item.detach().cpu().numpy() if hasattr(item, "detach") else item for item in returned]
        output = np.asarray(returned)
        if len(output.shape) == 0 or len(output) != rows:
            raise AnswerError(f"the function returned shape {output.shape} for {rows} images; expected one row per image")
        if output.dtype.kind not in "OUS":
            return output.astype(np.int64) if output.dtype.kind == "b" else output
        table = output.reshape(rows, -1)
        if table.shape[1] == 1 and all(isinstance(item, (str, bytes, Integral)) for item in table.flat):
            with self._lock:
                texts = [item.decode("utf-8", "replace") if isinstance(item, bytes) else item for item in table[:, 0]]
                return np.array([self._find_id(str(x)) if isinstance(x, str) else int(x) for x in texts], np.int64)
        numbers = as_numbers(output)  # scores, not one name or id for each image
        with self._lock:
            self._note("the function returns scores of dtype object: converted to float")
        return numbers

    def _find_id(self, name: str) -> int:
        """A label's id: its place among the given labels, or that of its name."""
        if name not in self._ids and (safe := replace_surrogates(name)) != name:
            self._note(UNWRITABLE)
            self._ids[name] = self._find_id(safe)
        if name not in self._ids:
            number = name_id(name, size=3 if self._detects else 6)
            if self._names.setdefault(number, name) != name:
                raise AnswerError(
                    f"the names {name!r} and {self._names[number]!r} get the same id: list all names as labels"
                )
            self._ids[name] = number
        return self._ids[name]

    def _note(self, text: str) -> None:
        if text not in self._info.notes:
            self._info = replace(self._info, notes=(*self._info.notes, text))


def load(target: str, settings: ModelSettings) -> PythonClassifier:
    """The function of a Python file as a classifier or a detector. Raises ModelError for any error while loading it."""
    kind = settings.name_kind("python")
    path, name, _ = split_target(target, kind)
    function, module = load_function(path, name)
    own = read_constants(module, function, path.parent)
    classifier = wrap(
        function, settings, own, spec=f"{kind}:{target}", sha256=file_sha256(path),
        keeps_channel_axis=bool(getattr(module, "CHANNEL_AXIS", False)),
    )  # fmt: skip
    if (geometry := classifier.info.geometry) is not None:  # tried now, so that an error in it is one of loading
        run = classifier.classify if settings.detects else classifier.detect_output
        call(run, path, make_probe_images(geometry.grid, 3))
    return classifier


def wrap(
    function: Predict,
    settings: ModelSettings,
    own: ModelSettings | None = None,
    *,
    spec: str | None = None,
    sha256: str | None = None,
    keeps_channel_axis: bool = False,
) -> PythonClassifier:
    """A function as a classifier or a detector. own: what its file states; None to read the function's attributes."""
    settings = settings.over(own or read_constants(None, function, Path()))
    geometry: Geometry | None = None
    notes: tuple[str, ...] = ()
    threshold = settings.threshold or 0.0
    if settings.detects:
        geometry, notes = plan_any_size(settings)
        threshold, more = choose_threshold(settings)
        notes += more
    elif settings.crop is not None or settings.resize is not None:
        how = settings.interpolation
        geometry, notes = plan_geometry(None, resize=settings.resize, crop=settings.crop, interpolation=how)
    outputs = "list of n items with boxes, scores, labels" if settings.detects else settings.returns
    spec = spec or f"function {getattr(function, '__name__', type(function).__name__)}"
    info = replace(
        settings.begin_info("python", spec, sha256),
        labels=settings.labels,
        geometry=geometry,
        channels=3 if geometry is not None else None,
        inputs="array of n images",
        outputs=outputs or "detected with the first image",
        notes=(*settings.notes, *notes),
        threshold=threshold,
    )
    keeps_channel_axis = keeps_channel_axis or bool(getattr(function, "channel_axis", False))
    return PythonClassifier(function, info, settings, keeps_channel_axis=keeps_channel_axis)
