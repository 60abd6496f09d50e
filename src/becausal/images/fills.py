"""What masked pixels become: a full background image, made once in pixel space.

A fill is written `black`, `grey`, `white`, `#rrggbb`, `mean`, `blur`, `noise`, `inpaint` or `image:FILE`, or as one
number or one for each channel, `r,g,b`: 0..255 for images, in the data's own units for signals and volumes. A fill turns
a view into a background of the same shape and type; a mutant shows the view where visible and the background elsewhere.
All are made from the whole view before the search begins, so a masked pixel always becomes the same thing, whatever
else is masked.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Pixels
from becausal.core.errors import FillError, MissingExtraError
from becausal.core.regions import box_blur

USUAL = "grey"  # where no fill is named
_NUMBER = r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?"


def span(view: Pixels) -> tuple[float, float]:
    """The range colours live in: 0..255 for images, the view's own range for float signals and volumes."""
    if view.dtype == np.uint8:
        return 0.0, 255.0
    low, high = float(view.min()), float(view.max())
    return (low, high) if high > low else (low, low + 1.0)


def as_type(values: NDArray[Any], like: Pixels) -> Pixels:
    """The values in the type of a view, rounded and clipped for images."""
    if like.dtype == np.uint8:
        values = np.rint(values)  # a new array, which is clipped in place: large images take as long as their copies
        np.clip(values, 0, 255, out=values)
    out: Pixels = values.astype(like.dtype)
    return out


def _flat(view: Pixels, colour: NDArray[np.float64]) -> Pixels:
    return as_type(np.broadcast_to(colour, view.shape), view)


def _level(view: Pixels, share: float) -> Pixels:
    low, high = span(view)
    return _flat(view, np.array([low + share * (high - low)]))


def blur(view: Pixels, part: int) -> NDArray[np.float64]:
    """Three box blurs, close to a Gaussian, with a radius of this part of each side."""
    values = view.astype(np.float64)
    for axis, side in enumerate(view.shape[:-1]):
        for _ in range(3):
            values = box_blur(values, max(1, side // part), axis)
    return values


def _noise(view: Pixels, rng: np.random.Generator) -> Pixels:
    low, high = span(view)
    return as_type(low + rng.random(view.shape) * (high - low), view)


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


@dataclass(frozen=True)
class Fill:
    """A fill that has a name. draw: takes a view and a random generator; is_random: whether it makes use of the latter.

    library: an optional one that it needs, and whose versions may paint a little differently.
    """

    draw: Callable[[Pixels, np.random.Generator], Pixels]
    is_random: bool = False
    library: str | None = None


#: The fills that have a name; the command line, the page and messages list them.
FILLS: dict[str, Fill] = {
    "black": Fill(lambda view, rng: _level(view, 0.0)),
    "grey": Fill(lambda view, rng: _level(view, 128 / 255)),
    "white": Fill(lambda view, rng: _level(view, 1.0)),
    "mean": Fill(lambda view, rng: _flat(view, view.reshape(-1, view.shape[-1]).mean(axis=0, dtype=np.float64))),
    "blur": Fill(lambda view, rng: as_type(blur(view, 10), view)),  # so wide that no detail is left
    "noise": Fill(_noise, is_random=True),
    "inpaint": Fill(lambda view, rng: _inpaint(view), library="cv2"),
}


def with_fills(text: str) -> str:
    """A help text, with the names of all fills in place of {fills}."""
    return text.replace("{fills}", ", ".join(FILLS))


def make_background(
    fill: str, view: Pixels, *, rng: np.random.Generator, read_image: Callable[[str], Pixels] | None = None
) -> Pixels:
    """The background of a view, (*grid, channels), under a fill named in text.

    read_image: how `image:FILE` is read into a view of the same shape. Raises FillError for a fill that is unknown or
    does not fit the view.
    """
    channels = view.shape[-1]
    if fill in FILLS:
        return FILLS[fill].draw(view, rng)
    if match := re.fullmatch(r"#([0-9a-fA-F]{6})", fill):
        if channels != 3:
            raise FillError(f"the fill {fill} does not fit {channels} channels: #rrggbb is for three")
        low, high = span(view)
        return _flat(view, low + np.array([byte / 255 for byte in bytes.fromhex(match[1])]) * (high - low))
    if re.fullmatch(f"{_NUMBER}(,{_NUMBER})*", fill):
        values = np.array([float(part) for part in fill.split(",")])
        fits = len(values) in (1, channels)
        if view.dtype.kind in "ui":
            limits = np.iinfo(view.dtype)
            fits &= bool(((values == np.rint(values)) & (values >= limits.min) & (values <= limits.max)).all())
        else:
            fits &= bool((np.abs(values) <= float(np.finfo(view.dtype).max)).all())
        if not fits:
            scale = "0..255" if view.dtype == np.uint8 else str(view.dtype)
            raise FillError(f"the fill {fill} does not fit {channels} channels of {scale}")
        return _flat(view, values)
    if fill.startswith("image:") and read_image is not None:
        other = read_image(fill.removeprefix("image:"))
        if other.shape != view.shape:
            raise FillError(f"the fill image has shape {other.shape}; the view has {view.shape}")
        return as_type(other.astype(np.float64), view)
    raise FillError(f"unknown fill {fill!r}: take one of {', '.join(FILLS)}, #rrggbb, r,g,b, a number or image:FILE")
