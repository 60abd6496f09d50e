"""Normalisation and geometry of a model's input: the presets, and the texts that name them.

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

Order = Literal["rgb", "bgr", "grey"]
Resize = int | tuple[int, int] | Literal["squash", "letterbox"] | None
Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos", "box", "hamming"]

INTERPOLATIONS: tuple[Interpolation, ...] = get_args(Interpolation)
LUMINANCE = (0.299, 0.587, 0.114)  # weights of R, G and B, ITU-R 601 as in Pillow


@dataclass(frozen=True)
class Normalisation:
    """What is done to each pixel, in float32: channels are put in `order`, then (x · scale - mean) / std.

    Attributes:
        scale: Factor, applied first.
        mean: One value per channel, or one for all channels.
        std: One value per channel, or one for all channels.
        order: "rgb", "bgr", or "grey", which turns three channels into one by luminance.
        name: How messages and reports call it.
    """

    scale: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    order: Order = "rgb"
    name: str = "custom"

    def __post_init__(self) -> None:
        if not all(np.isfinite([self.scale, *self.mean, *self.std])) or 0.0 in self.std or self.scale == 0.0:
            raise OptionError("mean, std and scale must be finite numbers, std and scale not 0")

    def __str__(self) -> str:
        steps = [self.order.upper() if self.order != "grey" else "grey by luminance"]
        factor = f"x/{_format_number(1 / self.scale)}" if self.scale != 1.0 else "x"
        steps.append(f"{factor} in 0..255" if self.scale == 1.0 else factor)
        if any(self.mean):
            steps.append(f"minus {_format_channels(self.mean)}")
        if any(s != 1.0 for s in self.std):
            steps.append(f"over {_format_channels(self.std)}")
        return f"{self.name}: {', '.join(steps)}"

    def apply(self, pixels: Pixels) -> NDArray[np.float32]:
        """Normalise pixels (..., channels) in 0..255; channels stay last."""
        values = self._reorder(pixels.astype(np.float32))
        self.check_channels(values.shape[-1])
        if self.scale != 1.0:
            values = values * np.float32(self.scale)
        values = values - np.array(self.mean, np.float32)
        return np.asarray(values / np.array(self.std, np.float32), np.float32)

    def _reorder(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        if self.order == "bgr":
            return values[..., ::-1]
        if self.order == "grey" and values.shape[-1] == 3:
            r, g, b = (values[..., i] * np.float32(LUMINANCE[i]) for i in range(3))
            return np.asarray((r + g + b)[..., None], np.float32)
        return values

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

    Args:
        given: What options or metadata state; None if nothing is known.
        channels: Input channels of the network.
        is_integer: Whether the network's input has an integer type.

    Raises:
        ModelError: The normalisation does not fit the number of channels.
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
    if first == "squash":
        return "squash", crop
    if first == "letterbox":
        return "letterbox", crop
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
    if size is None and isinstance(resize, tuple):
        size = resize
    if size is None and isinstance(resize, int):
        size = (resize, resize)
        notes.append(f"the network accepts any size: {resize}x{resize} assumed; add a crop with e.g. --resize 256/224")
    if size is None:
        size = (224, 224)
        notes.append("the network accepts any size: 224x224 assumed; set it with e.g. --resize 256/256")
    if resize is not None and not isinstance(resize, str):
        resized = resize if isinstance(resize, tuple) else (resize, resize)
        if resized[0] < size[0] or resized[1] < size[1]:
            notes.append(f"images are resized to less than the crop of {size[0]}x{size[1]}: the border is black")
    return Geometry(size, resize, interpolation or "bilinear"), tuple(notes)


def parse_interpolation(value: Any) -> Interpolation:
    """One of Pillow's interpolations by name. Raises OptionError for anything else."""
    if (found := find_interpolation(value)) is None:
        raise OptionError(f"unknown interpolation {value!r}; expected one of {', '.join(INTERPOLATIONS)}")
    return found


def find_interpolation(value: Any) -> Interpolation | None:
    """The interpolation of this name, None where there is none."""
    return next((name for name in INTERPOLATIONS if name == value), None)


def _format_number(number: float) -> str:
    return f"{number:.6g}"


def _format_channels(values: tuple[float, ...]) -> str:
    return _format_number(values[0]) if len(values) == 1 else f"({', '.join(_format_number(v) for v in values)})"
