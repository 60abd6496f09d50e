"""The input of a model: its tensor, normalisation and geometry, the presets, and the texts that name them.

Normalisation, `--preprocess`: `imagenet`, `tf`, `caffe`, `caffe:B,G,R`, `unit`, `raw`, or a TOML file.
Geometry, `--resize`: `256` (short side), `squash` (aspect ratio ignored), `squash:256` or `squash:256x320` (squashed to
this size, then cropped), `letterbox` (aspect ratio kept, grey bars). Each may end in `/224` or `/224x320`, the crop, for
networks that accept any input size.
"""

import re
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Geometry, Pixels
from becausal.core.errors import ModelError, OptionError
from becausal.models.array_model import Layout
from becausal.models.outputs import TensorInfo, find_tensor

Order = Literal["rgb", "bgr", "grey"]
Resize = int | tuple[int, int] | Literal["squash", "letterbox"] | None
Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos", "box", "hamming"]

INTERPOLATIONS: tuple[Interpolation, ...] = get_args(Interpolation)
LUMINANCE = (0.299, 0.587, 0.114)  # weights of R, G and B, ITU-R 601 as in Pillow


@dataclass(frozen=True)
class Normalisation:
    """What is done to each pixel, in float32: channels are put in `order`, then (x · scale - mean) / std."""

    scale: float = 1.0
    mean: tuple[float, ...] = (0.0,)  # one value per channel, or one for all channels
    std: tuple[float, ...] = (1.0,)
    order: Order = "rgb"  # "grey" turns three channels into one by luminance
    name: str = "custom"  # how messages and reports call it

    def __post_init__(self) -> None:
        if not all(np.isfinite([self.scale, *self.mean, *self.std])) or 0.0 in self.std or self.scale == 0.0:
            raise OptionError("mean, std and scale must be finite numbers, std and scale not 0")

    def __str__(self) -> str:
        def show(values: tuple[float, ...]) -> str:
            texts = [f"{value:.6g}" for value in values]
            return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"

        steps = [self.order.upper() if self.order != "grey" else "grey by luminance"]
        steps.append("x in 0..255" if self.scale == 1.0 else f"x/{1 / self.scale:.6g}")
        if any(self.mean):
            steps.append(f"minus {show(self.mean)}")
        if any(s != 1.0 for s in self.std):
            steps.append(f"over {show(self.std)}")
        return f"{self.name}: {', '.join(steps)}"

    def apply(self, pixels: Pixels) -> NDArray[np.float32]:
        """Normalise pixels (..., channels) in 0..255; channels stay last."""
        values = pixels.astype(np.float32)
        if self.order == "bgr":
            values = values[..., ::-1]
        elif self.order == "grey" and values.shape[-1] == 3:
            r, g, b = (values[..., i] * np.float32(LUMINANCE[i]) for i in range(3))
            values = np.asarray((r + g + b)[..., None], np.float32)
        self.check_channels(values.shape[-1])
        if self.scale != 1.0:
            values = values * np.float32(self.scale)
        values = values - np.array(self.mean, np.float32)
        return np.asarray(values / np.array(self.std, np.float32), np.float32)

    def check_channels(self, channels: int) -> None:
        """Raise ModelError unless mean and std fit a network with this many input channels."""
        for values in (self.mean, self.std):
            if len(values) not in (1, channels):
                raise ModelError(
                    f"the normalisation {self.name} is for {len(values)} channels, but the network has {channels} input "
                    "channels: use unit or raw, or write mean and std in a TOML file"
                )


PRESETS: dict[str, Normalisation] = {
    "imagenet": Normalisation(1 / 255, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), name="imagenet"),
    "tf": Normalisation(1 / 127.5, (1.0,), name="tf"),
    "caffe": Normalisation(1.0, (103.939, 116.779, 123.68), order="bgr", name="caffe"),
    "unit": Normalisation(1 / 255, name="unit"),
    "raw": Normalisation(name="raw"),
}


def parse_normalisation(text: str) -> Normalisation:
    """The preset with this name, or caffe with other means. Raises OptionError for an unknown name."""
    if text in PRESETS:
        return PRESETS[text]
    if match := re.fullmatch(r"caffe:([\d.]+),([\d.]+),([\d.]+)", text):
        try:
            means = tuple(float(part) for part in match.groups())
        except ValueError:
            raise OptionError(f"{text!r} contains an invalid number; expected caffe:B,G,R") from None
        return Normalisation(1.0, means, order="bgr", name=text)
    raise OptionError(f"unknown normalisation {text!r}; expected {', '.join(PRESETS)}, caffe:B,G,R or a TOML file")


def choose_normalisation(
    given: Normalisation | None, *, channels: int, is_integer: bool = False
) -> tuple[Normalisation, tuple[str, ...]]:
    """The normalisation for a network, and notes on what was assumed.

    given: what options or metadata state. channels, is_integer: of the network's input.
    """
    notes: list[str] = []
    normalisation = given
    if normalisation is None and is_integer:
        normalisation = PRESETS["raw"]
        notes.append("the network has an integer input: pixels are passed unchanged, 0..255")
    elif normalisation is None:
        name = {3: "imagenet", 1: "unit"}.get(channels, "raw")
        normalisation = PRESETS[name]
        notes.append(f"the model does not state its normalisation: {name} assumed; set it with --preprocess")
    if channels == 1 and normalisation.order != "grey":
        normalisation = replace(normalisation, order="grey")
        notes.append("the network has one input channel: colours are converted to grey by luminance")
    normalisation.check_channels(channels)
    return normalisation, tuple(notes)


def parse_size(text: str | int) -> tuple[int, int]:
    """(h, w) from `224`, `224x320` or an integer. Raises OptionError for anything else."""
    match = re.fullmatch(r"(\d{1,5})(?:x(\d{1,5}))?", str(text).strip())
    size = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if min(size) < 1:
        raise OptionError(f"{text!r} is not a size; expected e.g. 224 or 224x320 (rows x columns)")
    return size


def parse_resize(text: str | int) -> tuple[Resize, tuple[int, int] | None]:
    """The size to resize to, and the crop or None. Raises OptionError for anything else."""
    first, _, crop_text = str(text).strip().partition("/")
    crop = parse_size(crop_text) if crop_text else None
    if first in ("squash", "letterbox"):
        return "squash" if first == "squash" else "letterbox", crop
    if first.startswith("squash:"):
        return parse_size(first.removeprefix("squash:")), crop
    if first.isdecimal():
        return parse_size(first)[0], crop
    raise OptionError(
        f"unknown resize {text!r}; expected 256, squash, squash:256 or letterbox, each with /224 for a crop if needed"
    )


def plan_geometry(
    grid: tuple[int, int] | None, *, resize: Resize, crop: tuple[int, int] | None, interpolation: Interpolation | None
) -> tuple[Geometry, tuple[str, ...]]:
    """The geometry for a network with input size `grid` (None: any size), and notes on what was assumed."""
    notes: list[str] = []
    if grid is not None and crop is not None and crop != grid:
        raise ModelError(f"the crop is {crop[0]}x{crop[1]}, but the network's input is {grid[0]}x{grid[1]}")
    size = grid or crop
    if size is None and resize is not None and not isinstance(resize, str):
        size = resize if isinstance(resize, tuple) else (resize, resize)
    if size is None:
        size = (224, 224)
        notes.append("the network accepts any size: 224x224 assumed; set it with e.g. --resize 256/256")
    if resize is not None and not isinstance(resize, str):
        resized = resize if isinstance(resize, tuple) else (resize, resize)
        if resized[0] < size[0] or resized[1] < size[1]:
            notes.append(f"images are resized to less than the crop of {size[0]}x{size[1]}: the border is black")
    return Geometry(size, resize, interpolation or "bilinear"), tuple(notes)


@dataclass(frozen=True)
class ImageInput:
    """The input tensor that takes images."""

    tensor: TensorInfo
    dtype: np.dtype[Any]
    layout: Layout
    channels: int
    grid: tuple[int, int] | None  # (h, w), None for any size
    batch: int | None  # the only allowed number of images, None for any number
    has_batch_axis: bool  # False if the tensor holds a single image
    notes: tuple[str, ...]  # what was assumed

    @property
    def is_integer(self) -> bool:
        return self.dtype.kind in "iu"


def read_image_input(
    tensor: TensorInfo, layout: Layout | None, *, types: tuple[str, ...], axes: tuple[int, ...], hint: str
) -> ImageInput:
    """The input as images see it. Raises ModelError if the tensor cannot hold images.

    layout: None to derive it from the shape. types, axes: what is allowed. hint: how the layout can be stated.
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
    notes, first, last = [], sides[0], sides[2]
    if layout is None:
        if (first in (1, 3)) != (last in (1, 3)):
            layout = "nchw" if first in (1, 3) else "nhwc"
        else:
            layout = "nhwc" if last is not None and (first is None or last < first) else "nchw"
            notes.append(f"the input shape does not show the channel axis: {layout} assumed; set it with {hint}")
    channels, h, w = sides if layout == "nchw" else (sides[2], sides[0], sides[1])
    if channels is None:
        channels = 3
        notes.append("the number of channels is not fixed: 3 assumed")
    if not has_batch_axis:
        notes.append("the input has no batch axis: one image at a time")
    grid = (h, w) if h is not None and w is not None else None
    return ImageInput(tensor, tensor.dtype, layout, channels, grid, batch, has_batch_axis, tuple(notes))


def find_input(inputs: tuple[TensorInfo, ...], name: str | None) -> TensorInfo:
    """The input that takes images or arrays. Raises ModelError if there is none, or more than one to choose from."""
    if not inputs or (len(inputs) > 1 and name is None):
        names = ", ".join(tensor.name for tensor in inputs) or "none"
        raise ModelError(f"the model has {len(inputs)} inputs ({names}); an image model has one")
    return find_tensor(inputs, name or inputs[0].name, "input")
