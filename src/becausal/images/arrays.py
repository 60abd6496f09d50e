"""Raw arrays, from memory or .npy files, as pixels with a channel axis last."""

from pathlib import Path
from tokenize import TokenError
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Pixels
from becausal.core.errors import ImageError
from becausal.core.text import one_line

Channels = Literal["auto", "last", "none"]

_NAMES = {1: "signal", 2: "grid", 3: "volume"}
_MOST_VALUES = 1 << 30


def read_npy(path: Path, channels: Channels) -> tuple[Pixels, bool, tuple[str, ...]]:
    """The array in a .npy file, as `read_array` gives it; pickled objects are never loaded."""
    try:
        # Mapped first, so that a header that promises more than the file holds costs no memory.
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError, SyntaxError, TypeError, TokenError) as error:
        reason = one_line(error, 200)
        raise ImageError(f"{path} cannot be read as a .npy array: {reason}") from None
    if not isinstance(array, np.ndarray):
        raise ImageError(f"{path} holds several arrays: save one with numpy.save")
    return read_array(array, channels, path.name)


def read_array(array: NDArray[Any], channels: Channels, name: str) -> tuple[Pixels, bool, tuple[str, ...]]:
    """Pixels (*grid, channels), whether the array had no channel axis, and the reading taken, in words.

    auto: (n,) is a signal, (h, w) a grid; (h, w, c) with c of 1, 3 or 4 and smaller than both is an image, as is any
    (h, w, 3) of uint8, any other 3-D array a volume; a 4-D array is a volume with channels. Raises ImageError for
    anything else.
    """
    if array.dtype.kind not in "buif":
        raise ImageError(f"{name} holds {array.dtype}; expected real numbers")
    if array.ndim == 0 or array.size == 0 or array.size > _MOST_VALUES:
        raise ImageError(f"{name} has shape {array.shape}; expected one to four axes, none empty")
    if array.ndim > 4:
        raise ImageError(f"{name} has {array.ndim} axes; expected one to four: give one image, not a batch")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ImageError(f"{name} holds NaN or infinite numbers: replace them first")
    match channels:
        case "last":
            has_channels = True
        case "none":
            has_channels = False
        case _:
            has_channels = _looks_like_image(array) or array.ndim == 4
    if has_channels and array.ndim == 1:
        raise ImageError(f"{name} has one axis and so no channels: give channels='none'")
    # A plain copy in this machine's byte order: nothing below need know of maps, strides or types of other machines.
    plain = np.array(array, dtype=np.uint8 if array.dtype == np.bool_ else array.dtype.newbyteorder("="), order="C")
    pixels = plain if has_channels else plain[..., None]
    return pixels, not has_channels, (_describe(pixels, has_channels),)


def to_rgb(pixels: Pixels, name: str) -> NDArray[np.uint8]:
    """An image array of 0..255 as (h, w, 3) uint8: grey repeated, alpha composited over white.

    Raises ImageError for what is no image, or has no known scale.
    """
    if pixels.dtype == np.uint8 and pixels.ndim == 3 and pixels.shape[-1] == 3:
        return pixels
    if pixels.ndim != 3 or pixels.shape[-1] not in (1, 3, 4):
        raise ImageError(
            f"{name} has shape {pixels.shape}; this model takes images, (h, w) or (h, w, 3): "
            "for signals and volumes give a python: function"
        )
    low, high = float(pixels.min()), float(pixels.max())
    if pixels.dtype != np.uint8 and (low < 0 or high > 255 or 0 < high <= 1):
        raise ImageError(f"{name} holds {low:g}..{high:g}; this model takes images of 0..255: rescale it first")
    if pixels.shape[-1] == 4:
        colour, alpha = pixels[..., :3].astype(np.float64), pixels[..., 3:].astype(np.float64) / 255
        pixels = colour * alpha + 255 * (1 - alpha)
    values = np.rint(pixels).astype(np.uint8) if pixels.dtype != np.uint8 else pixels
    return np.repeat(values, 3, axis=2) if values.shape[-1] == 1 else values


def _looks_like_image(array: NDArray[Any]) -> bool:
    shape = array.shape
    is_rgb = array.dtype == np.uint8 and shape[-1] == 3
    return len(shape) == 3 and (is_rgb or (shape[2] in (1, 3, 4) and min(shape[:2]) > shape[2]))


def _describe(pixels: Pixels, has_channels: bool) -> str:
    grid = pixels.shape[:-1]
    sizes = "x".join(str(n) for n in grid)
    kind = "image" if has_channels and len(grid) == 2 else _NAMES.get(len(grid), "grid")
    tail = f" with {pixels.shape[-1]} channels last" if has_channels else " without channels"
    article = "an" if kind == "image" else "a"
    return f"array read as {article} {kind} of {sizes}{tail}, {pixels.dtype}"
