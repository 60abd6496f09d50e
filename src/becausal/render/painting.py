"""Sheets as finished pixels: the image, the map over it, the explanation in the light."""

from io import BytesIO
from typing import Any

import matplotlib
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from becausal.render.sheets import Sheet, enlarge

COLOURS = "inferno"  # perceptually uniform, and still legible to the colour-blind and in print
PAPER = 255  # between tiles
_LUMA = np.array([0.299, 0.587, 0.114])
_BRIGHT = np.array([255.0, 255.0, 255.0])
_DARK = np.array([12.0, 14.0, 18.0])

Painted = NDArray[np.uint8]  # (h, w, 3)


def paint_picture(sheet: Sheet) -> Painted:
    """The view as it is."""
    return _finish(enlarge(sheet.picture.astype(np.float64), sheet.scale), sheet)


def paint_explanation(sheet: Sheet) -> Painted:
    """The sufficient pixels in full light with a line round them, all others as a dark, colourless shadow."""
    ghost = 24.0 + 0.26 * _grey(sheet.picture)
    out = np.where(sheet.visible[..., None], sheet.picture, ghost * np.array([0.96, 1.0, 1.08]))
    return _finish(_outline(enlarge(out, sheet.scale), sheet), sheet)


def paint_map(sheet: Sheet) -> Painted:
    """The map over the colourless image, denser where it is higher, with the explanation outlined."""
    base = 40.0 + 0.62 * _grey(sheet.picture)
    level = np.clip(sheet.level, 0.0, 1.0)
    colour = np.asarray(matplotlib.colormaps[COLOURS](level))[..., :3] * 255
    weight = 0.82 * level[..., None] ** 0.55  # never so dense that the image is lost
    out = base * (1 - weight) + colour * weight
    return _finish(_outline(enlarge(out, sheet.scale), sheet), sheet)


def paint_mutant(sheet: Sheet, visible: NDArray[np.bool_]) -> Painted:
    """What the classifier was shown when only `visible`, (h, w), was left and the fill took the rest."""
    out = np.where(visible[..., None], sheet.picture, sheet.hidden).astype(np.float64)
    return _finish(enlarge(out, sheet.scale), sheet)


def colour_stops(count: int = 9) -> str:
    """The map's colours from low to high, as CSS writes the stops of a gradient."""
    table = np.asarray(matplotlib.colormaps[COLOURS](np.linspace(0, 1, count)))[:, :3]
    return ", ".join(f"rgb({r:.0f} {g:.0f} {b:.0f})" for r, g, b in table * 255)


def as_png(painted: Painted, sheet: Sheet) -> bytes:
    """The bytes of a PNG file, clear between tiles."""
    image = Image.fromarray(painted)
    if not sheet.inside.all():
        image.putalpha(Image.fromarray(enlarge(sheet.inside, sheet.scale).astype(np.uint8) * 255))
    buffer = BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def _grey(picture: NDArray[np.uint8]) -> NDArray[np.float64]:
    return np.repeat((picture @ _LUMA)[..., None], 3, axis=-1)


def _outline(painted: NDArray[np.float64], sheet: Sheet) -> NDArray[np.float64]:
    """A bright line just outside of the explanation and a dark one beyond it, so that it shows on any ground."""
    visible = enlarge(sheet.visible, sheet.scale)
    width = max(1, round(max(visible.shape) / 450))
    line = grow(visible, width)
    shade = grow(line, width)
    painted[shade & ~line] = 0.2 * painted[shade & ~line] + 0.8 * _DARK
    painted[line & ~visible] = 0.1 * painted[line & ~visible] + 0.9 * _BRIGHT
    return painted


def grow(visible: NDArray[np.bool_], width: int) -> NDArray[np.bool_]:
    """The set and all pixels within `width` of it along rows and columns, corners included."""
    out = visible
    for axis in (0, 1):
        reached = out.copy()
        for step in range(1, width + 1):
            ahead, behind = _halves(axis, step)
            reached[ahead] |= out[behind]
            reached[behind] |= out[ahead]
        out = reached
    return out


def _halves(axis: int, step: int) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    before = (slice(None),) * axis
    return (*before, slice(step, None)), (*before, slice(None, -step))


def _finish(painted: NDArray[Any], sheet: Sheet) -> Painted:
    painted[~enlarge(sheet.inside, sheet.scale)] = PAPER
    finished: Painted = np.clip(np.rint(painted), 0, 255).astype(np.uint8)
    return finished
