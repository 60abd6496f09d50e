"""A model's numbers and geometry: the presets, and how they are written.

Numbers, `--preprocess`: `imagenet`, `tf`, `caffe`, `caffe:B,G,R`, `unit`, `raw`, or a TOML file.
Geometry, `--resize`: `256` (short side first), `squash` (aspect ignored), `squash:256` or `squash:256x320` (squashed to
that, then cropped); each may end in `/224` or `/224x320`, the crop, for networks that take any size.
"""

import re
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Geometry, Pixels
from becausal.core.errors import ModelError, OptionError

Order = Literal["rgb", "bgr", "grey"]
Resize = int | tuple[int, int] | Literal["squash"] | None
Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos", "box", "hamming"]

INTERPOLATIONS: tuple[Interpolation, ...] = ("nearest", "bilinear", "bicubic", "lanczos", "box", "hamming")
LUMINANCE = (0.299, 0.587, 0.114)  # of R, G and B, ITU-R 601 as Pillow has it


@dataclass(frozen=True)
class Normalisation:
    """(x · scale - mean) / std, per channel, after the channels are put in `order`; one number serves all channels.

    order "grey" makes one channel of three, by luminance. Everything is done pixel by pixel in float32.
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
        factor = f"x/{_short(1 / self.scale)}" if self.scale != 1.0 else "x"
        steps.append(f"{factor} in 0..255" if self.scale == 1.0 else factor)
        if any(self.mean):
            steps.append(f"minus {_listed(self.mean)}")
        if any(s != 1.0 for s in self.std):
            steps.append(f"over {_listed(self.std)}")
        return f"{self.name}: {', '.join(steps)}"

    def apply(self, pixels: Pixels) -> NDArray[np.float32]:
        """Pixels (..., channels) of 0..255 in the model's numbers, float32, channels still last."""
        values = self._ordered(pixels.astype(np.float32))
        self.expect(values.shape[-1])
        if self.scale != 1.0:
            values = values * np.float32(self.scale)
        values = values - np.array(self.mean, np.float32)
        return np.asarray(values / np.array(self.std, np.float32), np.float32)

    def _ordered(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        if self.order == "bgr":
            return values[..., ::-1]
        if self.order == "grey" and values.shape[-1] == 3:
            r, g, b = (values[..., i] * np.float32(LUMINANCE[i]) for i in range(3))
            return np.asarray((r + g + b)[..., None], np.float32)
        return values

    def expect(self, channels: int) -> None:
        """Raise ModelError unless the numbers fit a network of that many channels."""
        for numbers in (self.mean, self.std):
            if len(numbers) not in (1, channels):
                raise ModelError(
                    f"the preprocessing {self.name} has {len(numbers)} numbers per pixel; the network takes {channels} "
                    "channels: take unit or raw, or write mean and std in a TOML file"
                )


PRESETS: dict[str, Normalisation] = {
    "imagenet": Normalisation(1 / 255, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), name="imagenet"),
    "tf": Normalisation(1 / 127.5, (1.0,), name="tf"),
    "caffe": Normalisation(1.0, (103.939, 116.779, 123.68), order="bgr", name="caffe"),
    "unit": Normalisation(1 / 255, name="unit"),
    "raw": Normalisation(name="raw"),
}


def parse_numbers(text: str) -> Normalisation:
    """The normalisation a preset names. Raises OptionError for an unknown one."""
    if text in PRESETS:
        return PRESETS[text]
    if match := re.fullmatch(r"caffe:([\d.]+),([\d.]+),([\d.]+)", text):
        try:
            means = tuple(float(part) for part in match.groups())
        except ValueError:
            raise OptionError(f"{text!r} has a number that cannot be read; expected caffe:B,G,R") from None
        return Normalisation(1.0, means, order="bgr", name=text)
    raise OptionError(f"unknown preprocessing {text!r}: take {', '.join(PRESETS)}, caffe:B,G,R or a TOML file")


def choose_numbers(
    said: Normalisation | None, *, channels: int, is_integer: bool = False
) -> tuple[Normalisation, tuple[str, ...]]:
    """The normalisation of a network of that many channels, and what had to be assumed, in words.

    is_integer: the network itself takes whole numbers. Raises ModelError where the numbers do not fit the channels.
    """
    notes: list[str] = []
    numbers = said
    if numbers is None and is_integer:
        numbers = PRESETS["raw"]
        notes.append("the network takes whole numbers: pixels go in as they are, 0..255")
    elif numbers is None:
        name = {3: "imagenet", 1: "unit"}.get(channels, "raw")
        numbers = PRESETS[name]
        notes.append(f"nothing says which numbers the network expects: {name} assumed; --preprocess changes it")
    if channels == 1 and numbers.order != "grey":
        numbers = Normalisation(numbers.scale, numbers.mean, numbers.std, "grey", numbers.name)
        notes.append("the network takes one channel: colours are turned to grey by luminance")
    numbers.expect(channels)
    return numbers, tuple(notes)


def parse_size(text: str | int) -> tuple[int, int]:
    """(h, w) from `224`, `224x320` or a number. Raises OptionError for anything else."""
    match = re.fullmatch(r"(\d{1,5})(?:x(\d{1,5}))?", str(text).strip())
    size = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if min(size) < 1:
        raise OptionError(f"{text!r} is no size: write 224 or 224x320 (rows x columns)")
    return size


def parse_resize(text: str | int) -> tuple[Resize, tuple[int, int] | None]:
    """What to resize to, and the crop where one is written. Raises OptionError for anything else."""
    first, _, crop_text = str(text).strip().partition("/")
    crop = parse_size(crop_text) if crop_text else None
    if first == "squash":
        return "squash", crop
    if first.startswith("squash:"):
        return parse_size(first.removeprefix("squash:")), crop
    if first.isdecimal():
        return parse_size(first)[0], crop
    raise OptionError(f"unknown resize {text!r}: write 256, squash, squash:256, or one of these and /224 for the crop")


def plan_geometry(
    grid: tuple[int, int] | None, *, resize: Resize, crop: tuple[int, int] | None, interpolation: Interpolation | None
) -> tuple[Geometry, tuple[str, ...]]:
    """The geometry of a network whose input is `grid` (None: any size), and what had to be assumed, in words."""
    notes: list[str] = []
    if grid is not None and crop is not None and crop != grid:
        raise ModelError(f"the crop is {crop[0]}x{crop[1]} but the network takes {grid[0]}x{grid[1]}")
    size = grid or crop
    if size is None and isinstance(resize, tuple):
        size = resize
    if size is None and isinstance(resize, int):
        size = (resize, resize)
        notes.append(f"the network takes any size: {resize}x{resize} taken, the crop may be written as in --resize 256/224")
    if size is None:
        size = (224, 224)
        notes.append("the network takes any size: 224x224 assumed; change it with --resize, such as --resize 256/256")
    if resize is not None and not isinstance(resize, str):
        resized = resize if isinstance(resize, tuple) else (resize, resize)
        if resized[0] < size[0] or resized[1] < size[1]:
            notes.append(f"resized to less than the crop of {size[0]}x{size[1]}: the rest is black")
    return Geometry(size, resize, interpolation or "bilinear"), tuple(notes)


def parse_interpolation(value: Any) -> Interpolation:
    """A name Pillow knows. Raises OptionError for anything else."""
    for name in INTERPOLATIONS:
        if value == name:
            return name
    raise OptionError(f"unknown interpolation {value!r}: take one of {', '.join(INTERPOLATIONS)}")


def _short(number: float) -> str:
    return f"{number:.6g}"


def _listed(numbers: tuple[float, ...]) -> str:
    return _short(numbers[0]) if len(numbers) == 1 else f"({', '.join(_short(n) for n in numbers)})"
