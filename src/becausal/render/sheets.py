"""An image or a volume laid out flat, so that both are painted by the same code.

An image is a sheet of one tile. Of a volume, a few slices across the first axis are laid side by side, those that the
explanation passes through.
"""

from dataclasses import dataclass
from math import ceil, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Pixels, Saliency
from becausal.core.explanation import ExplanationRecord

WIDTH = 448  # pixels a drawn sheet has at least, across
LONGEST = 2048  # pixels beyond which nothing is enlarged
SLICES = 6


@dataclass(frozen=True)
class Tile:
    """One slice on the sheet: where it lies and what is written above it (nothing for a plain image)."""

    top: int
    left: int
    caption: str


@dataclass(frozen=True)
class Sheet:
    """What is painted, in pixels of the view, and by how much it is enlarged.

    image, hidden: (h, w, 3) uint8, the view and its background. visible: (h, w) bool. level: (h, w) float, the map as
    a share of its largest value. inside: (h, w) bool, False between tiles. scale: how often each pixel is repeated.
    """

    picture: NDArray[np.uint8]
    hidden: NDArray[np.uint8]
    visible: NDArray[np.bool_]
    level: NDArray[np.float64]
    inside: NDArray[np.bool_]
    tiles: tuple[Tile, ...]
    scale: int


def lay_out(explanation: ExplanationRecord) -> Sheet:
    """The sheet of an explanation over a grid of two or three dimensions."""
    visible, view = explanation.visible, explanation.view
    slices = choose_slices(visible) if visible.ndim == 3 else (0,)
    h, w = visible.shape[-2:]
    columns = ceil(sqrt(len(slices)))
    rows = ceil(len(slices) / columns)
    aside, below = max(1, w // 16), max(2, columns * w // 20)  # between columns; between rows, where captions stand
    places = [((i // columns) * (h + below), (i % columns) * (w + aside)) for i in range(len(slices))]
    shape = (rows * h + (rows - 1) * below, columns * w + (columns - 1) * aside)

    def spread(values: NDArray[Any]) -> NDArray[Any]:
        sheet = np.zeros(shape + values.shape[visible.ndim :], values.dtype)
        for number, (top, left) in zip(slices, places, strict=True):
            sheet[top : top + h, left : left + w] = values[number] if visible.ndim == 3 else values
        return sheet

    low, high = span(view)
    return Sheet(
        picture=spread(as_rgb(view, low, high)),
        hidden=spread(as_rgb(explanation.backgrounds[0], low, high)),
        visible=spread(visible),
        level=spread(as_level(explanation.responsibility)),
        inside=spread(np.ones(visible.shape, bool)),
        tiles=tuple(
            Tile(top, left, f"slice {number}" if visible.ndim == 3 else "")
            for number, (top, left) in zip(slices, places, strict=True)
        ),
        scale=choose_scale(shape),
    )


def choose_slices(visible: NDArray[np.bool_]) -> tuple[int, ...]:
    """A few indices along the first axis, evenly taken from those where the explanation has pixels."""
    depths = np.flatnonzero(visible.any(axis=(1, 2)))
    if not len(depths):
        depths = np.arange(len(visible))
    picks = np.linspace(0, len(depths) - 1, min(SLICES, len(depths)))
    return tuple(int(depths[i]) for i in np.unique(np.rint(picks).astype(int)))


def choose_scale(shape: tuple[int, int]) -> int:
    """How often each pixel is repeated so that the sheet is wide enough to look at, yet no side grows out of hand."""
    return max(1, min(ceil(WIDTH / shape[1]), LONGEST // max(shape)))


def span(view: Pixels) -> tuple[float, float]:
    """The values shown as black and as white: 0..255 for images, the view's own range for floats."""
    if view.dtype == np.uint8:
        return 0.0, 255.0
    low, high = float(view.min()), float(view.max())
    return (low, high) if high > low else (low, low + 1.0)


def as_rgb(pixels: Pixels, low: float, high: float) -> NDArray[np.uint8]:
    """(*grid, channels) of any type as (*grid, 3) uint8; channels other than three are averaged to grey."""
    if pixels.dtype == np.uint8 and pixels.shape[-1] == 3:
        return pixels
    values = np.clip((pixels.astype(np.float64) - low) / (high - low), 0.0, 1.0)
    if values.shape[-1] != 3:
        values = np.repeat(values.mean(axis=-1, keepdims=True), 3, axis=-1)
    return np.rint(values * 255).astype(np.uint8)


def as_level(saliency: Saliency) -> NDArray[np.float64]:
    """The map as a share of its largest absolute value; all 0 where it says nothing."""
    values = np.nan_to_num(saliency.astype(np.float64), posinf=0.0, neginf=0.0)
    largest = float(np.abs(values).max(initial=0.0))
    return values / largest if largest > 0 else values


def enlarge(values: NDArray[Any], scale: int) -> NDArray[Any]:
    """Every pixel repeated along both sides, nothing smoothed."""
    return values.repeat(scale, axis=0).repeat(scale, axis=1)
