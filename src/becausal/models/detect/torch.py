"""Torch modules as object detectors: `detect:torch:FILE.py:BUILD`.

A module follows torchvision: it takes a list of images, (3, h, w) float in 0..1, and returns a list of dictionaries with
boxes (left, top, right, bottom in pixels), scores and labels.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from becausal.core.boxes import Detections, pack_boxes
from becausal.core.contracts import ModelInfo, Pixels, Visible
from becausal.core.errors import AnswerError, ModelError
from becausal.core.text import one_line
from becausal.core.twins import Twin
from becausal.models.detect.answers import read_answers
from becausal.models.detect.choosing import OTHER_THRESHOLD
from becausal.models.detect.inputs import (
    SIDE,
    check_colour,
    choose_batch_size,
    choose_threshold,
    plan_any_size,
    refuse_returns,
)
from becausal.models.outputs import make_probe_images
from becausal.models.preprocess import PRESETS, Normalisation
from becausal.models.settings import ModelSettings
from becausal.models.torch_compose import DeviceComposer, HostComposer, make_composer
from becausal.models.torch_module import find_device, import_torch, move_module
from becausal.models.torch_probe import Tensor, first_tensor
from becausal.models.user_code import call, file_sha256, load_function, read_constants, split_target, stdout_to_stderr

_PROBE_SIDE = 64  # of the image that a module which takes any size is tried with

Detect = Callable[[Any, Tensor], Any]  # from the module and a batch, (n, channels, h, w), to what `read_answers` reads


@final
class TorchDetector:
    """A torch module as a detector.

    module: in eval mode, on its device. detect: calls it. half: whether a twin in half precision may guide a search.
    Batches share one buffer, so threads take turns.
    """

    def __init__(
        self,
        module: Any,
        info: ModelInfo,
        composer: HostComposer | DeviceComposer,
        detect: Detect,
        *,
        batch_size: int,
        half: bool = False,
        lock: "threading.Lock | None" = None,
    ) -> None:
        self.module = module
        self.info = info
        self.batch_size = batch_size
        self.fixed_sizes: tuple[int, ...] = ()
        self._composer: Any = composer  # each stages its own type of pair
        self._call = detect
        self._half = half
        self._lock = lock or threading.Lock()

    def __repr__(self) -> str:
        return f"<TorchDetector {self.info}>"

    def stage(self, view: Pixels, background: Pixels) -> Any:
        check_colour(view)
        return self._composer.stage(view, background)

    def ask(self, staged: Sequence[Any], which: NDArray[np.intp], visible: Visible) -> Detections:
        return self._detect(len(visible), lambda rows: self._composer.compose(staged, which[rows], visible[rows]))

    def classify(self, pixels: Pixels) -> Detections:
        return self._detect(len(pixels), lambda rows: self._composer.to_tensor(pixels[rows]))

    def find_twin(self) -> Twin | None:
        from becausal.models.torch_twin import HALF, HALF_TOLERANCE, copy_half

        half = copy_half(self.module) if self._half else None
        if half is None:
            return None

        def detect(module: Any, batch: Tensor) -> Any:
            return self._call(module, batch.half())

        twin = TorchDetector(half, self.info, self._composer, detect, batch_size=self.batch_size, lock=self._lock)
        return Twin(HALF, HALF_TOLERANCE, twin.ask)

    def drop_twin(self) -> None:
        self._half = False

    def _detect(self, count: int, make: Callable[[slice], Tensor]) -> Detections:
        """The boxes of `count` images, made and evaluated in parts."""
        torch, parts = import_torch("a torch model"), []
        exact: AbstractContextManager[Any] = nullcontext()
        if self.info.device != "cpu":  # true float32: TF32, the default for convolutions, changes scores by up to 0.01
            exact = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False)
        with self._lock, torch.inference_mode(), stdout_to_stderr(), exact:
            for start in range(0, count, self.batch_size):
                rows = slice(start, min(start + self.batch_size, count))
                answer = self._call(self.module, make(rows))
                parts.append(pack_boxes(read_answers(answer, rows.stop - rows.start, _refuse_name)))
        return np.concatenate(parts)


def load(target: str, settings: ModelSettings) -> TorchDetector:
    """The module that a function of a Python file builds. Raises ModelError for any error while building it."""
    import_torch("a torch model")
    path, name, argument = split_target(target, "detect:torch")
    function, code = load_function(path, name)
    module = call(function, path, *([] if argument is None else [argument]))
    own = read_constants(code, function, path.parent)
    return wrap(module, settings, own, spec=f"detect:torch:{target}", sha256=file_sha256(path))


def wrap(
    module: Any,
    settings: ModelSettings,
    own: ModelSettings | None = None,
    *,
    spec: str | None = None,
    kind: str = "detect:torch",
    sha256: str | None = None,
) -> TorchDetector:
    """A module that follows torchvision as a detector; it is moved to the device and put in eval mode. own: its metadata."""
    if own is None and hasattr(getattr(module, "config", None), "id2label"):
        raise ModelError("a Hugging Face detector needs its processor: save both to a folder and use detect:hf:FOLDER")
    settings = settings.over(own or ModelSettings())
    geometry, notes = plan_any_size(settings)
    normalisation = settings.normalisation or PRESETS["unit"]
    normalisation.check_channels(3)
    info = ModelInfo(
        spec=spec or f"module {type(module).__name__}",
        kind=kind,
        geometry=geometry,
        channels=3 if geometry is not None else None,
        labels=settings.labels,
        output="boxes",
        normalisation=str(normalisation),
        sha256=sha256,
        inputs="list of float32 [3,h,w]",
        outputs="list of boxes, scores, labels",
        notes=(*settings.notes, *notes),
    )
    return make_detector(module, settings, info, normalisation, lambda of, batch: of(list(batch)))


def make_detector(
    module: Any, settings: ModelSettings, info: ModelInfo, normalisation: Normalisation, detect: Detect
) -> TorchDetector:
    """A detector around a module, which is moved to its device. Raises ModelError if it does not return boxes."""
    torch, loading = import_torch("a torch model"), settings.loading
    refuse_returns(settings)
    if not isinstance(module, torch.nn.Module):
        raise ModelError(f"{info.spec} returned {type(module).__name__}; expected a torch.nn.Module")
    device = find_device(torch, loading.device)
    if loading.threads is not None:
        torch.set_num_threads(loading.threads)
    move_module(torch, module, device)
    threshold, notes = choose_threshold(settings.threshold, OTHER_THRESHOLD)
    info = replace(info, device=device, loading=loading.record(), threshold=threshold, notes=(*info.notes, *notes))
    grid = info.geometry.grid if info.geometry is not None else (SIDE, SIDE)
    size = choose_batch_size(loading.batch_size, grid, device)
    composer = make_composer(normalisation, device)
    detector = TorchDetector(module, info, composer, detect, batch_size=size, half=loading.half)
    images = make_probe_images(info.geometry.grid if info.geometry is not None else (_PROBE_SIDE, _PROBE_SIDE), 3)[2:3]
    try:
        detector.classify(images)
    except AnswerError as error:
        raise ModelError(f"{info.spec}: {error}") from None
    except Exception as error:  # the module is the user's code: any error is possible
        if _is_classifier(torch, module, composer.to_tensor(images)):
            raise ModelError(f"{info.spec} returns scores per class, not boxes: load it without detect:") from None
        message = f"{type(error).__name__}: {one_line(error, 200)}"
        raise ModelError(f"{info.spec} cannot process a list of images of shape (3, h, w): {message}") from error
    return detector


def _is_classifier(torch: Any, module: Any, batch: Tensor) -> bool:
    """Whether a module that does not take a list of images returns scores for a batch of them."""
    try:
        with torch.inference_mode(), stdout_to_stderr():
            return bool(first_tensor(module(batch)).ndim == 2)
    except Exception:  # see make_detector
        return False


def _refuse_name(name: str) -> int:
    raise AnswerError(f"the module returned the label {name!r}; expected ids")
