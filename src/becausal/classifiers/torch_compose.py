"""Mutants as torch tensors: made by numpy for a module on the CPU, and on the device itself for one on a GPU."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from becausal.classifiers.compose import Composer, StagedArrays
from becausal.classifiers.preprocess import Normalisation
from becausal.contracts import Pixels, Visible

Tensor = Any  # torch.Tensor; torch is imported only when a torch model is loaded


@dataclass(frozen=True)
class StagedTensors:
    """A view and its background on the device, normalised, each (1, channels, h, w)."""

    view: Tensor
    background: Tensor


@final
class HostComposer:
    """Batches for a module on the CPU. They share one piece of memory, good until the next one is made."""

    def __init__(self, numbers: Normalisation) -> None:
        self._composer = Composer(numbers.apply, layout="nchw", dtype=np.dtype(np.float32))

    def bring(self, pixels: Pixels) -> Tensor:
        """Pixels (n, h, w, channels), normalised, as (n, channels, h, w)."""
        import torch

        return torch.from_numpy(self._composer.batch(pixels))

    def stage(self, view: Pixels, background: Pixels) -> StagedArrays:
        return self._composer.stage(view, background)

    def compose(self, staged: Sequence[StagedArrays], which: NDArray[np.intp], visible: Visible) -> Tensor:
        """Mutants, (n, channels, h, w). torch.where would take several times as long on a CPU."""
        import torch

        return torch.from_numpy(self._composer.compose(staged, which, visible))


@final
class DeviceComposer:
    """Batches for a module on a GPU, channels last in memory; only the bits of `visible` travel."""

    def __init__(self, numbers: Normalisation, device: str, *, half: bool) -> None:
        self._numbers = numbers
        self._device = device
        self._half = half

    def bring(self, pixels: Pixels) -> Tensor:
        """Pixels (n, h, w, channels), normalised, on the device as (n, channels, h, w)."""
        import torch

        values = torch.from_numpy(np.ascontiguousarray(self._numbers.apply(pixels)))
        there = values.to(self._device, torch.float16 if self._half else torch.float32)
        return there.permute(0, 3, 1, 2)  # a view: memory stays (n, h, w, channels)

    def stage(self, view: Pixels, background: Pixels) -> StagedTensors:
        pair = self.bring(np.stack([view, background]))
        return StagedTensors(pair[:1], pair[1:])

    def compose(self, staged: Sequence[StagedTensors], which: NDArray[np.intp], visible: Visible) -> Tensor:
        """Mutants, (n, channels, h, w), made on the device."""
        import torch

        view, background = staged[0].view, staged[0].background
        if len(staged) > 1:
            rows = torch.from_numpy(np.array(which)).to(self._device)
            view = torch.cat([pair.view for pair in staged])[rows]
            background = torch.cat([pair.background for pair in staged])[rows]
        mutants = torch.where(self._unpack(visible), view, background)
        return mutants.contiguous(memory_format=torch.channels_last)

    def _unpack(self, visible: Visible) -> Tensor:
        """`visible` on the device, (n, 1, h, w) bool; it travels as bits, an eighth of its size."""
        import torch

        rows, pixels = len(visible), visible[0].size
        packed = torch.from_numpy(np.packbits(visible.reshape(rows, -1), axis=1))
        if self._device.startswith("cuda"):
            packed = packed.pin_memory()  # or the copy would wait for whatever the device is busy with
        packed = packed.to(self._device, non_blocking=True)
        places = torch.tensor([128, 64, 32, 16, 8, 4, 2, 1], dtype=torch.uint8, device=self._device)
        bits = (packed.unsqueeze(-1) & places).ne(0).reshape(rows, -1)[:, :pixels]
        return bits.reshape(rows, 1, *visible.shape[1:])


def make_composer(numbers: Normalisation, device: str, *, half: bool) -> HostComposer | DeviceComposer:
    return HostComposer(numbers) if device == "cpu" else DeviceComposer(numbers, device, half=half)
