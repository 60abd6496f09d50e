"""What Python code returns for images, read as boxes: dictionaries, tuples or arrays, one for each image."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.core.errors import AnswerError
from becausal.models.outputs import as_numbers

_EXPECTED = "a dictionary with boxes, scores and labels, a tuple of these three, or an array (k, 6)"


def read_answers(answer: Any, rows: int, label_id: Callable[[str], int]) -> list[tuple[Any, Any, Any]]:
    """Boxes, scores and label ids for each image.

    Args:
        answer: A sequence with one item per image.
        rows: Number of images.
        label_id: The id of a label that is given by its name.

    Raises:
        AnswerError: The answer is something else.
    """
    answer = to_array(answer) if hasattr(answer, "detach") else answer
    if isinstance(answer, np.ndarray) and answer.ndim <= 2 and answer.dtype.kind in "biuf" and answer.size:
        raise AnswerError(f"the model returns scores per class, not boxes (shape {answer.shape}): load it without detect:")
    if not isinstance(answer, (Sequence, np.ndarray)) or isinstance(answer, (str, bytes)):
        raise AnswerError(f"the model returned {type(answer).__name__}; expected a list with one item per image")
    if len(answer) != rows:
        raise AnswerError(f"the model returned {len(answer)} items for {rows} images; expected one per image")
    return [_read_item(item, label_id) for item in answer]


def to_array(values: Any) -> NDArray[Any]:
    """A numpy array of values; tensors are converted by their own methods, half precision to float32."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = (values.float() if values.is_floating_point() else values).numpy()
    try:
        return np.asarray(values)
    except ValueError:
        raise AnswerError(f"the model returned a list of unequal parts; expected {_EXPECTED}") from None


def _read_item(item: Any, label_id: Callable[[str], int]) -> tuple[Any, Any, Any]:
    """The boxes of one image."""
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
        table = as_numbers(to_array(item))
        if table.size and (table.ndim != 2 or table.shape[1] != 6 or table.dtype.kind not in "iuf"):
            raise AnswerError(f"the model returned {table.dtype} {table.shape} for an image; expected {_EXPECTED}")
        table = table.reshape(-1, 6)
        return table[:, :4], table[:, 4], table[:, 5]
    boxes, labels = as_numbers(to_array(parts[0])), to_array(parts[2])
    scores = np.ones(len(labels) if labels.ndim else 0) if parts[1] is None else as_numbers(to_array(parts[1]))
    if labels.dtype.kind in "OUS":
        labels = np.array([_name_or_id(label, label_id) for label in labels.reshape(-1)], np.float64)
    return boxes, scores, labels


def _name_or_id(label: Any, label_id: Callable[[str], int]) -> float:
    if isinstance(label, bytes):
        label = label.decode("utf-8", "replace")
    if isinstance(label, str):
        return label_id(str(label))  # not numpy's kind of text
    try:
        return float(label)
    except (TypeError, ValueError):
        raise AnswerError(f"the model returned a label of type {type(label).__name__}; expected a name or an id") from None
