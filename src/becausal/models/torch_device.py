"""A torch module on a device, asked without waiting: batches of fixed sizes, each recorded once as a CUDA graph.

A graph is replayed by one call, where a network of 150 layers takes as many, each of some microseconds: for small
batches that is most of their time. Small batches of one image have the making of their mutants in the graph as well.
What cannot be recorded is run as it is, and so is all on other devices.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Grid
from becausal.models.torch_compose import DeviceComposer, StagedTensors, places_of

Tensor = Any  # torch.Tensor; torch is imported only when a torch model is loaded

WARM_UPS = 3  # runs before a network is recorded, as CUDA graphs want it
SMALL = 64  # sizes up to this are tried out for what a guess costs
FREE = 1.3  # a batch that takes no more than this many times as long as the smallest costs nothing, as it were


@dataclass
class _Recorded:
    """A network for batches of one size: what it is fed, its scores, and how to run it.

    entry: images, (n, h, w, channels), or bits, (n, bytes), that say what is shown of one image. network: what was
    recorded; it holds the memory that a graph works in.
    """

    entry: Tensor
    scores: Tensor
    run: Callable[[], Tensor]  # the scores, there
    network: Callable[[], Tensor]


@dataclass
class _Slot:
    """Memory of the host that the device can reach: the bits and places of one batch, and room for its scores."""

    packed: Tensor
    places: Tensor
    scores: Tensor
    watch: "_Stopwatch"


class _Stopwatch:
    """How long the device takes for a batch: by its own events where it has them, else by ours, as it then waits."""

    def __init__(self, is_cuda: bool) -> None:
        import torch

        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if is_cuda else []
        self._times = [0.0, 0.0]

    def begin(self) -> None:
        self._mark(0)

    def end(self) -> None:
        self._mark(1)

    def _mark(self, which: int) -> None:
        if self._events:
            self._events[which].record()
        else:
            self._times[which] = time.perf_counter()

    def is_over(self) -> bool:
        return not self._events or bool(self._events[1].query())

    def wait(self) -> float:
        """Until the end has come; the seconds from the beginning."""
        if not self._events:
            return self._times[1] - self._times[0]
        self._events[1].synchronize()
        return float(self._events[0].elapsed_time(self._events[1])) / 1000


@dataclass
class _Part:
    """So many rows of a batch, in a slot that goes back to its shelf when they are collected."""

    rows: int
    slot: _Slot
    shelf: list[_Slot]


class _Promise:
    """A batch under way on the device. read: the network's output to scores."""

    def __init__(self, parts: list[_Part], read: Callable[[NDArray[Any]], NDArray[Any]]) -> None:
        self._parts = parts
        self._read = read
        self.seconds = 0.0

    def is_ready(self) -> bool:
        return all(part.slot.watch.is_over() for part in self._parts)

    def collect(self) -> NDArray[Any]:
        found = []
        for part in self._parts:
            self.seconds += part.slot.watch.wait()
            found.append(part.slot.scores.numpy()[: part.rows].copy())
            part.shelf.append(part.slot)
        self._parts = []
        return self._read(found[0] if len(found) == 1 else np.concatenate(found))


@final
class DeviceRunner:
    """Runs one network on one device.

    network: (n, channels, h, w) to its output, on the device; read: what that means, in numpy. sizes: the batch sizes
    there are, ascending; larger batches are run in parts. One call at a time: threads wait for each other.
    """

    def __init__(
        self,
        network: Callable[[Tensor], Tensor],
        read: Callable[[NDArray[Any]], NDArray[Any]],
        composer: DeviceComposer,
        sizes: Sequence[int],
        device: str,
    ) -> None:
        self._network = network
        self._read = read
        self._composer = composer
        self._sizes = list(sizes)
        self._is_cuda = device.startswith("cuda")
        self._recorded: dict[tuple[str, int, Grid], _Recorded] = {}
        self._alone: dict[Grid, tuple[StagedTensors, Tensor]] = {}  # the last that was alone in a batch, and its pair
        self._shelves: dict[tuple[int, Grid], list[_Slot]] = {}
        self._memory: Any = None
        self._lock = threading.RLock()

    @property
    def largest(self) -> int:
        return self._sizes[-1]

    def submit(
        self, staged: Sequence[StagedTensors], which: NDArray[np.intp], packed: NDArray[np.uint8], grid: Grid
    ) -> _Promise:
        """Begin with a batch of any size."""
        import torch

        with self._lock, torch.inference_mode():
            while True:
                try:
                    step = self.largest
                    starts = range(0, len(packed), step)
                    parts = [self._begin(staged, which[i : i + step], packed[i : i + step], grid) for i in starts]
                    return _Promise(parts, self._read)
                except torch.cuda.OutOfMemoryError:
                    if len(self._sizes) == 1:
                        raise
                self._shrink()

    def classify(self, pixels: Tensor) -> NDArray[Any]:
        """The scores of images, (n, h, w, channels), on the device and in the network's numbers."""
        import torch

        found = []
        with self._lock, torch.inference_mode():
            for start in range(0, len(pixels), self.largest):
                part = pixels[start : start + self.largest]
                recorded = self._of_pictures(part[0], self._size(len(part)), tuple(part.shape[1:3]))
                recorded.entry[: len(part)] = part
                found.append(recorded.run()[: len(part)].cpu().numpy())
        return self._read(np.concatenate(found))

    def measure_ahead(self, staged: StagedTensors, grid: Grid) -> int:
        """The largest of the small batches that takes about as long as the smallest."""
        import torch

        with self._lock, torch.inference_mode():
            times = {size: self._time(staged, size, grid) for size in self._sizes if size <= SMALL}
            least = min(times.values(), default=0.0)
            return max((size for size, time in times.items() if time <= FREE * least), default=0)

    def _time(self, staged: StagedTensors, size: int, grid: Grid) -> float:
        """Milliseconds for a batch of that size, the least of a few."""
        packed = np.full((size, -(-int(np.prod(grid)) // 8)), 255, np.uint8)
        promises = [self.submit([staged], np.zeros(size, np.intp), packed, grid) for _ in range(6)]
        times = []
        for promise in promises:
            promise.collect()
            times.append(promise.seconds * 1000)
        return min(times[1:])

    def _size(self, rows: int) -> int:
        return next(size for size in self._sizes if size >= rows)

    def _begin(
        self, staged: Sequence[StagedTensors], which: NDArray[np.intp], packed: NDArray[np.uint8], grid: Grid
    ) -> _Part:
        rows = len(packed)
        size = self._size(rows)
        is_alone = size <= SMALL and bool((which == which[0]).all())
        if is_alone:
            recorded = self._of_bits(staged[which[0]], size, packed.shape[1], grid)
        else:
            recorded = self._of_pictures(staged[0].pool.pairs[0, 0], size, grid)
        shelf = self._shelves.setdefault((size, grid), [])
        slot = shelf.pop() if shelf else self._make_slot(size, packed.shape[1], recorded.scores)
        slot.packed.numpy()[:rows] = packed
        slot.watch.begin()
        if is_alone:
            recorded.entry.copy_(slot.packed, non_blocking=True)
        else:
            self._compose(staged, which, slot, recorded.entry)
        slot.scores.copy_(recorded.run(), non_blocking=True)
        slot.watch.end()
        return _Part(rows, slot, shelf)

    def _compose(self, staged: Sequence[StagedTensors], which: NDArray[np.intp], slot: _Slot, out: Tensor) -> None:
        """Mutants of several images into a network's entry."""
        pool = staged[0].pool
        places = places_of(staged, which)
        slot.places.numpy()[: len(which)] = places
        slot.places.numpy()[len(which) :] = places[0]
        where = slot.places.to(out.device, non_blocking=True)
        bits = slot.packed.to(out.device, non_blocking=True)
        self._composer.compose_there(pool.pairs.index_select(0, where), bits, out)

    def _of_pictures(self, example: Tensor, size: int, grid: Grid) -> _Recorded:
        """The network for batches of that size; example: an image, (h, w, channels)."""

        def make() -> tuple[Tensor, Callable[[], Tensor]]:
            entry = example.new_zeros((size, *example.shape))
            batch = entry.permute(0, 3, 1, 2)  # a view: memory stays channels last
            return entry, lambda: self._network(batch)

        return self._record("pictures", size, grid, make)

    def _of_bits(self, staged: StagedTensors, size: int, width: int, grid: Grid) -> _Recorded:
        """The network for batches of that size, all of the same image, with the making of the mutants."""
        import torch

        pair = staged.pool.pairs[staged.place]
        if grid not in self._alone:
            self._alone[grid] = staged, pair.clone()
        last, there = self._alone[grid]
        if last is not staged:
            there.copy_(pair)
            self._alone[grid] = staged, there

        def make() -> tuple[Tensor, Callable[[], Tensor]]:
            entry = pair.new_zeros((size, width), dtype=torch.uint8)
            pictures = pair.new_zeros((size, *pair.shape[1:]))
            batch = pictures.permute(0, 3, 1, 2)

            def run() -> Tensor:
                self._composer.compose_there(there[None], entry, pictures)
                return self._network(batch)

            return entry, run

        return self._record("bits", size, grid, make)

    def _record(
        self, kind: str, size: int, grid: Grid, make: Callable[[], tuple[Tensor, Callable[[], Tensor]]]
    ) -> _Recorded:
        """What `make` makes, an entry and how to run what it is fed to, recorded where that is possible."""
        import torch

        found = self._recorded.get((kind, size, grid))
        if found is not None:
            return found
        entry, network = make()
        recorded = None
        if self._is_cuda:
            torch.cuda.synchronize()
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(WARM_UPS):
                    plain = network()
            torch.cuda.synchronize()
            recorded = self._capture(entry, network, plain)
        if recorded is None:
            recorded = _Recorded(entry, network(), network, network)
        self._recorded[kind, size, grid] = recorded
        return recorded

    def _capture(self, entry: Tensor, network: Callable[[], Tensor], plain: Tensor) -> _Recorded | None:
        """The network as a graph; None where it cannot be recorded, or does not say the same when replayed."""
        import torch

        graph = torch.cuda.CUDAGraph()
        try:
            self._memory = self._memory or torch.cuda.graph_pool_handle()
            with torch.cuda.graph(graph, pool=self._memory):
                scores = network()
            graph.replay()
            torch.cuda.synchronize()
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception:  # a network of the user's: anything may come, and it can still be run as it is
            torch.cuda.synchronize()
            return None
        if not torch.allclose(scores, plain, rtol=1e-3, atol=1e-4, equal_nan=True):
            return None

        def run() -> Tensor:
            graph.replay()
            return scores

        return _Recorded(entry, scores, run, network)

    def _shrink(self) -> None:
        """Give up the largest size and all that was recorded: the memory did not suffice."""
        import torch

        self._sizes.pop()
        self._recorded.clear()
        self._alone.clear()
        self._shelves.clear()
        self._memory = None
        torch.cuda.empty_cache()

    def _make_slot(self, size: int, width: int, scores: Tensor) -> _Slot:
        import torch

        pinned = self._is_cuda  # or a copy would wait for whatever the device is busy with
        return _Slot(
            torch.empty((size, width), dtype=torch.uint8, pin_memory=pinned),
            torch.empty(size, dtype=torch.int64, pin_memory=pinned),
            torch.empty(scores.shape, dtype=scores.dtype, pin_memory=pinned),
            _Stopwatch(self._is_cuda),
        )
