"""What a network's declared tensors mean for images: the input's layout and size, and the output to read."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from becausal.core.errors import ModelError
from becausal.models.compose import Layout
from becausal.models.outputs import NAMED_OUTPUTS

#: Numeric types by their names in the Open Inference Protocol (upper case) and in ONNX (lower case).
DTYPES = {
    "BOOL": "?", "UINT8": "<u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8", "INT8": "<i1", "INT16": "<i2",
    "INT32": "<i4", "INT64": "<i8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8",
    "bool": "?", "uint8": "<u1", "int8": "<i1", "int32": "<i4", "int64": "<i8", "float16": "<f2", "float": "<f4",
    "double": "<f8",
}  # fmt: skip


@dataclass(frozen=True)
class TensorInfo:
    """A declared input or output; None in the shape stands for any size."""

    name: str
    datatype: str
    shape: tuple[int | None, ...]

    def __str__(self) -> str:
        sides = ",".join("N" if side is None else str(side) for side in self.shape)
        return f"{self.name} {self.datatype} [{sides}]"

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """The numpy type, None where the tensor does not hold numbers."""
        return np.dtype(DTYPES[self.datatype]) if self.datatype in DTYPES else None


@dataclass(frozen=True)
class ImageInput:
    """The input tensor that takes images.

    grid: (h, w), None for any size. batch: the only allowed number of images, None for any number. has_batch_axis:
    False if the tensor holds a single image. notes: what was assumed.
    """

    tensor: TensorInfo
    dtype: np.dtype[Any]
    layout: Layout
    channels: int
    grid: tuple[int, int] | None
    batch: int | None
    has_batch_axis: bool
    notes: tuple[str, ...]


def read_image_input(
    tensor: TensorInfo, layout: Layout | None, *, types: tuple[str, ...], axes: tuple[int, ...], hint: str
) -> ImageInput:
    """The input as images see it.

    Args:
        tensor: The declared input.
        layout: Stated layout; None to derive it from the shape.
        types: Allowed datatypes.
        axes: Allowed numbers of axes: 4, and 3 if a tensor may hold a single image.
        hint: How the layout can be stated, for the note.

    Raises:
        ModelError: The tensor cannot hold images.
    """
    if tensor.datatype not in types or tensor.dtype is None:
        raise ModelError(f"the input {tensor} has a type that images cannot be converted to; expected {', '.join(types)}")
    if len(tensor.shape) not in axes:
        other = ", or 3 for one image at a time" if 3 in axes else ""
        raise ModelError(
            f"the input {tensor} has {len(tensor.shape)} axes; images need 4, e.g. [N,3,224,224]{other}: for signals and "
            "volumes use a python: function"
        )
    has_batch_axis = len(tensor.shape) == 4
    batch, *sides = tensor.shape if has_batch_axis else (1, *tensor.shape)
    layout, notes = _find_layout(sides, layout, hint)
    channels, h, w = sides if layout == "nchw" else (sides[2], sides[0], sides[1])
    if channels is None:
        channels = 3
        notes.append("the number of channels is not fixed: 3 assumed")
    if not has_batch_axis:
        notes.append("the input has no batch axis: one image at a time")
    grid = (h, w) if h is not None and w is not None else None
    return ImageInput(tensor, tensor.dtype, layout, channels, grid, batch, has_batch_axis, tuple(notes))


def pick_output(
    outputs: tuple[TensorInfo, ...], name: str | None, *, axes: tuple[int, ...], hint: str
) -> tuple[TensorInfo, tuple[str, ...]]:
    """The output that holds the scores, and a note if there was a choice.

    Args:
        outputs: The declared outputs, at least one.
        name: The output to use; None to choose by name, type and number of axes.
        axes: Numbers of axes that scores may have.
        hint: How another output can be chosen, for the note.

    Raises:
        ModelError: There is no output of that name, or none that holds numbers.
    """
    names = ", ".join(tensor.name for tensor in outputs)
    if name is not None:
        return find_tensor(outputs, name, "output"), ()
    numeric = [tensor for tensor in outputs if tensor.dtype is not None]
    if not numeric:
        raise ModelError(f"none of the outputs {', '.join(str(t) for t in outputs)} is numeric: scores are needed")
    for wanted in NAMED_OUTPUTS:
        for tensor in numeric:
            if tensor.name.lower() == wanted:
                return tensor, ()
    scores = [t for t in numeric if t.dtype is not None and t.dtype.kind == "f" and len(t.shape) in axes]
    chosen = (scores or numeric)[0]
    if len(outputs) == 1:
        return chosen, ()
    return chosen, (f"the model has the outputs {names}: {chosen.name} is used; choose another with {hint}",)


def find_tensor(tensors: tuple[TensorInfo, ...], name: str, kind: str) -> TensorInfo:
    """The tensor of this name. kind: "input" or "output". Raises ModelError where there is none."""
    for tensor in tensors:
        if tensor.name == name:
            return tensor
    raise ModelError(f"the model has no {kind} {name!r}; it has {', '.join(tensor.name for tensor in tensors)}")


def _find_layout(sides: list[int | None], layout: Layout | None, hint: str) -> tuple[Layout, list[str]]:
    """The layout behind the three sides after the batch axis, and a note if it was assumed."""
    if layout is not None:
        return layout, []
    first, last = sides[0], sides[2]
    if first in (1, 3) and last not in (1, 3):
        return "nchw", []
    if last in (1, 3) and first not in (1, 3):
        return "nhwc", []
    assumed: Layout = "nhwc" if last is not None and (first is None or last < first) else "nchw"
    return assumed, [f"the input shape does not show the channel axis: {assumed} assumed; set it with {hint}"]
