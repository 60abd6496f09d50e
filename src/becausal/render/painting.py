"""Sheets painted as RGB pixels: the image, the map over it, the explanation with its levels as contour lines."""

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.render.sheets import Sheet, enlarge

COLORMAP = "inferno"  # perceptually uniform, legible in print and with colour vision deficiency
COMPRESSION = 3  # of PNG files: the default takes twice as long for photographs, and saves a few per cent
LUMA = np.array([0.299, 0.587, 0.114])
COLOURS = ("#ffffff", "#00d5ff", "#ff4fd8", "#7dff4f", "#ffb000", "#b09bff")  # of the outlines, the first explanation first
INNER_COLOURS = ("#00e0ff", "#ffe14d", "#ff6ec7")  # of the levels inside the outer line, the innermost first
BOX_COLOUR = "#ffb000"  # of the box of a detector
_DARK, _GREY = np.array([12.0, 14.0, 18.0]), np.array([128.0, 128.0, 128.0])
_VEIL, _UNSEEN = 0.5, 0.64  # how much white covers what is not in the explanation, and what the model does not see

Painted = NDArray[np.uint8]  # (h, w, 3)


@dataclass(frozen=True)
class ContourLine:
    """How the contour line of a level is drawn. width: relative to the outer line."""

    colour: str
    width: float


def line_of(number: int, count: int) -> ContourLine:
    """The line of a level, from 0 for the innermost, of `count` levels."""
    if number == count - 1:
        return ContourLine(COLOURS[0], 1.0)
    return ContourLine(INNER_COLOURS[min(number, len(INNER_COLOURS) - 1)], 1.5 if number == 0 else 1.0)


def paint_image(sheet: Sheet) -> Painted:
    """The view, or the original image with the part that the model does not see faded."""
    return _finish(_draw_box(enlarge(_fade_unseen(sheet.image.astype(np.float64), sheet), sheet.scale), sheet), sheet)


def paint_explanation(sheet: Sheet) -> Painted:
    """Each explanation as it is, with contour lines; all other pixels lighter and with less colour."""
    shown = np.any([visible for _, visible in sheet.sets], axis=0)
    out = np.where(shown[..., None], sheet.image, _veiled(sheet.image, _VEIL))
    return _finish(_outline(enlarge(_fade_unseen(out, sheet), sheet.scale), sheet), sheet)


def paint_map(sheet: Sheet) -> Painted:
    """The map over the greyscale image, more opaque where it is higher, with contour lines."""
    grey, heat = _grey(sheet.image), np.clip(sheet.heat, 0.0, 1.0)
    base = 40.0 + 0.62 * grey
    weight = 0.8 * heat[..., None] ** 0.6  # below 1, so that the image stays recognisable
    shading = 0.7 + 0.3 * grey / 255  # the colours keep the light and shade of the image
    out = base * (1 - weight) + _colours(heat) * shading * weight
    return _finish(_outline(enlarge(_fade_unseen(out, sheet), sheet.scale), sheet), sheet)


def paint_mutant(sheet: Sheet, visible: NDArray[np.bool_]) -> Painted:
    """The model input where only `visible`, (h, w), is shown and the rest is masked."""
    out = np.where(visible[..., None], sheet.image, sheet.background).astype(np.float64)
    return _finish(enlarge(out, sheet.scale), sheet)


def colour_stops(count: int = 9) -> str:
    """The colours of the map from low to high, as stops of a CSS gradient."""
    return ", ".join(f"rgb({r:.0f} {g:.0f} {b:.0f})" for r, g, b in _colours(np.linspace(0, 1, count)))


def as_png(painted: Painted, sheet: Sheet) -> bytes:
    """The content of a PNG file, transparent between tiles."""
    from PIL import Image

    image = Image.fromarray(painted)
    if not sheet.in_tile.all():
        image.putalpha(Image.fromarray(enlarge(sheet.in_tile, sheet.scale).astype(np.uint8) * 255))
    buffer = BytesIO()
    image.save(buffer, "PNG", compress_level=COMPRESSION)
    return buffer.getvalue()


def stack_pngs(upper: bytes, lower: bytes) -> bytes:
    """One PNG image above another, both at the left, on white."""
    from PIL import Image

    images = [Image.open(BytesIO(content)).convert("RGB") for content in (upper, lower)]
    both = Image.new("RGB", (max(image.width for image in images), sum(image.height for image in images)), "white")
    both.paste(images[0], (0, 0))
    both.paste(images[1], (0, images[0].height))
    buffer = BytesIO()
    both.save(buffer, "PNG", compress_level=COMPRESSION)
    return buffer.getvalue()


def dilate(visible: NDArray[np.bool_], width: int) -> NDArray[np.bool_]:
    """Morphological dilation by a square that reaches `width` pixels in every direction."""
    out = visible
    for axis in (0, 1):
        reached = out.copy()
        for shift in range(1, width + 1):
            before = (slice(None),) * axis
            later, earlier = (*before, slice(shift, None)), (*before, slice(None, -shift))
            reached[later] |= out[earlier]
            reached[earlier] |= out[later]
        out = reached
    return out


def _colours(heat: NDArray[np.float64]) -> NDArray[np.float64]:
    """(*shape,) in 0..1 as (*shape, 3) in 0..255."""
    import matplotlib

    return np.asarray(matplotlib.colormaps[COLORMAP](heat))[..., :3] * 255


def _grey(image: NDArray[np.uint8]) -> NDArray[np.float64]:
    return np.repeat((image @ LUMA)[..., None], 3, axis=-1)


def _veiled(image: NDArray[np.uint8], strength: float) -> NDArray[np.float64]:
    """The image under a white veil, with half of its colour."""
    pale = 0.5 * image + 0.5 * _grey(image)
    return pale * (1 - strength) + 255.0 * strength


def _fade_unseen(painted: NDArray[np.float64], sheet: Sheet) -> NDArray[np.float64]:
    """The part of the original image that the model does not see under a veil, with a grey line around the view."""
    if sheet.in_view is None:
        return painted
    faded = np.where(sheet.in_view[..., None], painted, _veiled(sheet.image, _UNSEEN))
    _blend(faded, dilate(sheet.in_view, 2) & ~sheet.in_view, _GREY, 0.8)
    return faded


def _outline(painted: NDArray[np.float64], sheet: Sheet) -> NDArray[np.float64]:
    """A bright line around each explanation with a dark one around it, legible on any background, and lines for its levels.

    The outer line lies outside of the explanation, those of inner levels inside, so that both can be seen where they meet.
    """
    _draw_box(painted, sheet)
    sets = [(number, enlarge(visible, sheet.scale)) for number, visible in sheet.sets]
    shown = np.any([visible for _, visible in sets], axis=0)
    width = ceil(max(shown.shape) / (420 if len(sets) == 1 else 250))
    for number, visible in reversed(sets):
        line = dilate(visible, width)
        shade = dilate(line, width) & ~line & ~shown
        touching = visible & dilate(shown & ~visible, width)  # where two meet, the line is inside
        line = (line & ~shown) | touching
        _blend(painted, shade, _DARK, 0.8)
        _blend(painted, line, colour_of(number), 0.9)
    for number, level in reversed(list(enumerate(sheet.inner))):
        _draw_level(painted, enlarge(level, sheet.scale), line_of(number, len(sheet.inner) + 1), width)
    return painted


def _draw_box(painted: NDArray[np.float64], sheet: Sheet) -> NDArray[np.float64]:
    """The box of a detector, where there is one."""
    if sheet.box is not None:
        draw_box(painted, [side * sheet.scale for side in sheet.box])
    return painted


def draw_box(painted: NDArray[np.float64], box: Sequence[float], width: int | None = None) -> None:
    """A dashed line along a box, (left, top, right, bottom) in pixels of the drawing, on a dark line. width: in pixels."""
    h, w = painted.shape[:2]
    width = width or ceil(max(h, w) / 300)
    left, top, right, bottom = (round(side) for side in box)
    rows, columns = np.arange(h)[:, None], np.arange(w)[None, :]
    inside = (rows >= top) & (rows < bottom) & (columns >= left) & (columns < right)
    line = inside & dilate(~inside | _border(inside.shape), width)
    _blend(painted, dilate(line, max(1, width // 2)), _DARK, 0.7)
    _blend(painted, line & ((rows + columns) // (6 * width) % 2 == 0), rgb_of(BOX_COLOUR), 0.95)


def _border(shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """The outermost pixels."""
    border = np.ones(shape, bool)
    border[1:-1, 1:-1] = False
    return border


def _draw_level(painted: NDArray[np.float64], level: NDArray[np.bool_], line: ContourLine, unit: int) -> None:
    """A line along the inner edge of a level, on a dark one."""
    width = max(1, round(unit * line.width))
    drawn = level & dilate(~level, width)
    _blend(painted, dilate(drawn, max(1, unit // 2)) & level, _DARK, 0.75)
    _blend(painted, drawn, rgb_of(line.colour), 0.95)


def _blend(painted: NDArray[np.float64], where: NDArray[np.bool_], colour: NDArray[np.float64], weight: float) -> None:
    painted[where] = (1 - weight) * painted[where] + weight * colour


def colour_of(number: int) -> NDArray[np.float64]:
    """The colour of an explanation, from 0, as RGB in 0..255."""
    return rgb_of(COLOURS[number % len(COLOURS)])


def rgb_of(colour: str) -> NDArray[np.float64]:
    """A colour such as #00d5ff as RGB in 0..255."""
    return np.array(list(bytes.fromhex(colour[1:])), np.float64)


def _finish(painted: NDArray[Any], sheet: Sheet) -> Painted:
    painted[~enlarge(sheet.in_tile, sheet.scale)] = 255
    finished: Painted = np.clip(np.rint(painted), 0, 255).astype(np.uint8)
    return finished
