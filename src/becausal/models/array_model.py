"""Models that take and return numpy arrays: masked images as batches, and a classifier around any function of a batch.

A masked image is the view where visible, its background elsewhere, normalised, in the model's layout. Normalisation acts on
one pixel at a time. So view and background are normalised once, when they are staged, and masking only selects between two
arrays. The result equals normalising the composed pixels, bit for bit.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, final

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import ModelInfo, Pixels, Visible

Layout = Literal["nchw", "nhwc"]
RunBatch = Callable[[NDArray[Any]], NDArray[Any]]  # a batch in the model's layout to raw output, one row per image

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

    prepare: normalises pixels (..., channels); channels stay last. layout, dtype: of a batch; None for the type that
    `prepare` returns. reuses_buffer: whether all batches share one buffer, valid until the next batch is made.
    is_incremental: whether a row of it may be patched where it differs little from the last image there. Nobody else may
    write to the buffer then; call `invalidate` if somebody did.
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
        self._prepare = prepare
        self._layout = layout
        self._dtype = dtype
        self._reuses_buffer = reuses_buffer
        self._buffer: NDArray[Any] = np.empty(0, np.uint8)
        self._is_incremental = is_incremental and reuses_buffer
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
        like, dtype, rows = staged[0].background, staged[0].dtype, len(visible)
        out = self._buffer[:rows]
        if not self._reuses_buffer:
            out = np.empty((rows, *like.shape), dtype)
        elif self._buffer.shape[1:] != like.shape or self._buffer.dtype != dtype or len(self._buffer) < rows:
            out = self._buffer = np.empty((rows, *like.shape), dtype)
            self._row_pairs, self._row_masks = [None] * rows, np.empty(visible.shape, bool)
        bits = out.view(like.dtype)
        channels = like.shape[-1] if self._layout == "nhwc" else 1
        mask = np.empty((*visible.shape[1:], channels), f"i{like.itemsize}")  # all bits set where visible
        for i, pair in enumerate(which.tolist()):
            if self._is_incremental:
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
            changed = np.flatnonzero(row_mask != visible)  # they are shown where they were masked, and masked where shown
            if self._layout == "nhwc":
                rows = out.reshape(-1, out.shape[-1])
                rows[changed] = rows.take(changed, axis=0) ^ staged.difference.reshape(rows.shape).take(changed, axis=0)
            else:
                planes = out.reshape(len(out), -1)
                for plane, bits in zip(planes, staged.difference.reshape(planes.shape), strict=True):
                    plane[changed] = plane.take(changed) ^ bits.take(changed)
        else:
            self._write(out, staged, visible, mask)
        row_mask[...] = visible
        self._row_pairs[i] = staged


@final
class ArrayClassifier:
    """Composes batches, runs the network and decodes its output.

    decode: from raw output to scores, labels or boxes, as `Classifier` returns them.
    fixed_sizes: the only allowed batch sizes, empty if any size is allowed. report: further notes, as they are now.
    Batches share one buffer, so threads take turns.
    """

    torch_form: Callable[[], tuple[Any, Any]]  # only where the network is known as a torch module too: see methods.gradients

    def __init__(
        self,
        info: ModelInfo,
        composer: Composer,
        run: RunBatch,
        decode: Callable[[NDArray[Any]], NDArray[Any]],
        *,
        batch_size: int,
        fixed_sizes: tuple[int, ...] = (),
        report: Callable[[], tuple[str, ...]] = tuple,
    ) -> None:
        self._info = info
        self._composer = composer
        self._run = run
        self._decode = decode
        self.batch_size = batch_size
        self.fixed_sizes = fixed_sizes
        self._report = report
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<ArrayClassifier {self.info}>"

    @property
    def info(self) -> ModelInfo:
        further = self._report()
        return replace(self._info, notes=(*self._info.notes, *further)) if further else self._info

    def stage(self, view: Pixels, background: Pixels) -> StagedArrays:
        return self._composer.stage(view, background)

    def ask(self, staged: Sequence[StagedArrays], which: NDArray[np.intp], visible: Visible) -> NDArray[Any]:
        with self._lock:
            batch = self._composer.compose(staged, which, visible)
            return self._decode(run_padded(self._run, batch, self.fixed_sizes))

    def classify(self, pixels: Pixels) -> NDArray[Any]:
        parts = []
        for start in range(0, len(pixels), self.batch_size):
            batch = self._composer.batch(pixels[start : start + self.batch_size])
            with self._lock:
                parts.append(self._decode(run_padded(self._run, batch, self.fixed_sizes)))
        return np.concatenate(parts)


def run_padded(run: RunBatch, batch: NDArray[Any], fixed_sizes: tuple[int, ...]) -> NDArray[Any]:
    """The network's output for a batch of any size; the last row is repeated to reach an allowed size."""
    rows = len(batch)
    if not fixed_sizes or rows in fixed_sizes:
        return run(batch)
    largest = fixed_sizes[-1]
    if rows > largest:
        parts = [run_padded(run, batch[i : i + largest], fixed_sizes) for i in range(0, rows, largest)]
        return np.concatenate(parts)
    size = next(size for size in fixed_sizes if size >= rows)
    return run(np.concatenate([batch, np.repeat(batch[-1:], size - rows, axis=0)]))[:rows]
