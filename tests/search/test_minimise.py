"""Minimising: what comes out is sufficient at every moment, lies in what went in, and no cell of it can go."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from becausal.core.checks import Checks, compare
from becausal.core.contracts import Answers, Done, Stop, step
from becausal.core.regions import cells, count_components
from becausal.search.checking import check, removals
from becausal.search.minimise import Neighbours, grains, minimise, present, settle

seeds = st.integers(0, 2**32 - 1)
#: Grids and the finest grain to go to; the last three go through several grains.
PLACES = [((12,), 1), ((20,), 2), ((4, 4), 1), ((8, 8), 1), ((9, 7), 2), ((4, 4, 4), 1), ((8, 4, 6), 2)]
PLACES += [((33,), 1), ((16, 16), 1), ((16, 6, 4), 1)]


class Rule:
    """A classifier of visible sets; it notes what it was asked.

    kind "monotone": one of a few cores must be shown. "linear": weights of both signs must add up. "wild": any set of
    pixels may or may not hold, by a hash of it, and the start holds.
    """

    def __init__(self, grid, seed, kind, labels_only=False):
        rng = np.random.default_rng(seed)
        self.kind, self.labels_only = kind, labels_only
        size = int(np.prod(grid))
        self.start = rng.random(size) < rng.uniform(0.3, 1.0)
        self.start[rng.integers(size)] = True
        members = np.flatnonzero(self.start)
        self.cores = [rng.choice(members, min(len(members), int(rng.integers(1, 8))), replace=False) for _ in range(3)]
        self.weights = rng.normal(0.2, 1.0, size)
        total = self.weights[self.start].sum()
        if total <= 0:
            self.weights, total = -self.weights, -total
        self.bar = rng.uniform(0.2, 0.9) * total
        self.salt = rng.integers(1, 2**31, size)
        self.share = rng.choice([0.1, 0.5, 0.8])
        self.start = self.start.reshape(grid)
        self.asked = []

    def margins(self, rows):
        flat = rows.reshape(len(rows), self.start.size)
        match self.kind:
            case "monotone":
                missing = np.stack([(~flat[:, core]).sum(axis=1) for core in self.cores])
                return np.where(missing.min(axis=0) == 0, 0.5, -missing.min(axis=0).astype(float))
            case "linear":
                return flat @ self.weights - self.bar
            case _:
                mixed = (flat @ self.salt * 2654435761) % 1000003 / 1000003
                whole = (flat == self.start.reshape(-1)).all(axis=1)
                return np.where(whole, 1.0, np.where(flat.any(axis=1), self.share - mixed, -1.0))

    def answers(self, rows):
        self.asked += [row.tobytes() for row in rows]
        margins = self.margins(rows)
        holds = margins >= 0
        if self.labels_only:
            margins = np.where(holds, 1.0, -1.0)
        return Answers(holds, margins, np.full(len(rows), np.nan), len(self.asked))

    def keeps(self, visible):
        return bool(self.margins(visible[None])[0] >= 0)


def run(search, rule, room=None):
    """Drive a search, for so many questions at most; its result."""
    state = step(search, None)
    while not isinstance(state, Done):
        left = len(state) if room is None else max(0, room - len(rule.asked))
        known = rule.answers(np.asarray(state)[:left])
        state = step(search, known if len(known) == len(state) else Stop("budget", known))
    return state.result


def is_minimal(visible, grain, rule):
    return not any(rule.keeps(less) for less in removals(visible, grain))


kinds = st.sampled_from(["monotone", "linear", "wild"])


@given(seeds, st.sampled_from(PLACES), kinds, st.booleans())
@settings(max_examples=60, deadline=None)
def test_what_comes_out_is_sufficient_and_minimal_and_lies_in_what_went_in(seed, place, kind, labels_only):
    grid, finest = place
    rule = Rule(grid, seed, kind, labels_only)
    saliency = np.random.default_rng(seed).normal(size=grid)
    found = run(minimise(rule.start, saliency, finest=finest), rule)
    assert rule.keeps(found.visible)
    assert found.grain == finest
    assert not (found.visible & ~rule.start).any()
    assert is_minimal(found.visible, finest, rule)
    # The certificate says that each removal was asked, and so it was.
    asked = set(rule.asked)
    assert all(less.tobytes() in asked for less in removals(found.visible, finest))
    assert (found.visible == rule.start).all() or found.visible.tobytes() in asked


@given(seeds, st.sampled_from(PLACES), kinds, st.booleans(), st.integers(0, 80))
@settings(max_examples=80, deadline=None)
def test_stopped_at_any_moment_the_set_is_sufficient_and_the_claim_true(seed, place, kind, labels_only, room):
    grid, finest = place
    rule = Rule(grid, seed, kind, labels_only)
    found = run(minimise(rule.start, np.random.default_rng(seed).random(grid), finest=finest), rule, room)
    assert len(rule.asked) <= room
    assert rule.keeps(found.visible)
    assert not (found.visible & ~rule.start).any()
    if found.grain is not None:
        assert found.grain in grains(grid, finest)
        assert is_minimal(found.visible, found.grain, rule)


@given(seeds, st.sampled_from(PLACES), kinds)
@settings(max_examples=60, deadline=None)
def test_settle_proves_each_removal_and_notes_its_harm(seed, place, kind):
    grid, grain = place
    rule = Rule(grid, seed, kind)
    cell = cells(grid, grain)
    importance = np.random.default_rng(seed).random(int(cell.max()) + 1)
    found = run(settle(rule.start, cell, importance), rule)
    assert found.finished
    assert rule.keeps(found.visible)
    assert is_minimal(found.visible, grain, rule)
    left = present(found.visible, cell)
    margin = rule.margins(found.visible[None])[0]
    harm = margin - rule.margins(removals(found.visible, grain))
    assert np.isfinite(found.cost[left]).all()
    # Where the set's own margin was asked on the way, the harm is the loss of margin.
    if found.visible.tobytes() in rule.asked:
        np.testing.assert_allclose(found.cost[left], harm, atol=1e-9)


@given(seeds, st.sampled_from(PLACES), kinds, st.integers(0, 60))
@settings(max_examples=80, deadline=None)
def test_settle_stopped_at_any_moment_is_sufficient_and_says_whether_it_finished(seed, place, kind, room):
    grid, grain = place
    rule = Rule(grid, seed, kind)
    cell = cells(grid, grain)
    found = run(settle(rule.start, cell, np.zeros(int(cell.max()) + 1)), rule, room)
    assert rule.keeps(found.visible)
    if found.finished:
        assert is_minimal(found.visible, grain, rule)
    else:
        assert len(rule.asked) == room


def test_a_claim_about_a_coarse_grain_is_of_the_set_that_is_returned():
    # Of 0 to 3 neither half may go. Without 0, which may, the second half may go as well: showing less restores the
    # target. So a search that is stopped there must not say that no cell of two pixels can be removed.
    holding = {(0, 1, 2, 3), (1, 2, 3), (1,)}
    rule = Rule((16,), 0, "wild")
    rule.start = np.arange(16) < 4
    rule.margins = lambda rows: np.array([1.0 if tuple(np.flatnonzero(r)) in holding else -1.0 for r in rows])
    for room in range(30):
        rule.asked.clear()
        found = run(minimise(rule.start, np.arange(16.0), finest=1), rule, room)
        assert rule.keeps(found.visible)
        assert found.grain is None or is_minimal(found.visible, found.grain, rule), f"after {room} questions"


def test_the_least_important_go_first():
    # Either half alone is enough; the map says which to keep.
    grid = (8, 8)
    left = np.zeros(grid, bool)
    left[:, :4] = True

    def one_side(rows):
        flat = rows.reshape(len(rows), -1)
        full = flat[:, left.ravel()].all(axis=1) | flat[:, ~left.ravel()].all(axis=1)
        return np.where(full, 1.0, -1.0)

    for keep in (left, ~left):
        rule = Rule(grid, 0, "monotone")
        rule.margins = one_side
        found = run(minimise(np.ones(grid, bool), keep.astype(float), finest=1), rule)
        assert (found.visible == keep).all()


def test_a_small_core_is_found_in_far_fewer_questions_than_there_are_pixels():
    grid = (32, 32)
    rule = Rule(grid, 3, "monotone", labels_only=True)
    rule.start = np.ones(grid, bool)
    found = run(minimise(rule.start, np.zeros(grid), finest=1), rule)
    assert found.visible.sum() <= 8
    assert len(rule.asked) < 150  # of 1,024 pixels


def test_grains_are_the_finest_times_powers_of_two():
    assert grains((224, 224), 4) == [16, 8, 4]
    assert grains((4, 4), 1) == [1]
    assert grains((128, 16), 2) == [16, 8, 4, 2]
    assert grains((10,), 3) == [3]


def test_present_names_the_cells_with_a_visible_pixel():
    cell = cells((4, 4), 2)
    visible = np.zeros((4, 4), bool)
    assert present(visible, cell).tolist() == []
    visible[0, 3] = visible[3, 0] = True
    assert present(visible, cell).tolist() == [1, 2]


def test_a_set_that_needs_nothing_more_costs_one_question_per_cell():
    grid = (5,)
    rule = Rule(grid, 0, "monotone")
    rule.start = np.ones(grid, bool)
    rule.cores = [np.arange(5)]
    found = run(minimise(rule.start, np.zeros(grid), finest=1), rule)
    assert found.visible.all()
    assert len(set(rule.asked)) <= 5 + 2  # and two for pairs tried on the way


# Few pieces


@given(seeds, st.sampled_from([(6, 5), (11,), (4, 3, 5)]), st.integers(1, 3))
@settings(max_examples=50, deadline=None)
def test_neighbours_are_counted_as_one_by_one(seed, grid, grain):
    rng = np.random.default_rng(seed)
    cell = cells(grid, grain)
    shape = tuple(-(-side // grain) for side in grid)
    alive = rng.random(int(np.prod(shape))) < 0.5
    wanted = []
    for place in np.ndindex(shape):
        near = 0
        for axis in range(len(shape)):
            for by in (-1, 1):
                other = list(place)
                other[axis] += by
                if 0 <= other[axis] < shape[axis]:
                    near += int(alive[np.ravel_multi_index(other, shape)])
        wanted.append(near)
    some = rng.permutation(len(alive))[: int(rng.integers(1, len(alive) + 1))]
    assert Neighbours(cell).count(alive, some).tolist() == [wanted[i] for i in some]


def test_solid_sets_have_fewer_pieces():
    """Any third of the cells is enough, so nothing but the order decides which ones stay."""

    def pieces(seed, solid):
        importance = np.random.default_rng(seed).random(144)
        search, asked = settle(np.ones((12, 12), bool), cells((12, 12), 1), importance, solid=solid), 0
        state = step(search, None)
        while not isinstance(state, Done):
            asked += len(state)
            margin = np.asarray(state).mean(axis=(1, 2)) - 1 / 3
            state = step(search, Answers(margin >= 0, margin, margin, asked))
        assert state.result.visible.sum() == 48
        return count_components(state.result.visible)

    assert sum(pieces(seed, True) for seed in range(6)) < 0.5 * sum(pieces(seed, False) for seed in range(6))


# The checks of a certificate


@given(seeds, st.sampled_from(PLACES), kinds)
@settings(max_examples=60, deadline=None)
def test_check_asks_every_claim(seed, place, kind):
    grid, grain = place
    rule = Rule(grid, seed, kind)
    visible = rule.start.copy()
    for stated in (None, grain):
        found = run(check(visible, grain=stated), rule)
        assert found.sufficient == rule.keeps(visible)
        assert found.necessary == (not rule.keeps(~visible))
        if stated is None:
            assert (found.minimal_grain, found.cells) == (None, 0)
        else:
            assert found.minimal_grain == (grain if is_minimal(visible, grain, rule) else None)
            assert found.cells == len(present(visible, cells(grid, grain)))


def test_removals_take_one_cell_each():
    visible = np.ones((4, 6), bool)
    visible[:2, :2] = False
    rows = removals(visible, 2)
    assert len(rows) == 5
    taken = visible & ~rows
    assert (taken.sum(axis=(1, 2)) == 4).all()
    assert (taken.sum(axis=0) == visible).all()


def test_the_checks_of_an_empty_set_are_answers_and_no_crash():
    rule = Rule((4, 4), 0, "monotone")
    found = run(check(np.zeros((4, 4), bool), grain=1), rule)
    assert not found.sufficient


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({}, set()),
        ({"sufficient": False}, {"sufficient"}),
        ({"necessary": True}, {"necessary"}),
        ({"minimal_grain": None}, {"minimal"}),
        ({"confidence": 0.5}, {"confidence"}),
        ({"confidence": 0.7004}, set()),
        ({"confidence": float("nan")}, {"confidence"}),
    ],
)
def test_compare_names_the_claims_that_do_not_hold(changes, broken):
    stated = Checks(True, 0.7, False, 4, 9)
    found = Checks(**{**stated.__dict__, **changes})
    claims = compare(stated, found)
    assert {claim.name for claim in claims} == {"sufficient", "necessary", "minimal", "confidence"}
    assert {claim.name for claim in claims if not claim.holds} == broken


def test_what_was_not_stated_is_not_compared():
    claims = compare(Checks(True, float("nan"), None, None), Checks(True, 0.2, True, None))
    assert [claim.name for claim in claims] == ["sufficient"]
