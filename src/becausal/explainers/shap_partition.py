"""SHAP: Owen values of a hierarchy of boxes, by the shap package's partition explainer.

After Lundberg, Lee: A unified approach to interpreting model predictions, NeurIPS 2017. The view is halved again and
again, across its longest side, down to small cells; the library spends its calls where the values are large.
"""

from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from becausal.contracts import Answers, Finding, Grid, Needs, Problem, Saliency, Search
from becausal.errors import MissingExtraError, OptionError
from becausal.explainers.bridge import Ask, Ended, bridge
from becausal.explainers.lime_superpixels import fit_ridge
from becausal.explainers.waves import WAVE, scores
from becausal.regions import Region, cut, whole


@dataclass(frozen=True, kw_only=True)
class Shap:
    """Partition SHAP, `shap`.

    evaluations: how many mutants at most the library asks. cells: the finest boxes, along the longest side of the view.
    A pixel's value is its cell's Owen value over the cell's pixels, so that the values add up to the score of the whole
    view less that of the empty one.

    Where the classifier gives labels only, the score is 1 where the target is kept and 0 elsewhere. Told to stop before
    the library is done, the map is a linear fit to the answers so far, and a note says so.
    """

    evaluations: int = 2000
    cells: int = 32

    name: ClassVar[str] = "shap"
    needs: ClassVar[Needs] = "labels"

    def __post_init__(self) -> None:
        if self.evaluations < 4:
            raise OptionError(f"evaluations must be at least 4, not {self.evaluations}")
        if self.cells < 2:
            raise OptionError(f"cells must be at least 2, not {self.cells}")

    def search(self, problem: Problem, rng: np.random.Generator) -> Search[Finding]:
        explainer = _load_partition_explainer()
        tree = halve(problem.grid, max(1, round(max(problem.grid) / self.cells)))
        seen = Seen(tree.cell)

        def run(ask: Ask) -> NDArray[np.float64]:
            def model(shown: NDArray[np.bool_]) -> NDArray[np.float64]:
                return seen.asked(shown, ask)

            # A batch of theirs is a wave of ours; each step of their search asks two.
            result = explainer(model, _Masker(tree.linkage))(
                np.ones((1, tree.count), bool), max_evals=self.evaluations, batch_size=WAVE, silent=True
            )
            return np.asarray(result.values[0], np.float64)

        if tree.count < 2:
            yield from ()
            return Finding(np.zeros(problem.grid))
        values = yield from bridge(run, seed=int(rng.integers(2**32)))
        notes: tuple[str, ...] = ()
        if values is None:
            values = seen.fitted()
            notes = (f"shap was stopped after {len(seen)} mutants: its map is a linear fit to their scores",)
        return Finding(spread(values, tree.cell), notes=notes)


def _load_partition_explainer() -> Any:
    try:
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


@dataclass
class Seen:
    """What was asked, and the scores: (n, cells) bool and n numbers."""

    cell: NDArray[np.intp]
    shown: list[NDArray[np.bool_]] = field(default_factory=list)
    values: list[NDArray[np.float64]] = field(default_factory=list)

    def __len__(self) -> int:
        return sum(len(values) for values in self.values)

    def asked(self, shown: NDArray[np.bool_], ask: Ask) -> NDArray[np.float64]:
        """Ask sets of cells, (n, cells), and remember the answers, also those that come with the word to stop."""
        try:
            answers = ask(shown[:, self.cell])
        except Ended as end:
            self._remember(shown, end.answers)
            raise
        self._remember(shown, answers)
        return self.values[-1]

    def _remember(self, shown: NDArray[np.bool_], answers: Answers) -> None:
        self.shown.append(shown[: len(answers)].copy())
        self.values.append(scores(answers))

    def fitted(self) -> NDArray[np.float64]:
        """The cells' values, (cells,), in the best linear account of the scores."""
        shown, values = np.concatenate(self.shown), np.concatenate(self.values)
        return fit_ridge(shown, values, np.ones(len(values)), 1.0)


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
