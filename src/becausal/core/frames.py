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

    def to_original(self, array: NDArray[Any], fill: float = 0) -> NDArray[Any]:
        """An array over the view's grid as one over the original: nearest for bool and integers, linear for floats.

        What lies outside of the view becomes `fill` (False for bool). Raises ImageError for another shape.
        """
        self._expect(array, self.grid, "view")
        if self.is_identity:
            return array.copy()
        out = array
        is_smooth = np.issubdtype(array.dtype, np.floating)
        for axis in range(array.ndim):
            out = self._spread(out, axis) if is_smooth else np.take(out, self._view_index(axis)[0], axis=axis)
        for axis in range(array.ndim):
            _, is_inside = self._view_index(axis)
            if not is_inside.all():
                out[(slice(None),) * axis + (~is_inside,)] = fill
        return out

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
        self._expect(array, self.original, "original")
        out = array
        outside: list[NDArray[np.bool_]] = []
        for axis, (length, resized, origin, side) in enumerate(self._axes()):
            place = ((2 * (np.arange(side) + origin) + 1) * length) // (2 * resized)
            outside.append((place < 0) | (place >= length))
            out = np.take(out, np.clip(place, 0, length - 1), axis=axis)
        for axis, is_outside in enumerate(outside):
            out[(slice(None),) * axis + (is_outside,)] = 0
        return out

    def _axes(self) -> list[tuple[int, int, int, int]]:
        return list(zip(self.original, self.resized, self.origin, self.grid, strict=True))

    def _view_index(self, axis: int) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """For each original pixel along an axis: the view pixel over its centre, and whether there is one."""
        length, resized, origin, side = self._axes()[axis]
        place = ((2 * np.arange(length) + 1) * resized) // (2 * length) - origin
        return np.clip(place, 0, side - 1), (place >= 0) & (place < side)

    def _spread(self, array: NDArray[Any], axis: int) -> NDArray[Any]:
        """Linear interpolation along one axis, edges repeated."""
        length, resized, origin, side = self._axes()[axis]
        place = np.clip((np.arange(length) + 0.5) * resized / length - origin - 0.5, 0, side - 1)
        before = np.minimum(place.astype(np.intp), side - 1)
        after = np.minimum(before + 1, side - 1)
        shape = [1] * array.ndim
        shape[axis] = length
        share = (place - before).astype(array.dtype).reshape(shape)
        first = np.take(array, before, axis=axis)
        return np.asarray(first + (np.take(array, after, axis=axis) - first) * share)

    @staticmethod
    def _expect(array: NDArray[Any], shape: Grid, whose: str) -> None:
        if array.shape != shape:
            raise ImageError(f"an array of shape {array.shape} does not fit the {whose}, whose shape is {shape}")


def plan_frame(original: tuple[int, int], geometry: Geometry) -> Frame:
    """The frame of an image of (h, w) under a geometry; sizes and the centre are rounded as torchvision rounds."""
    match geometry.resize:
        case "squash":
            resized = geometry.grid
        case "letterbox":
            resized = _fit_inside(original, geometry.grid)
        case (rows, columns):
            resized = (rows, columns)
        case side:
            resized = _with_short_side(original, min(geometry.grid) if side is None else side)
    origin = tuple(_centre(have, want) for have, want in zip(resized, geometry.grid, strict=True))
    return Frame(original, resized, origin, geometry.grid)


def _with_short_side(shape: tuple[int, int], side: int) -> tuple[int, int]:
    h, w = shape
    return (side, int(side * w / h)) if h <= w else (int(side * h / w), side)


def _fit_inside(shape: tuple[int, int], grid: tuple[int, int]) -> tuple[int, int]:
    (h, w), (rows, columns) = shape, grid
    if rows * w <= columns * h:
        return rows, max(1, round(w * rows / h))
    return max(1, round(h * columns / w)), columns


def _centre(have: int, want: int) -> int:
    return round((have - want) / 2) if have >= want else -((want - have) // 2)
