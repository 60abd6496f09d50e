"""The way between a view's grid and the original: integer arithmetic, so that no pixel is lost to rounding."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.core.boxes import Box
from becausal.core.contracts import Geometry, Grid
from becausal.core.errors import ImageError


@dataclass(frozen=True)
class Frame:
    """Where a view lies on its original: resized from `original` to `resized`, then cut at `origin` to `grid`.

    All four are spatial shapes or positions, one number per axis. A negative origin means padding before the image.
    Along each axis view position v (in pixels, edges at whole numbers) shows original position
    (v + origin) · original / resized.
    """

    original: Grid
    resized: Grid
    origin: tuple[int, ...]
    grid: Grid

    @staticmethod
    def identity(grid: Grid) -> "Frame":
        """The frame of a view that is its original."""
        return Frame(grid, grid, (0,) * len(grid), grid)

    @staticmethod
    def from_record(record: Mapping[str, Any]) -> "Frame":
        """The frame behind a `record`, after a way through JSON."""
        parts = (tuple(int(n) for n in record[key]) for key in ("original", "resized", "origin", "grid"))
        return Frame(*parts)

    def record(self) -> dict[str, list[int]]:
        """Plain lists of numbers, ready for JSON."""
        return {key: list(value) for key, value in asdict(self).items()}

    @property
    def is_identity(self) -> bool:
        return self.original == self.grid == self.resized and not any(self.origin)

    @property
    def scale(self) -> tuple[float, ...]:
        """Original pixels per view pixel, along each axis."""
        return tuple(o / r for o, r in zip(self.original, self.resized, strict=True))

    @property
    def offset(self) -> tuple[float, ...]:
        """Where the view's first edge lies on the original, in original pixels, along each axis."""
        return tuple(o * s for o, s in zip(self.origin, self.scale, strict=True))

    def to_original(self, array: NDArray[Any]) -> NDArray[Any]:
        """An array over the view's grid as one over the original: nearest for bool and integers, linear for floats.

        What lies outside of the view becomes 0 or False. Raises ImageError for another shape.
        """
        if array.shape != self.grid:
            raise ImageError(f"an array of shape {array.shape} does not fit the view, whose shape is {self.grid}")
        if self.is_identity:
            return array.copy()
        out, is_smooth = array, np.issubdtype(array.dtype, np.floating)
        outside: list[NDArray[np.bool_]] = []
        for axis, (length, resized, origin, side) in enumerate(self._axes()):
            # The view pixel over the centre of each original one, in integers: (i + 1/2) · resized / length - origin.
            place = ((2 * np.arange(length) + 1) * resized) // (2 * length) - origin
            outside.append((place < 0) | (place >= side))
            if is_smooth:  # linear interpolation, edges repeated
                at = np.clip((np.arange(length) + 0.5) * resized / length - origin - 0.5, 0, side - 1)
                before = np.minimum(at.astype(np.intp), side - 1)
                share = (at - before).astype(out.dtype).reshape([length if a == axis else 1 for a in range(out.ndim)])
                first = np.take(out, before, axis=axis)
                out = first + (np.take(out, np.minimum(before + 1, side - 1), axis=axis) - first) * share
            else:
                out = np.take(out, np.clip(place, 0, side - 1), axis=axis)
        return _blank(out, outside)

    def box_to_original(self, box: Box) -> Box:
        """A box of the view, (left, top, right, bottom), in pixels of the original."""
        (down, across), (top, left) = self.scale, self.offset
        return box[0] * across + left, box[1] * down + top, box[2] * across + left, box[3] * down + top

    def box_from_original(self, box: Box) -> Box:
        """A box of the original, (left, top, right, bottom), in pixels of the view."""
        (down, across), (top, left) = self.scale, self.offset
        return (box[0] - left) / across, (box[1] - top) / down, (box[2] - left) / across, (box[3] - top) / down

    def from_original(self, array: NDArray[Any]) -> NDArray[Any]:
        """An array over the original, such as a truth, as one over the view's grid, by the nearest pixel.

        Padding becomes False or 0. Raises ImageError for another shape.
        """
        if array.shape != self.original:
            raise ImageError(f"an array of shape {array.shape} does not fit the original, whose shape is {self.original}")
        out = array
        outside: list[NDArray[np.bool_]] = []
        for axis, (length, resized, origin, side) in enumerate(self._axes()):
            place = ((2 * (np.arange(side) + origin) + 1) * length) // (2 * resized)
            outside.append((place < 0) | (place >= length))
            out = np.take(out, np.clip(place, 0, length - 1), axis=axis)
        return _blank(out, outside)

    def _axes(self) -> list[tuple[int, int, int, int]]:
        return list(zip(self.original, self.resized, self.origin, self.grid, strict=True))


def _blank(array: NDArray[Any], outside: list[NDArray[np.bool_]]) -> NDArray[Any]:
    for axis, is_outside in enumerate(outside):
        array[(slice(None),) * axis + (is_outside,)] = 0
    return array


def plan_frame(original: tuple[int, int], geometry: Geometry) -> Frame:
    """The frame of an image of (h, w) under a geometry; sizes and the centre are rounded as torchvision rounds."""
    h, w = original
    match geometry.resize:
        case "squash":
            resized = geometry.grid
        case "letterbox":
            rows, columns = geometry.grid
            is_tall = rows * w <= columns * h
            resized = (rows, max(1, round(w * rows / h))) if is_tall else (max(1, round(h * columns / w)), columns)
        case (rows, columns):
            resized = (rows, columns)
        case side:
            side = min(geometry.grid) if side is None else side
            resized = (side, int(side * w / h)) if h <= w else (int(side * h / w), side)
    room = [have - want for have, want in zip(resized, geometry.grid, strict=True)]
    origin = tuple(round(more / 2) if more >= 0 else -(-more // 2) for more in room)  # negative: padding
    return Frame(original, resized, origin, geometry.grid)
