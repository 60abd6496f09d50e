"""Any Python function as a classifier: `predict(batch)` with a batch (n, *shape) of the image's own type.

Images are passed as (n, h, w, 3) uint8, at their own size unless the file defines `SIZE`; arrays are passed unchanged.
The function returns (n, classes) scores, or labels: n integers or n names, as a numpy array, a list or a torch tensor.
See `user_code` for the constants that describe the function.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import UNWRITABLE, ModelInfo, Pixels, Visible, name_id
from becausal.core.errors import AnswerError
from becausal.core.text import replace_surrogates
from becausal.models.compose import Composer, StagedArrays
from becausal.models.outputs import (
    OutputClues,
    OutputDecoder,
    as_numbers,
    make_decoder,
    make_probe_images,
    name_classes,
    output_kind,
)
from becausal.models.preprocess import plan_geometry
from becausal.models.settings import ModelSettings
from becausal.models.user_code import (
    call,
    file_sha256,
    load_function,
    read_constants,
    split_target,
    stdout_to_stderr,
)

Predict = Callable[[NDArray[Any]], Any]


class FunctionModel:
    """What a function as a classifier and one as a detector have in common.

    `info.names` grows when the function returns a name that is not among the labels; its id follows from the name alone.
    """

    def __init__(self, function: Predict, info: ModelInfo, settings: ModelSettings) -> None:
        self._function = function
        self._info = info
        self._ids = {name: i for i, name in reversed(list(enumerate(settings.labels or ())))}  # the first of equal names
        self._names: dict[int, str] = {}
        self._batch_size = settings.loading.batch_size or 32
        self._lock = threading.RLock()
        prepare = settings.normalisation.apply if settings.normalisation is not None else np.asarray
        # A new batch each time: the function may keep it, or write to it.
        self._composer = Composer(prepare, reuses_buffer=False)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.info}>"

    @property
    def info(self) -> ModelInfo:
        return replace(self._info, names=dict(self._names))

    @property
    def batch_size(self) -> int:
        return self._batch_size

    @property
    def fixed_sizes(self) -> tuple[int, ...]:
        return ()

    def batches(self, pixels: Pixels) -> Iterator[NDArray[Any]]:
        """Images as batches that the function can be called with."""
        for start in range(0, len(pixels), self._batch_size):
            yield self._composer.batch(pixels[start : start + self._batch_size])

    def find_id(self, name: str) -> int:
        """A label's id: its place among the given labels, or that of its name."""
        if name not in self._ids and (safe := replace_surrogates(name)) != name:
            if UNWRITABLE not in self._info.notes:
                self._info = replace(self._info, notes=(*self._info.notes, UNWRITABLE))
            self._ids[name] = self.find_id(safe)
        if name not in self._ids:
            number = name_id(name, size=3 if self._info.output == "boxes" else 6)
            if self._names.setdefault(number, name) != name:
                raise AnswerError(
                    f"the names {name!r} and {self._names[number]!r} get the same id: list all names as labels"
                )
            self._ids[name] = number
        return self._ids[name]


@final
class PythonClassifier(FunctionModel):
    """A function, called with batches.

    What its output means is detected with the first image, unless it is stated; until then `info.output` may change.
    keeps_channel_axis: whether arrays with one channel keep the channel axis; it is dropped otherwise, since arrays
    without one have it only inside this package. clues: what helps to understand the output.
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
        super().__init__(function, info, settings)
        self._returns = settings.returns
        self._decoder: OutputDecoder | None = None
        self._clues = clues
        self._keeps_channel_axis = keeps_channel_axis

    def stage(self, view: Pixels, background: Pixels) -> StagedArrays:
        self.detect_output(np.stack([view, background, view[::-1], np.full_like(view, view.min())]))
        return self._composer.stage(view, background)

    def ask(self, staged: Sequence[StagedArrays], which: NDArray[np.intp], visible: Visible) -> NDArray[Any]:
        return self._scores(self._composer.compose(staged, which, visible))

    def classify(self, pixels: Pixels) -> NDArray[Any]:
        self.detect_output(np.concatenate([pixels[:2], pixels[:1, ::-1]]))
        return np.concatenate([self._scores(batch) for batch in self.batches(pixels)])

    def detect_output(self, probe: Pixels) -> None:
        """Detect, once, what the function's output means, from its output for a few images."""
        with self._lock:
            if self._decoder is not None:
                return
            raw = self._call(self._composer.batch(probe))
            source = "RETURNS or --returns"
            decoder, notes = make_decoder(raw, returns=self._returns, source=source, clues=self._clues)
            labels = name_classes(decoder, self._info.labels)
            self._info = replace(self._info, output=decoder.kind, labels=labels, notes=(*self._info.notes, *notes))
            self._decoder = decoder

    def _scores(self, batch: NDArray[Any]) -> NDArray[Any]:
        assert self._decoder is not None  # set by stage and classify
        return self._decoder.scores(self._call(batch))

    def _call(self, batch: NDArray[Any]) -> NDArray[Any]:
        """The function's output as an array; names become ids."""
        if batch.shape[-1] == 1 and not self._keeps_channel_axis:
            batch = batch[..., 0]
        rows = len(batch)
        with stdout_to_stderr():
            returned = self._function(batch)
        if isinstance(returned, (list, tuple)) and returned and _is_like_boxes(returned[0]):
            raise AnswerError("the function returns boxes, as object detectors do: use detect:python: or as_detector")
        output = as_array(returned)
        if len(output.shape) == 0 or len(output) != rows:
            raise AnswerError(f"the function returned shape {output.shape} for {rows} images; expected one row per image")
        if output.dtype.kind not in "OUS":
            return output.astype(np.int64) if output.dtype.kind == "b" else output
        table = output.reshape(rows, -1)
        if table.shape[1] != 1 or not all(isinstance(item, (str, bytes, Integral)) for item in table.flat):
            numbers = as_numbers(output)  # scores, not one name or id for each image
            with self._lock:
                note = "the function returns scores of dtype object: converted to float"
                if note not in self._info.notes:
                    self._info = replace(self._info, notes=(*self._info.notes, note))
            return numbers
        with self._lock:
            return np.array([self._as_id(item) for item in table[:, 0]], np.int64)

    def _as_id(self, item: Any) -> int:
        """A label's id: its place among the given labels, or that of its name."""
        name = item.decode("utf-8", "replace") if isinstance(item, bytes) else item
        return self.find_id(str(name)) if isinstance(name, str) else int(name)


def _is_like_boxes(item: Any) -> bool:
    """Whether the output for one image is that of a detector: a dictionary, or a tuple of boxes, scores and labels."""
    is_triple = isinstance(item, tuple) and len(item) == 3
    return isinstance(item, dict) or (is_triple and any(isinstance(part, (list, tuple, np.ndarray)) for part in item))


def as_array(output: Any) -> NDArray[Any]:
    """A function's output as a numpy array; tensors are converted by their own methods."""
    if hasattr(output, "detach"):
        output = output.detach().cpu()
    elif isinstance(output, (list, tuple)):
        output = [item.detach().cpu().numpy() if hasattr(item, "detach") else item for item in output]
    return np.asarray(output)


def load(target: str, settings: ModelSettings) -> PythonClassifier:
    """The function of a Python file as a classifier. Raises ModelError for any error while loading it."""
    path, name, _ = split_target(target, "python")
    function, module = load_function(path, name)
    own = read_constants(module, function, path.parent)
    keeps_channel_axis = bool(getattr(module, "CHANNEL_AXIS", False))
    spec, sha256 = f"python:{target}", file_sha256(path)
    classifier = wrap(function, settings, own, spec=spec, sha256=sha256, keeps_channel_axis=keeps_channel_axis)
    geometry = classifier.info.geometry
    if geometry is not None:
        call(classifier.detect_output, path, make_probe_images(geometry.grid, 3))
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
    """A function as a classifier. own: what its file states; None to read the function's attributes."""
    settings = settings.over(own or read_constants(None, function, Path()))
    geometry, notes = None, settings.notes
    if settings.crop is not None or settings.resize is not None:
        geometry, more = plan_geometry(
            None, resize=settings.resize, crop=settings.crop, interpolation=settings.interpolation
        )
        notes = (*notes, *more)
    info = ModelInfo(
        spec=spec or f"function {getattr(function, '__name__', type(function).__name__)}",
        kind="python",
        geometry=geometry,
        channels=3 if geometry is not None else None,
        labels=settings.labels,
        output=output_kind(settings.returns),
        normalisation=str(settings.normalisation) if settings.normalisation is not None else "none",
        sha256=sha256,
        inputs="array of n images",
        outputs=settings.returns or "detected with the first image",
        notes=notes,
        loading=settings.loading.record(),
    )
    keeps_channel_axis = keeps_channel_axis or bool(getattr(function, "channel_axis", False))
    return PythonClassifier(function, info, settings, keeps_channel_axis=keeps_channel_axis)
