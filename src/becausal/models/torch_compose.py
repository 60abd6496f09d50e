"""Masked images as torch tensors: composed by numpy for a module on the CPU, on the device for a module on a GPU."""

import weakref
from collections.abc import Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Pixels, Visible
from becausal.models.compose import Composer, Layout, StagedArrays
from becausal.models.preprocess import Normalisation

Tensor = Any  # torch.Tensor; torch is imported only when a torch model is loaded


class StagedTensors:
    """A view and its background on the device: an index into a pool, free again when this object is deleted."""

    def __init__(self, pool: "TensorPool", index: int) -> None:
        self.pool = pool
        self.index = index
        weakref.finalize(self, pool.free.append, index)


class TensorPool:
    """Normalised pairs of view and background of one size, in one tensor, (capacity, 2, h, w, channels).

    So a batch with masked images of several views needs one index_select, and no concatenation.
    """

    def __init__(self, like: Tensor) -> None:
        self.pairs: Tensor = like.new_empty((4, *like.shape))
        self.free: list[int] = list(range(4))

    def add(self, pair: Tensor) -> StagedTensors:
        """Copy a pair, (2, h, w, channels), into the pool, which grows if needed."""
        if not self.free:
            capacity = len(self.pairs)
            larger = self.pairs.new_empty((2 * capacity, *self.pairs.shape[1:]))
            larger[:capacity] = self.pairs
            self.pairs = larger
            self.free += range(capacity, 2 * capacity)
        index = self.free.pop()
        self.pairs[index] = pair
        return StagedTensors(self, index)


@final
class HostComposer:
    """Batches for a module on the CPU. They share one buffer, valid until the next batch is made.

    is_channels_last: whether channels are last in memory. The order of the axes is the same.
    """

    def __init__(self, normalisation: Normalisation, *, is_channels_last: bool = False) -> None:
        layout: Layout = "nhwc" if is_channels_last else "nchw"
        self._composer = Composer(normalisation.apply, layout=layout, dtype=np.dtype(np.float32), is_incremental=True)
        self._is_channels_last = is_channels_last
        self._last: Tensor = None

    def disable_patching(self) -> None:
        """Write every batch in full, since the module writes to its input."""
        self._composer.is_incremental = False

    def to_tensor(self, pixels: Pixels) -> Tensor:
        """Normalise pixels (n, h, w, channels) and return them as (n, channels, h, w)."""
        import torch

        return self._order(torch.from_numpy(self._composer.batch(pixels)))

    def stage(self, view: Pixels, background: Pixels) -> StagedArrays:
        return self._composer.stage(view, background)

    def compose(self, staged: Sequence[StagedArrays], which: NDArray[np.intp], visible: Visible) -> Tensor:
        """Masked images, (n, channels, h, w). torch.where would be several times slower on a CPU."""
        import torch

        if self._last is not None and self._last._version:  # the module wrote to its input in place
            self._composer.invalidate()
        batch = self._composer.compose(staged, which, visible)
        with torch.inference_mode(False):  # otherwise torch does not count writes to the tensor
            self._last = torch.from_numpy(batch)
        return self._order(self._last)

    def _order(self, batch: Tensor) -> Tensor:
        """A view of the batch as (n, channels, h, w)."""
        return batch.permute(0, 3, 1, 2) if self._is_channels_last else batch


@final
class DeviceComposer:
    """Batches for a module on a GPU, channels last in memory; only the bits of `visible` are transferred."""

    def __init__(self, normalisation: Normalisation, device: str) -> None:
        self._normalisation = normalisation
        self._device = device
        self._pools: dict[tuple[int, ...], TensorPool] = {}
        self._bit_values: Tensor = None  # value of each bit in a byte

    def to_tensor(self, pixels: Pixels) -> Tensor:
        """Normalise pixels (n, h, w, channels) and return them on the device as (n, channels, h, w)."""
        return self._transfer(pixels).permute(0, 3, 1, 2)  # a view: memory stays (n, h, w, channels)

    def _transfer(self, pixels: Pixels) -> Tensor:
        import torch

        values = torch.from_numpy(np.ascontiguousarray(self._normalisation.apply(pixels)))
        if self._device.startswith("cuda"):
            values = values.pin_memory()  # otherwise the copy waits for all work queued on the device
        return values.to(self._device, torch.float32, non_blocking=True)

    def stage(self, view: Pixels, background: Pixels) -> StagedTensors:
        import torch

        with torch.inference_mode():
            pair = self._transfer(np.stack([view, background]))
            pool = self._pools.setdefault(tuple(pair.shape), TensorPool(pair))
            return pool.add(pair)

    def compose(self, staged: Sequence[StagedTensors], which: NDArray[np.intp], visible: Visible) -> Tensor:
        """Masked images, (n, channels, h, w), composed on the device."""
        import torch

        packed = torch.from_numpy(np.packbits(visible.reshape(len(visible), -1), axis=1)).to(self._device)
        indices = torch.from_numpy(pool_indices(staged, which)).to(self._device)
        pool = staged[0].pool
        out = pool.pairs.new_empty((len(visible), *pool.pairs.shape[2:]))
        self.compose_packed(pool.pairs.index_select(0, indices), packed, out)
        return out.permute(0, 3, 1, 2)

    def compose_packed(self, pairs: Tensor, packed: Tensor, out: Tensor) -> None:
        """Write masked images to `out`, (n, h, w, channels), from masks packed to bits, (n, bytes), on the device.

        pairs: (n, 2, h, w, channels), or (1, …) if all rows have the same pair.
        """
        import torch

        if self._bit_values is None:
            self._bit_values = torch.tensor([128, 64, 32, 16, 8, 4, 2, 1], dtype=torch.uint8, device=packed.device)
        rows, h, w = out.shape[:3]
        bits = (packed.unsqueeze(-1) & self._bit_values).ne(0).reshape(rows, -1)[:, : h * w].reshape(rows, h, w, 1)
        torch.where(bits, pairs[:, 0], pairs[:, 1], out=out)


def pool_indices(staged: Sequence[StagedTensors], which: NDArray[np.intp]) -> NDArray[np.int64]:
    """The index in the pool of each row's pair."""
    return np.array([pair.index for pair in staged], np.int64)[which]


def make_composer(normalisation: Normalisation, device: str) -> HostComposer | DeviceComposer:
    return HostComposer(normalisation) if device == "cpu" else DeviceComposer(normalisation, device)
