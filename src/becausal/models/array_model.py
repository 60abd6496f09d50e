"""A classifier made of three parts: a composer of numpy batches, a function that runs the network, a reading."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import ModelInfo, Pixels, Visible
from becausal.models.compose import Composer, StagedArrays
from becausal.models.outputs import Reading


@final
class ArrayClassifier:
    """Any network that takes numpy batches and returns numpy arrays.

    run: a batch in the model's layout to its raw output, one row per image. fixed_sizes: the only batch sizes, where
    not all are allowed. One call at a time: threads wait for each other, since batches share one buffer.
    """

    def __init__(
        self,
        info: ModelInfo,
        composer: Composer,
        run: Callable[[NDArray[Any]], NDArray[Any]],
        reading: Reading,
        *,
        batch_size: int,
        fixed_sizes: tuple[int, ...] = (),
    ) -> None:
        self._info = info
        self._composer = composer
        self._run = run
        self._reading = reading
        self._batch_size = batch_size
        self._fixed_sizes = fixed_sizes
        self._lock = threading.Lock()

    @property
    def info(self) -> ModelInfo:
        return self._info

    @property
    def batch_size(self) -> int:
        return self._batch_size

    @property
    def fixed_sizes(self) -> tuple[int, ...]:
        return self._fixed_sizes

    def stage(self, view: Pixels, background: Pixels) -> StagedArrays:
        return self._composer.stage(view, background)

    def ask(self, staged: Sequence[StagedArrays], which: NDArray[np.intp], visible: Visible) -> NDArray[Any]:
        with self._lock:
            return self._reading.scores(self._padded(self._composer.compose(staged, which, visible)))

    def classify(self, pixels: Pixels) -> NDArray[Any]:
        parts = []
        for start in range(0, len(pixels), self._batch_size):
            batch = self._composer.batch(pixels[start : start + self._batch_size])
            with self._lock:
                parts.append(self._reading.scores(self._padded(batch)))
        return np.concatenate(parts)

    def _padded(self, batch: NDArray[Any]) -> NDArray[Any]:
        """Run a batch, repeated to a size the network takes, and give back its own rows."""
        return run_padded(self._run, batch, self._fixed_sizes)


def run_padded(
    run: Callable[[NDArray[Any]], NDArray[Any]], batch: NDArray[Any], fixed_sizes: tuple[int, ...]
) -> NDArray[Any]:
    """The network's output for a batch of any size; the last row is repeated where only some sizes are allowed."""
    rows = len(batch)
    if not fixed_sizes or rows in fixed_sizes:
        return run(batch)
    largest = fixed_sizes[-1]
    if rows > largest:
        parts = [run_padded(run, batch[i : i + largest], fixed_sizes) for i in range(0, rows, largest)]
        return np.concatenate(parts)
    size = next(size for size in fixed_sizes if size >= rows)
    return run(np.concatenate([batch, np.repeat(batch[-1:], size - rows, axis=0)]))[:rows]
