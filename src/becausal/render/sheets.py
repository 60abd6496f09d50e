"""Images and volumes laid out as flat sheets, so that the same code paints both.

An image is a sheet with one tile: the original image where there is one, else the view. A volume is shown as a few slices
along its first axis, taken from those that intersect the explanation.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.core.boxes import Box
from becausal.core.contracts import Pixels, Saliency
from becausal.core.explanation import ExplanationRecord
from becausal.core.frames import Frame
from becausal.core.segments import stretch_segment

MIN_WIDTH = 448  # pixels; smaller sheets are enlarged to at least this width
MAX_SIDE = 2048  # pixels; nothing is enlarged beyond this
ORIGINAL_SIDE = 800  # pixels of the longest side of an original, at least
MAX_SLICES = 6


@dataclass(frozen=True)
class Tile:
    """Position of one slice on the sheet and its caption (empty for an image)."""

    top: int
    left: int
    caption: str


@dataclass(frozen=True)
class Sheet:
    """Everything that is painted, in pixels of the view, or of the original image."""

    image: NDArray[np.uint8]  # (h, w, 3), the view or the original image
    background: NDArray[np.uint8]  # (h, w, 3), what masked pixels become
    visible: NDArray[np.bool_]  # (h, w), the explanation
    heat: NDArray[np.float64]  # (h, w), the map divided by its largest absolute value
    in_tile: NDArray[np.bool_]  # (h, w), False in the gaps between tiles
    tiles: tuple[Tile, ...]  # the slices; one for an image
    scale: int  # by which the sheet is enlarged
    others: tuple[NDArray[np.bool_], ...] = ()  # further explanations, each (h, w)
    number: int = 0  # which explanation `visible` is; it decides on the colour
    inner: tuple[NDArray[np.bool_], ...] = ()  # the sets inside the explanation, smallest first, each (h, w)
    zones: NDArray[np.uint8] | None = None  # (h, w), see `Zone`; None for a map without
    against: NDArray[np.bool_] | None = None  # (h, w), what speaks against the label
    in_view: NDArray[np.bool_] | None = None  # (h, w), what the model sees of the original image; None: all of it
    box: Box | None = None  # the explained box of a detector
    segment: NDArray[np.bool_] | None = None  # (h, w), the explained segment
    place: tuple[float, float] | None = None  # the middle of the explained pixel, from the left and from above

    @property
    def side(self) -> int:
        """The longest side of a tile, in pixels before they are enlarged."""
        edges = self.in_tile[:, 0], self.in_tile[0]
        return max(len(edge) if edge.all() else int(np.argmin(edge)) for edge in edges)

    @property
    def sets(self) -> Iterator[tuple[int, NDArray[np.bool_]]]:
        """All explanations with their numbers."""
        return enumerate((self.visible, *self.others), start=self.number)

    def only(self, number: int) -> "Sheet":
        """The sheet with one explanation of several, in its own colour."""
        return replace(self, visible=(self.visible, *self.others)[number], others=(), number=number, inner=(), against=None)


def lay_out(explanation: ExplanationRecord) -> Sheet:
    """Lay out the view of an explanation with two or three spatial dimensions."""
    visible, view = explanation.visible, explanation.view
    slices = slices_of(explanation) if visible.ndim == 3 else (0,)
    h, w = visible.shape[-2:]
    columns = ceil(sqrt(len(slices)))
    rows = ceil(len(slices) / columns)
    column_gap, row_gap = max(1, w // 16), max(2, columns * w // 20)  # captions are drawn in the row gap
    positions = [((i // columns) * (h + row_gap), (i % columns) * (w + column_gap)) for i in range(len(slices))]
    shape = (rows * h + (rows - 1) * row_gap, columns * w + (columns - 1) * column_gap)

    def arrange(values: NDArray[Any]) -> NDArray[Any]:
        sheet = np.zeros(shape + values.shape[visible.ndim :], values.dtype)
        for number, (top, left) in zip(slices, positions, strict=True):
            sheet[top : top + h, left : left + w] = values[number] if visible.ndim == 3 else values
        return sheet

    low, high = value_range(view)
    return Sheet(
        image=arrange(as_rgb(view, low, high)),
        background=arrange(as_rgb(explanation.backgrounds[0], low, high)),
        visible=arrange(visible),
        heat=arrange(as_heat(explanation.responsibility)),
        in_tile=arrange(np.ones(visible.shape, bool)),
        tiles=tuple(
            Tile(top, left, f"slice {number}" if visible.ndim == 3 else "")
            for number, (top, left) in zip(slices, positions, strict=True)
        ),
        scale=choose_scale(shape),
        others=tuple(arrange(other.visible) for other in explanation.others),
        inner=tuple(arrange(level.visible) for level in explanation.levels[:-1]),
        zones=None if explanation.zones is None else arrange(explanation.zones),
        against=None if explanation.against is None else arrange(explanation.against.visible),
        box=explanation.target.box,
        segment=_find_segment(explanation),
        place=None if (place := explanation.target.place) is None else (place[0] * w, place[1] * h),
    )


def lay_out_original(explanation: ExplanationRecord) -> Sheet:
    """Lay out the original image where it is at hand, else the view; nothing can be masked on it."""
    original = explanation.original
    if original is None or explanation.visible.ndim != 2:
        return lay_out(explanation)
    image = np.asarray(original, np.uint8)
    h, w = image.shape[:2]
    factor = min(MAX_SIDE, max(ORIGINAL_SIDE, *explanation.frame.resized)) / max(h, w)
    if factor > 1:  # enlarged linearly
        larger = Frame((max(1, round(h * factor)), max(1, round(w * factor))), (h, w), (0, 0), (h, w))
        channels = [larger.to_original(original[..., channel].astype(np.float32)) for channel in range(3)]
        image = np.asarray(np.rint(np.stack(channels, axis=-1)), np.uint8)
        h, w = image.shape[:2]
    frame = replace(explanation.frame, original=(h, w))
    in_view = frame.to_original(np.ones(frame.grid, bool))
    return Sheet(
        image=image,
        background=image,
        visible=frame.to_original(explanation.visible),
        heat=frame.to_original(as_heat(explanation.responsibility)),
        in_tile=np.ones((h, w), bool),
        tiles=(Tile(0, 0, ""),),
        scale=1,
        others=tuple(frame.to_original(other.visible) for other in explanation.others),
        inner=tuple(frame.to_original(level.visible) for level in explanation.levels[:-1]),
        zones=None if explanation.zones is None else frame.to_original(explanation.zones),
        against=None if explanation.against is None else frame.to_original(explanation.against.visible),
        in_view=None if in_view.all() else in_view,
        box=None if explanation.target.box is None else frame.box_to_original(explanation.target.box),
        segment=None if (segment := _find_segment(explanation)) is None else frame.to_original(segment),
        place=_find_place(explanation, frame),
    )


def _find_segment(explanation: ExplanationRecord) -> NDArray[np.bool_] | None:
    """The explained segment over the view, where there is one."""
    text = explanation.target.segment
    return None if text is None else stretch_segment(text, explanation.visible.shape)


def _find_place(explanation: ExplanationRecord, frame: Frame) -> tuple[float, float] | None:
    """The explained pixel in an original of this frame, where there is one."""
    if explanation.target.place is None:
        return None
    (x, y), (h, w) = explanation.target.place, frame.grid
    return frame.box_to_original((x * w, y * h, x * w, y * h))[:2]


def slices_of(explanation: ExplanationRecord) -> tuple[int, ...]:
    """Up to MAX_SLICES evenly spaced indices along the first axis, among the slices that intersect an explanation."""
    visible = np.any([found.visible for found in explanation.sets], axis=0)
    depths = np.flatnonzero(visible.any(axis=(1, 2)))
    if not len(depths):
        depths = np.arange(len(visible))
    picks = np.linspace(0, len(depths) - 1, min(MAX_SLICES, len(depths)))
    return tuple(int(depths[i]) for i in np.unique(np.rint(picks).astype(int)))


def choose_scale(shape: tuple[int, int]) -> int:
    """The integer factor that brings a sheet to MIN_WIDTH without exceeding MAX_SIDE."""
    return max(1, min(ceil(MIN_WIDTH / shape[1]), MAX_SIDE // max(shape)))


def value_range(view: Pixels) -> tuple[float, float]:
    """The values shown as black and as white: 0 and 255 for uint8, else the minimum and maximum of the view."""
    if view.dtype == np.uint8:
        return 0.0, 255.0
    low, high = float(view.min()), float(view.max())
    return (low, high) if high > low else (low, low + 1.0)


def as_rgb(pixels: Pixels, low: float, high: float) -> NDArray[np.uint8]:
    """(*grid, channels) of any type as (*grid, 3) uint8; anything but three channels is averaged to grey."""
    if pixels.dtype == np.uint8 and pixels.shape[-1] == 3:
        return pixels
    values = np.clip((pixels.astype(np.float64) - low) / (high - low), 0.0, 1.0)
    if values.shape[-1] != 3:
        values = np.repeat(values.mean(axis=-1, keepdims=True), 3, axis=-1)
    return np.rint(values * 255).astype(np.uint8)


def as_heat(saliency: Saliency) -> NDArray[np.float64]:
    """The map divided by its largest absolute value; all zeros for an all-zero map."""
    values = np.nan_to_num(saliency.astype(np.float64), posinf=0.0, neginf=0.0)
    largest = float(np.abs(values).max(initial=0.0))
    return values / largest if largest > 0 else values


def enlarge(values: NDArray[Any], scale: int) -> NDArray[Any]:
    """Nearest-neighbour enlargement of the first two axes by an integer factor."""
    return values.repeat(scale, axis=0).repeat(scale, axis=1)
