"""Mutants in numpy: the view where visible, its background elsewhere, in the model's own numbers and layout.

Normalisation looks at one pixel at a time, so both images are normalised once, when they are staged, and a mutant is
only a choice between two arrays: exactly what normalising the composed pixels would give.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Pixels, Visible

Layout = Literal["nchw", "nhwc"]

FEW = 12  # of so many pixels at most one may differ for a mutant to be made from the one before


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
    remembers: nobody else writes to that memory, so that of a mutant that differs little from the one before in its place
    only the difference need be written; `forget` where somebody did.
    """

    def __init__(
        self,
        prepare: Callable[[Pixels], NDArray[Any]],
        *,
        layout: Layout = "nhwc",
        dtype: np.dtype[Any] | None = None,
        reuses_buffer: bool = True,
        remembers: bool = False,
    ) -> None:
        self._prepare = prepare
        self._layout = layout
        self._dtype = dtype
        self._reuses_buffer = reuses_buffer
        self._buffer: NDArray[Any] = np.empty(0, np.uint8)
        self.remembers = remembers and reuses_buffer
        self._held: list[StagedArrays | None] = []  # the pair each row of the buffer is made of, where that is known,
        self._shown: Visible = np.empty((0, 0), bool)  # and what it shows of it, (rows, pixels)

    def batch(self, pixels: Pixels) -> NDArray[Any]:
        """Whole images, (n, *grid, channels), as a batch for the model."""
        values = self._prepare(pixels)
        if self._dtype is not None:
            values = values.astype(self._dtype, copy=False)
        if self._layout == "nchw":
            values = np.moveaxis(values, -1, 1)
        return np.ascontiguousarray(values)

    def stage(self, view: Pixels, background: Pixels) -> StagedArrays:
        """The two images, (*grid, channels), ready to be composed."""
        pair = self.batch(np.stack([view, background]))
        bits = pair.view(f"u{pair.itemsize}")
        return StagedArrays(bits[1].copy(), bits[0] ^ bits[1], pair.dtype)

    def compose(self, staged: Sequence[StagedArrays], which: NDArray[np.intp], visible: Visible) -> NDArray[Any]:
        """A batch of mutants, one per row of `visible`, (n, *grid): row i of the pair `which[i]`."""
        like = staged[0].background
        out = self._room((len(visible), *like.shape), staged[0].dtype)
        bits = out.view(like.dtype)
        channels = like.shape[-1] if self._layout == "nhwc" else 1
        every = np.empty((*visible.shape[1:], channels), f"i{like.itemsize}")  # all bits set where visible
        for i, pair in enumerate(which.tolist()):
            if self.remembers:
                self._renew(i, bits[i], staged[pair], visible[i], every)
            else:
                self._choose(bits[i], staged[pair], visible[i], every)
        return out

    def forget(self) -> None:
        """Somebody wrote to the last batch."""
        self._held = [None] * len(self._held)

    def _choose(self, out: NDArray[Any], staged: StagedArrays, visible: Visible, every: NDArray[Any]) -> None:
        """One mutant, written whole. every: room for (*grid, channels) numbers, or one channel if they come first."""
        for channel in range(every.shape[-1]):
            np.negative(visible.view(np.int8), out=every[..., channel], dtype=every.dtype)
        where = every.view(out.dtype) if self._layout == "nhwc" else every.view(out.dtype)[..., 0]
        np.bitwise_and(staged.difference, where, out=out)
        np.bitwise_xor(out, staged.background, out=out)

    def _renew(self, i: int, out: NDArray[Any], staged: StagedArrays, visible: Visible, every: NDArray[Any]) -> None:
        """One mutant in the buffer's row i, made from the one before where that pays."""
        shown, flat = self._shown[i], visible.reshape(-1)
        before, self._held[i] = self._held[i], None  # not known until it is written: an interrupt may come
        changed = shown != flat if before is staged else flat
        if FEW * np.count_nonzero(changed) > flat.size:
            self._choose(out, staged, visible, every)
        else:
            if before is not staged:
                out[...] = staged.background
            self._flip(out, staged.difference, np.flatnonzero(changed))
        shown[...] = flat
        self._held[i] = staged

    def _flip(self, out: NDArray[Any], difference: NDArray[Any], pixels: NDArray[np.intp]) -> None:
        """Show the pixels that are hidden, hide those that are shown: the same bits change."""
        if self._layout == "nhwc":
            rows = out.reshape(-1, out.shape[-1])
            rows[pixels] = rows.take(pixels, axis=0) ^ difference.reshape(rows.shape).take(pixels, axis=0)
            return
        planes = out.reshape(len(out), -1)
        for plane, bits in zip(planes, difference.reshape(planes.shape), strict=True):
            plane[pixels] = plane.take(pixels) ^ bits.take(pixels)

    def _room(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        if not self._reuses_buffer:
            return np.empty(shape, dtype)
        old = self._buffer
        if old.shape[1:] != shape[1:] or old.dtype != dtype or len(old) < shape[0]:
            self._buffer = np.empty(shape, dtype)
            pixels = prod(shape[1:-1] if self._layout == "nhwc" else shape[2:])
            self._held, self._shown = [None] * shape[0], np.empty((shape[0], pixels), bool)
        return self._buffer[: shape[0]]
