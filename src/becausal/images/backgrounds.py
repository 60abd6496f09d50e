"""Random backgrounds: what masked pixels become where an explanation has to hold on any background.

The distribution, version 1: each of the families in `FAMILIES` is drawn with the same probability. Instead of these,
backgrounds may be drawn from a folder of images, each with the same probability, or by a function. Background k of a seed
is always the same, whatever was drawn before.
"""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import BackgroundSampler, Pixels
from becausal.core.errors import ImageError, InputError, OptionError
from becausal.core.text import one_line
from becausal.images.fills import as_type, blur, span
from becausal.images.loading import ENDINGS, digest_file, list_images

VERSION = 1  # of the distribution; saved certificates name it
BLURS = (16, 8, 4)  # a radius is a side over one of these
SQUARES = (1, 2, 4, 8)  # pixels
DEVIATIONS = (1 / 8, 1 / 2)  # of the range, least and most
MOST_COLOURS = 8  # of a field, along each side
_MOST_KEPT = 1 << 25  # bytes of images of a folder that are kept in memory, for each view

MakePixels = Callable[[Pixels, np.random.Generator], Any]
BackgroundSpec = str | os.PathLike[str] | MakePixels | None


@dataclass(frozen=True)
class Family:
    """A family of backgrounds.

    draw: takes a view, a random generator and a dictionary, in which it may keep what it needs again for this view; returns
    values for the view's shape, in its type or not rounded yet.
    """

    meaning: str
    draw: Callable[[Pixels, np.random.Generator, dict[int, Pixels]], NDArray[Any]]


def _colours(view: Pixels, rng: np.random.Generator, grid: tuple[int, ...]) -> NDArray[np.float64]:
    """Uniform colours, (*grid, channels)."""
    low, high = span(view)
    return np.asarray(low + (high - low) * rng.random((*grid, view.shape[-1])), np.float64)


def _flat(view: Pixels, rng: np.random.Generator, kept: dict[int, Pixels]) -> NDArray[Any]:
    return np.broadcast_to(as_type(_colours(view, rng, ()), view), view.shape).copy()


def _field(view: Pixels, rng: np.random.Generator, kept: dict[int, Pixels]) -> NDArray[Any]:
    grid = view.shape[:-1]
    values = _colours(view, rng, tuple(int(rng.integers(2, MOST_COLOURS + 1)) for _ in grid))
    for axis, side in enumerate(grid):  # linear interpolation, the first and the last colour kept
        count = values.shape[axis]
        place = np.linspace(0.0, count - 1.0, side)
        left = np.minimum(place.astype(np.intp), count - 2)
        weight = (place - left).reshape([side if other == axis else 1 for other in range(values.ndim)])
        right = values.take(left + 1, axis)
        values = values.take(left, axis)
        values *= 1 - weight  # in place: for large images, the copies take longer than the arithmetic
        right *= weight
        values += right
    return values


def _blur(view: Pixels, rng: np.random.Generator, kept: dict[int, Pixels]) -> NDArray[Any]:
    part = BLURS[int(rng.integers(len(BLURS)))]
    if part not in kept:
        kept[part] = as_type(blur(view, part), view)
    return kept[part]


def _noise(view: Pixels, rng: np.random.Generator, kept: dict[int, Pixels]) -> NDArray[Any]:
    square, grid = SQUARES[int(rng.integers(len(SQUARES)))], view.shape[:-1]
    low, high = span(view)
    colour, most = _colours(view, rng, ()), rng.uniform(*DEVIATIONS)
    squares = _colours(view, rng, tuple(-(-side // square) for side in grid))
    values = as_type(np.clip(colour + 2 * most * (squares - (low + high) / 2), low, high), view)
    for axis, side in enumerate(grid):
        values = np.repeat(values, square, axis).take(range(side), axis)
    return values


#: The families by name. Another row, or another order, is another distribution: count VERSION up.
FAMILIES: dict[str, Family] = {
    "flat": Family("one colour, uniform over all colours", _flat),
    "field": Family("a smooth field, interpolated between 2 to 8 uniform colours along each side", _field),
    "blur": Family("the view, blurred with a radius of 1/16, 1/8 or 1/4 of each side", _blur),
    "noise": Family("one colour, with random deviations for each square of 1, 2, 4 or 8 pixels", _noise),
}


class Backgrounds(BackgroundSampler, Protocol):
    """A distribution of backgrounds for one view, from number 0 on; `draw` raises InputError where one cannot be made."""

    def family(self, number: int) -> str:
        """What kind of background this is, in a word, or the name of its file."""
        ...

    def describe(self) -> str:
        """The distribution in a few words."""
        ...


def make_backgrounds(spec: BackgroundSpec, view: Pixels, seed: int, read_image: Callable[[str], Pixels]) -> Backgrounds:
    """The distribution that a user asks for, of backgrounds for one view, (*grid, channels).

    spec: None for the distribution above; the path of a folder of images; or a function of the view and a random generator
    that returns pixels. read_image: how a file of a folder is read into a view of the same shape. Raises InputError where
    the folder does not exist or has no images, or the value is none of the three.
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
    """Our distribution, for one view, (*grid, channels)."""

    view: Pixels
    seed: int
    _kept: dict[int, Pixels] = field(default_factory=dict, init=False, repr=False)

    def draw(self, number: int) -> Pixels:
        rng, family = self._begin(number)
        values = FAMILIES[family].draw(self.view, rng, self._kept)
        return values if values.dtype == self.view.dtype else as_type(values, self.view)

    def family(self, number: int) -> str:
        return self._begin(number)[1]

    def describe(self) -> str:
        return f"becausal backgrounds, version {VERSION}"

    def record(self) -> dict[str, str | int]:
        return {"kind": "becausal", "version": VERSION, "seed": self.seed}

    def _begin(self, number: int) -> tuple[np.random.Generator, str]:
        rng = _generator(self.seed, number)
        return rng, tuple(FAMILIES)[int(rng.integers(len(FAMILIES)))]


@dataclass(frozen=True, eq=False)
class FolderBackgrounds:
    """The images of a folder, each drawn with the same probability.

    folder: as the user named it. names: of the files, relative to the folder, sorted.
    """

    view: Pixels
    seed: int
    folder: str
    names: tuple[str, ...]
    read_image: Callable[[str], Pixels]
    _kept: dict[str, Pixels] = field(default_factory=dict, init=False, repr=False)

    def draw(self, number: int) -> Pixels:
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
        return self.names[int(_generator(self.seed, number).integers(len(self.names)))]

    def describe(self) -> str:
        return f"{len(self.names):,} {'image' if len(self.names) == 1 else 'images'} of {self.folder}"

    def record(self) -> dict[str, str | int]:
        digest = hashlib.sha256()
        for name in self.names:
            path = Path(self.folder, name)
            try:
                content = bytes.fromhex(digest_file(path))
            except (InputError, OSError) as error:
                reason = getattr(error, "strerror", None) or error
                raise ImageError(f"the background {path} cannot be read: {reason}") from None
            digest.update(hashlib.sha256(os.fsencode(name)).digest() + content)
        return {
            "kind": "folder", "version": VERSION, "seed": self.seed, "folder": self.folder, "images": len(self.names),
            "sha256": digest.hexdigest(),
        }  # fmt: skip


@dataclass(frozen=True, eq=False)
class FunctionBackgrounds:
    """What a function of the user draws, each with a random generator of its own."""

    view: Pixels
    seed: int
    function: MakePixels

    def draw(self, number: int) -> Pixels:
        try:
            made = np.asarray(self.function(self.view.copy(), _generator(self.seed, number)))
        except Exception as error:
            reason = f"{type(error).__name__}: {one_line(error, 200)}"
            raise InputError(f"the background function {self.name} failed for background {number}: {reason}") from error
        view, returned = self.view, f"the background function {self.name} returned"
        if made.shape != view.shape:
            raise InputError(f"{returned} an array of shape {made.shape}; the view has {view.shape}")
        if made.dtype.kind not in "uif":
            raise InputError(f"{returned} an array of {made.dtype}; expected {view.dtype}")
        if not np.isfinite(made).all():
            raise InputError(f"{returned} NaN or infinite numbers; expected finite ones")
        low, high = float(made.min()), float(made.max())
        limits = np.iinfo(view.dtype) if view.dtype.kind in "ui" else np.finfo(view.dtype)
        if low < limits.min or high > limits.max:
            raise InputError(f"{returned} values of {low:g}..{high:g}; expected {limits.min:g}..{limits.max:g}")
        if view.dtype == np.uint8 and made.dtype.kind == "f" and 0 < high <= 1:
            raise InputError(f"{returned} values of {low:g}..{high:g}; expected 0..255: multiply them by 255")
        return as_type(made, view)

    def family(self, number: int) -> str:
        return self.name

    @property
    def name(self) -> str:
        return one_line(getattr(self.function, "__name__", type(self.function).__name__), 80)

    def describe(self) -> str:
        return f"the function {self.name}"

    def record(self) -> dict[str, str | int]:
        return {"kind": "function", "version": VERSION, "seed": self.seed, "name": self.name}


def _generator(seed: int, number: int) -> np.random.Generator:
    return np.random.default_rng([seed, VERSION, number])
