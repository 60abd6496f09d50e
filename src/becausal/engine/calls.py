"""Calls of a classifier, guarded: whatever goes wrong in it becomes an AnswerError."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.core.boxes import check_boxes
from becausal.core.contracts import AsyncClassifier, Classifier, Grid, Pixels, Promise, Twin, TwinnedClassifier, Visible
from becausal.core.errors import AnswerError, BecausalError
from becausal.core.text import one_line

Read = Callable[[NDArray[Any]], NDArray[Any]]


@dataclass
class FinishedBatch:
    """A batch that was evaluated while we waited."""

    scores: NDArray[Any]
    seconds: float

    def is_ready(self) -> bool:
        return True

    def collect(self) -> NDArray[Any]:
        return self.scores


class ModelCalls:
    """One classifier as the engine calls it.

    batch_size: maximum number of rows per batch. is_async: whether the classifier evaluates batches in the background, as
    on a GPU. depth: how many batches may be in flight at once. twin: a faster stand-in, where one was found, which
    evaluates the batches that only guide a search.
    """

    def __init__(self, classifier: Classifier, batch_size: int | None = None) -> None:
        self.classifier = classifier
        self.batch_size = min(batch_size or classifier.batch_size, classifier.batch_size)
        self._async = classifier if isinstance(classifier, AsyncClassifier) and classifier.depth > 0 else None
        self.is_async = self._async is not None
        self.depth = 1 if self._async is None else self._async.depth
        self.twin: Twin | None = None
        self._first: tuple[int, np.dtype[Any]] | None = None  # number of scores and their type in the first answer

    def padded_size(self, rows: int) -> int:
        """The next of the classifier's fixed batch sizes, where it has any."""
        return next((size for size in self.classifier.fixed_sizes if size >= rows), rows)

    def stage(self, view: Pixels, background: Pixels) -> Any:
        """The pair where the model lives. Some models are evaluated here already, so errors are AnswerErrors too."""
        with guarded():
            return self.classifier.stage(view, background)

    def find_twin(self) -> Twin | None:
        """The model's twin, made now if need be."""
        if self.twin is None and isinstance(self.classifier, TwinnedClassifier):
            self.twin = self.classifier.find_twin()
        return self.twin

    def drop_twin(self) -> None:
        """The twin gave a wrong answer: use it no more."""
        self.twin = None
        if isinstance(self.classifier, TwinnedClassifier):
            self.classifier.drop_twin()

    def submit(
        self, staged: Sequence[Any], which: NDArray[np.intp], rows: NDArray[Any], grid: Grid, *, is_guided: bool = False
    ) -> Promise:
        """Send one batch.

        rows: packed bits for an asynchronous classifier, else (n, *grid) bool. is_guided: to the twin, where there is one.
        """
        twin = self.twin if is_guided else None
        submit = None if self._async is None else self._async.submit if twin is None else twin.submit
        begun = time.perf_counter()
        with guarded():
            if submit is not None:
                return submit(staged, which, rows, grid)
            scores = (twin or self.classifier).ask(staged, which, rows)
        return FinishedBatch(scores, time.perf_counter() - begun)

    def collect(self, promise: Promise, rows: int) -> NDArray[Any]:
        """Wait for a batch of this many rows.

        Raises AnswerError for scores that are not what was promised, or not as many and of the type as in the first answer.
        """
        with guarded():
            scores = promise.collect()
        check_scores(scores, rows, self.classifier.info.output)
        if scores.ndim != 2:
            return scores
        width, dtype = self._first = self._first or (scores.shape[1], scores.dtype)
        if scores.shape[1] != width:
            raise AnswerError(
                f"the model returned {scores.shape[1]} scores for an image, after {width} in its first answer; "
                "expected one score per class, always the same classes"
            )
        if scores.dtype != dtype:
            raise AnswerError(f"the model returned {scores.dtype} scores, after {dtype} in its first answer")
        return scores

    def evaluate(self, view: Pixels, background: Pixels, visible: Visible, read: Read | None = None) -> NDArray[Any]:
        """Scores (n, classes), or labels (n,), of mutants of one view, (n, *grid); nothing is cached.

        read: what is kept of a batch, see `Target.read`: maps of hundreds of mutants take much memory.
        """
        staged = [self.stage(view, background)]
        found = []
        for start in range(0, len(visible), self.batch_size):
            part = visible[start : start + self.batch_size]
            size = self.padded_size(len(part))
            padded = np.concatenate([part, np.ones((size - len(part), *part.shape[1:]), bool)])
            with guarded():
                batch = FinishedBatch(self.classifier.ask(staged, np.zeros(size, np.intp), padded), 0.0)
            scores = self.collect(batch, size)[: len(part)]
            found.append(scores if read is None else read(scores))
        return np.concatenate(found)


@contextmanager
def guarded() -> Iterator[None]:
    """For calls of the classifier: whatever breaks in one becomes an AnswerError."""
    try:
        yield
    except (BecausalError, KeyboardInterrupt):
        raise
    except BaseException as error:  # a model may exit, or raise what is no Exception
        raise AnswerError(f"the model failed: {type(error).__name__}: {one_line(error, 300)}") from error


def check_scores(scores: NDArray[Any], rows: int, output: str) -> NDArray[Any]:
    """The scores, if they are what the classifier's `info.output` promises. Raises AnswerError if not."""
    if output == "labels":
        if scores.shape != (rows,) or not np.issubdtype(scores.dtype, np.integer):
            raise AnswerError(f"the model returned {scores.dtype} {scores.shape}; expected {rows} integer labels")
        return scores
    if output == "boxes":
        return check_boxes(scores, rows)
    if scores.dtype.kind not in "biuf":
        raise AnswerError(f"the model returned {scores.dtype} scores; expected real numbers")
    if output == "segments":
        if scores.ndim != 4 or len(scores) != rows or scores.shape[1] < 2:
            raise AnswerError(f"the model returned an output of shape {scores.shape}; expected ({rows}, classes, h, w)")
    elif scores.ndim != 2 or len(scores) != rows or scores.shape[1] < (1 if output == "similarity" else 2):
        raise AnswerError(f"the model returned an output of shape {scores.shape}; expected ({rows}, classes)")
    if not np.isfinite(scores).all():
        raise AnswerError("the model returned scores that are NaN or infinite")
    return scores
