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

FEW = 12  # a mutant that shows at most one in so many pixels shows little


@dataclass(frozen=True)
class StagedArrays:
    """A view and its background as bits: the mutant is background ^ (difference & visible), which is exact."""

    view: NDArray[Any]  # unsigned, the model's own layout
    background: NDArray[Any]
    difference: NDArray[Any]  # view ^ background
    dtype: np.dtype[Any]  # what the bits mean


class Composer:
    """Makes batches of mutants.

    prepare: pixels (..., channels) to the model's numbers, channels still last. layout: where channels go.
    dtype: of the model's input. reuses_buffer: batches share one piece of memory, good until the next one is made.
    remembers: nobody else writes to that memory, so that of a mutant that shows little only what differs from the one
    before in its place need be written; `forget` where somebody did.
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
        self._held: list[tuple[StagedArrays, NDArray[np.intp]] | None] = []  # what each row of the buffer shows, if little

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
        return StagedArrays(bits[0].copy(), bits[1].copy(), bits[0] ^ bits[1], pair.dtype)

    def compose(self, staged: Sequence[StagedArrays], which: NDArray[np.intp], visible: Visible) -> NDArray[Any]:
        """A batch of mutants, one per row of `visible`, (n, *grid): row i of the pair `which[i]`."""
        like = staged[0].background
        out = self._room((len(visible), *like.shape), staged[0].dtype)
        bits = out.view(like.dtype)
        channels = like.shape[-1] if self._layout == "nhwc" else 1
        every = np.empty((*visible.shape[1:], channels), f"i{like.itemsize}")  # all bits set where visible
        for i, pair in enumerate(which.tolist()):
            if not (self.remembers and self._change(i, bits[i], staged[pair], visible[i].reshape(-1))):
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

    def _change(self, i: int, out: NDArray[Any], staged: StagedArrays, visible: Visible) -> bool:
        """One mutant in the buffer's row i, made from the one before; False where it shows too much for that to pay."""
        before, self._held[i] = self._held[i], None
        if FEW * np.count_nonzero(visible) > visible.size:
            return False
        shown = np.flatnonzero(visible)
        if before is None or before[0] is not staged:
            out[...] = staged.background
        else:
            self._put(out, staged.background, before[1])
        self._put(out, staged.view, shown)
        self._held[i] = staged, shown
        return True

    def _put(self, out: NDArray[Any], values: NDArray[Any], pixels: NDArray[np.intp]) -> None:
        """These pixels of one picture into another."""
        if self._layout == "nhwc":
            out.reshape(-1, out.shape[-1])[pixels] = values.reshape(-1, out.shape[-1])[pixels]
            return
        for there, here in zip(out.reshape(len(out), -1), values.reshape(len(out), -1), strict=True):
            there[pixels] = here.take(pixels)

    def _room(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        if not self._reuses_buffer:
            return np.empty(shape, dtype)
        old = self._buffer
        if old.shape[1:] != shape[1:] or old.dtype != dtype or len(old) < shape[0]:
            self._buffer = np.empty(shape, dtype)
            self._held = [None] * shape[0]
        return self._buffer[: shape[0]]
