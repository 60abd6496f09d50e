"""Sheets painted as RGB pixels: the image, the map over it, the explanation with its levels as contour lines, thumbnails."""

from base64 import b64decode
from collections.abc import Sequence
from io import BytesIO
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.core.explanation import ExplanationRecord
from becausal.core.regions import box_blur
from becausal.render.colours import (
    AGAINST,
    BEND,
    BOX_COLOUR,
    COLORMAP,
    COLOURS,
    DARK,
    LUMA,
    MOST,
    STRIPE,
    TINT,
    UNSEEN,
    UNSEEN_EDGE,
    VEIL,
    ZONES,
    line_of,
    rgb_of,
)
from becausal.render.pages import data_uri
from becausal.render.sheets import Sheet, enlarge, lay_out

COMPRESSION = 3  # of PNG files: the default takes twice as long for photographs, and saves a few per cent
THUMBNAIL_SIDE = 144  # pixels, the longer side
RING = 50  # the longest side divided by this is the radius of the ring around a pixel
SMOOTH = 70  # a map is smoothed over the longest side of a tile divided by this: a cell of 1/28 of it keeps its colour

Painted = NDArray[np.uint8]  # (h, w, 3)


def paint_image(sheet: Sheet) -> Painted:
    """The view, or the original image with the part that the model does not see faded."""
    painted = enlarge(_fade_unseen(sheet.image.astype(np.float64), sheet), sheet.scale)
    return _finish(_draw_target(painted, sheet), sheet)


def paint_explanation(sheet: Sheet) -> Painted:
    """Each explanation as it is, with contour lines; all others paler; stripes over what is against."""
    shown = np.any([visible for _, visible in sheet.sets], axis=0)
    out = np.where(shown[..., None], sheet.image, _veiled(sheet.image, VEIL))
    out = enlarge(_fade_unseen(out, sheet), sheet.scale)
    if sheet.against is not None:
        _stripe(out, enlarge(sheet.against, sheet.scale))
    return _finish(_outline(out, sheet), sheet)


def paint_map(sheet: Sheet) -> Painted:
    """The map in colour over the image, smoothed: a colour for each zone, or more and darker colour where it is higher."""
    grey = _grey(sheet.image)
    base = 0.75 * sheet.image + 0.25 * grey
    known = sheet.in_tile if sheet.in_view is None else sheet.in_view
    colours, opacity = _colour_heat(sheet.heat, known) if sheet.zones is None else _colour_zones(sheet.heat, sheet.zones)
    layer = np.concatenate([colours * opacity[..., None], opacity[..., None]], axis=-1)
    for axis in (0, 1):
        for _ in range(2):
            layer = box_blur(layer, sheet.side // SMOOTH, axis)
    shading = 0.6 + 0.4 * grey / 255  # the colours keep the light and shade of the image
    out = enlarge(_fade_unseen(base * (1 - layer[..., 3:]) + layer[..., :3] * shading, sheet), sheet.scale)
    return _finish(_outline(out, sheet) if sheet.zones is None else _draw_target(out, sheet), sheet)


def _colour_zones(heat: NDArray[np.float64], zones: NDArray[np.uint8]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The colour, (h, w, 3), and the opacity of each pixel, which rises with its place in its zone."""
    colours, opacity = np.zeros((*heat.shape, 3)), np.zeros(heat.shape)
    for zone, (colour, low, high) in ZONES.items():
        own = zones == zone
        values = heat[own]
        spread = float(np.ptp(values)) if len(values) else 0.0
        place = (values - values.min()) / spread if spread > 0 else np.ones(len(values))
        colours[own], opacity[own] = rgb_of(colour), low + (high - low) * place
    return colours, opacity


def _colour_heat(heat: NDArray[np.float64], known: NDArray[np.bool_]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The same of a map without zones, from the lowest value of what the model sees, or 0, to the highest."""
    low = max(0.0, float(heat[known].min()))
    values = np.clip((heat - low) / max(1e-9, 1.0 - low), 0.0, 1.0)
    return _map_colours(values), MOST * values**BEND


def _stripe(painted: NDArray[np.float64], where: NDArray[np.bool_]) -> None:
    """Diagonal stripes over an area, and a tint between them."""
    h, w = where.shape
    rows, columns = np.arange(h)[:, None], np.arange(w)[None, :]
    is_stripe = (rows + columns) // ceil(max(h, w) / 160) % 3 == 0
    _blend(painted, where & ~is_stripe, rgb_of(AGAINST), TINT)
    _blend(painted, where & is_stripe, rgb_of(AGAINST), STRIPE)


def paint_mutant(sheet: Sheet, visible: NDArray[np.bool_]) -> Painted:
    """The model input where only `visible`, (h, w), is shown and the rest is masked."""
    out = np.where(visible[..., None], sheet.image, sheet.background).astype(np.float64)
    return _finish(enlarge(out, sheet.scale), sheet)


def colour_stops(count: int = 9) -> str:
    """The colours of the map from low to high, as stops of a CSS gradient."""
    return ", ".join(f"rgb({r:.0f} {g:.0f} {b:.0f})" for r, g, b in _map_colours(np.linspace(0, 1, count)))


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


def make_thumbnail(explanation: ExplanationRecord, inside: NDArray[np.bool_] | None = None) -> str:
    """The explanations over the faded image, with lines around the outermost and the innermost level, as a data URI.

    Empty for a signal.

    inside: (h, w) over the view, the area of the object's boxes, outlined in amber. The explained box or segment is
    dashed, the explained pixel in a ring.
    """
    if explanation.visible.ndim == 1:
        return ""
    from PIL import Image

    sheet = lay_out(explanation)
    h, w = sheet.visible.shape
    size = (round(THUMBNAIL_SIDE * w / max(h, w)) or 1, round(THUMBNAIL_SIDE * h / max(h, w)) or 1)
    image = np.asarray(Image.fromarray(sheet.image).resize(size, Image.Resampling.BILINEAR), np.float64)
    sets = [(number, _resize_mask(visible, size)) for number, visible in sheet.sets]
    shown = np.any([visible for _, visible in sets], axis=0)
    faded = 0.25 * image + (120.0 + 0.25 * image @ LUMA)[..., None]
    painted = np.where(shown[..., None], image, faded)
    for number, visible in reversed(sets):
        line = dilate(visible, 1) & ~shown
        painted[dilate(line, 1) & ~line & ~shown] *= 0.35
        painted[line] = rgb_of(COLOURS[number % len(COLOURS)])
    if sheet.inner:
        core = _resize_mask(sheet.inner[0], size)
        painted[core & dilate(~core, 1)] = rgb_of(line_of(0, len(sheet.inner) + 1).colour)
    if inside is not None and inside.shape == sheet.visible.shape:
        boxes = _resize_mask(inside, size)
        painted[boxes & dilate(~boxes, 1)] = rgb_of(BOX_COLOUR)
    _draw_target(painted, sheet, width=2)
    buffer = BytesIO()
    Image.fromarray(np.clip(np.rint(painted), 0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=82, subsampling=0)
    return data_uri(buffer.getvalue(), "image/jpeg")


def shrink(thumbnail: str, side: int) -> str:
    """A smaller thumbnail, from a data URI, with this longer side; empty if that is."""
    if not thumbnail:
        return ""
    from PIL import Image

    with Image.open(BytesIO(b64decode(thumbnail.partition(",")[2]))) as image:
        image.thumbnail((side, side))
        buffer = BytesIO()
        image.save(buffer, "JPEG", quality=80)
    return data_uri(buffer.getvalue(), "image/jpeg")


def _resize_mask(mask: NDArray[np.bool_], size: tuple[int, int]) -> NDArray[np.bool_]:
    """The mask at another size; a quarter of a pixel is enough, so that small parts do not vanish."""
    from PIL import Image

    grey = Image.fromarray(mask.astype(np.uint8) * np.uint8(255)).resize(size, Image.Resampling.BOX)
    return np.asarray(grey) > 64


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


def _map_colours(heat: NDArray[np.float64]) -> NDArray[np.float64]:
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
    faded = np.where(sheet.in_view[..., None], painted, _veiled(sheet.image, UNSEEN))
    _blend(faded, dilate(sheet.in_view, 2) & ~sheet.in_view, UNSEEN_EDGE, 0.8)
    return faded


def _outline(painted: NDArray[np.float64], sheet: Sheet) -> NDArray[np.float64]:
    """A bright line around each explanation with a dark one around it, legible on any background, and lines for its levels.

    The outer line lies outside of the explanation, those of inner levels inside, so that both can be seen where they meet.
    """
    _draw_target(painted, sheet)
    sets = [(number, enlarge(visible, sheet.scale)) for number, visible in sheet.sets]
    shown = np.any([visible for _, visible in sets], axis=0)
    width = ceil(max(shown.shape) / (420 if len(sets) == 1 else 250))
    for number, visible in reversed(sets):
        line = dilate(visible, width)
        shade = dilate(line, width) & ~line & ~shown
        touching = visible & dilate(shown & ~visible, width)  # where two meet, the line is inside
        line = (line & ~shown) | touching
        _blend(painted, shade, DARK, 0.8)
        _blend(painted, line, rgb_of(COLOURS[number % len(COLOURS)]), 0.9)
    for number, level in reversed(list(enumerate(sheet.inner))):
        style, level = line_of(number, len(sheet.inner) + 1), enlarge(level, sheet.scale)
        line = level & dilate(~level, max(1, round(width * style.width)))
        _blend(painted, dilate(line, max(1, width // 2)) & level, DARK, 0.75)
        _blend(painted, line, rgb_of(style.colour), 0.95)
    return painted


def _draw_target(painted: NDArray[np.float64], sheet: Sheet, width: int | None = None) -> NDArray[np.float64]:
    """The explained box of a detector, or the explained segment, dashed; or a ring around the explained pixel."""
    (h, w), (own_h, own_w) = painted.shape[:2], sheet.visible.shape
    rows, columns = np.arange(h), np.arange(w)
    if sheet.box is not None:
        left, top, right, bottom = sheet.box
        draw_box(painted, [left * w / own_w, top * h / own_h, right * w / own_w, bottom * h / own_h], width)
    if sheet.segment is not None:
        _dash(painted, sheet.segment[np.ix_(rows * own_h // h, columns * own_w // w)], width)
    if sheet.place is not None:
        across, down = columns + 0.5 - sheet.place[0] * w / own_w, rows + 0.5 - sheet.place[1] * h / own_h
        distance, radius = np.hypot(across, down[:, None]), max(h, w) / RING
        _blend(painted, np.abs(distance - radius) < radius / 3, DARK, 0.7)
        _blend(painted, np.abs(distance - radius) < radius / 6, rgb_of(BOX_COLOUR), 0.95)
    return painted


def draw_box(painted: NDArray[np.float64], box: Sequence[float], width: int | None = None) -> None:
    """A dashed line along a box, (left, top, right, bottom) in pixels of the drawing, on a dark line. width: in pixels."""
    left, top, right, bottom = (round(side) for side in box)
    rows, columns = np.arange(painted.shape[0])[:, None], np.arange(painted.shape[1])[None, :]
    _dash(painted, (rows >= top) & (rows < bottom) & (columns >= left) & (columns < right), width)


def _dash(painted: NDArray[np.float64], inside: NDArray[np.bool_], width: int | None = None) -> None:
    """A dashed line along the edge of an area, (h, w), on a dark line."""
    h, w = inside.shape
    width = width or ceil(max(h, w) / 300)
    outside = ~inside
    outside[[0, -1], :] = outside[:, [0, -1]] = True  # so that there is a line at the edge of the image too
    line = inside & dilate(outside, width)
    _blend(painted, dilate(line, max(1, width // 2)), DARK, 0.7)
    is_dash = (np.arange(h)[:, None] + np.arange(w)) // (6 * width) % 2 == 0
    _blend(painted, line & is_dash, rgb_of(BOX_COLOUR), 0.95)


def _blend(painted: NDArray[np.float64], where: NDArray[np.bool_], colour: NDArray[np.float64], weight: float) -> None:
    painted[where] = (1 - weight) * painted[where] + weight * colour


def _finish(painted: NDArray[Any], sheet: Sheet) -> Painted:
    painted[~enlarge(sheet.in_tile, sheet.scale)] = 255
    finished: Painted = np.clip(np.rint(painted), 0, 255).astype(np.uint8)
    return finished
