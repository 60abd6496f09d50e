"""`greedy`, `phasewin`, `hsic` and `sobol`, each against its definition, written out slowly."""

from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from becausal.core.contracts import Answers, Done, Stop, step
from becausal.core.patches import superpixels
from becausal.methods.coarse_grid import CoarseGrid, Hsic, Sobol, dependence, draw_points
from becausal.methods.greedy import Greedy, PhaseWin, fit_candidates
from test_explainers import answers, drive, problem_of, rng

quick = settings(max_examples=25, deadline=None)
seeds = st.integers(0, 10_000)


# The coarse grid of `hsic` and `sobol`


@pytest.mark.parametrize(("grid", "cells"), [((10,), 3), ((7, 9), 4), ((2, 8), 5), ((5, 6, 4), 3)])
def test_cells_are_boxes_of_nearly_equal_size(grid, cells):
    coarse = CoarseGrid(grid, cells)
    assert coarse.shape == tuple(min(side, cells) for side in grid)
    for number in range(coarse.count):
        places = np.argwhere(coarse.number == number)
        sides = places.max(axis=0) - places.min(axis=0) + 1
        assert len(places) == sides.prod()
        for own, side, parts in zip(sides, grid, coarse.shape, strict=True):
            assert side // parts <= own <= -(-side // parts)
    bits = rng().random((4, coarse.count)) < 0.5
    for row, visible in zip(bits, coarse.show(bits), strict=True):
        assert all(visible[place] == row[coarse.number[place]] for place in np.ndindex(grid))


def slow_interpolation(values, grid):
    """Linear between the centres of cells, axis by axis, as numpy does it for one line at a time."""
    for axis, side in enumerate(grid):
        lines = np.moveaxis(values, axis, -1)
        centres = (np.arange(lines.shape[-1]) + 0.5) * side / lines.shape[-1] - 0.5
        found = [np.interp(np.arange(side), centres, line) for line in lines.reshape(-1, lines.shape[-1])]
        values = np.moveaxis(np.reshape(found, (*lines.shape[:-1], side)), -1, axis)
    return values


@pytest.mark.parametrize(("grid", "cells"), [((10,), 3), ((7, 9), 4), ((2, 8), 5), ((5, 6, 4), 3), ((6, 5), 1)])
def test_interpolation_is_linear_between_the_centres_of_cells(grid, cells):
    coarse = CoarseGrid(grid, cells)
    values = rng(1).random(coarse.count)
    assert coarse.interpolate(values) == pytest.approx(slow_interpolation(values.reshape(coarse.shape), grid))
    assert coarse.interpolate(np.full(coarse.count, 0.3)) == pytest.approx(np.full(grid, 0.3))


@quick
@given(samples=st.integers(1, 40), count=st.integers(1, 12), seed=seeds)
def test_each_column_of_a_latin_hypercube_has_one_point_in_every_interval(samples, count, seed):
    points = draw_points(samples, count, rng(seed))
    assert points.shape == (samples, count)
    assert all(sorted(column) == list(range(samples)) for column in np.floor(points * samples).T)


# HSIC


def slow_hsic(bits, values):
    """tr(KHLH) / (n - 1)², from the matrices, entry by entry."""
    n = len(values)
    width = np.median(values)
    centring = np.array([[(i == j) - 1 / n for j in range(n)] for i in range(n)])
    scores = np.array([[np.exp(-((a - b) ** 2) / (2 * width**2)) for b in values] for a in values])
    found = []
    for cell in range(bits.shape[1]):
        masks = np.array([[float(a == b) for b in bits[:, cell]] for a in bits[:, cell]])
        found.append(np.trace(masks @ centring @ scores @ centring) / (n - 1) ** 2)
    return np.array(found)


@quick
@given(samples=st.integers(2, 14), count=st.integers(1, 5), seed=seeds)
def test_hsic_is_its_definition(samples, count, seed):
    numbers = rng(seed)
    bits, values = numbers.random((samples, count)) < 0.5, numbers.random(samples)
    assert dependence(bits, values) == pytest.approx(slow_hsic(bits, values), abs=1e-12)


def test_hsic_is_its_definition_for_more_samples_than_are_in_memory_at_once(monkeypatch):
    bits, values = rng(1).random((50, 3)) < 0.5, rng(2).random(50)
    monkeypatch.setattr("becausal.methods.coarse_grid.ROWS", 16)
    assert dependence(bits, values) == pytest.approx(slow_hsic(bits, values), abs=1e-12)


@quick
@given(samples=st.integers(2, 30), seed=seeds)
def test_hsic_does_not_depend_on_the_order_of_samples_or_on_the_names_of_cells_and_states(samples, seed):
    numbers = rng(seed)
    bits, values = numbers.random((samples, 6)) < 0.5, numbers.random(samples)
    found = dependence(bits, values)
    rows, columns = numbers.permutation(samples), numbers.permutation(6)
    assert dependence(bits[rows], values[rows]) == pytest.approx(found)
    assert dependence(bits[:, columns], values) == pytest.approx(found[columns])
    assert dependence(~bits, values) == pytest.approx(found)
    assert (found >= -1e-15).all()


@pytest.mark.parametrize("value", [0.0, 0.4, 1.0])
def test_hsic_of_a_constant_score_is_zero(value):
    assert dependence(rng().random((31, 5)) < 0.5, np.full(31, value)) == pytest.approx(np.zeros(5), abs=1e-15)


@pytest.mark.parametrize("grid", [(9,), (7, 10), (6, 3, 4)])
def test_hsic_from_end_to_end(grid):
    coarse = CoarseGrid(grid, 3)
    weights = rng(5).normal(0, 1, coarse.count)
    first = [tuple(np.argwhere(coarse.number == k)[0]) for k in range(coarse.count)]

    def score(wave):
        shown = np.stack([wave[(slice(None), *place)] for place in first], axis=1)
        return 1 / (1 + np.exp(-(shown @ weights)))

    finding, asked = drive(Hsic(samples=70, grid=3).search(problem_of(grid), rng(3)), score)
    assert [len(wave) for wave in asked] == [64, 6]
    masks = np.concatenate(asked)
    bits = np.stack([masks[(slice(None), *place)] for place in first], axis=1)
    assert np.array_equal(coarse.show(bits), masks)
    assert (bits.sum(axis=0) == 35).all()
    assert finding.saliency == pytest.approx(coarse.interpolate(slow_hsic(bits, score(masks))))


# Sobol


def slow_jansen(a, b, score):
    """For each cell the mean of (f(a) - f(c))² / 2 over all designs, divided by the variance of f."""
    variance = np.var(np.concatenate([score(a), score(b)]), ddof=1)
    found = []
    for cell in range(a.shape[1]):
        total = 0.0
        for one, other in zip(a, b, strict=True):
            mixed = one.copy()
            mixed[cell] = other[cell]
            total += float(score(one[None])[0] - score(mixed[None])[0]) ** 2
        found.append(total / (2 * len(a) * variance))
    return np.array(found)


def draw_designs(designs, count, numbers):
    """The masks a and b of `Sobol`."""
    return [draw_points(designs, count, numbers) < 0.5 for _ in range(2)]


def cell_score(seed):
    """A score of sets of cells with interactions."""

    def score(bits):
        numbers = rng(seed)
        bits = bits.reshape(len(bits), -1)
        singles, pairs = numbers.normal(0, 0.1, bits.shape[1]), numbers.normal(0, 0.05, (bits.shape[1],) * 2)
        return 0.5 + bits @ singles + np.einsum("ni,ij,nj->n", bits, pairs, bits)

    return score


@quick
@given(designs=st.integers(2, 12), cells=st.integers(1, 3), axes=st.integers(1, 3), seed=seeds)
def test_sobol_is_its_definition(designs, cells, axes, seed):
    grid, score = (cells,) * axes, cell_score(seed)  # a pixel is a cell
    finding, asked = drive(Sobol(designs=designs, grid=cells).search(problem_of(grid), rng(seed)), score)
    a, b = draw_designs(designs, cells**axes, rng(seed))
    assert finding.saliency.ravel() == pytest.approx(slow_jansen(a, b, score), abs=1e-12)
    assert sum(map(len, asked)) == 2 * designs + np.count_nonzero(a != b)
    assert all(len(wave) <= 64 for wave in asked)


def stop_after(search, score, count):
    """The result of a search that is stopped after so many answers."""
    state = step(search, None)
    while not isinstance(state, Done) and len(state) <= count:
        count -= len(state)
        state = step(search, answers(score(state)))
    return state.result if isinstance(state, Done) else step(search, Stop("budget", answers(score(state)[:count]))).result


def test_sobol_told_to_stop_uses_the_designs_that_are_complete():
    grid, score = (3, 3), cell_score(4)
    a, b = draw_designs(30, 9, rng(2))
    sizes = np.cumsum(2 + np.count_nonzero(a != b, axis=1))
    for complete, extra in ((20, 0), (20, 1), (7, 3), (2, 0)):
        found = stop_after(Sobol(designs=30, grid=3).search(problem_of(grid), rng(2)), score, sizes[complete - 1] + extra)
        assert found.saliency.ravel() == pytest.approx(slow_jansen(a[:complete], b[:complete], score), abs=1e-12)
    partial = stop_after(Sobol(designs=30, grid=3).search(problem_of(grid), rng(2)), score, 4)
    tried = np.flatnonzero(a[0] != b[0])[:2]
    assert sorted(np.flatnonzero(partial.saliency)) == sorted(tried)
    for count in (0, 1, 2):
        assert not stop_after(Sobol(designs=30, grid=3).search(problem_of(grid), rng(2)), score, count).saliency.any()


def test_sobol_of_a_constant_score_is_zero():
    finding, _ = drive(Sobol(designs=5, grid=3).search(problem_of((6, 6)), rng()), lambda wave: np.full(len(wave), 0.7))
    assert not finding.saliency.any()


def test_sobol_of_an_additive_score_is_the_share_of_the_variance():
    weights = np.array([0.4, 0.3, -0.2, 0.0])
    finding, _ = drive(Sobol(designs=4000, grid=4).search(problem_of((4,)), rng()), lambda wave: wave @ weights + 0.3)
    assert finding.saliency == pytest.approx(weights**2 / (weights**2).sum(), abs=0.03)
    assert finding.saliency[3] == 0.0


# Greedy

VIEW = rng(9).integers(0, 256, (12, 12, 3)).astype(np.uint8)
PATCH = superpixels(VIEW, 6)
COUNT = int(PATCH.max()) + 1
FIRST = [tuple(np.argwhere(k == PATCH)[0]) for k in range(COUNT)]


def pose():
    return problem_of((12, 12), view=VIEW)


def shown_patches(wave):
    return np.stack([wave[(slice(None), *place)] for place in FIRST], axis=1)


def table_score(seed):
    """An arbitrary score for every set of patches."""
    table = rng(seed).random(2**COUNT)
    return lambda bits: table[bits @ (1 << np.arange(COUNT))]


def on_patches(score):
    return lambda wave: score(shown_patches(wave))


def order_of(saliency):
    """The patches from high to low; all values must differ."""
    values = np.array([saliency[place] for place in FIRST])
    assert len(set(values)) == COUNT
    assert np.array_equal(values[PATCH], saliency)
    return [int(k) for k in np.argsort(-values)]


class SlowScore:
    """The score of sets of patches, from the definition; remembers the sets that were evaluated."""

    def __init__(self, score, rest):
        self.score, self.rest = score, rest
        self.evaluated = set()

    def __call__(self, patches):
        bits = np.array([k in patches for k in range(COUNT)])
        self.evaluated.add(frozenset(patches))
        value = float(self.score(bits[None])[0])
        return value + 1.0 - float(self.score(~bits[None])[0]) if self.rest else value


def slow_greedy(score, candidates=COUNT):
    """Add the best of those that had the highest gains when they were last tried."""
    added, level = [], score(())
    gains = {k: score((k,)) - level for k in range(COUNT)}
    tried = list(gains)
    while tried:
        for k in tried if len(tried) > 1 else []:
            gains[k] = score((*added, k)) - level
        best = max(tried, key=lambda k: gains[k])
        added.append(best)
        level += gains.pop(best)
        tried = sorted(gains, key=lambda k: -gains[k])[:candidates]
    return added


@pytest.mark.parametrize("rest", [True, False])
@quick
@given(candidates=st.sampled_from([None, 1, 2, 3, 100]), seed=seeds)
def test_greedy_is_its_definition(rest, candidates, seed):
    score = table_score(seed)
    slow = SlowScore(score, rest)
    finding, asked = drive(Greedy(patches=6, rest=rest, candidates=candidates).search(pose(), rng()), on_patches(score))
    assert order_of(finding.saliency) == slow_greedy(slow, candidates or COUNT)
    rows = sum(map(len, asked))
    assert rows == len(slow.evaluated) * (2 if rest else 1)
    if candidates is None:
        assert rows == (COUNT * (COUNT + 1) // 2) * (2 if rest else 1)
    assert finding.notes == ()


def test_greedy_finds_the_best_set_of_each_size_of_an_additive_score():
    weights = rng(3).random(COUNT) / COUNT
    finding, _ = drive(Greedy(patches=6).search(pose(), rng()), on_patches(lambda bits: bits @ weights))
    added = order_of(finding.saliency)
    for size in range(1, COUNT):
        assert set(added[:size]) == set(max(combinations(range(COUNT), size), key=lambda s: weights[list(s)].sum()))


@given(patches=st.integers(0, 30), most=st.integers(-5, 700))
def test_greedy_tries_as_many_candidates_as_last_for_all_steps(patches, most):
    """Step after step: the scores last to the end, and those left over could not have given each step one more."""
    tried, scores = [], most
    for left in range(patches, 1, -1):
        tried.append(fit_candidates(left, scores))
        assert 1 <= tried[-1] <= left
        scores -= tried[-1] if tried[-1] > 1 else 0
    assert scores >= min(most, 0)
    assert all(one + 1 >= other for one, other in pairwise(tried))
    assert scores <= 1 or all(count == left for count, left in zip(tried, range(patches, 1, -1), strict=True))


@pytest.mark.parametrize("rest", [True, False])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9, 1.0])
def test_greedy_orders_all_patches_within_the_budget(rest, share):
    price = 2 if rest else 1
    full = COUNT * (COUNT + 1) // 2 * price
    problem = replace(pose(), budget=int(share * full))
    finding, asked = drive(Greedy(patches=6, rest=rest).search(problem, rng()), on_patches(table_score(1)))
    assert problem.budget - 2 * price < sum(map(len, asked)) <= problem.budget
    assert len(order_of(finding.saliency)) == COUNT
    assert (finding.notes == ()) == (share == 1.0)


def test_greedy_told_to_stop_ranks_what_it_knows():
    score = on_patches(table_score(8))
    whole, asked = drive(Greedy(patches=6, rest=False).search(pose(), rng()), score)
    added = order_of(whole.saliency)
    first = table_score(8)(np.eye(COUNT, dtype=bool))
    for count in range(sum(map(len, asked))):
        found = stop_after(Greedy(patches=6, rest=False).search(pose(), rng()), score, count).saliency
        values = np.array([found[place] for place in FIRST])
        if count <= COUNT:  # the set without patches, then the first of the patches
            known = max(count - 1, 0)
            assert np.count_nonzero(values) == known
            best = np.argsort(-first[values > 0]) if known else []
            assert [int(k) for k in np.argsort(-values)[:known]] == [int(np.flatnonzero(values > 0)[k]) for k in best]
        else:
            assert int(np.argmax(values)) == added[0]
            assert np.count_nonzero(values) == COUNT


# PhaseWin


def slow_phasewin(score, width):
    """From the description, with lists: screening, pruning, window, end."""
    added, aside = [], []

    def rated(patches):
        return sorted(((score((*added, k)), k) for k in patches), reverse=True)

    while left := [k for k in range(COUNT) if k not in added and k not in aside]:
        value, first = rated(left)[0] if len(left) > 1 else (0.0, left[0])
        added.append(first)
        history = [value]
        screened = rated(k for k in left if k != first)
        if not screened:
            continue
        top = screened[0][0]
        aside += [k for value, k in screened if value < 0.05 * top]
        queue = [k for value, k in screened if value >= 0.6 * top]
        window = [queue.pop(0) for _ in range(min(width, len(queue)))]
        ended = False
        while window and not ended:
            ranked = rated(window)
            taken = [(value, k) for value, k in ranked if value >= max(0.6 * top, 0.99 * ranked[0][0])]
            ended = not taken
            for value, k in taken:
                slows = len(history) >= 2 and history[-1] / value - history[-2] / history[-1] > 0.02
                if slows and value < 0.98 * history[-1]:
                    ended = True
                    break
                added.append(k)
                history.append(value)
                window.remove(k)
                if slows:
                    ended = True
                    break
            while queue and len(window) < width:
                window.append(queue.pop(0))
    return added + [k for _, k in rated(aside)]


@pytest.mark.parametrize("rest", [True, False])
@quick
@given(window=st.sampled_from([0.1, 0.4, 0.6, 1.0]), power=st.sampled_from([0.05, 1.0, 4.0]), seed=seeds)
def test_phasewin_is_its_description(rest, window, power, seed):
    """Scores that are nearly alike, random, or mostly small: patches together, ends of phases, pruning."""
    table = table_score(seed)
    slow = SlowScore(lambda bits: table(bits) ** power, rest)
    finding, asked = drive(
        PhaseWin(patches=6, rest=rest, window=window).search(pose(), rng()), on_patches(lambda bits: table(bits) ** power)
    )
    assert order_of(finding.saliency) == slow_phasewin(slow, max(1, int(window * COUNT)))
    sets = {tuple(row) for wave in asked for row in shown_patches(wave)[:: 2 if rest else 1]}
    assert sets == {tuple(k in patches for k in range(COUNT)) for patches in slow.evaluated}


@quick
@given(seed=seeds)
def test_phasewin_orders_an_additive_score_like_greedy(seed):
    weights = rng(seed).random(COUNT) / COUNT
    finding, _ = drive(PhaseWin(patches=6).search(pose(), rng()), on_patches(lambda bits: bits @ weights))
    assert order_of(finding.saliency) == list(np.argsort(-weights))


def test_phasewin_takes_fewer_calls_than_greedy():
    view = rng(1).integers(0, 256, (32, 32, 3)).astype(np.uint8)
    patch = superpixels(view, 40)
    weights = rng(2).random(patch.max() + 1)
    first = [tuple(np.argwhere(patch == k)[0]) for k in range(len(weights))]

    def score(wave):
        shown = np.stack([wave[(slice(None), *place)] for place in first], axis=1)
        return 1 - np.exp(-3 * (shown @ weights) / weights.sum())  # submodular

    calls = {}
    for method in (Greedy(), PhaseWin()):
        finding, asked = drive(method.search(problem_of((32, 32), view=view), rng()), score)
        calls[method.name] = len({row.tobytes() for wave in asked for row in wave})
        assert np.array_equal(finding.saliency == 1.0, patch == np.argmax(weights))
    assert calls["phasewin"] < 0.6 * calls["greedy"]


# Invariants of all four

MAKE = {
    "greedy": lambda: Greedy(patches=6),
    "greedy, 3 candidates": lambda: Greedy(patches=6, candidates=3),
    "greedy, no rest": lambda: Greedy(patches=6, rest=False),
    "phasewin": lambda: PhaseWin(patches=6),
    "phasewin, no rest": lambda: PhaseWin(patches=6, rest=False),
}
CELLS = {"hsic": lambda: Hsic(samples=150, grid=4), "sobol": lambda: Sobol(designs=24, grid=4)}


@pytest.mark.parametrize("labels", [False, True], ids=["scores", "labels"])
@pytest.mark.parametrize("name", MAKE)
@quick
@given(chosen=st.integers(0, COUNT - 1), seed=seeds)
def test_a_patch_that_alone_decides_is_first(name, labels, chosen, seed):
    noise = 0.0 if labels else 0.05

    def score(bits):
        return 0.05 + 0.85 * bits[:, chosen] + noise * table_score(seed)(bits)

    finding, _ = drive_labels(MAKE[name]().search(pose(), rng(seed)), on_patches(score), labels)
    assert np.array_equal(finding.saliency == finding.saliency.max(), chosen == PATCH)


@pytest.mark.parametrize("labels", [False, True], ids=["scores", "labels"])
@pytest.mark.parametrize("name", CELLS)
@quick
@given(chosen=st.integers(0, 15), seed=seeds)
def test_a_cell_that_alone_decides_is_highest(name, labels, chosen, seed):
    def score(wave):
        return 0.1 + 0.8 * wave.reshape(len(wave), -1)[:, chosen]  # a pixel is a cell

    finding, _ = drive_labels(CELLS[name]().search(problem_of((4, 4)), rng(seed)), score, labels)
    assert int(np.argmax(finding.saliency)) == chosen
    if name == "sobol":
        assert np.count_nonzero(finding.saliency) == 1


def drive_labels(search, score, labels):
    """`drive`, with the answers of a classifier that returns labels only, if so wanted."""
    if not labels:
        return drive(search, score)
    asked = []
    state = step(search, None)
    while not isinstance(state, Done):
        asked.append(state)
        holds = np.asarray(score(state)) >= 0.5
        state = step(search, Answers(holds, np.where(holds, 1.0, -1.0), np.full(len(holds), np.nan)))
    return state.result, asked


@pytest.mark.parametrize("name", MAKE)
def test_patches_that_are_all_alike_come_in_a_random_order(name):
    runs = set()
    for seed in range(8):
        finding, _ = drive(MAKE[name]().search(pose(), rng(seed)), lambda wave: np.full(len(wave), 0.5))
        runs.add(tuple(order_of(finding.saliency)))
    assert len(runs) > 4


@pytest.mark.parametrize("name", [*MAKE, *CELLS])
def test_scores_and_their_seed_decide_and_nothing_else(name):
    make, problem = (MAKE | CELLS)[name], pose()
    score = on_patches(table_score(1))
    once, again, other = (drive(make().search(problem, rng(seed)), score)[0].saliency for seed in (0, 0, 1))
    assert np.array_equal(once, again)
    assert np.array_equal(once, other) == (name in MAKE)  # no ties, so no chance in the search for an order
