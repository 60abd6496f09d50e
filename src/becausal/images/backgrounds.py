"""Random backgrounds: what masked pixels become where an explanation has to hold on any background.

The distribution, version 1. Each of four families is drawn with the same probability:

- flat: one colour, uniform over all colours.
- field: a smooth field of colours, a lattice of 2 to 8 uniform colours along each side, interpolated linearly.
- blur: the view itself, blurred until its details are gone, with a radius of 1/16, 1/8 or 1/4 of each side.
- noise: one colour, and a uniform deviation from it of up to 1/8 to 1/2 of the range, independent for each channel and
  each square of 1, 2, 4 or 8 pixels; clipped.

Instead of these, backgrounds may be drawn from a folder of images, each with the same probability, or by a function.
Background k of a seed is always the same, whatever was drawn before.
"""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from becausal.core.blur import box_blur
from becausal.core.contracts import Pixels
from becausal.core.errors import ImageError, InputError, OptionError
from becausal.core.files import open_regular
from becausal.core.text import one_line
from becausal.images.fills import as_type, span
from becausal.images.folders import ENDINGS, list_images

VERSION = 1
FAMILIES = ("flat", "field", "blur", "noise")
MEANINGS = {
    "flat": "one colour, uniform over all colours",
    "field": "a smooth field, interpolated between 2 to 8 uniform colours along each side",
    "blur": "the view, blurred with a radius of 1/16, 1/8 or 1/4 of each side",
    "noise": "one colour, with random deviations for each square of 1, 2, 4 or 8 pixels",
}
BLURS = (16, 8, 4)  # a radius is a side over one of these
SQUARES = (1, 2, 4, 8)  # pixels
DEVIATIONS = (1 / 8, 1 / 2)  # of the range, least and most
MOST_COLOURS = 8  # of a field, along each side
_MOST_KEPT = 1 << 25  # bytes of images of a folder that are kept in memory, for each view

MakePixels = Callable[[Pixels, np.random.Generator], Any]
BackgroundSpec = str | os.PathLike[str] | MakePixels | None


class Backgrounds(Protocol):
    """A distribution of backgrounds for one view, numbered from 0 on."""

    def draw(self, number: int) -> Pixels:
        """The background with this number, of the view's shape and type."""
        ...

    def family(self, number: int) -> str:
        """What kind of background this is, in a word, or the name of its file."""
        ...

    def describe(self) -> str:
        """The distribution in a few words."""
        ...

    def record(self) -> dict[str, str | int]:
        """What identifies the distribution, as JSON can hold it: kind, version, seed, and more."""
        ...


def make_backgrounds(spec: BackgroundSpec, view: Pixels, seed: int, read_image: Callable[[str], Pixels]) -> Backgrounds:
    """The distribution that a user asks for.

    Args:
        spec: None for the distribution above; the path of a folder of images; or a function of the view and a random
            generator that returns pixels.
        view: (*grid, channels).
        seed: Same seed, same backgrounds; 0 or more.
        read_image: How a file of a folder is read into a view of the same shape.

    Raises:
        InputError: The folder does not exist or has no images, or the value is none of the three.
    """
    if spec is None:
        return RandomBackgrounds(view, seed)
    if callable(spec):
        return FunctionBackgrounds(view, seed, spec)
    if not isinstance(spec, (str, os.PathLike)):
        raise OptionError(
            f"backgrounds are a folder of images or a function of view and rng, not {one_line(repr(spec), 80)}"
        )
    folder = os.fspath(spec)
    if not os.path.isdir(folder):
        raise InputError(f"there is no folder {folder}: backgrounds are a folder of images")
    names = tuple(Path(path).relative_to(folder).as_posix() for path in list_images(Path(folder)))
    if not names:
        raise InputError(f"{folder} has no images: expected files that end in {', '.join(ENDINGS)}")
    return FolderBackgrounds(view, seed, folder, tuple(sorted(names)), read_image)


@dataclass(frozen=True, eq=False)
class RandomBackgrounds:
    """The distribution for one view.

    Attributes:
        view: (*grid, channels).
        seed: Same seed, same backgrounds.
    """

    view: Pixels
    seed: int
    _blurred: dict[int, Pixels] = field(default_factory=dict, init=False, repr=False)

    def draw(self, number: int) -> Pixels:
        """The background with this number, of the view's shape and type."""
        rng, family = self._begin(number)
        make: dict[str, Callable[[np.random.Generator], Pixels]] = {
            "flat": self._flat, "field": self._field, "blur": self._blur, "noise": self._noise,
        }  # fmt: skip
        return make[family](rng)

    def family(self, number: int) -> str:
        """The family of the background with this number."""
        return self._begin(number)[1]

    def describe(self) -> str:
        """The distribution in a few words."""
        return f"becausal backgrounds, version {VERSION}"

    def record(self) -> dict[str, str | int]:
        """Kind, version and seed."""
        return {"kind": "becausal", "version": VERSION, "seed": self.seed}

    def _begin(self, number: int) -> tuple[np.random.Generator, str]:
        rng = _generator(self.seed, number)
        return rng, FAMILIES[int(rng.integers(len(FAMILIES)))]

    def _colours(self, rng: np.random.Generator, grid: tuple[int, ...]) -> NDArray[np.float64]:
        low, high = span(self.view)
        return np.asarray(low + (high - low) * rng.random((*grid, self.view.shape[-1])), np.float64)

    def _flat(self, rng: np.random.Generator) -> Pixels:
        return as_type(np.broadcast_to(self._colours(rng, ()), self.view.shape), self.view)

    def _field(self, rng: np.random.Generator) -> Pixels:
        grid = self.view.shape[:-1]
        values = self._colours(rng, tuple(int(rng.integers(2, MOST_COLOURS + 1)) for _ in grid))
        for axis, side in enumerate(grid):
            values = _stretch(values, side, axis)
        return as_type(values, self.view)

    def _blur(self, rng: np.random.Generator) -> Pixels:
        width = BLURS[int(rng.integers(len(BLURS)))]
        if width not in self._blurred:
            values = self.view.astype(np.float64)
            for axis, side in enumerate(self.view.shape[:-1]):
                for _ in range(3):
                    values = box_blur(values, max(1, side // width), axis)
            self._blurred[width] = as_type(values, self.view)
        return self._blurred[width]

    def _noise(self, rng: np.random.Generator) -> Pixels:
        square, grid = SQUARES[int(rng.integers(len(SQUARES)))], self.view.shape[:-1]
        low, high = span(self.view)
        colour, most = self._colours(rng, ()), rng.uniform(*DEVIATIONS)
        squares = self._colours(rng, tuple(-(-side // square) for side in grid))
        values = np.clip(colour + 2 * most * (squares - (low + high) / 2), low, high)
        for axis, side in enumerate(grid):
            values = np.repeat(values, square, axis).take(range(side), axis)
        return as_type(values, self.view)


@dataclass(frozen=True, eq=False)
class FolderBackgrounds:
    """The images of a folder, each drawn with the same probability.

    Attributes:
        view: (*grid, channels).
        seed: Same seed and same files, same backgrounds.
        folder: As the user named it.
        names: Of the files, relative to the folder, sorted.
        read_image: How a file is read into a view of the same shape.
    """

    view: Pixels
    seed: int
    folder: str
    names: tuple[str, ...]
    read_image: Callable[[str], Pixels]
    _kept: dict[str, Pixels] = field(default_factory=dict, init=False, repr=False)

    def draw(self, number: int) -> Pixels:
        """The image that has this number. Raises ImageError, which names the file, where it cannot be used."""
        name = self.family(number)
        if name in self._kept:
            return self._kept[name]
        path = os.path.join(self.folder, name)
        try:
            pixels = self.read_image(path)
        except InputError as error:
            raise ImageError(f"the background {path} cannot be used: {error}") from error
        if pixels.shape != self.view.shape:
            raise ImageError(f"the background {path} has shape {pixels.shape}; the view has {self.view.shape}")
        pixels = as_type(pixels.astype(np.float64), self.view)
        if (len(self._kept) + 1) * self.view.nbytes <= _MOST_KEPT:
            self._kept[name] = pixels
        return pixels

    def family(self, number: int) -> str:
        """The name of the file."""
        return self.names[int(_generator(self.seed, number).integers(len(self.names)))]

    def describe(self) -> str:
        """The distribution in a few words."""
        return f"{len(self.names):,} {'image' if len(self.names) == 1 else 'images'} of {self.folder}"

    def record(self) -> dict[str, str | int]:
        """Kind, version, seed, the folder as it was named, the number of images, a digest of their names and bytes."""
        digest = hashlib.sha256()
        for name in self.names:
            path = Path(self.folder, name)
            try:
                found = os.stat(path)
                content = _digest_file(os.path.abspath(path), found.st_size, found.st_mtime_ns)
            except (InputError, OSError) as error:
                raise ImageError(
                    f"the background {path} cannot be read: {getattr(error, 'strerror', None) or error}"
                ) from None
            digest.update(hashlib.sha256(os.fsencode(name)).digest() + content)
        return {
            "kind": "folder", "version": VERSION, "seed": self.seed, "folder": self.folder, "images": len(self.names),
            "sha256": digest.hexdigest(),
        }  # fmt: skip


@dataclass(frozen=True, eq=False)
class FunctionBackgrounds:
    """What a function of the user draws.

    Attributes:
        view: (*grid, channels).
        seed: Each background has a random generator of its own, from this seed and its number.
        function: Takes the view and the generator, returns pixels of the view's shape and range.
    """

    view: Pixels
    seed: int
    function: MakePixels

    def draw(self, number: int) -> Pixels:
        """What the function returns for this number. Raises InputError where it fails, or returns something else."""
        try:
            made = np.asarray(self.function(self.view.copy(), _generator(self.seed, number)))
        except Exception as error:
            reason = f"{type(error).__name__}: {one_line(error, 200)}"
            raise InputError(f"the background function {self.name} failed for background {number}: {reason}") from error
        if problem := _misfit(made, self.view):
            raise InputError(f"the background function {self.name} returned {problem}")
        return as_type(made, self.view)

    def family(self, number: int) -> str:
        """The name of the function."""
        return self.name

    @property
    def name(self) -> str:
        """The function's own name."""
        return one_line(getattr(self.function, "__name__", type(self.function).__name__), 80)

    def describe(self) -> str:
        """The distribution in a few words."""
        return f"the function {self.name}"

    def record(self) -> dict[str, str | int]:
        """Kind, version, seed and the function's name."""
        return {"kind": "function", "version": VERSION, "seed": self.seed, "name": self.name}


@lru_cache(maxsize=10_000)
def _digest_file(path: str, size: int, modified: int) -> bytes:
    """The SHA-256 of a file, read again only if its size or time has changed: a run over many images asks for each."""
    with open_regular(Path(path)) as file:
        return hashlib.file_digest(file, "sha256").digest()


def _generator(seed: int, number: int) -> np.random.Generator:
    return np.random.default_rng([seed, VERSION, number])


def _misfit(made: NDArray[Any], view: Pixels) -> str:
    """What is wrong with the pixels that a function returned for a view, and what was expected; empty if nothing."""
    if made.shape != view.shape:
        return f"an array of shape {made.shape}; the view has {view.shape}"
    if made.dtype.kind not in "uif":
        return f"an array of {made.dtype}; expected {view.dtype}"
    if not np.isfinite(made).all():
        return "NaN or infinite numbers; expected finite ones"
    low, high = float(made.min()), float(made.max())
    limits = np.iinfo(view.dtype) if view.dtype.kind in "ui" else np.finfo(view.dtype)
    if low < limits.min or high > limits.max:
        return f"values of {low:g}..{high:g}; expected {limits.min:g}..{limits.max:g}"
    if view.dtype == np.uint8 and made.dtype.kind == "f" and 0 < high <= 1:
        return f"values of {low:g}..{high:g}; expected 0..255: multiply them by 255"
    return ""


def _stretch(values: NDArray[np.float64], side: int, axis: int) -> NDArray[np.float64]:
    """Linear interpolation along an axis to this many values, the first and the last one kept."""
    count = values.shape[axis]
    place = np.linspace(0.0, count - 1.0, side)
    left = np.minimum(place.astype(np.intp), count - 2)
    shape = [1] * values.ndim
    shape[axis] = side
    weight = (place - left).reshape(shape)
    return np.asarray(values.take(left, axis) * (1 - weight) + values.take(left + 1, axis) * weight, np.float64)
