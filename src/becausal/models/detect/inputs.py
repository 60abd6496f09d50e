"""What detectors of all kinds have in common when they are loaded: preprocessing, threshold, class names, probe images."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.core.boxes import Detections
from becausal.core.contracts import Geometry, Pixels
from becausal.core.errors import ImageError, ModelError, OptionError
from becausal.models.labels import MetadataLabels, choose_labels
from becausal.models.loading import check_threshold
from becausal.models.preprocess import PRESETS, plan_geometry
from becausal.models.settings import ModelSettings, Preprocessing
from becausal.models.signature import TensorInfo

SIDE = 640  # of the input, if the network accepts any size
_MOST_PIXELS = 2**22  # of one batch, if the batch size is not given
_AGREEMENT = 0.02  # how far the scores of an image may differ between a batch and the image alone


def plan_input(
    settings: ModelSettings, channels: int, grid: tuple[int, int] | None, *, is_integer: bool = False, is_yolo: bool = False
) -> Preprocessing:
    """How images become the input of a detector: as for classifiers, but squashed, since a crop would cut objects off.

    is_yolo: the network looks like a YOLO model, so its input is in 0..1 unless something else is stated.

    Raises:
        ModelError: Normalisation or crop do not fit the network.
    """
    notes = []
    if settings.resize is None:
        settings = replace(settings, resize="squash")
        notes.append("images are squashed to the input size; to keep their aspect ratio use --resize letterbox")
    if grid is None and settings.crop is None and isinstance(settings.resize, str):
        settings = replace(settings, crop=(SIDE, SIDE))
        notes.append(f"the network accepts any size: {SIDE}x{SIDE} assumed; set it with e.g. --resize {settings.resize}/320")
    if is_yolo and not is_integer and settings.normalisation is None:
        settings = replace(settings, normalisation=PRESETS["unit"])
        notes.append("the model does not state its normalisation: unit assumed, as for YOLO; set it with --preprocess")
    plan = settings.plan_preprocessing(channels, grid, is_integer=is_integer)
    return replace(plan, notes=(*plan.notes, *notes))


def is_like_yolo(outputs: tuple[TensorInfo, ...]) -> bool:
    """Whether the only output is one tensor with boxes and scores."""
    return len(outputs) == 1 and len(outputs[0].shape) == 3


def plan_any_size(settings: ModelSettings) -> tuple[Geometry | None, tuple[str, ...]]:
    """The geometry of a detector that accepts images of any size, None for images as they are, and notes."""
    if settings.crop is None and settings.resize is None:
        return None, ()
    return plan_geometry(None, resize=settings.resize or "squash", crop=settings.crop, interpolation=settings.interpolation)


def check_colour(view: Pixels) -> None:
    """Raise ImageError unless it is an image with three channels."""
    if view.ndim != 3 or view.shape[2] != 3:
        raise ImageError(f"the array has shape {view.shape}; a detector takes colour images, (h, w, 3)")


def choose_threshold(stated: float | None, usual: float) -> tuple[float, tuple[str, ...]]:
    """The lowest score at which a box counts as found, and a note if it was assumed."""
    if stated is not None:
        return stated, ()
    return usual, (f"a box counts as found from a score of {usual:g} on (assumed; set --threshold)",)


def read_threshold(metadata: Mapping[str, str]) -> ModelSettings:
    """The threshold in a file's metadata."""
    if "threshold" not in metadata:
        return ModelSettings()
    try:
        return ModelSettings(threshold=check_threshold(float(metadata["threshold"])))
    except (ValueError, OptionError):
        return ModelSettings(
            notes=("the threshold in the file's metadata is not used: it is not a score above 0 and up to 1",)
        )


def choose_names(
    given: tuple[str, ...] | None, found: MetadataLabels | None, classes: int | None
) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """The class names, given or from the metadata, and a note.

    classes: None if their number is not known.

    Raises:
        ModelError: There are too many or too few of the given names.
    """
    if given is not None and classes is not None and len(given) != classes:
        raise ModelError(f"there are {len(given)} labels but the model has {classes} classes: give one name per class")
    return choose_labels(given, found, len(found.names) if classes is None and found is not None else classes)


def refuse_returns(settings: ModelSettings) -> None:
    """Raise OptionError if it is stated which scores a detector returns."""
    if settings.returns is not None:
        raise OptionError("a detector returns boxes: remove returns")


def choose_batch_size(given: int | None, grid: tuple[int, int], device: str) -> int:
    """The given maximum batch size, else one that fits the memory."""
    if given is not None:
        return given
    fitting = max(1, _MOST_PIXELS // (grid[0] * grid[1]))
    return min(32, fitting) if device == "cpu" else min(256, 8 * fitting)


def agrees_in_batches(run: Callable[[NDArray[Any]], Detections], images: NDArray[Any], alone: Detections) -> bool:
    """Whether a network returns for a batch of images what it returns for each of them."""
    try:
        together = run(images)
    except Exception:  # of any kind, from the library that runs the network
        return False
    return bool(np.allclose(together[..., 4], alone[..., 4], rtol=0, atol=_AGREEMENT))
