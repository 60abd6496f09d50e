"""Explanations as small JPEG images, for pages that show hundreds of them."""

from base64 import b64encode
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from becausal.core.explanation import ExplanationRecord
from becausal.render.painting import grow
from becausal.render.sheets import lay_out

SIDE = 144
_LUMA = np.array([0.299, 0.587, 0.114])
_BOX = np.array([255.0, 176.0, 0.0])


def make_thumbnail(explanation: ExplanationRecord, inside: NDArray[np.bool_] | None = None) -> str:
    """The explanation in the light over the dimmed image, as a data URI; empty for a signal.

    inside: (h, w) over the view, the object's boxes, outlined in amber.
    """
    if explanation.visible.ndim == 1:
        return ""
    sheet = lay_out(explanation)
    h, w = sheet.visible.shape
    size = (round(SIDE * w / max(h, w)) or 1, round(SIDE * h / max(h, w)) or 1)
    picture = np.asarray(Image.fromarray(sheet.picture).resize(size, Image.Resampling.BILINEAR), np.float64)
    visible = _shrink(sheet.visible, size)
    dimmed = 0.3 * picture + (22.0 + 0.22 * picture @ _LUMA)[..., None]
    painted = np.where(visible[..., None], picture, dimmed)
    painted[grow(visible, 1) & ~visible] = 255.0
    if inside is not None and inside.shape == sheet.visible.shape:
        within = _shrink(inside, size)
        painted[within & grow(~within, 1)] = _BOX
    buffer = BytesIO()
    Image.fromarray(np.clip(np.rint(painted), 0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=82)
    return "data:image/jpeg;base64," + b64encode(buffer.getvalue()).decode("ascii")


def _shrink(values: NDArray[np.bool_], size: tuple[int, int]) -> NDArray[np.bool_]:
    """A set at another size; what is small does not vanish."""
    grey = Image.fromarray(values.astype(np.uint8) * np.uint8(255)).resize(size, Image.Resampling.BOX)
    return np.asarray(grey) > 64
