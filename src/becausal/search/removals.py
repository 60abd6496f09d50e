"""The state of `settle` in cells: which are left, what their removal cost, which removals are asked next."""

from copy import copy
from math import inf, prod
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Visible

GROUP = 16  # the most cells that are tried together
LEAST_ROW, MOST_ROW = 4, 32  # removals that are asked at a time: twice as many after each row in which none can go
SOLID = 1.0  # standard deviations of the expected cost that each visible neighbour of a cell adds to it
DIGITS = 6  # of what is compared, so that rounding decides nothing
TOGETHER = (2, 3, 4, 6, 8, 12, 16, 24, 32)  # of those that can go alone, then this many of the best are asked together

Numbers = NDArray[np.intp]  # of cells
Values = NDArray[np.float64]


class Removals:
    """Cells that are removed until none can go; a copy may run ahead with guessed answers.

    `ask` says which removals to evaluate, `learn` takes the answers. Those thought removable are tried first, then those
    never tried, then those whose removal cost least. Every success makes the failures before it stale: a set is minimal
    once each of its cells has failed since the last. Why in groups, rows and unions: a question costs a call, and a wave
    costs a wait for the model. Groups remove much with few calls while much can go; rows of single cells fill a batch once
    little can; unions then remove in one wave what several cells of a row allow.

    Attributes:
        margin: Of the set as it is, inf where it is not known.
        cost: How much margin the removal of each cell took when it was last asked, NaN where it never was.
        groups: The removals that were asked last: several cells together, single cells, or unions of those that can go.
    """

    def __init__(
        self, members: Numbers, importance: Values, neighbours: "Neighbours | None", *, margin: float, once: bool
    ) -> None:
        self.alive = np.zeros(len(importance), bool)
        self.alive[members] = True
        self.importance = importance
        self.neighbours = neighbours
        self.margin = margin
        self.once = once
        self.cost: Values = np.full(len(importance), np.nan)
        self.groups: list[Numbers] = []
        self.kind: Literal["group", "singles", "unions"] = "group"
        self._tried = np.full(len(importance), -1)  # the clock when it was last tried
        self._clock = 0
        self._success = 0  # the clock of the last success
        self._group, self._row = 2, LEAST_ROW
        self._singles: Numbers = members[:0]  # the last single cells
        self._able: Numbers = members[:0]  # those of them that can go, best first

    def copy(self) -> "Removals":
        other = copy(self)
        other.alive, other.cost, other._tried = self.alive.copy(), self.cost.copy(), self._tried.copy()
        return other

    def ask(self) -> list[Numbers]:
        """The groups of cells whose removal is evaluated next; none where no cell is left to try."""
        if len(self._able) > 1:
            self.kind = "unions"
            self.groups = [self._able[1:most] for most in TOGETHER if most <= len(self._able)]
            return self.groups
        order = self._order()
        if self.once:
            order = order[self._tried[order] < 0]
        if self._group > 1 and len(order) > 1:
            self.kind, self.groups = "group", [order[: self._group]]
        else:
            self.kind, self._singles = "singles", order[: self._row]
            self.groups = [self._singles[i : i + 1] for i in range(len(self._singles))]
        return self.groups

    def learn(self, holds: NDArray[np.bool_], margin: Values) -> int | None:
        """Take the answers to what was asked; which of the groups is removed for good, None for none."""
        match self.kind:
            case "group":
                return self._learn_group(bool(holds[0]), float(margin[0]))
            case "singles":
                return self._learn_singles(holds, margin)
            case "unions":
                return self._learn_unions(holds, margin)

    def _learn_group(self, holds: bool, margin: float) -> int | None:
        together = self.groups[0]
        if not holds:
            self._group = len(together) // 2
            return None
        self._group = min(2 * self._group, GROUP)
        self._drop(together, margin)
        return 0

    def _learn_singles(self, holds: NDArray[np.bool_], margin: Values) -> int | None:
        """Note what each removal cost; those that can go are left in doubt, known to be easy, but for the best one."""
        tried = self._singles
        before = self.margin if self.margin < inf else float(margin.max())
        self.cost[tried] = before - margin
        self._clock += 1
        self._tried[tried[~holds]] = self._clock
        able = np.flatnonzero(holds)
        if not len(able):
            self._row = min(2 * self._row, MOST_ROW)
            return None
        able = able[np.argsort(self._support(tried[able], margin[able]) - margin[able], kind="stable")]
        best, self._able = int(able[0]), tried[able]
        self._drop(self._able[:1], float(margin[best]))
        if len(able) == 1:
            self._begin_row(1)
        return best

    def _learn_unions(self, holds: NDArray[np.bool_], margin: Values) -> int | None:
        able, last = self._able, None
        self._able, together = able[:0], 1
        if holds.any():
            last = int(np.flatnonzero(holds)[-1])
            together = 1 + len(self.groups[last])
            self._drop(self.groups[last], float(margin[last]))
        self._begin_row(together)
        return last

    def _begin_row(self, removed: int) -> None:
        self._group, self._row = removed if removed == len(self._singles) else 1, LEAST_ROW

    def _drop(self, gone: Numbers, margin: float) -> None:
        self.alive[gone] = False
        self.margin = margin
        self._clock += 1
        self._success = self._clock

    def _order(self) -> Numbers:
        """The cells in doubt, most promising first."""
        doubt = np.flatnonzero(self.alive & (self._tried < self._success))
        cost = self.cost[doubt]
        never = np.isnan(cost)
        rank = np.where(never, 1, np.where(cost <= self.margin, 0, 2))
        within = np.where(never, self.importance[doubt], cost)
        return doubt[np.lexsort((self._tried[doubt], within + self._support(doubt, within), rank))]

    def _support(self, numbers: Numbers, values: Values) -> Values:
        """What to add to the expected costs of some cells, so that cells with few visible neighbours go first."""
        if self.neighbours is None or len(numbers) < 2:
            return np.zeros(len(numbers))
        centred = values - np.add.reduce(values) / len(values)
        deviation = np.sqrt(np.add.reduce(centred * centred) / len(values))  # as np.std does it, but faster
        return np.round(SOLID * float(deviation) * self.neighbours.count(self.alive, numbers), DIGITS)


class Neighbours:
    """Counts the visible neighbours of the cells of a lattice.

    cell: (*grid,) the number of each pixel's cell. always: pixels that stay; their cells count as visible.
    """

    def __init__(self, cell: NDArray[np.intp], always: Visible) -> None:
        lines = (np.moveaxis(cell, axis, 0).reshape(cell.shape[axis], -1)[:, 0] for axis in range(cell.ndim))
        shape = tuple(len(np.unique(line)) for line in lines)
        number = np.arange(prod(shape)).reshape(shape)
        beside = np.full((*shape, 2 * len(shape)), number.size)
        for axis in range(len(shape)):
            near, numbers = np.moveaxis(beside, axis, 0), np.moveaxis(number, axis, 0)
            near[1:, ..., 2 * axis], near[:-1, ..., 2 * axis + 1] = numbers[:-1], numbers[1:]
        self._beside = beside.reshape(number.size, -1)  # the cells next to each cell; one that is never shown for none
        self._always = np.append(np.bincount(cell[always], minlength=number.size) > 0, False)

    def count(self, alive: NDArray[np.bool_], numbers: Numbers) -> NDArray[np.intp]:
        """For each of these cells, how many of the cells next to it are visible."""
        shown = self._always.copy()
        shown[:-1] |= alive
        return np.asarray(shown[self._beside[numbers]].sum(axis=1), np.intp)
