"""Any Python function as a classifier: `predict(batch)` with batch (n, *shape) of the image's own type.

Images come as (n, h, w, 3) uint8, at their own size unless the file says `SIZE`; arrays as they were given. The
function returns (n, classes) scores, or just labels: n whole numbers or n names. numpy arrays, lists and torch tensors
will do. See `user_code` for the constants that say more.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import ModelInfo, Pixels, Visible
from becausal.core.errors import AnswerError
from becausal.models.compose import Composer, StagedArrays
from becausal.models.outputs import OutputOption, Reading, name_classes, probe_pictures, read_output
from becausal.models.preprocess import plan_geometry
from becausal.models.settings import Metadata, Settings
from becausal.models.user_code import call, file_sha256, load_function, read_constants, split_target

Predict = Callable[[NDArray[Any]], Any]


class LabelBook:
    """Numbers for label names: those known first keep their place, others get the next number as they appear."""

    def __init__(self, names: Sequence[str] | None) -> None:
        self._names = list(names or ())
        self._numbers: dict[str, int] = {}
        for number, name in enumerate(self._names):
            self._numbers.setdefault(name, number)

    @property
    def names(self) -> tuple[str, ...] | None:
        return tuple(self._names) or None

    def number(self, name: str) -> int:
        if name not in self._numbers:
            self._numbers[name] = len(self._names)
            self._names.append(name)
        return self._numbers[name]


@final
class PythonClassifier:
    """A function asked in batches.

    What its output means is found when the first image is staged or classified, unless it is said: until then
    `info.output` is a promise of probabilities. `info.labels` grows as a function that names labels names new ones.
    keeps_axis: a channel axis of size one is shown to the function; otherwise it is dropped, as arrays without one
    have it only inside this package.
    """

    def __init__(
        self,
        function: Predict,
        info: ModelInfo,
        settings: Settings,
        *,
        said: OutputOption | None,
        labels: tuple[str, ...] | None,
        keeps_axis: bool = False,
    ) -> None:
        self._function = function
        self._info = info
        self._said = said
        self._book = LabelBook(labels)
        self._reading: Reading | None = None
        self._keeps_axis = keeps_axis
        self._batch_size = settings.batch_size or 32
        self._lock = threading.RLock()
        prepare = settings.numbers.apply if settings.numbers is not None else np.asarray
        # A fresh batch each time: the function may keep it, or write on it.
        self._composer = Composer(prepare, reuses_buffer=False)

    @property
    def info(self) -> ModelInfo:
        labels = self._info.labels if self._info.output != "labels" else self._book.names
        return replace(self._info, labels=labels)

    @property
    def batch_size(self) -> int:
        return self._batch_size

    @property
    def fixed_sizes(self) -> tuple[int, ...]:
        return ()

    def stage(self, view: Pixels, background: Pixels) -> StagedArrays:
        self.settle(np.stack([view, background, view[::-1], np.full_like(view, view.min())]))
        return self._composer.stage(view, background)

    def ask(self, staged: Sequence[StagedArrays], which: NDArray[np.intp], visible: Visible) -> NDArray[Any]:
        return self._scores(self._composer.compose(staged, which, visible))

    def classify(self, pixels: Pixels) -> NDArray[Any]:
        self.settle(np.concatenate([pixels[:2], pixels[:1, ::-1]]))
        starts = range(0, len(pixels), self._batch_size)
        return np.concatenate([self._scores(self._composer.batch(pixels[i : i + self._batch_size])) for i in starts])

    def settle(self, probe: Pixels) -> None:
        """Find out, once, what the function's output means, from its answers to a few images."""
        with self._lock:
            if self._reading is not None:
                return
            raw = self._raw(self._composer.batch(probe))
            reading, notes = read_output(raw, said=self._said, by="OUTPUT or --output")
            labels = name_classes(reading, self._book.names)
            self._info = replace(self._info, output=reading.output, labels=labels, notes=(*self._info.notes, *notes))
            self._reading = reading

    def _scores(self, batch: NDArray[Any]) -> NDArray[Any]:
        assert self._reading is not None  # stage and classify settle it
        return self._reading.scores(self._raw(batch))

    def _raw(self, batch: NDArray[Any]) -> NDArray[Any]:
        """The function's answer as an array: scores as they are, names as their numbers."""
        if batch.shape[-1] == 1 and not self._keeps_axis:
            batch = batch[..., 0]
        rows = len(batch)
        answer = as_array(self._function(batch))
        if len(answer.shape) == 0 or len(answer) != rows:
            raise AnswerError(f"the function gave {answer.shape} for {rows} images; expected one row for each")
        if answer.dtype.kind not in "OUS":
            return answer.astype(np.int64) if answer.dtype.kind == "b" else answer
        with self._lock:
            return np.array([self._number(item) for item in answer.reshape(rows, -1)[:, 0]], np.int64)

    def _number(self, item: Any) -> int:
        if isinstance(item, bytes):
            item = item.decode()
        return self._book.number(str(item)) if isinstance(item, str) else int(item)


def as_array(answer: Any) -> NDArray[Any]:
    """An answer as numpy has it; tensors of other libraries are brought over by their own methods."""
    if hasattr(answer, "detach"):
        answer = answer.detach().cpu()
    elif isinstance(answer, (list, tuple)):
        answer = [item.detach().cpu().numpy() if hasattr(item, "detach") else item for item in answer]
    return np.asarray(answer)


def load(target: str, settings: Settings) -> PythonClassifier:
    """The function of a Python file as a classifier. Raises ModelError for whatever goes wrong in loading it."""
    path, name, _ = split_target(target, "python")
    function, module = load_function(path, name)
    found = read_constants(module, function, path.parent)
    keeps_axis = bool(getattr(module, "CHANNEL_AXIS", False))
    spec, sha256 = f"python:{target}", file_sha256(path)
    classifier = wrap(function, settings, found, spec=spec, sha256=sha256, keeps_axis=keeps_axis)
    geometry = classifier.info.geometry
    if geometry is not None:
        call(classifier.settle, path, probe_pictures(geometry.grid, 3))
    return classifier


def wrap(
    function: Predict,
    settings: Settings,
    found: Metadata | None = None,
    *,
    spec: str | None = None,
    sha256: str | None = None,
    keeps_axis: bool = False,
) -> PythonClassifier:
    """A function in memory as a classifier; its attributes `labels`, `output`, `geometry`, `channel_axis` are heard."""
    found = found or read_constants(None, function, Path())
    size, how = settings.crop or found.grid, settings.resize if settings.resize is not None else found.resize
    geometry, notes = None, found.notes
    if size is not None or how is not None:
        geometry, more = plan_geometry(
            size, resize=how, crop=None, interpolation=settings.interpolation or found.interpolation
        )
        notes = (*notes, *more)
    own = bool(getattr(function, "channel_axis", False))
    said = settings.output or found.output
    labels = settings.labels or found.labels
    info = ModelInfo(
        spec=spec or f"function {getattr(function, '__name__', type(function).__name__)}",
        kind="python",
        geometry=geometry,
        channels=3 if geometry is not None else None,
        labels=labels,
        output="labels" if said == "labels" else "multilabel" if said in _MANY else "probabilities",
        numbers=str(settings.numbers) if settings.numbers is not None else "pixels as they are",
        sha256=sha256,
        inputs="an array of n images",
        outputs=said or "found out with the first image",
        notes=notes,
        loading=settings.loading.record(),
    )
    return PythonClassifier(function, info, settings, said=said, labels=labels, keeps_axis=keeps_axis or own)


_MANY = ("multilabel", "multilabel-logits")
