"""Explanations as small JPEG images, for pages that show hundreds of them."""

from io import BytesIO

import numpy as np
from numpy.typing import NDArray

from becausal.core.explanation import ExplanationRecord
from becausal.render.pages import data_uri
from becausal.render.painting import BOX_COLOUR, LUMA, colour_of, dilate, draw_box, line_of, rgb_of
from becausal.render.sheets import lay_out

SIDE = 144  # pixels, the longer side


def make_thumbnail(explanation: ExplanationRecord, inside: NDArray[np.bool_] | None = None) -> str:
    """The explanations over the faded image, with lines around the outermost and the innermost level, as a data URI.

    Empty for a signal.

    inside: (h, w) over the view, the area of the object's boxes, outlined in amber. The explained box of a detector is
    dashed.
    """
    if explanation.visible.ndim == 1:
        return ""
    from PIL import Image

    sheet = lay_out(explanation)
    h, w = sheet.visible.shape
    size = (round(SIDE * w / max(h, w)) or 1, round(SIDE * h / max(h, w)) or 1)
    image = np.asarray(Image.fromarray(sheet.image).resize(size, Image.Resampling.BILINEAR), np.float64)
    sets = [(number, _resize_mask(visible, size)) for number, visible in sheet.sets]
    shown = np.any([visible for _, visible in sets], axis=0)
    faded = 0.25 * image + (120.0 + 0.25 * image @ LUMA)[..., None]
    painted = np.where(shown[..., None], image, faded)
    for number, visible in reversed(sets):
        line = dilate(visible, 1) & ~shown
        painted[dilate(line, 1) & ~line & ~shown] *= 0.35
        painted[line] = colour_of(number)
    if sheet.inner:
        label = _resize_mask(sheet.inner[0], size)
        painted[label & dilate(~label, 1)] = rgb_of(line_of(0, len(sheet.inner) + 1).colour)
    if inside is not None and inside.shape == sheet.visible.shape:
        boxes = _resize_mask(inside, size)
        painted[boxes & dilate(~boxes, 1)] = rgb_of(BOX_COLOUR)
    if sheet.box is not None:
        left, top, right, bottom = sheet.box
        box = [left * size[0] / w, top * size[1] / h, right * size[0] / w, bottom * size[1] / h]
        draw_box(painted, box, width=2)  # JPEG blurs the colour of thinner lines
    buffer = BytesIO()
    Image.fromarray(np.clip(np.rint(painted), 0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=82)
    return data_uri(buffer.getvalue(), "image/jpeg")


def _resize_mask(mask: NDArray[np.bool_], size: tuple[int, int]) -> NDArray[np.bool_]:
    """The mask at another size; a quarter of a pixel is enough, so that small parts do not vanish."""
    from PIL import Image

    grey = Image.fromarray(mask.astype(np.uint8) * np.uint8(255)).resize(size, Image.Resampling.BOX)
    return np.asarray(grey) > 64
