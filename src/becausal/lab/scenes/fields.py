"""Smooth fields and filters on square images, in elementwise arithmetic that gives the same bits on every machine."""

import math

import numpy as np
import numpy.typing as npt

from becausal.lab.scenes.palette import Colour, between
from becausal.lab.scenes.sketch import FloatArray


def grid(size: int) -> tuple[FloatArray, FloatArray]:
    """Pixel centres across, (1, n), and down, (n, 1), as shares of the side."""
    line = ((np.arange(size) + 0.5) / size).astype(np.float32)
    return line[None, :], line[:, None]


def noise(rng: np.random.Generator, size: int, cells: int, *, cells_down: int | None = None) -> FloatArray:
    """Smooth random field, (n, n) in 0..1, with the given number of cells per side."""
    down = cells if cells_down is None else cells_down
    knots = rng.random((down + 2, cells + 2)).astype(np.float32)
    rows, row_share = _steps(size, down)
    columns, column_share = _steps(size, cells)
    top, bottom = knots[rows], knots[rows + 1]
    strip = top + (bottom - top) * row_share[:, None]
    left, right = strip[:, columns], strip[:, columns + 1]
    return np.asarray(left + (right - left) * column_share[None, :], dtype=np.float32)


def _steps(size: int, cells: int) -> tuple[npt.NDArray[np.intp], FloatArray]:
    at = (np.arange(size) + 0.5) * (cells / size)
    low = np.floor(at).astype(np.intp)
    share = at - low
    return low, (share * share * (3.0 - 2.0 * share)).astype(np.float32)


def rough(rng: np.random.Generator, size: int, cells: int) -> FloatArray:
    """Sum of three octaves of noise, (n, n), about 0..1."""
    field = noise(rng, size, cells) * np.float32(0.5)
    field = field + noise(rng, size, cells * 2) * np.float32(0.3)
    return np.asarray(field + noise(rng, size, cells * 4) * np.float32(0.2), dtype=np.float32)


def along(size: int, angle: float) -> FloatArray:
    """Position along a direction, (n, n), as a share of the side, 0 in the centre of the image."""
    x, y = grid(size)
    cosine, sine = np.float32(round(math.cos(angle), 5)), np.float32(round(math.sin(angle), 5))
    return np.asarray((x - np.float32(0.5)) * cosine + (y - np.float32(0.5)) * sine, dtype=np.float32)


def waves(field: FloatArray) -> FloatArray:
    """Triangle wave of period 1 between 0 and 1 (not a sine, which platforms round differently)."""
    return np.asarray(np.abs((field - np.floor(field)) * np.float32(2.0) - np.float32(1.0)), dtype=np.float32)


def blend(field: FloatArray, low: Colour, high: Colour) -> FloatArray:
    """Image, (n, n, 3), that changes from one colour to the other as the field goes from 0 to 1."""
    share = np.clip(field, 0.0, 1.0)[:, :, None].astype(np.float32)
    start = np.array(low, dtype=np.float32)
    return np.asarray(start + (np.array(high, dtype=np.float32) - start) * share, dtype=np.float32)


def smooth(image: FloatArray, sigma: float) -> FloatArray:
    """Gaussian blur with a standard deviation in pixels; edges are repeated."""
    if sigma < 0.2:
        return image
    reach = max(1, min(int(2.5 * sigma + 0.5), image.shape[0] - 1))
    offsets = range(-reach, reach + 1)
    weights = [round(math.exp(-0.5 * (k / sigma) ** 2), 6) for k in offsets]
    total = sum(weights)
    result = image
    for axis in (0, 1):
        side = result.shape[axis]
        padding = [(reach, reach) if k == axis else (0, 0) for k in range(result.ndim)]
        padded = np.pad(result, padding, mode="edge")
        blurred = np.zeros_like(result)
        for k, weight in zip(offsets, weights, strict=True):
            start = k + reach
            piece = padded[start : start + side] if axis == 0 else padded[:, start : start + side]
            blurred += piece * np.float32(weight / total)
        result = blurred
    return result


def speckle(rng: np.random.Generator, size: int, strength: float) -> FloatArray:
    """Noise, (n, n), independent for each pixel, between -strength and strength."""
    return np.asarray((rng.random((size, size), dtype=np.float32) - np.float32(0.5)) * np.float32(2.0 * strength))


def tilt(rng: np.random.Generator, size: int, strength: float) -> FloatArray:
    """Brightness around 1, (n, n), that falls off in a random direction."""
    return np.asarray(np.float32(1.0) + along(size, between(rng, 0.0, 2.0 * math.pi)) * np.float32(2.0 * strength))
