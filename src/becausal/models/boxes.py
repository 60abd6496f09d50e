"""What object detectors of all kinds have in common: preprocessing, threshold, and boxes as Python code returns them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.core.boxes import Detections, pack_boxes
from becausal.core.contracts import Geometry, Pixels
from becausal.core.errors import AnswerError, ImageError, ModelError
from becausal.models.box_layouts import USUAL_THRESHOLD
from becausal.models.labels import MetadataLabels, choose_labels
from becausal.models.loading import ModelSettings, Preprocessing
from becausal.models.outputs import TensorInfo, as_numbers
from becausal.models.preprocess import PRESETS, plan_geometry

SIDE = 640  # of the input, if the network accepts any size
_MOST_PIXELS = 2**22  # of one batch, if the batch size is not given
_AGREEMENT = 0.02  # how far the scores of an image may differ between a batch and the image alone
_EXPECTED = "a dictionary with boxes, scores and labels, a tuple of these three, or an array (k, 6)"


def plan_boxes(
    settings: ModelSettings,
    channels: int,
    grid: tuple[int, int] | None,
    *,
    is_integer: bool = False,
    outputs: Sequence[TensorInfo] = (),
) -> Preprocessing:
    """How images become the input of a detector: as for classifiers, but squashed, since a crop would cut objects off.

    outputs: the declared ones; a YOLO model, which has only one, takes pixels in 0..1 unless something else is stated.
    """
    notes = []
    if settings.resize is None:
        settings = replace(settings, resize="squash")
        notes.append("images are squashed to the input size; to keep their aspect ratio use --resize letterbox")
    if grid is None and settings.crop is None and isinstance(settings.resize, str):
        settings = replace(settings, crop=(SIDE, SIDE))
        notes.append(f"the network accepts any size: {SIDE}x{SIDE} assumed; set it with e.g. --resize {settings.resize}/320")
    is_yolo = len(outputs) == 1 and len(outputs[0].shape) == 3
    if is_yolo and not is_integer and settings.normalisation is None:
        settings = replace(settings, normalisation=PRESETS["unit"])
        notes.append("the model does not state its normalisation: unit assumed, as for YOLO; set it with --preprocess")
    plan = settings.plan_preprocessing(channels, grid, is_integer=is_integer)
    return replace(plan, notes=(*plan.notes, *notes))


def plan_any_size(settings: ModelSettings) -> tuple[Geometry | None, tuple[str, ...]]:
    """The geometry of a detector that accepts images of any size, None for images as they are, and notes."""
    if settings.crop is None and settings.resize is None:
        return None, ()
    return plan_geometry(None, resize=settings.resize or "squash", crop=settings.crop, interpolation=settings.interpolation)


def check_colour(view: Pixels) -> None:
    """Raise ImageError unless it is an image with three channels."""
    if view.ndim != 3 or view.shape[2] != 3:
        raise ImageError(f"the array has shape {view.shape}; a detector takes colour images, (h, w, 3)")


def choose_threshold(settings: ModelSettings, usual: float = USUAL_THRESHOLD) -> tuple[float, tuple[str, ...]]:
    """The lowest score at which a box counts as found, and a note if it was assumed."""
    if settings.threshold is not None:
        return settings.threshold, ()
    return usual, (f"a box counts as found if its score is at least {usual:g} (assumed; set --threshold)",)


def choose_names(
    given: tuple[str, ...] | None, found: MetadataLabels | None, classes: int | None
) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """The class names, given or from the metadata, and a note. classes: None if their number is not known."""
    if given is not None and classes is not None and len(given) != classes:
        raise ModelError(f"there are {len(given)} labels but the model has {classes} classes: give one name per class")
    return choose_labels(given, found, len(found.names) if classes is None and found is not None else classes)


def choose_batch_size(settings: ModelSettings, grid: tuple[int, int], device: str) -> int:
    """The given maximum batch size, else one that fits the memory."""
    fitting = max(1, _MOST_PIXELS // (grid[0] * grid[1]))
    return settings.loading.batch_size or (min(32, fitting) if device == "cpu" else min(256, 8 * fitting))


def refuse_batches(
    has_batch_axis: bool, run: Callable[[NDArray[Any]], Detections], images: NDArray[Any], alone: Detections, size: int
) -> tuple[str, ...]:
    """A note that a network takes one image at a time, if it does not return for `size` images what it returns for each.

    alone: the boxes in the images, from one call for each.
    """
    if not has_batch_axis:
        return ("the outputs have no batch axis: one image at a time",)
    try:
        is_same = size == 1 or np.allclose(run(images[:size])[..., 4], alone[:size, :, 4], rtol=0, atol=_AGREEMENT)
    except Exception:  # of any kind, from the library that runs the network
        is_same = False
    return () if is_same else ("the network does not return the same boxes for batches: one image at a time",)


def read_answers(answer: Any, rows: int, label_id: Callable[[str], int]) -> Detections:
    """What Python code returned for images, as boxes. Raises AnswerError where it is something else.

    answer: a sequence with one item per image: a dictionary, a tuple or an array, or tensors in place of arrays. label_id:
    the id of a label that is given by its name.
    """
    answer = _to_array(answer) if hasattr(answer, "detach") else answer
    if isinstance(answer, np.ndarray) and answer.ndim <= 2 and answer.dtype.kind in "biuf" and answer.size:
        raise AnswerError(f"the model returns scores per class, not boxes (shape {answer.shape}): load it without detect:")
    if not isinstance(answer, (Sequence, np.ndarray)) or isinstance(answer, (str, bytes)):
        raise AnswerError(f"the model returned {type(answer).__name__}; expected a list with one item per image")
    if len(answer) != rows:
        raise AnswerError(f"the model returned {len(answer)} items for {rows} images; expected one per image")
    return pack_boxes([_read_item(item, label_id) for item in answer])


def _read_item(item: Any, label_id: Callable[[str], int]) -> tuple[Any, Any, Any]:
    """Boxes, scores and label ids of one image."""
    if isinstance(item, Mapping):
        if "boxes" not in item or "labels" not in item:
            found = ", ".join(str(key) for key in item) or "nothing"
            raise AnswerError(f"the model returned a dictionary with {found}; expected boxes, labels and scores")
        parts = item["boxes"], item.get("scores"), item["labels"]
    elif isinstance(item, tuple):
        if len(item) != 3:
            raise AnswerError(f"the model returned a tuple of {len(item)} for an image; expected boxes, scores and labels")
        parts = item
    else:
        table = as_numbers(_to_array(item))
        if table.size and (table.ndim != 2 or table.shape[1] != 6 or table.dtype.kind not in "iuf"):
            raise AnswerError(f"the model returned {table.dtype} {table.shape} for an image; expected {_EXPECTED}")
        table = table.reshape(-1, 6)
        return table[:, :4], table[:, 4], table[:, 5]
    boxes, labels = as_numbers(_to_array(parts[0])), _to_array(parts[2])
    scores = np.ones(len(labels) if labels.ndim else 0) if parts[1] is None else as_numbers(_to_array(parts[1]))
    if labels.dtype.kind in "OUS":
        ids: list[float] = []
        for label in labels.reshape(-1):
            text = label.decode("utf-8", "replace") if isinstance(label, bytes) else label
            try:
                ids.append(label_id(str(text)) if isinstance(text, str) else float(text))  # str: not numpy's kind of text
            except (TypeError, ValueError):
                kind = type(label).__name__
                raise AnswerError(f"the model returned a label of type {kind}; expected a name or an id") from None
        labels = np.array(ids, np.float64)
    return boxes, scores, labels


def _to_array(values: Any) -> NDArray[Any]:
    """A numpy array of values; tensors are converted by their own methods, half precision to float32."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = (values.float() if values.is_floating_point() else values).numpy()
    try:
        return np.asarray(values)
    except ValueError:
        raise AnswerError(f"the model returned a list of unequal parts; expected {_EXPECTED}") from None
