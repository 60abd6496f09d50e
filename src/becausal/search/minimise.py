"""From a sufficient set to one from which no cell of a stated grain can be removed.

`settle` asks about the pixels, `Removals` decides in numbers of cells, `run_ahead` guesses what it will ask next.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache
from heapq import heappop, heappush
from itertools import combinations, count
from math import comb, inf, prod
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Grid, Question, Saliency, Search, Stop, Visible
from becausal.core.regions import cells
from becausal.search.drive import BudgetedRun, drive

COARSEST = 8  # cells along the longest side on the first scale
GROUP = 16  # the most cells that are tried together
LEAST_ROW, MOST_ROW = 4, 32  # removals that are asked at a time: twice as many after each row in which none can go
SOLID = 1.0  # standard deviations of the expected cost that each visible neighbour of a cell adds to it
DIGITS = 6  # of what is compared, so that rounding decides nothing
TOGETHER = (2, 3, 4, 6, 8, 12, 16, 24, 32)  # of those that can go alone, then this many of the best are asked together

# How often a cell can go that went when it was last tried, was never tried, or was needed; measured with MobileNetV2.
EASY, NEVER, HARD = 0.55, 0.37, 0.1
GROUP_GOES = 0.7  # how often several cells can go together, times their number
SPREAD = (0.5, 1.5)  # cells of a row often go or stay together: in some rows all are less likely to go, in others more
UNIONS = 1 / 3  # what unions are worth against other questions: what follows them is easy to guess once they are asked
UNLIKELY = 0.01  # what is less likely is not followed

Numbers = NDArray[np.intp]  # of cells
Values = NDArray[np.float64]
Outcome = int | tuple[int, ...]  # what is answered, see `_answers`; or which cells of a row are then asked together
Outcomes = tuple[tuple[float, int, Outcome], ...]  # each with how likely it is, and how many questions follow


@dataclass(frozen=True)
class Minimal:
    """A sufficient set, and the finest grain at which every removal of one of its cells was asked and lost the target.

    grain is None where minimality was not reached at any grain before the search was stopped.
    """

    visible: Visible
    grain: int | None


@dataclass(frozen=True)
class Settled:
    """A sufficient set; `finished` says that every single removal of a cell was asked of it, and lost the target.

    cost: per cell number, how much margin its removal took when it was last asked; NaN where it never was. margin: of
    the set, where it is known, else inf.
    """

    visible: Visible
    finished: bool
    cost: NDArray[np.float64]
    margin: float


def grains(grid: Grid, finest: int) -> list[int]:
    """The cell sides to go through, coarse to fine: finest times powers of two, down from about 1/8 of the view."""
    scale = [finest]
    while scale[-1] * 2 * COARSEST <= max(grid):
        scale.append(scale[-1] * 2)
    return scale[::-1]


def minimise(visible: Visible, saliency: Saliency, *, finest: int) -> Search[Minimal]:
    """Settle a sufficient set, cells of one grain after the other, until no cell of the finest grain can go.

    The least important by the map go first. The set is sufficient at every moment. If stopped, it returns the set as
    it is.
    """
    current, reached = visible, None
    for grain in grains(visible.shape, finest):
        cell = cells(visible.shape, grain)
        importance = np.bincount(cell[current], saliency[current], minlength=int(cell.max()) + 1).astype(np.float64)
        settled = yield from settle(current, cell, importance, solid=True)
        if not settled.finished:
            # What was shown of the coarser cells holds for the set it was shown of, and need not for a smaller one.
            same = settled.visible.sum() == current.sum()
            return Minimal(settled.visible, reached if same else None)
        current, reached = settled.visible, grain
    return Minimal(current, reached)


def present(visible: Visible, cell: Numbers) -> Numbers:
    """The numbers of the cells that have a visible pixel."""
    return np.flatnonzero(np.bincount(cell[visible], minlength=1))


def settle(
    visible: Visible, cell: Numbers, importance: NDArray[np.float64], *, margin: float = inf, solid: bool = False
) -> Search[Settled]:
    """Remove cells until none can go, the least important first, several together while that works.

    A cell that proved needed is tried again once the set has changed; it ends when every cell has failed since the last
    success, which is the proof of minimality. cell: (*grid,) the number of each pixel's cell. importance: per cell
    number. margin: of the set as it is, where known. solid: prefer sets with few pieces and holes; the cells form a lattice.
    If stopped, it returns the set as it is.
    """
    current = visible
    neighbours = Neighbours(cell) if solid and cell.max() else None
    # What to ask and what follows from the answers is decided in numbers of cells (`Removals`); here are only the pixels, so
    # that a copy of that state can run ahead on guesses at no cost.
    state = Removals(present(visible, cell), importance, neighbours, margin=margin)
    # The pixels of each cell next to each other: then a cell is taken out by a slice, and not by a search of the whole grid.
    pixels = np.flatnonzero(visible)
    number = cell.reshape(-1)[pixels]
    pixels = pixels[np.argsort(number, kind="stable")]
    starts = np.concatenate([[0], np.cumsum(np.bincount(number))]).tolist()

    def less(groups: Sequence[Numbers]) -> Visible:
        """The present set without each of these groups of cells, (groups, *grid)."""
        out = np.repeat(current[None], len(groups), axis=0)
        for row, gone in zip(out.reshape(len(groups), current.size), groups, strict=True):
            for each in gone.tolist():
                row[pixels[starts[each] : starts[each + 1]]] = False
        return out

    finished = True
    try:
        while groups := state.ask():
            trials = less(groups)
            answers = yield Question(trials, lookahead=lambda count: less(run_ahead(state, count)))
            removed = state.learn(answers.holds, answers.margin)
            if removed is not None:
                current = trials[removed]
    except Stop:
        finished = False
    return Settled(current, finished, state.cost, state.margin)


def settle_within(
    visible: Visible, grain: int, expected: NDArray[np.float64], run: BudgetedRun, *, limit: int | None,
    margin: float = inf,
) -> Search[tuple[Settled, int | None]]:  # fmt: skip
    """Try cells one by one until none can be removed; past a limit on calls, prove it for larger cells instead.

    visible: (*grid,) a sufficient set. grain: side of a cell in pixels. expected: (*lattice,) expected cost of removing
    each cell. run: counts the calls. limit: on all calls, after which the cells are made twice as large. margin: of the
    set, where it is known. Returns the set, and the
    side of the cells at which it is minimal, None where that was not reached.
    """
    cell, expected = cells(visible.shape, grain), expected.reshape(-1)
    search = settle(visible, cell, expected, margin=margin, solid=True)
    settled = yield from drive(search, run=run, limit=limit)
    while not settled.finished and run.stopped_by in (None, "budget") and 2 * grain <= max(visible.shape):
        # Four times fewer cells to prove. What is known of the smaller ones is not lost: each one's cost is shared by its
        # visible pixels, and summed over those of the larger cell.
        known = np.where(np.isnan(settled.cost), expected, settled.cost)
        finer, grain = cell[settled.visible], 2 * grain
        cell = cells(visible.shape, grain)
        share = known / np.maximum(np.bincount(finer, minlength=len(known)), 1)
        expected = np.bincount(cell[settled.visible], share[finer], minlength=int(cell.max()) + 1).astype(np.float64)
        search = settle(settled.visible, cell, expected, margin=settled.margin, solid=True)
        settled = yield from drive(search, run=run)
    return settled, grain if settled.finished else None


class Neighbours:
    """Counts the visible neighbours of the cells of a lattice.

    cell: (*grid,) the number of each pixel's cell.
    """

    def __init__(self, cell: NDArray[np.intp]) -> None:
        lines = (np.moveaxis(cell, axis, 0).reshape(cell.shape[axis], -1)[:, 0] for axis in range(cell.ndim))
        shape = tuple(len(np.unique(line)) for line in lines)
        number = np.arange(prod(shape)).reshape(shape)
        beside = np.full((*shape, 2 * len(shape)), number.size)
        for axis in range(len(shape)):
            near, numbers = np.moveaxis(beside, axis, 0), np.moveaxis(number, axis, 0)
            near[1:, ..., 2 * axis], near[:-1, ..., 2 * axis + 1] = numbers[:-1], numbers[1:]
        self._beside = beside.reshape(number.size, -1)  # the cells next to each cell; one that is never shown for none

    def count(self, alive: NDArray[np.bool_], numbers: Numbers) -> NDArray[np.intp]:
        """For each of these cells, how many of the cells next to it are visible."""
        shown = np.append(alive, False)
        return np.asarray(shown[self._beside[numbers]].sum(axis=1), np.intp)


class Removals:
    """Cells that are removed until none can go; a copy may run ahead with guessed answers.

    `ask` says which removals to evaluate, `learn` takes the answers. Those thought removable are tried first, then those
    never tried, then those whose removal cost least. Every success makes the failures before it stale: a set is minimal
    once each of its cells has failed since the last. Why in groups, rows and unions: a question costs a call, and a wave
    costs a wait for the model. Groups remove much with few calls while much can go; rows of single cells fill a batch once
    little can; unions then remove in one wave what several cells of a row allow.

    margin: of the set as it is, inf where it is not known. cost: how much margin the removal of each cell took when it was
    last asked, NaN where it never was. groups: the removals that were asked last, and their kind.
    """

    def __init__(self, members: Numbers, importance: Values, neighbours: Neighbours | None, *, margin: float) -> None:
        self.alive = np.zeros(len(importance), bool)
        self.alive[members] = True
        self.importance = importance
        self.neighbours = neighbours
        self.margin = margin
        self.cost: Values = np.full(len(importance), np.nan)
        self.groups: list[Numbers] = []
        self.kind: Literal["group", "singles", "unions"] = "group"
        self._tried = np.full(len(importance), -1)  # the clock when it was last tried
        self._clock = 0  # counts waves of single cells and successes
        self._success = 0  # the clock of the last success
        self._group, self._row = 2, LEAST_ROW  # how many cells are asked together, or one by one
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
        doubt = np.flatnonzero(self.alive & (self._tried < self._success))
        cost = self.cost[doubt]
        never = np.isnan(cost)
        rank = np.where(never, 1, np.where(cost <= self.margin, 0, 2))
        within = np.where(never, self.importance[doubt], cost)
        order = doubt[np.lexsort((self._tried[doubt], within + self._support(doubt, within), rank))]
        if self._group > 1 and len(order) > 1:
            self.kind, self.groups = "group", [order[: self._group]]
        else:
            self.kind, self._singles = "singles", order[: self._row]
            self.groups = [self._singles[i : i + 1] for i in range(len(self._singles))]
        return self.groups

    def learn(self, holds: NDArray[np.bool_], margin: Values) -> int | None:
        """Take the answers to what was asked; which of the groups is removed for good, None for none."""
        if self.kind == "group":
            together = self.groups[0]
            if not holds[0]:
                self._group = len(together) // 2
                return None
            self._group = min(2 * self._group, GROUP)
            self._drop(together, float(margin[0]))
            return 0
        if self.kind == "unions":
            able, last, removed = self._able, None, 1
            self._able = able[:0]
            if holds.any():
                last = int(np.flatnonzero(holds)[-1])
                removed += len(self.groups[last])
                self._drop(self.groups[last], float(margin[last]))
            self._begin_row(removed)
            return last
        # Single cells: those that can go are left in doubt, known to be easy, but for the best one.
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

    def _begin_row(self, removed: int) -> None:
        # Where the whole row went, much can go: groups of that size again. Else rows, short at first: a success makes all
        # other answers of a row stale.
        self._group, self._row = removed if removed == len(self._singles) else 1, LEAST_ROW

    def _drop(self, gone: Numbers, margin: float) -> None:
        self.alive[gone] = False
        self.margin = margin
        self._clock += 1
        self._success = self._clock

    def _support(self, numbers: Numbers, values: Values) -> Values:
        """What to add to the expected costs of some cells, so that cells with few visible neighbours go first."""
        if self.neighbours is None or len(numbers) < 2:
            return np.zeros(len(numbers))
        centred = values - np.add.reduce(values) / len(values)
        deviation = np.sqrt(np.add.reduce(centred * centred) / len(values))  # as np.std does it, but faster
        return np.round(SOLID * float(deviation) * self.neighbours.count(self.alive, numbers), DIGITS)


class Guess(NamedTuple):
    """An answer that may come. A heap compares tuples quickest, and the turn decides between equal ranks: states are never
    compared, and the order is the same everywhere."""

    rank: float  # minus the chance per question
    turn: int
    rows: int  # questions that follow
    chance: float
    before: Removals
    gone: list[Numbers]  # groups removed by then
    outcome: Outcome


def run_ahead(state: Removals, most: int) -> list[Numbers]:
    """Up to `most` groups of cells whose removal may be asked after the present questions, the most likely first.

    For batches that would be padded. state: what it asked last is not answered yet. Copies of it are told the most likely
    answers, one after the other, in the order of how likely the questions are that follow, for each of them.
    """
    found: dict[bytes, Numbers] = {}
    ways: list[Guess] = []  # a heap
    turn = count()

    def branch(state: Removals, gone: list[Numbers], chance: float) -> None:
        for share, rows, outcome in _outcomes(state):
            if chance * share > UNLIKELY:
                heappush(ways, Guess(-chance * share / rows, next(turn), rows, chance * share, state, gone, outcome))

    branch(state, [], 1.0)
    while ways and len(found) < most:
        guess = heappop(ways)
        # All of what follows an answer, or nothing: with one answer missing, the search has to wait for the model all the
        # same. Wrong guesses cost no calls and change no result; they only fill rows that would have been padding.
        if len(found) + guess.rows > most:
            continue
        gone = guess.gone
        if isinstance(guess.outcome, tuple):
            groups = [np.concatenate([guess.before.groups[place] for place in guess.outcome])]
        else:
            after = guess.before.copy()
            removed = after.learn(*_answers(guess.before, guess.outcome))
            gone = gone if removed is None else [*gone, guess.before.groups[removed]]
            groups = after.ask()
        for group in groups:
            cells = np.concatenate([*gone, group])
            found.setdefault(np.sort(cells).tobytes(), cells)
        if isinstance(guess.outcome, int) and len(found) < most:
            branch(after, gone, guess.chance)
    return list(found.values())[:most]


def _outcomes(state: Removals) -> Outcomes:
    """What may come of the questions."""
    rows = len(state.groups)
    if state.kind == "group":
        size = len(state.groups[0])
        return (GROUP_GOES / size, 1, 1), (1 - GROUP_GOES / size, 1 if size > 3 else LEAST_ROW, 0)
    if state.kind == "unions":  # that more of them hold is likelier: chances that rise evenly, and add up to 1
        return tuple((2 * (n + 1) / (rows + 1) / (rows + 2), LEAST_ROW, n) for n in range(rows + 1))
    if not rows:
        return ()
    cost = state.cost[np.concatenate(state.groups)]
    going = np.where(np.isnan(cost), NEVER, np.where(cost <= state.margin, EASY, HARD))
    return _row_outcomes(rows, float(going.sum()) / max(rows, LEAST_ROW))


@cache
def _row_outcomes(rows: int, mean: float) -> Outcomes:
    """What may come of a row of single cells, each of which can go with this probability."""
    chances = [factor * mean for factor in SPREAD]
    # For each number of cells, how likely it is that exactly these can go, whichever they are.
    exactly = [sum(one**n * (1 - one) ** (rows - n) for one in chances) / len(chances) for n in range(rows + 1)]
    found: list[tuple[float, int, Outcome]] = [(exactly[0], min(2 * max(rows, LEAST_ROW), MOST_ROW), -1)]
    found += [(exactly[1], LEAST_ROW, place) for place in range(rows)]
    # A union is of the best `size` of those that can go. Each set of cells that may go counts for all its unions alike.
    for size in range(2, rows + 1 if rows <= LEAST_ROW else 0):
        chance = sum(exactly[n] * comb(rows - size, n - size) / comb(n, size) for n in range(size, rows + 1))
        found += [(UNIONS * chance, 1, some) for some in combinations(range(rows), size)]
    return tuple(found)


def _answers(state: Removals, outcome: int) -> tuple[NDArray[np.bool_], Values]:
    """Answers to what was asked: of single cells the one at `outcome` can go, or none; else the first `outcome` groups."""
    margin = state.margin if state.margin < inf else 1.0
    place = np.arange(len(state.groups))
    if state.kind == "singles":
        cost = float(state.cost[state.groups[outcome][0]])
        return place == outcome, np.where(place == outcome, margin - cost if cost <= margin else margin / 2, -1.0 - place)
    costs = [float(state.cost[group].sum()) for group in state.groups]  # NaN where a cell was never tried
    return place < outcome, np.array([max(0.0, margin - cost) if cost < inf else margin / 2 for cost in costs])
