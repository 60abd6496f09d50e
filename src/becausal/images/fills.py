"""What masked pixels become: a full background image, made once in pixel space.

A fill is written `black`, `grey`, `white`, `#rrggbb` or `r,g,b`, `mean`, `blur`, `noise`, `inpaint`, or
`image:FILE`. A fill turns a view into a background of the same shape and type; a mutant shows the view where visible
and the background elsewhere. All are made from the whole view before the search begins, so a masked pixel always
becomes the same thing, whatever else is masked.
"""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.core.blur import box_blur
from becausal.core.contracts import Pixels
from becausal.core.errors import FillError, MissingExtraError

NAMES = ("black", "grey", "white", "mean", "blur", "noise", "inpaint")
_LEVELS = {"black": 0.0, "grey": 128 / 255, "white": 1.0}


def span(view: Pixels) -> tuple[float, float]:
    """The range colours live in: 0..255 for images, the view's own range for float signals and volumes."""
    if view.dtype == np.uint8:
        return 0.0, 255.0
    low, high = float(view.min()), float(view.max())
    return (low, high) if high > low else (low, low + 1.0)


def _as_type(values: NDArray[Any], like: Pixels) -> Pixels:
    if like.dtype == np.uint8:
        values = np.clip(np.rint(values), 0, 255)
    out: Pixels = values.astype(like.dtype)
    return out


def _flat(view: Pixels, colour: NDArray[np.float64]) -> Pixels:
    return _as_type(np.broadcast_to(colour, view.shape), view)


def _blur(view: Pixels) -> Pixels:
    """Three box blurs, close to a Gaussian, wide enough that no detail is left: a tenth of each side."""
    values = view.astype(np.float64)
    for axis in range(view.ndim - 1):
        radius = max(1, view.shape[axis] // 10)
        for _ in range(3):
            values = box_blur(values, radius, axis)
    return _as_type(values, view)


def _noise(view: Pixels, rng: np.random.Generator) -> Pixels:
    low, high = span(view)
    return _as_type(low + rng.random(view.shape) * (high - low), view)


def _inpaint(view: Pixels) -> Pixels:
    """Every pixel as a library would inpaint it from those around: blocks in two colours of a chessboard, in turn."""
    if view.ndim != 3 or view.dtype != np.uint8 or view.shape[-1] not in (1, 3):
        raise FillError("the fill inpaint is for images only; for signals and volumes take mean, blur or noise")
    try:
        import cv2
    except ImportError:
        raise MissingExtraError("opencv", "inpaint", "the fill inpaint") from None
    side = max(4, min(view.shape[:2]) // 6)
    rows, columns = np.indices(view.shape[:2])
    odd = ((rows // side + columns // side) % 2).astype(bool)
    out = np.empty_like(view)
    for masked in (odd, ~odd):
        painted = cv2.inpaint(np.ascontiguousarray(view), masked.astype(np.uint8), 3, cv2.INPAINT_TELEA)
        out[masked] = painted.reshape(view.shape)[masked]
    return out


def _colour(text: str) -> tuple[int, ...] | None:
    if match := re.fullmatch(r"#([0-9a-fA-F]{6})", text):
        return tuple(bytes.fromhex(match[1]))
    if re.fullmatch(r"\d{1,3}(,\d{1,3})*", text):
        return tuple(int(part) for part in text.split(","))
    return None


def make_background(
    fill: str, view: Pixels, *, rng: np.random.Generator, read_image: Callable[[str], Pixels] | None = None
) -> Pixels:
    """The background of a view, (*grid, channels), under a fill named in text.

    read_image: how `image:FILE` is read into a view of the same shape. Raises FillError for a fill that is unknown or
    does not fit the view.
    """
    low, high = span(view)
    channels = view.shape[-1]
    if fill in _LEVELS:
        return _flat(view, np.array([low + _LEVELS[fill] * (high - low)]))
    match fill:
        case "mean":
            return _flat(view, view.reshape(-1, channels).mean(axis=0, dtype=np.float64))
        case "blur":
            return _blur(view)
        case "noise":
            return _noise(view, rng)
        case "inpaint":
            return _inpaint(view)
    if (colour := _colour(fill)) is not None:
        if len(colour) not in (1, channels) or max(colour) > 255:
            raise FillError(f"the fill {fill} does not fit {channels} channels of 0..255")
        return _flat(view, low + np.array(colour, float) / 255 * (high - low))
    if fill.startswith("image:") and read_image is not None:
        other = read_image(fill.removeprefix("image:"))
        if other.shape != view.shape:
            raise FillError(f"the fill image has shape {other.shape}; the view has {view.shape}")
        return _as_type(other.astype(np.float64), view)
    raise FillError(f"unknown fill {fill!r}: take one of {', '.join(NAMES)}, #rrggbb, r,g,b or image:FILE")
