"""Masked images as numpy batches: the view where visible, its background elsewhere, normalised, in the model's layout.

Normalisation acts on one pixel at a time. So view and background are normalised once, when they are staged, and masking
only selects between two arrays. The result equals normalising the composed pixels, bit for bit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Pixels, Visible

Layout = Literal["nchw", "nhwc"]

PATCH_RATIO = 12  # a row is patched in place if at most one in this many pixels changes,
COMPARED = 8  # judged by one in this many lines of the image


@dataclass(frozen=True)
class StagedArrays:
    """A view and its background as bits: a masked image is background ^ (difference & visible), which is exact."""

    background: NDArray[Any]  # unsigned, in the model's layout
    difference: NDArray[Any]  # view ^ background
    dtype: np.dtype[Any]  # what the bits stand for


class Composer:
    """Makes batches of masked images.

    Attributes:
        is_incremental: Whether a row of the reused buffer may be patched where it differs little from the last image
            there. Nobody else may write to the buffer; call `invalidate` if somebody did.
    """

    def __init__(
        self,
        prepare: Callable[[Pixels], NDArray[Any]],
        *,
        layout: Layout = "nhwc",
        dtype: np.dtype[Any] | None = None,
        reuses_buffer: bool = True,
        is_incremental: bool = False,
    ) -> None:
        """Prepare to compose.

        Args:
            prepare: Normalises pixels (..., channels); channels stay last.
            layout: Order of the axes of a batch.
            dtype: Type of the model's input; None for what `prepare` returns.
            reuses_buffer: Whether all batches share one buffer, valid until the next batch is made.
            is_incremental: See the attribute; needs a reused buffer.
        """
        self._prepare = prepare
        self._layout = layout
        self._dtype = dtype
        self._reuses_buffer = reuses_buffer
        self._buffer: NDArray[Any] = np.empty(0, np.uint8)
        self.is_incremental = is_incremental and reuses_buffer
        self._row_pairs: list[StagedArrays | None] = []  # the pair in each row of the buffer, None if unknown,
        self._row_masks: Visible = np.empty(0, bool)  # and which of its pixels are visible, (rows, *grid)

    def batch(self, pixels: Pixels) -> NDArray[Any]:
        """Whole images, (n, *grid, channels), as a batch for the model."""
        values = self._prepare(pixels)
        if self._dtype is not None:
            values = values.astype(self._dtype, copy=False)
        if self._layout == "nchw":
            values = np.moveaxis(values, -1, 1)
        return np.ascontiguousarray(values)

    def stage(self, view: Pixels, background: Pixels) -> StagedArrays:
        """Normalise the two images, (*grid, channels), for composing."""
        pair = self.batch(np.stack([view, background]))
        shown, masked = pair.view(f"u{pair.itemsize}")
        first = masked[:, *[slice(1)] * (masked.ndim - 1)]
        if self._layout == "nchw" and (masked == first).all():  # one colour: then there is less memory to read for each row
            return StagedArrays(np.broadcast_to(first.copy(), masked.shape), shown ^ masked, pair.dtype)
        return StagedArrays(masked.copy(), shown ^ masked, pair.dtype)

    def compose(self, staged: Sequence[StagedArrays], which: NDArray[np.intp], visible: Visible) -> NDArray[Any]:
        """A batch of masked images, one per row of `visible`, (n, *grid): row i from the pair `which[i]`."""
        like = staged[0].background
        out = self._allocate((len(visible), *like.shape), staged[0].dtype)
        bits = out.view(like.dtype)
        channels = like.shape[-1] if self._layout == "nhwc" else 1
        mask = np.empty((*visible.shape[1:], channels), f"i{like.itemsize}")  # all bits set where visible
        for i, pair in enumerate(which.tolist()):
            if self.is_incremental:
                self._update_row(i, bits[i], staged[pair], visible[i], mask)
            else:
                self._write(bits[i], staged[pair], visible[i], mask)
        return out

    def invalidate(self) -> None:
        """Forget the buffer's content, after somebody wrote to the last batch."""
        self._row_pairs = [None] * len(self._row_pairs)

    def _write(self, out: NDArray[Any], staged: StagedArrays, visible: Visible, mask: NDArray[Any]) -> None:
        """Write one masked image. mask: scratch space, (*grid, channels), or one channel if channels come first."""
        for channel in range(mask.shape[-1]):
            np.negative(visible.view(np.int8), out=mask[..., channel], dtype=mask.dtype)
        selected = mask.view(out.dtype) if self._layout == "nhwc" else mask.view(out.dtype)[..., 0]
        np.bitwise_and(staged.difference, selected, out=out)
        np.bitwise_xor(out, staged.background, out=out)

    def _update_row(self, i: int, out: NDArray[Any], staged: StagedArrays, visible: Visible, mask: NDArray[Any]) -> None:
        """Write one masked image to the buffer's row i, as a patch of the row's last image where that is faster."""
        row_mask, some = self._row_masks[i], visible[::COMPARED]
        before, self._row_pairs[i] = self._row_pairs[i], None  # unknown until the row is written, in case of an interrupt
        if before is staged and PATCH_RATIO * np.count_nonzero(row_mask[::COMPARED] != some) <= some.size:
            self._flip(out, staged.difference, np.flatnonzero(row_mask != visible))
        else:
            self._write(out, staged, visible, mask)
        row_mask[...] = visible
        self._row_pairs[i] = staged

    def _flip(self, out: NDArray[Any], difference: NDArray[Any], pixels: NDArray[np.intp]) -> None:
        """Show these pixels where they are masked and mask them where they are visible."""
        if self._layout == "nhwc":
            rows = out.reshape(-1, out.shape[-1])
            rows[pixels] = rows.take(pixels, axis=0) ^ difference.reshape(rows.shape).take(pixels, axis=0)
            return
        planes = out.reshape(len(out), -1)
        for plane, bits in zip(planes, difference.reshape(planes.shape), strict=True):
            plane[pixels] = plane.take(pixels) ^ bits.take(pixels)

    def _allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        if not self._reuses_buffer:
            return np.empty(shape, dtype)
        old = self._buffer
        if old.shape[1:] != shape[1:] or old.dtype != dtype or len(old) < shape[0]:
            self._buffer = np.empty(shape, dtype)
            grid = shape[1:-1] if self._layout == "nhwc" else shape[2:]
            self._row_pairs, self._row_masks = [None] * shape[0], np.empty((shape[0], *grid), bool)
        return self._buffer[: shape[0]]
