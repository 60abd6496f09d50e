"""Sheets painted as RGB pixels: the image, the map over it, the explanation with everything else darkened."""

from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.render.sheets import Sheet, enlarge

COLORMAP = "inferno"  # perceptually uniform, legible in print and with colour vision deficiency
LUMA = np.array([0.299, 0.587, 0.114])
COLOURS = ("#ffffff", "#00d5ff", "#ff4fd8", "#7dff4f", "#ffb000", "#b09bff")  # of the outlines, the first explanation first
_DARK = np.array([12.0, 14.0, 18.0])

Painted = NDArray[np.uint8]  # (h, w, 3)


def paint_image(sheet: Sheet) -> Painted:
    """The view itself."""
    return _finish(enlarge(sheet.image.astype(np.float64), sheet.scale), sheet)


def paint_explanation(sheet: Sheet) -> Painted:
    """Each explanation at full brightness with an outline in its colour; all other pixels dark and without colour."""
    darkened = 24.0 + 0.26 * _grey(sheet.image)
    shown = np.any([visible for _, visible in sheet.sets], axis=0)
    out = np.where(shown[..., None], sheet.image, darkened * np.array([0.96, 1.0, 1.08]))
    return _finish(_outline(enlarge(out, sheet.scale), sheet), sheet)


def paint_map(sheet: Sheet) -> Painted:
    """The map over the greyscale image, more opaque where it is higher, with each explanation outlined."""
    base = 40.0 + 0.62 * _grey(sheet.image)
    level = np.clip(sheet.level, 0.0, 1.0)
    weight = 0.82 * level[..., None] ** 0.55  # below 1, so that the image stays recognisable
    out = base * (1 - weight) + _colours(level) * weight
    return _finish(_outline(enlarge(out, sheet.scale), sheet), sheet)


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
    image.save(buffer, "PNG")
    return buffer.getvalue()


def stack_pngs(upper: bytes, lower: bytes) -> bytes:
    """One PNG image above another, both at the left, on white."""
    from PIL import Image

    images = [Image.open(BytesIO(content)).convert("RGB") for content in (upper, lower)]
    both = Image.new("RGB", (max(image.width for image in images), sum(image.height for image in images)), "white")
    both.paste(images[0], (0, 0))
    both.paste(images[1], (0, images[0].height))
    buffer = BytesIO()
    both.save(buffer, "PNG")
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


def _colours(level: NDArray[np.float64]) -> NDArray[np.float64]:
    """(*shape,) in 0..1 as (*shape, 3) in 0..255."""
    import matplotlib

    return np.asarray(matplotlib.colormaps[COLORMAP](level))[..., :3] * 255


def _grey(image: NDArray[np.uint8]) -> NDArray[np.float64]:
    return np.repeat((image @ LUMA)[..., None], 3, axis=-1)


def _outline(painted: NDArray[np.float64], sheet: Sheet) -> NDArray[np.float64]:
    """A bright line around each explanation and a dark one around that, legible on any background."""
    sets = [(number, enlarge(visible, sheet.scale)) for number, visible in sheet.sets]
    shown = np.any([visible for _, visible in sets], axis=0)
    width = max(1, round(max(shown.shape) / (450 if len(sets) == 1 else 250)))
    for number, visible in reversed(sets):
        line = dilate(visible, width)
        shade = dilate(line, width) & ~line & ~shown
        touching = visible & dilate(shown & ~visible, width)  # where two meet, the line is inside
        line = (line & ~shown) | touching
        painted[shade] = 0.2 * painted[shade] + 0.8 * _DARK
        painted[line] = 0.1 * painted[line] + 0.9 * colour_of(number)
    return painted


def colour_of(number: int) -> NDArray[np.float64]:
    """The colour of an explanation, from 0, as RGB in 0..255."""
    return np.array(list(bytes.fromhex(COLOURS[number % len(COLOURS)][1:])), np.float64)


def _finish(painted: NDArray[Any], sheet: Sheet) -> Painted:
    painted[~enlarge(sheet.in_tile, sheet.scale)] = 255
    finished: Painted = np.clip(np.rint(painted), 0, 255).astype(np.uint8)
    return finished
