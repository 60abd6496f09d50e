"""Batches of masked images as torch tensors: composed by numpy for a module on the CPU, on the device for one on a GPU.

On a CUDA device batches run asynchronously, in fixed sizes, each captured once as a CUDA graph, which is replayed by one
call. A network of 150 layers otherwise needs as many, each of some microseconds, which is most of the time of a small batch.
For small batches of one view, composing the masked images is part of the graph. What cannot be captured is run directly, and
so is everything on other devices.
"""

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Grid, Pixels, Visible
from becausal.models.array_model import Composer, Layout, StagedArrays
from becausal.models.preprocess import Normalisation

Tensor = Any  # torch.Tensor; torch is imported only when a torch model is loaded

WARM_UPS = 3  # runs before a network is captured, as CUDA graphs require
SMALL = 64  # largest size that composes inside the graph


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

    is_channels_last: whether channels are last in memory; the order of the axes is the same. is_incremental: see `Composer`;
    not for a module that writes to its input.
    """

    def __init__(self, normalisation: Normalisation, *, is_channels_last: bool = False, is_incremental: bool = True) -> None:
        layout: Layout = "nhwc" if is_channels_last else "nchw"
        dtype = np.dtype(np.float32)
        self._composer = Composer(normalisation.apply, layout=layout, dtype=dtype, is_incremental=is_incremental)
        self._is_channels_last = is_channels_last
        self._last: Tensor = None

    def to_tensor(self, pixels: Pixels) -> Tensor:
        """Normalise pixels (n, h, w, channels) and return them as (n, channels, h, w)."""
        import torch

        batch = torch.from_numpy(self._composer.batch(pixels))
        return batch.permute(0, 3, 1, 2) if self._is_channels_last else batch

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
        return self._last.permute(0, 3, 1, 2) if self._is_channels_last else self._last


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
    return np.array([pair.index for pair in staged], np.int64)[which]


@dataclass
class _CapturedNetwork:
    """A network for batches of one size."""

    input: Tensor  # images, (n, h, w, channels), or masks of one view packed to bits, (n, bytes)
    scores: Tensor
    run: Callable[[], Tensor]  # returns the scores, on the device
    network: Callable[[], Tensor]  # what was captured; it keeps the memory alive that the graph works in


class _Buffers:
    """Pinned host memory for one batch: packed masks, pool indices, and scores.

    It also says how long the device works on the batch: by CUDA events, or by the clock on devices that run synchronously.
    home: where the buffers are returned to when the scores are collected.
    """

    def __init__(self, size: int, width: int, scores: Tensor, is_cuda: bool, home: "list[_Buffers]") -> None:
        import torch

        self.home = home
        pinned = is_cuda  # otherwise a copy waits for all work queued on the device
        self.packed: Tensor = torch.empty((size, width), dtype=torch.uint8, pin_memory=pinned)
        self.indices: Tensor = torch.empty(size, dtype=torch.int64, pin_memory=pinned)
        self.scores: Tensor = torch.empty(scores.shape, dtype=scores.dtype, pin_memory=pinned)
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if is_cuda else []
        self._times = [0.0, 0.0]

    def mark(self, which: int) -> None:
        """The batch starts (0), or ends (1)."""
        if self._events:
            self._events[which].record()
        else:
            self._times[which] = time.perf_counter()

    def is_done(self) -> bool:
        return not self._events or bool(self._events[1].query())

    def wait(self) -> float:
        """Wait until the batch is done; the seconds it took."""
        if not self._events:
            return self._times[1] - self._times[0]
        self._events[1].synchronize()
        return float(self._events[0].elapsed_time(self._events[1])) / 1000


@dataclass(eq=False)
class _PendingBatch:
    """A batch that runs on the device."""

    parts: list[tuple[int, _Buffers]]  # rows and buffers of each
    decode: Callable[[NDArray[Any]], NDArray[Any]]  # the network's output to scores
    seconds: float = 0.0

    def is_ready(self) -> bool:
        return all(buffers.is_done() for _, buffers in self.parts)

    def collect(self) -> NDArray[Any]:
        outputs = []
        for rows, buffers in self.parts:
            self.seconds += buffers.wait()
            outputs.append(buffers.scores.numpy()[:rows].copy())
            buffers.home.append(buffers)
        self.parts = []
        return self.decode(outputs[0] if len(outputs) == 1 else np.concatenate(outputs))


@final
class DeviceRunner:
    """Runs one network on one device; threads take turns.

    network: (n, channels, h, w) to raw output, on the device. decode: raw output to scores, in numpy. sizes: of batches,
    ascending; larger ones are run in parts.
    """

    def __init__(
        self,
        network: Callable[[Tensor], Tensor],
        decode: Callable[[NDArray[Any]], NDArray[Any]],
        composer: DeviceComposer,
        sizes: Sequence[int],
        device: str,
    ) -> None:
        self._network = network
        self._decode = decode
        self._composer = composer
        self._sizes = list(sizes)
        self._is_cuda = device.startswith("cuda")
        self._captured: dict[tuple[str, int, Grid], _CapturedNetwork] = {}
        self._single: dict[Grid, tuple[StagedTensors, Tensor]] = {}  # last view that had a batch to itself, and its pair
        self._free_buffers: dict[tuple[int, Grid], list[_Buffers]] = {}
        self._graph_memory: Any = None
        self._lock = threading.RLock()

    def submit(
        self, staged: Sequence[StagedTensors], which: NDArray[np.intp], packed: NDArray[np.uint8], grid: Grid
    ) -> _PendingBatch:
        """Start a batch of any size."""
        import torch

        with self._lock, torch.inference_mode():
            while True:
                try:
                    step = self._sizes[-1]
                    starts = range(0, len(packed), step)
                    parts = [self._start(staged, which[i : i + step], packed[i : i + step], grid) for i in starts]
                    return _PendingBatch(parts, self._decode)
                except torch.cuda.OutOfMemoryError:
                    if len(self._sizes) == 1:
                        raise
                # Out of memory: free all captured networks, and give up the largest size
                self._sizes.pop()
                self._captured.clear()
                self._single.clear()
                self._free_buffers.clear()
                self._graph_memory = None
                torch.cuda.empty_cache()

    def classify(self, pixels: Tensor) -> NDArray[Any]:
        """The scores of normalised images on the device, (n, h, w, channels)."""
        import torch

        outputs = []
        with self._lock, torch.inference_mode():
            for start in range(0, len(pixels), self._sizes[-1]):
                part = pixels[start : start + self._sizes[-1]]
                captured = self._network_of_images(part[0], self._padded_size(len(part)), tuple(part.shape[1:3]))
                captured.input[: len(part)] = part
                outputs.append(captured.run()[: len(part)].cpu().numpy())
        return self._decode(np.concatenate(outputs))

    def _padded_size(self, rows: int) -> int:
        return next(size for size in self._sizes if size >= rows)

    def _start(
        self, staged: Sequence[StagedTensors], which: NDArray[np.intp], packed: NDArray[np.uint8], grid: Grid
    ) -> tuple[int, _Buffers]:
        rows = len(packed)
        size = self._padded_size(rows)
        is_single = size <= SMALL and bool((which == which[0]).all())
        if is_single:
            captured = self._network_of_masks(staged[which[0]], size, packed.shape[1], grid)
        else:
            captured = self._network_of_images(staged[0].pool.pairs[0, 0], size, grid)
        free = self._free_buffers.setdefault((size, grid), [])
        buffers = free.pop() if free else _Buffers(size, packed.shape[1], captured.scores, self._is_cuda, free)
        buffers.packed.numpy()[:rows] = packed
        buffers.mark(0)
        if is_single:
            captured.input.copy_(buffers.packed, non_blocking=True)
        else:  # masked images of several views are composed into the network's input
            pool, indices, device = staged[0].pool, pool_indices(staged, which), captured.input.device
            buffers.indices.numpy()[:rows] = indices
            buffers.indices.numpy()[rows:] = indices[0]
            pairs = pool.pairs.index_select(0, buffers.indices.to(device, non_blocking=True))
            self._composer.compose_packed(pairs, buffers.packed.to(device, non_blocking=True), captured.input)
        buffers.scores.copy_(captured.run(), non_blocking=True)
        buffers.mark(1)
        return rows, buffers

    def _network_of_images(self, example: Tensor, size: int, grid: Grid) -> _CapturedNetwork:
        """The network for batches of this size; example: an image, (h, w, channels)."""
        if (found := self._captured.get(("images", size, grid))) is not None:
            return found
        images = example.new_zeros((size, *example.shape))
        batch = images.permute(0, 3, 1, 2)  # a view: memory stays channels last
        return self._keep("images", size, grid, images, lambda: self._network(batch))

    def _network_of_masks(self, staged: StagedTensors, size: int, width: int, grid: Grid) -> _CapturedNetwork:
        """The network for batches of this size, all of one view; it composes the masked images itself."""
        import torch

        pair = staged.pool.pairs[staged.index]
        if grid not in self._single:
            self._single[grid] = staged, pair.clone()
        last, single_pair = self._single[grid]
        if last is not staged:
            single_pair.copy_(pair)
            self._single[grid] = staged, single_pair

        if (found := self._captured.get(("masks", size, grid))) is not None:
            return found
        packed = pair.new_zeros((size, width), dtype=torch.uint8)
        images = pair.new_zeros((size, *pair.shape[1:]))
        batch = images.permute(0, 3, 1, 2)

        def run() -> Tensor:
            self._composer.compose_packed(single_pair[None], packed, images)
            return self._network(batch)

        return self._keep("masks", size, grid, packed, run)

    def _keep(self, kind: str, size: int, grid: Grid, entry: Tensor, network: Callable[[], Tensor]) -> _CapturedNetwork:
        """A network that runs on its input `entry`, captured if possible."""
        captured = self._capture(entry, network) if self._is_cuda else None
        self._captured[kind, size, grid] = captured or _CapturedNetwork(entry, network(), network, network)
        return self._captured[kind, size, grid]

    def _capture(self, entry: Tensor, network: Callable[[], Tensor]) -> _CapturedNetwork | None:
        """The network as a graph; None if it cannot be captured, or returns something else when replayed."""
        import torch

        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(WARM_UPS):
                expected = network()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            self._graph_memory = self._graph_memory or torch.cuda.graph_pool_handle()
            with torch.cuda.graph(graph, pool=self._graph_memory):
                scores = network()
            graph.replay()
            torch.cuda.synchronize()
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception:  # the network is the user's code: any error is possible, and it can still be run directly
            torch.cuda.synchronize()
            return None
        if not torch.allclose(scores, expected, rtol=1e-3, atol=1e-4, equal_nan=True):
            return None

        def run() -> Tensor:
            graph.replay()
            return scores

        return _CapturedNetwork(entry, scores, run, network)
