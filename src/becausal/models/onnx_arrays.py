"""ONNX networks that take signals, volumes or other arrays, as they are in a .npy file.

The array's shape is that of the network's input without the batch axis; axes of size one may be missing. Nothing is known
of the values' meaning, so they are passed unchanged, and what the output means is detected with the first array.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import ModelInfo, Pixels
from becausal.core.errors import ImageError, ModelError
from becausal.models.array_model import RunBatch, run_padded
from becausal.models.compose import Layout
from becausal.models.labels import MetadataLabels, choose_labels
from becausal.models.outputs import OutputClues
from becausal.models.python_function import PythonClassifier
from becausal.models.settings import ModelSettings
from becausal.models.signature import TensorInfo

INPUT_TYPES = ("float", "float16", "double", "uint8", "int8", "int32", "int64")

Sides = tuple[int | None, ...]


def takes_arrays(tensor: TensorInfo, layout: Layout | None) -> bool:
    """Whether an input is not for images: another number of axes than four, and not an image without its batch axis."""
    shape = tensor.shape
    is_one_image = len(shape) == 3 and None not in shape and (shape[0] == 3 or (shape[2] == 3 and shape[0] != 1))
    return len(shape) in (2, 3, 5) and layout is None and not is_one_image


def wrap_arrays(
    tensor: TensorInfo,
    run: RunBatch,
    info: ModelInfo,
    settings: ModelSettings,
    *,
    clues: OutputClues,
    names: MetadataLabels | None,
    classes: Sides,
) -> PythonClassifier:
    """A network with an input of arrays as a classifier.

    Args:
        tensor: The input.
        run: Runs a batch of the input's type.
        info: What is known so far.
        settings: Options and metadata.
        clues: What helps to understand the output.
        names: Class names in the file's metadata.
        classes: Declared number of classes, empty if none is declared.

    Raises:
        ModelError: The input's type cannot hold numbers, or options for images are given.
    """
    dtype = tensor.dtype
    if tensor.datatype not in INPUT_TYPES or dtype is None:
        raise ModelError(f"the input {tensor} has a type that arrays cannot be converted to: {', '.join(INPUT_TYPES)}")
    if settings.resize is not None or settings.crop is not None:
        raise ModelError(f"the input {tensor} takes arrays, not images: remove --resize")
    batch, *sides = tensor.shape
    fixed = () if batch is None else (batch,)

    def predict(pixels: Pixels) -> NDArray[Any]:
        return run_padded(run, to_input(pixels, tuple(sides), dtype), fixed)

    labels, notes = choose_labels(info.labels, names, classes[0] if classes else None)
    shape = _format(tuple("any" if side is None else side for side in sides))
    note = f"the input takes arrays of shape {shape}, e.g. from a .npy file: values are passed unchanged"
    info = replace(
        info,
        labels=labels,
        normalisation=str(settings.normalisation) if settings.normalisation is not None else "none",
        notes=(*settings.notes, *(() if settings.normalisation else (note,)), *info.notes, *notes),
    )
    loading = replace(settings.loading, batch_size=batch or settings.loading.batch_size)
    settings = replace(settings, labels=labels, loading=loading)
    return PythonClassifier(predict, info, settings, keeps_channel_axis=True, clues=clues)


def to_input(pixels: Pixels, sides: Sides, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Arrays (n, *grid, channels) in the shape and the type of the input. Raises ImageError if they do not fit."""
    shape = fit_shape(pixels.shape[1:], sides)
    if shape is None:
        given = pixels.shape[1:-1] if pixels.shape[-1] == 1 else pixels.shape[1:]
        wanted = _format(tuple("any" if side is None else side for side in sides))
        raise ImageError(f"the array has shape {_format(given)}; the model takes arrays of shape {wanted}")
    values = pixels.reshape(len(pixels), *shape)
    if dtype.kind in "iu":
        values, limits = np.rint(values), np.iinfo(dtype)
        if values.min() < limits.min or values.max() > limits.max:
            raise ImageError(f"the array holds {values.min():g}..{values.max():g}; the model takes {dtype} values")
    return np.ascontiguousarray(values, dtype)


def fit_shape(shape: tuple[int, ...], sides: Sides) -> tuple[int, ...] | None:
    """The shape with axes of size one added or removed, so that it fits the sides (None: any size); None if it cannot."""
    for own in (shape, shape[:-1]):
        if len(own) == len(sides) and np.prod(own) == np.prod(shape) and _agree(own, sides):
            return own
    left = [side for side in shape if side != 1]
    found = tuple(1 if side == 1 or not left else left.pop(0) for side in sides)
    return found if not left and _agree(found, sides) else None


def _agree(shape: tuple[int, ...], sides: Sides) -> bool:
    return all(side in (None, own) for own, side in zip(shape, sides, strict=True))


def _format(shape: tuple[Any, ...]) -> str:
    return "x".join(str(side) for side in shape)
