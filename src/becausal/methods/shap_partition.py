"""`shap`: Owen values of a hierarchy of boxes, by the shap package's partition explainer (Lundberg and Lee, 2017).

The view is halved recursively across its longest side, down to small cells. The library spends its evaluations where the
values are large.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Answers, Finding, Grid, Needs, Saliency, Search
from becausal.core.errors import MissingExtraError
from becausal.core.problem import Problem
from becausal.core.regions import Region, cut, whole
from becausal.methods.bridge import Evaluate, GlobalRandomState, SearchStopped, bridge
from becausal.methods.waves import WAVE, check_least, scores

ScoreFunction = Callable[[NDArray[np.bool_]], NDArray[np.float64]]  # sets of cells, (n, cells), to n scores
MIN_EVALUATIONS = 4  # the fully masked view, the whole view, and the first pair of halves


@dataclass(frozen=True, kw_only=True)
class Shap:
    """Partition SHAP: Owen values of the cells, shared equally by their pixels.

    The values add up to the score of the whole view minus that of the fully masked one. For a label-only classifier the
    score is 1 where the target is kept, else 0. After a stop the library runs again on the recorded scores, limited to
    the evaluations that were made.

    Attributes:
        evaluations: Maximum number of mutants.
        cells: Number of smallest boxes along the longest side of the view.
    """

    evaluations: int = 2000
    cells: int = 32

    name: ClassVar[str] = "shap"
    needs: ClassVar[Needs] = "labels"

    def __post_init__(self) -> None:
        check_least(self, evaluations=MIN_EVALUATIONS, cells=2)

    def search(self, problem: Problem, rng: np.random.Generator) -> Search[Finding]:
        tree = halve(problem.grid, max(1, round(max(problem.grid) / self.cells)))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # from the plotting libraries it imports
                explainer = import_module("shap").PartitionExplainer
        except ImportError as error:
            raise MissingExtraError("shap", "shap", "the method shap") from error
        if tree.count < 2:
            return Finding(np.zeros(problem.grid))
        seed, log = int(rng.integers(2**32)), ScoreLog(tree.cell)

        def run(model: ScoreFunction, evaluations: int) -> NDArray[np.float64]:
            # One batch of the library is one wave. It evaluates pairs, and may exceed an odd limit by one.
            result = explainer(model, _Masker(tree.linkage))(
                np.ones((1, tree.count), bool), max_evals=evaluations // 2 * 2, batch_size=WAVE, silent=True
            )
            return np.asarray(result.values[0], np.float64)

        values = yield from bridge(lambda evaluate: run(log.recording(evaluate), self.evaluations), seed=seed)
        if values is not None:
            return Finding(pixel_values(values, tree.cell))
        note = f"shap was stopped after {log.count} of {self.evaluations} mutants"
        if log.count < MIN_EVALUATIONS:
            return Finding(np.zeros(problem.grid), notes=(note,))
        with GlobalRandomState(seed):
            values = run(log.replay, log.count)
        return Finding(pixel_values(values, tree.cell), notes=(note,))


class _Masker:
    """The masker that the library expects; a masked input is the set of cells itself."""

    immutable_outputs = True

    def __init__(self, linkage: NDArray[np.float64]) -> None:
        self.clustering = linkage
        self.shape = (1, len(linkage) + 1)

    def __call__(self, shown: NDArray[np.bool_], row: NDArray[np.bool_]) -> NDArray[np.bool_]:
        return shown[None].copy()


class ScoreLog:
    """The scores of all sets evaluated so far."""

    def __init__(self, cell: NDArray[np.intp]) -> None:
        self.count = 0
        self._cell = cell
        self._scores: dict[bytes, float] = {}

    def recording(self, evaluate: Evaluate) -> ScoreFunction:
        """The function that the library calls; it records all scores, including those that come with a stop."""

        def model(shown: NDArray[np.bool_]) -> NDArray[np.float64]:
            try:
                return self._record(shown, evaluate(shown[:, self._cell]))
            except SearchStopped as stop:
                self._record(shown, stop.answers)
                raise

        return model

    def replay(self, shown: NDArray[np.bool_]) -> NDArray[np.float64]:
        """The recorded scores of these sets."""
        return np.array([self._scores[_key(row)] for row in shown])

    def _record(self, shown: NDArray[np.bool_], answers: Answers) -> NDArray[np.float64]:
        values = scores(answers)
        self.count += len(values)
        self._scores.update((_key(row), float(value)) for row, value in zip(shown, values, strict=False))
        return values


def _key(row: NDArray[np.bool_]) -> bytes:
    return np.packbits(row).tobytes()


@dataclass(frozen=True)
class BoxTree:
    """A hierarchy of boxes."""

    cell: NDArray[np.intp]  # (*grid,) the number of the smallest box each pixel lies in
    linkage: NDArray[np.float64]  # (count - 1, 4), a row per merge in scipy's form (left, right, distance, size)

    @property
    def count(self) -> int:
        return len(self.linkage) + 1


def halve(grid: Grid, finest: int) -> BoxTree:
    """The grid halved across its longest side until no side is above `finest`."""
    levels: list[tuple[Region, int]] = [(whole(grid), -1)]  # each box and its parent, parents first
    for index, (box, _) in enumerate(levels):
        axis = int(np.argmax(box.shape))
        if box.shape[axis] > finest:
            halves = cut(box, axis, box.start[axis] + (box.shape[axis] + 1) // 2)
            levels += [(half, index) for half in halves]
    children: dict[int, list[int]] = {}
    for index, (_, parent) in enumerate(levels):
        children.setdefault(parent, []).append(index)
    leaves = [index for index in range(len(levels)) if index not in children]
    number = {index: i for i, index in enumerate(leaves)}
    size = dict.fromkeys(leaves, 1)
    cell = np.zeros(grid, np.intp)
    for index in leaves:
        cell[levels[index][0].slices] = number[index]
    rows = []
    for index in sorted(children.keys() - {-1}, reverse=True):  # children before parents
        left, right = children[index]
        size[index] = size[left] + size[right]
        rows.append((number[left], number[right], levels[index][0].size, size[index]))
        number[index] = len(leaves) + len(rows) - 1
    return BoxTree(cell, np.array(rows, np.float64).reshape(-1, 4))


def pixel_values(values: NDArray[np.float64], cell: NDArray[np.intp]) -> Saliency:
    """Each cell's value, shared equally by its pixels, (*grid,)."""
    return (values / np.bincount(cell.ravel()))[cell]
