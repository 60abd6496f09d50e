"""SHAP: Owen values of a hierarchy of boxes, by the shap package's partition explainer.

After Lundberg, Lee: A unified approach to interpreting model predictions, NeurIPS 2017. The view is halved again and
again, across its longest side, down to small cells; the library spends its calls where the values are large.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Answers, Finding, Grid, Needs, Saliency, Search
from becausal.core.errors import MissingExtraError, OptionError
from becausal.core.problem import Problem
from becausal.core.regions import Region, cut, whole
from becausal.methods.bridge import Ask, Ended, GlobalNumbers, bridge
from becausal.methods.waves import WAVE, scores

Model = Callable[[NDArray[np.bool_]], NDArray[np.float64]]  # (n, cells) sets to n scores
LEAST = 4  # evaluations: the empty view, the whole, and the first pair of halves


@dataclass(frozen=True, kw_only=True)
class Shap:
    """Partition SHAP, `shap`.

    evaluations: how many mutants at most the library asks. cells: the finest boxes, along the longest side of the view.
    A pixel's value is its cell's Owen value over the cell's pixels, so that the values add up to the score of the whole
    view less that of the empty one.

    Where the classifier gives labels only, the score is 1 where the target is kept and 0 elsewhere. Told to stop, the
    library runs again from memory, with as many evaluations as were answered: the same search, cut short.
    """

    evaluations: int = 2000
    cells: int = 32

    name: ClassVar[str] = "shap"
    needs: ClassVar[Needs] = "labels"

    def __post_init__(self) -> None:
        if self.evaluations < LEAST:
            raise OptionError(f"evaluations must be at least {LEAST}, not {self.evaluations}")
        if self.cells < 2:
            raise OptionError(f"cells must be at least 2, not {self.cells}")

    def search(self, problem: Problem, rng: np.random.Generator) -> Search[Finding]:
        tree = halve(problem.grid, max(1, round(max(problem.grid) / self.cells)))
        explainer = _load_partition_explainer()
        if tree.count < 2:
            return Finding(np.zeros(problem.grid))
        seed, seen = int(rng.integers(2**32)), Seen(tree.cell)

        def run(model: Model, evaluations: int) -> NDArray[np.float64]:
            # A batch of theirs is a wave of ours. Their search asks in pairs, and may pass an odd limit by one.
            result = explainer(model, _Masker(tree.linkage))(
                np.ones((1, tree.count), bool), max_evals=evaluations // 2 * 2, batch_size=WAVE, silent=True
            )
            return np.asarray(result.values[0], np.float64)

        values = yield from bridge(lambda ask: run(seen.asking(ask), self.evaluations), seed=seed)
        if values is not None:
            return Finding(spread(values, tree.cell))
        note = f"shap was stopped after {seen.count} of {self.evaluations} mutants"
        if seen.count < LEAST:
            return Finding(np.zeros(problem.grid), notes=(note,))
        with GlobalNumbers(seed):
            values = run(seen.recall, seen.count)
        return Finding(spread(values, tree.cell), notes=(note,))


def _load_partition_explainer() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about matplotlib and others, while it loads its plots
            return import_module("shap").PartitionExplainer
    except ImportError as error:
        raise MissingExtraError("shap", "shap", "the method shap") from error


class _Masker:
    """What the library asks of a masker: here a question is the set itself."""

    immutable_outputs = True

    def __init__(self, linkage: NDArray[np.float64]) -> None:
        self.clustering = linkage
        self.shape = (1, len(linkage) + 1)

    def __call__(self, shown: NDArray[np.bool_], row: NDArray[np.bool_]) -> NDArray[np.bool_]:
        return shown[None].copy()


class Seen:
    """What was asked and answered so far."""

    def __init__(self, cell: NDArray[np.intp]) -> None:
        self.count = 0
        self._cell = cell
        self._scores: dict[bytes, float] = {}

    def asking(self, ask: Ask) -> Model:
        """The model the library sees; it remembers all answers, also those that come with the word to stop."""

        def model(shown: NDArray[np.bool_]) -> NDArray[np.float64]:
            try:
                return self._learn(shown, ask(shown[:, self._cell]))
            except Ended as end:
                self._learn(shown, end.answers)
                raise

        return model

    def recall(self, shown: NDArray[np.bool_]) -> NDArray[np.float64]:
        """The scores of sets that were asked before."""
        return np.array([self._scores[_key(row)] for row in shown])

    def _learn(self, shown: NDArray[np.bool_], answers: Answers) -> NDArray[np.float64]:
        values = scores(answers)
        self.count += len(values)
        self._scores.update((_key(row), float(value)) for row, value in zip(shown, values, strict=False))
        return values


def _key(row: NDArray[np.bool_]) -> bytes:
    return np.packbits(row).tobytes()


@dataclass(frozen=True)
class Tree:
    """A hierarchy of boxes.

    cell: (*grid,) the number of the finest box each pixel lies in. linkage: (count - 1, 4), one row per join in scipy's
    form (left, right, distance, size), small boxes first.
    """

    cell: NDArray[np.intp]
    linkage: NDArray[np.float64]

    @property
    def count(self) -> int:
        return len(self.linkage) + 1


def halve(grid: Grid, finest: int) -> Tree:
    """The view halved across its longest side until no side is above `finest`, read back from the leaves."""
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
    return Tree(cell, np.array(rows, np.float64).reshape(-1, 4))


def spread(values: NDArray[np.float64], cell: NDArray[np.intp]) -> Saliency:
    """Each cell's value shared out evenly over its pixels, (*grid,)."""
    return (values / np.bincount(cell.ravel()))[cell]
