"""Mutants as torch tensors: made by numpy for a module on the CPU, and on the device itself for one on a GPU."""

import weakref
from collections.abc import Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Pixels, Visible
from becausal.models.compose import Composer, StagedArrays
from becausal.models.preprocess import Normalisation

Tensor = Any  # torch.Tensor; torch is imported only when a torch model is loaded


class StagedTensors:
    """A view and its background on the device: a place in the pool, free again once nobody holds this."""

    def __init__(self, pool: "Pool", place: int) -> None:
        self.pool = pool
        self.place = place
        weakref.finalize(self, pool.free.append, place)


class Pool:
    """Pairs of view and background of one size, normalised, side by side in one tensor, (places, 2, h, w, channels).

    So a batch of mutants of many images is one look-up, with nothing to put together first.
    """

    def __init__(self, like: Tensor) -> None:
        self.pairs: Tensor = like.new_empty((4, *like.shape))
        self.free: list[int] = list(range(4))

    def add(self, pair: Tensor) -> StagedTensors:
        """Take in a pair, (2, h, w, channels)."""
        if not self.free:
            held = len(self.pairs)
            larger = self.pairs.new_empty((2 * held, *self.pairs.shape[1:]))
            larger[:held] = self.pairs
            self.pairs = larger
            self.free += range(held, 2 * held)
        place = self.free.pop()
        self.pairs[place] = pair
        return StagedTensors(self, place)


@final
class HostComposer:
    """Batches for a module on the CPU. They share one piece of memory, good until the next one is made."""

    def __init__(self, numbers: Normalisation) -> None:
        self._composer = Composer(numbers.apply, layout="nchw", dtype=np.dtype(np.float32), remembers=True)
        self._last: Tensor = None

    def distrust(self) -> None:
        """The module writes to its input: every batch is to be written whole."""
        self._composer.remembers = False

    def bring(self, pixels: Pixels) -> Tensor:
        """Pixels (n, h, w, channels), normalised, as (n, channels, h, w)."""
        import torch

        return torch.from_numpy(self._composer.batch(pixels))

    def stage(self, view: Pixels, background: Pixels) -> StagedArrays:
        return self._composer.stage(view, background)

    def compose(self, staged: Sequence[StagedArrays], which: NDArray[np.intp], visible: Visible) -> Tensor:
        """Mutants, (n, channels, h, w). torch.where would take several times as long on a CPU."""
        import torch

        if self._last is not None and self._last._version:  # a module that works on its input in place
            self._composer.forget()
        batch = self._composer.compose(staged, which, visible)
        with torch.inference_mode(False):  # or it would not count what is written to it
            self._last = torch.from_numpy(batch)
        return self._last


@final
class DeviceComposer:
    """Batches for a module on a GPU, channels last in memory; only the bits of `visible` travel."""

    def __init__(self, numbers: Normalisation, device: str, *, half: bool) -> None:
        self._numbers = numbers
        self._device = device
        self._half = half
        self._pools: dict[tuple[int, ...], Pool] = {}
        self._places: Tensor = None  # what each bit of a byte is worth

    def bring(self, pixels: Pixels) -> Tensor:
        """Pixels (n, h, w, channels), normalised, on the device as (n, channels, h, w)."""
        return self._bring(pixels).permute(0, 3, 1, 2)  # a view: memory stays (n, h, w, channels)

    def _bring(self, pixels: Pixels) -> Tensor:
        import torch

        values = torch.from_numpy(np.ascontiguousarray(self._numbers.apply(pixels)))
        if self._device.startswith("cuda"):
            values = values.pin_memory()  # or the copy would wait for whatever the device is busy with
        return values.to(self._device, torch.float16 if self._half else torch.float32, non_blocking=True)

    def stage(self, view: Pixels, background: Pixels) -> StagedTensors:
        import torch

        with torch.inference_mode():
            pair = self._bring(np.stack([view, background]))
            pool = self._pools.setdefault(tuple(pair.shape), Pool(pair))
            return pool.add(pair)

    def compose(self, staged: Sequence[StagedTensors], which: NDArray[np.intp], visible: Visible) -> Tensor:
        """Mutants, (n, channels, h, w), made on the device."""
        import torch

        packed = torch.from_numpy(np.packbits(visible.reshape(len(visible), -1), axis=1)).to(self._device)
        places = torch.from_numpy(places_of(staged, which)).to(self._device)
        pool = staged[0].pool
        out = pool.pairs.new_empty((len(visible), *pool.pairs.shape[2:]))
        self.compose_there(pool.pairs.index_select(0, places), packed, out)
        return out.permute(0, 3, 1, 2)

    def compose_there(self, pairs: Tensor, packed: Tensor, out: Tensor) -> None:
        """Mutants into `out`, (n, h, w, channels), from bits that are on the device already, (n, bytes).

        pairs: of each row, (n, 2, h, w, channels), or one for all rows.
        """
        import torch

        if self._places is None:
            self._places = torch.tensor([128, 64, 32, 16, 8, 4, 2, 1], dtype=torch.uint8, device=packed.device)
        rows, h, w = out.shape[:3]
        bits = (packed.unsqueeze(-1) & self._places).ne(0).reshape(rows, -1)[:, : h * w].reshape(rows, h, w, 1)
        torch.where(bits, pairs[:, 0], pairs[:, 1], out=out)


def places_of(staged: Sequence[StagedTensors], which: NDArray[np.intp]) -> NDArray[np.int64]:
    """The place in the pool of each row's pair."""
    return np.array([pair.place for pair in staged], np.int64)[which]


def make_composer(numbers: Normalisation, device: str, *, half: bool) -> HostComposer | DeviceComposer:
    return HostComposer(numbers) if device == "cpu" else DeviceComposer(numbers, device, half=half)
