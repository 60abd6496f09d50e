"""Sets and maps encoded as short texts, so that a row can contain them."""

import zlib
from base64 import b64decode, b64encode

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Saliency, Visible


def pack_set(visible: Visible) -> str:
    """A set, (*grid,), as text that begins with its shape."""
    shape = "x".join(str(side) for side in visible.shape)
    return f"{shape}:{_compress(np.packbits(visible.ravel()))}"


def unpack_set(text: str) -> Visible:
    """The set that was packed into the text."""
    head, _, body = text.partition(":")
    shape = tuple(int(side) for side in head.split("x"))
    bits = np.unpackbits(np.frombuffer(zlib.decompress(b64decode(body)), np.uint8), count=int(np.prod(shape)))
    return bits.astype(bool).reshape(shape)


def pack_map(saliency: Saliency) -> str:
    """A map as text, quantised to 256 levels between its minimum and maximum."""
    low, high = float(saliency.min()), float(saliency.max())
    level = (saliency - low) / (high - low) if high > low else np.zeros(saliency.shape)
    shape = "x".join(str(side) for side in saliency.shape)
    return f"{shape}:{_compress(np.rint(level * 255).astype(np.uint8).ravel())}"


def unpack_map(text: str) -> Saliency:
    """The map that was packed into the text, scaled to 0..1."""
    head, _, body = text.partition(":")
    shape = tuple(int(side) for side in head.split("x"))
    return np.frombuffer(zlib.decompress(b64decode(body)), np.uint8).reshape(shape) / 255.0


def _compress(data: NDArray[np.uint8]) -> str:
    return b64encode(zlib.compress(data.tobytes(), 9)).decode("ascii")
