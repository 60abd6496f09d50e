"""Networks that are asked another question than which class an image has: their raw output is read in another way."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import (
    AsyncClassifier,
    Classifier,
    Grid,
    ModelInfo,
    Pixels,
    Promise,
    Twin,
    TwinnedClassifier,
    Visible,
)

#: A kind of question: (n, labels) scores, or (n, classes, h, w) maps, from the raw output (n, …).
Reading = Callable[[NDArray[Any]], NDArray[np.float32]]


@dataclass(frozen=True)
class _ReadPromise:
    """A batch of the network in flight, whose raw output is read when it is there."""

    raw: Promise
    read: Reading

    @property
    def seconds(self) -> float:
        return self.raw.seconds

    def is_ready(self) -> bool:
        return self.raw.is_ready()

    def collect(self) -> NDArray[np.float32]:
        return self.read(self.raw.collect())


@final
class AskedNetwork:
    """A network whose raw output is read as the answers to another question. info: of the two together, with further notes.

    On a GPU it evaluates batches in the background, and has a twin, where the network does.
    """

    def __init__(self, network: Classifier, info: ModelInfo, read: Reading, *, batch_size: int | None = None) -> None:
        self._info = info
        self.batch_size = batch_size or network.batch_size
        self.fixed_sizes = network.fixed_sizes
        self._network = network
        self._read = read

    def __repr__(self) -> str:
        return f"<AskedNetwork {self.info}>"

    @property
    def info(self) -> ModelInfo:  # the network's own notes are as they are now
        return replace(self._info, notes=(*self._network.info.notes, *self._info.notes))

    @property
    def depth(self) -> int:
        return self._network.depth if isinstance(self._network, AsyncClassifier) else 0

    def stage(self, view: Pixels, background: Pixels) -> Any:
        return self._network.stage(view, background)

    def ask(self, staged: Sequence[Any], which: NDArray[np.intp], visible: Visible) -> NDArray[np.float32]:
        return self._read(self._network.ask(staged, which, visible))

    def classify(self, pixels: Pixels) -> NDArray[np.float32]:
        return self._read(self._network.classify(pixels))

    def submit(self, staged: Sequence[Any], which: NDArray[np.intp], packed: NDArray[np.uint8], grid: Grid) -> Promise:
        assert isinstance(self._network, AsyncClassifier)  # else depth is 0
        return _ReadPromise(self._network.submit(staged, which, packed, grid), self._read)

    def find_twin(self) -> Twin | None:
        """The network's twin, asked the same."""
        twin = self._network.find_twin() if isinstance(self._network, TwinnedClassifier) else None
        if twin is None:
            return None
        ask, submit = twin.ask, twin.submit
        return replace(
            twin,
            ask=lambda *batch: self._read(ask(*batch)),
            submit=None if submit is None else lambda *batch: _ReadPromise(submit(*batch), self._read),
        )

    def drop_twin(self) -> None:
        if isinstance(self._network, TwinnedClassifier):
            self._network.drop_twin()
