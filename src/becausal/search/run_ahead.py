"""What `settle` is likely to ask next, for batches that would be padded: its own steps, with guessed answers."""

from functools import cache
from heapq import heappop, heappush
from itertools import combinations, count
from math import comb, inf

import numpy as np
from numpy.typing import NDArray

from becausal.search.removals import LEAST_ROW, MOST_ROW, Numbers, Removals, Values

# How often a cell can go that went when it was last tried, was never tried, or was needed; measured with MobileNetV2.
EASY, NEVER, HARD = 0.55, 0.37, 0.1
GROUP_GOES = 0.7  # how often several cells can go together, times their number
SPREAD = (0.5, 1.5)  # cells of a row often go or stay together: in some rows all are less likely to go, in others more
UNIONS = 1 / 3  # what unions are worth against other questions: what follows them is easy to guess once they are asked
UNLIKELY = 0.01  # what is less likely is not followed

Outcome = int | tuple[int, ...]  # what is answered, see `_answers`; or which cells of a row are then asked together
Outcomes = tuple[tuple[float, int, Outcome], ...]  # each with how likely it is, and how many questions follow


def run_ahead(state: Removals, most: int) -> list[Numbers]:
    """Up to `most` groups of cells whose removal may be asked after the present questions, the most likely first.

    state: what it asked last is not answered yet. Copies of it are told the most likely answers, one after the other, in
    the order of how likely the questions are that follow, for each of them.
    """
    found: dict[bytes, Numbers] = {}
    # A heap of guesses: (rank, turn, questions that follow, chance, state before, groups removed by then, answer guessed).
    # Tuples, since a heap compares them quickest; the rank is a chance per question, and the turn decides between equal
    # ones, so that no states are compared and the order is the same everywhere.
    ways: list[tuple[float, int, int, float, Removals, list[Numbers], Outcome]] = []
    turn = count()

    def branch(state: Removals, gone: list[Numbers], chance: float) -> None:
        for share, rows, outcome in _outcomes(state):
            if chance * share > UNLIKELY:
                heappush(ways, (-chance * share / rows, next(turn), rows, chance * share, state, gone, outcome))

    branch(state, [], 1.0)
    while ways and len(found) < most:
        _, _, rows, chance, before, gone, outcome = heappop(ways)
        if len(found) + rows > most:  # with one answer missing, the search has to wait all the same
            continue
        if isinstance(outcome, tuple):
            groups = [np.concatenate([before.groups[place] for place in outcome])]
        else:
            after = before.copy()
            removed = after.learn(*_answers(before, outcome))
            gone = gone if removed is None else [*gone, before.groups[removed]]
            groups = after.ask()
        for group in groups:
            cells = np.concatenate([*gone, group])
            found.setdefault(np.sort(cells).tobytes(), cells)
        if isinstance(outcome, int) and len(found) < most:
            branch(after, gone, chance)
    return list(found.values())[:most]


def _outcomes(state: Removals) -> Outcomes:
    """What may come of the questions."""
    rows = len(state.groups)
    match state.kind:
        case "group":
            size = len(state.groups[0])
            return (GROUP_GOES / size, 1, 1), (1 - GROUP_GOES / size, 1 if size > 3 else LEAST_ROW, 0)
        case "unions":
            return tuple((2 * (n + 1) / (rows + 1) / (rows + 2), LEAST_ROW, n) for n in range(rows + 1))
        case "singles" if rows:
            cost = state.cost[np.concatenate(state.groups)]
            going = np.where(np.isnan(cost), NEVER, np.where(cost <= state.margin, EASY, HARD))
            return _row_outcomes(rows, float(going.sum()) / max(rows, LEAST_ROW))
        case "singles":
            return ()


@cache
def _row_outcomes(rows: int, mean: float) -> Outcomes:
    """What may come of a row of single cells, each of which can go with this probability."""
    chances = [factor * mean for factor in SPREAD]
    # For each number of cells, how likely it is that exactly these can go, whichever they are.
    exactly = [sum(one**n * (1 - one) ** (rows - n) for one in chances) / len(chances) for n in range(rows + 1)]
    found: list[tuple[float, int, Outcome]] = [(exactly[0], min(2 * max(rows, LEAST_ROW), MOST_ROW), -1)]
    found += [(exactly[1], LEAST_ROW, place) for place in range(rows)]
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
