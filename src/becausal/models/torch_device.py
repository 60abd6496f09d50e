"""A torch module on a device, run asynchronously: batches of fixed sizes, each captured once as a CUDA graph.

A graph is replayed by one call. A network of 150 layers otherwise needs as many, each of some microseconds, which is
most of the time of a small batch. For small batches of one view, composing the masked images is part of the graph. What
cannot be captured is run directly, and so is everything on other devices.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Grid
from becausal.models.torch_compose import DeviceComposer, StagedTensors, pool_indices

Tensor = Any  # torch.Tensor; torch is imported only when a torch model is loaded

WARM_UPS = 3  # runs before a network is captured, as CUDA graphs require
SMALL = 64  # largest size that composes inside the graph


@dataclass
class _CapturedNetwork:
    """A network for batches of one size.

    input: images, (n, h, w, channels), or masks of one view packed to bits, (n, bytes). run: the scores, on the device.
    network: what was captured; it keeps the memory alive that the graph works in.
    """

    input: Tensor
    scores: Tensor
    run: Callable[[], Tensor]
    network: Callable[[], Tensor]


@dataclass
class _HostBuffers:
    """Pinned host memory for one batch: packed masks, pool indices, and scores."""

    packed: Tensor
    indices: Tensor
    scores: Tensor
    timer: "_Timer"


class _Timer:
    """How long the device works on a batch: by CUDA events, or by the clock on devices that run synchronously."""

    def __init__(self, is_cuda: bool) -> None:
        import torch

        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if is_cuda else []
        self._times = [0.0, 0.0]

    def start(self) -> None:
        self._mark(0)

    def stop(self) -> None:
        self._mark(1)

    def _mark(self, which: int) -> None:
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


@dataclass
class _PendingPart:
    """Some rows of a batch, in buffers that are returned to `free` when the scores are collected."""

    rows: int
    buffers: _HostBuffers
    free: list[_HostBuffers]


class _PendingBatch:
    """A batch that runs on the device. decode: the network's output to scores."""

    def __init__(self, parts: list[_PendingPart], decode: Callable[[NDArray[Any]], NDArray[Any]]) -> None:
        self._parts = parts
        self._decode = decode
        self.seconds = 0.0

    def is_ready(self) -> bool:
        return all(part.buffers.timer.is_done() for part in self._parts)

    def collect(self) -> NDArray[Any]:
        outputs = []
        for part in self._parts:
            self.seconds += part.buffers.timer.wait()
            outputs.append(part.buffers.scores.numpy()[: part.rows].copy())
            part.free.append(part.buffers)
        self._parts = []
        return self._decode(outputs[0] if len(outputs) == 1 else np.concatenate(outputs))


@final
class DeviceRunner:
    """Runs one network on one device; threads take turns."""

    def __init__(
        self,
        network: Callable[[Tensor], Tensor],
        decode: Callable[[NDArray[Any]], NDArray[Any]],
        composer: DeviceComposer,
        sizes: Sequence[int],
        device: str,
    ) -> None:
        """Prepare to run.

        Args:
            network: (n, channels, h, w) to raw output, on the device.
            decode: Raw output to scores, in numpy.
            composer: Makes the masked images.
            sizes: Batch sizes, ascending; larger batches are run in parts.
            device: E.g. "cuda".
        """
        self._network = network
        self._decode = decode
        self._composer = composer
        self._sizes = list(sizes)
        self._is_cuda = device.startswith("cuda")
        self._captured: dict[tuple[str, int, Grid], _CapturedNetwork] = {}
        self._single: dict[Grid, tuple[StagedTensors, Tensor]] = {}  # last view that had a batch to itself, and its pair
        self._free_buffers: dict[tuple[int, Grid], list[_HostBuffers]] = {}
        self._graph_memory: Any = None
        self._lock = threading.RLock()

    @property
    def largest(self) -> int:
        return self._sizes[-1]

    def submit(
        self, staged: Sequence[StagedTensors], which: NDArray[np.intp], packed: NDArray[np.uint8], grid: Grid
    ) -> _PendingBatch:
        """Start a batch of any size."""
        import torch

        with self._lock, torch.inference_mode():
            while True:
                try:
                    step = self.largest
                    starts = range(0, len(packed), step)
                    parts = [self._start(staged, which[i : i + step], packed[i : i + step], grid) for i in starts]
                    return _PendingBatch(parts, self._decode)
                except torch.cuda.OutOfMemoryError:
                    if len(self._sizes) == 1:
                        raise
                self._drop_largest_size()

    def classify(self, pixels: Tensor) -> NDArray[Any]:
        """The scores of normalised images on the device, (n, h, w, channels)."""
        import torch

        outputs = []
        with self._lock, torch.inference_mode():
            for start in range(0, len(pixels), self.largest):
                part = pixels[start : start + self.largest]
                captured = self._network_of_images(part[0], self._padded_size(len(part)), tuple(part.shape[1:3]))
                captured.input[: len(part)] = part
                outputs.append(captured.run()[: len(part)].cpu().numpy())
        return self._decode(np.concatenate(outputs))

    def _padded_size(self, rows: int) -> int:
        return next(size for size in self._sizes if size >= rows)

    def _start(
        self, staged: Sequence[StagedTensors], which: NDArray[np.intp], packed: NDArray[np.uint8], grid: Grid
    ) -> _PendingPart:
        rows = len(packed)
        size = self._padded_size(rows)
        is_single = size <= SMALL and bool((which == which[0]).all())
        if is_single:
            captured = self._network_of_masks(staged[which[0]], size, packed.shape[1], grid)
        else:
            captured = self._network_of_images(staged[0].pool.pairs[0, 0], size, grid)
        free = self._free_buffers.setdefault((size, grid), [])
        buffers = free.pop() if free else self._make_buffers(size, packed.shape[1], captured.scores)
        buffers.packed.numpy()[:rows] = packed
        buffers.timer.start()
        if is_single:
            captured.input.copy_(buffers.packed, non_blocking=True)
        else:
            self._compose(staged, which, buffers, captured.input)
        buffers.scores.copy_(captured.run(), non_blocking=True)
        buffers.timer.stop()
        return _PendingPart(rows, buffers, free)

    def _compose(self, staged: Sequence[StagedTensors], which: NDArray[np.intp], buffers: _HostBuffers, out: Tensor) -> None:
        """Compose masked images of several views into a network's input."""
        pool = staged[0].pool
        indices = pool_indices(staged, which)
        buffers.indices.numpy()[: len(which)] = indices
        buffers.indices.numpy()[len(which) :] = indices[0]
        device_indices = buffers.indices.to(out.device, non_blocking=True)
        packed = buffers.packed.to(out.device, non_blocking=True)
        self._composer.compose_packed(pool.pairs.index_select(0, device_indices), packed, out)

    def _network_of_images(self, example: Tensor, size: int, grid: Grid) -> _CapturedNetwork:
        """The network for batches of this size; example: an image, (h, w, channels)."""

        def make() -> tuple[Tensor, Callable[[], Tensor]]:
            images = example.new_zeros((size, *example.shape))
            batch = images.permute(0, 3, 1, 2)  # a view: memory stays channels last
            return images, lambda: self._network(batch)

        return self._get_captured("images", size, grid, make)

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

        def make() -> tuple[Tensor, Callable[[], Tensor]]:
            packed = pair.new_zeros((size, width), dtype=torch.uint8)
            images = pair.new_zeros((size, *pair.shape[1:]))
            batch = images.permute(0, 3, 1, 2)

            def run() -> Tensor:
                self._composer.compose_packed(single_pair[None], packed, images)
                return self._network(batch)

            return packed, run

        return self._get_captured("masks", size, grid, make)

    def _get_captured(
        self, kind: str, size: int, grid: Grid, make: Callable[[], tuple[Tensor, Callable[[], Tensor]]]
    ) -> _CapturedNetwork:
        """The network that `make` makes, an input and a function that runs on it, captured if possible."""
        import torch

        found = self._captured.get((kind, size, grid))
        if found is not None:
            return found
        entry, network = make()
        captured = None
        if self._is_cuda:
            torch.cuda.synchronize()
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(WARM_UPS):
                    expected = network()
            torch.cuda.synchronize()
            captured = self._capture(entry, network, expected)
        if captured is None:
            captured = _CapturedNetwork(entry, network(), network, network)
        self._captured[kind, size, grid] = captured
        return captured

    def _capture(self, entry: Tensor, network: Callable[[], Tensor], expected: Tensor) -> _CapturedNetwork | None:
        """The network as a graph; None if it cannot be captured, or returns something else when replayed."""
        import torch

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

    def _drop_largest_size(self) -> None:
        """Free all captured networks and give up the largest size, after running out of memory."""
        import torch

        self._sizes.pop()
        self._captured.clear()
        self._single.clear()
        self._free_buffers.clear()
        self._graph_memory = None
        torch.cuda.empty_cache()

    def _make_buffers(self, size: int, width: int, scores: Tensor) -> _HostBuffers:
        import torch

        pinned = self._is_cuda  # otherwise a copy waits for all work queued on the device
        return _HostBuffers(
            torch.empty((size, width), dtype=torch.uint8, pin_memory=pinned),
            torch.empty(size, dtype=torch.int64, pin_memory=pinned),
            torch.empty(scores.shape, dtype=scores.dtype, pin_memory=pinned),
            _Timer(self._is_cuda),
        )
