"""Test doubles: a classifier made from a function of what is visible, and searches answered by hand.

from becausal.testing import MaskClassifier, run_search

corner = MaskClassifier(lambda visible: visible[:, 0, 0].astype(float))  # "yes" while the first pixel is shown
explanation = becausal.explain(np.zeros((8, 8, 3), np.uint8), corner)
assert explanation.pixels == 1
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Answers, Done, Grid, ModelInfo, Pixels, Question, Search, Visible, step

__all__ = ["MaskClassifier", "run_search"]

T = TypeVar("T")
ScoreFunction = Callable[[Visible], NDArray[Any]]


@dataclass
class _MaskBatch:
    """A batch whose scores, or whose error, are given when it is collected."""

    scores: NDArray[Any] | Exception
    seconds: float = 0.0

    def is_ready(self) -> bool:
        return True

    def collect(self) -> NDArray[Any]:
        if isinstance(self.scores, Exception):
            raise self.scores
        return self.scores


@final
class MaskClassifier:
    """A classifier whose answer depends only on which pixels are visible; it takes images of any shape.

    Args:
        function: From (n, *grid) bool, True where a pixel is shown, to one of: (n,) floats in 0..1, the probability of
            the label "yes" over "no"; (n, classes) probabilities; (n,) integer labels; the boxes of a detector, as
            `becausal.core.boxes.pack_boxes` makes them.
        labels: Class names. Default: "no" and "yes" where there are two classes.
        batch_size: Maximum number of rows per call.
        fixed_sizes: Batch sizes that batches are padded to, ascending.
        depth: How many batches may be in flight; 0 for a classifier that is waited for.
        threshold: Of a detector: the lowest score at which a box is found.

    Attributes:
        asked: Every visible set it was called with, (*grid,) each, padding included.
        batches: The number of rows of each call.
    """

    def __init__(
        self,
        function: ScoreFunction,
        *,
        labels: Sequence[str] | None = None,
        batch_size: int = 64,
        fixed_sizes: tuple[int, ...] = (),
        depth: int = 0,
        threshold: float = 0.5,
    ) -> None:
        self._function = function
        self._labels = None if labels is None else tuple(labels)
        self._output = "probabilities"
        self._threshold = threshold
        self.batch_size = batch_size
        self.fixed_sizes = fixed_sizes
        self.depth = depth
        self.asked: list[Visible] = []
        self.batches: list[int] = []

    @property
    def info(self) -> ModelInfo:
        """What the classifier says about itself; whether it returns scores or labels is known after the first call."""
        output: Any = self._output
        threshold = self._threshold if output == "boxes" else 0.0
        return ModelInfo("mask function", "test", None, None, self._labels, output, "none", threshold=threshold)

    def stage(self, view: Pixels, background: Pixels) -> Grid:
        return tuple(view.shape[:-1])

    def ask(self, staged: Sequence[Grid], which: NDArray[np.intp], visible: Visible) -> NDArray[Any]:
        self.batches.append(len(visible))
        self.asked += list(visible.copy())
        scores = np.asarray(self._function(visible))
        if scores.ndim == 1 and np.issubdtype(scores.dtype, np.integer):
            self._output = "labels"
            return scores
        if scores.ndim == 3:
            self._output = "boxes"
        if scores.ndim == 1:
            self._labels = self._labels or ("no", "yes")
            scores = np.stack([1.0 - scores, scores], axis=1)
        return scores.astype(np.float32)

    def submit(self, staged: Sequence[Grid], which: NDArray[np.intp], packed: NDArray[np.uint8], grid: Grid) -> _MaskBatch:
        visible = np.unpackbits(packed, axis=1, count=int(np.prod(grid))).astype(bool).reshape(-1, *grid)
        try:
            return _MaskBatch(self.ask(staged, which, visible))
        except Exception as error:  # as a device would: said when the batch is collected
            return _MaskBatch(error)

    def classify(self, pixels: Pixels) -> NDArray[Any]:
        """Whole images, (n, *grid, channels): everything is visible."""
        return self.ask([], np.zeros(len(pixels), np.intp), np.ones(pixels.shape[:-1], bool))


def run_search(search: Search[T], function: ScoreFunction, *, threshold: float = 0.5) -> tuple[T, Visible]:
    """Answer a search's questions with a function, without an engine or a model.

    Args:
        search: Any generator that asks: a method's `search`, `minimise`, `extract`, `check`, ...
        function: From (n, *grid) bool to (n,) floats in 0..1, the confidence in the target.
        threshold: The target holds where the confidence is at least this.

    Returns:
        What the search returned, and every set it asked, (n, *grid), in order.
    """
    asked: list[Visible] = []
    state = step(search, None)
    while not isinstance(state, Done):
        wave = Question.of(state).visible
        asked += list(wave)
        confidence = np.asarray(function(wave), np.float64)
        state = step(search, Answers(confidence >= threshold, confidence - threshold, confidence, spent=len(asked)))
    return state.result, np.stack(asked) if asked else np.zeros((0,), bool)
