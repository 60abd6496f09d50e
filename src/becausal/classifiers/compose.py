"""Mutants in numpy: the view where visible, its background elsewhere, in the model's own numbers and layout.

Normalisation looks at one pixel at a time, so both pictures are normalised once, when they are staged, and a mutant is
only a choice between two arrays: exactly what normalising the composed pixels would give.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from becausal.contracts import Pixels, Visible

Layout = Literal["nchw", "nhwc"]


@dataclass(frozen=True)
class StagedArrays:
    """A view and its background as bits: the mutant is background ^ (difference & visible), which is exact."""

    background: NDArray[Any]  # unsigned, the model's own layout
    difference: NDArray[Any]  # view ^ background
    dtype: np.dtype[Any]  # what the bits mean


class Composer:
    """Makes batches of mutants.

    prepare: pixels (..., channels) to the model's numbers, channels still last. layout: where channels go.
    dtype: of the model's input. reuses_buffer: batches share one piece of memory, good until the next one is made.
    """

    def __init__(
        self,
        prepare: Callable[[Pixels], NDArray[Any]],
        *,
        layout: Layout = "nhwc",
        dtype: np.dtype[Any] | None = None,
        reuses_buffer: bool = True,
    ) -> None:
        self._prepare = prepare
        self._layout = layout
        self._dtype = dtype
        self._reuses_buffer = reuses_buffer
        self._buffer: NDArray[Any] = np.empty(0, np.uint8)

    def batch(self, pixels: Pixels) -> NDArray[Any]:
        """Whole pictures, (n, *grid, channels), as a batch for the model."""
        values = self._prepare(pixels)
        if self._dtype is not None:
            values = values.astype(self._dtype, copy=False)
        if self._layout == "nchw":
            values = np.moveaxis(values, -1, 1)
        return np.ascontiguousarray(values)

    def stage(self, view: Pixels, background: Pixels) -> StagedArrays:
        """The two pictures, (*grid, channels), ready to be composed."""
        pair = self.batch(np.stack([view, background]))
        bits = pair.view(f"u{pair.itemsize}")
        return StagedArrays(bits[1].copy(), bits[0] ^ bits[1], pair.dtype)

    def compose(self, staged: Sequence[StagedArrays], which: NDArray[np.intp], visible: Visible) -> NDArray[Any]:
        """A batch of mutants, one per row of `visible`, (n, *grid): row i of the pair `which[i]`."""
        like = staged[0].background
        out = self._room((len(visible), *like.shape), staged[0].dtype)
        bits = out.view(like.dtype)
        is_last = self._layout == "nhwc"
        channels = like.shape[-1] if is_last else 1
        every = np.empty((*visible.shape[1:], channels), f"i{like.itemsize}")  # all bits set where visible
        for i, pair in enumerate(which):
            chosen = visible[i].view(np.int8)
            for channel in range(channels):
                np.negative(chosen, out=every[..., channel], dtype=every.dtype)
            where = every.view(like.dtype) if is_last else every.view(like.dtype)[..., 0]
            np.bitwise_and(staged[pair].difference, where, out=bits[i])
            np.bitwise_xor(bits[i], staged[pair].background, out=bits[i])
        return out

    def _room(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        if not self._reuses_buffer:
            return np.empty(shape, dtype)
        old = self._buffer
        if old.shape[1:] != shape[1:] or old.dtype != dtype or len(old) < shape[0]:
            self._buffer = np.empty(shape, dtype)
        return self._buffer[: shape[0]]
