"""A classifier around any network that takes and returns numpy arrays."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import ModelInfo, Pixels, Visible
from becausal.models.compose import Composer, StagedArrays

RunBatch = Callable[[NDArray[Any]], NDArray[Any]]  # a batch in the model's layout to raw output, one row per image


@final
class ArrayClassifier:
    """Composes batches, runs the network and decodes its output.

    decode: from raw output to scores, labels or boxes, as `Classifier` returns them.
    fixed_sizes: the only allowed batch sizes, empty if any size is allowed. report: further notes, as they are now.
    Batches share one buffer, so threads take turns.
    """

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
        self._batch_size = batch_size
        self._fixed_sizes = fixed_sizes
        self._report = report
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<ArrayClassifier {self.info}>"

    @property
    def info(self) -> ModelInfo:
        further = self._report()
        return replace(self._info, notes=(*self._info.notes, *further)) if further else self._info

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
            return self._scores(self._composer.compose(staged, which, visible))

    def classify(self, pixels: Pixels) -> NDArray[Any]:
        parts = []
        for start in range(0, len(pixels), self._batch_size):
            batch = self._composer.batch(pixels[start : start + self._batch_size])
            with self._lock:
                parts.append(self._scores(batch))
        return np.concatenate(parts)

    def _scores(self, batch: NDArray[Any]) -> NDArray[Any]:
        return self._decode(run_padded(self._run, batch, self._fixed_sizes))


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
