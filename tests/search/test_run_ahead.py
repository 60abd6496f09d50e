"""Guesses of what is asked next: legal questions, no influence on the search, and right often enough."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from becausal.core.contracts import Done, step
from becausal.core.regions import cells
from becausal.search.minimise import Removals, run_ahead, settle
from test_minimise import PLACES, Rule, kinds, seeds


def started(rule, seed, grain, **options):
    cell = cells(rule.start.shape, grain)
    return settle(rule.start, cell, np.random.default_rng(seed).random(int(cell.max()) + 1), **options)


@given(seeds, st.sampled_from(PLACES), kinds, st.booleans(), st.integers(1, 40))
@settings(max_examples=40, deadline=None)
def test_guesses_are_further_removals_and_change_nothing(seed, place, kind, solid, count):
    grid, grain = place
    rule, plain = Rule(grid, seed, kind), Rule(grid, seed, kind)
    options = {"solid": solid}
    search, twin = started(rule, seed, grain, **options), started(plain, seed, grain, **options)
    state, same, current = step(search, None), step(twin, None), rule.start
    while not isinstance(state, Done):
        guesses = state.lookahead(count)
        assert len(guesses) <= count
        assert len({row.tobytes() for row in guesses}) == len(guesses)
        assert not (guesses & ~current).any()
        assert np.array_equal(state, same)
        answers = rule.answers(np.asarray(state))
        if answers.holds.any():
            current = current & np.logical_or.reduce(np.asarray(state))
        state, same = step(search, answers), step(twin, plain.answers(np.asarray(same)))
    assert np.array_equal(state.result.visible, same.result.visible)
    assert np.array_equal(state.result.cost, same.result.cost, equal_nan=True)


@given(seeds, st.sampled_from(PLACES))
@settings(max_examples=25, deadline=None)
def test_where_costs_add_up_what_follows_unions_is_guessed(seed, place):
    """With enough rows: all margins are then known beforehand, whatever the answers are. The first one must be known."""
    grid, grain = place
    rule = Rule(grid, seed, "linear")
    rng = np.random.default_rng(seed)
    cell = cells(grid, grain)
    members = np.unique(cell[rule.start])
    margin = float(rule.answers(rule.start[None]).margin[0])
    state = Removals(members, rng.random(int(cell.max()) + 1), None, margin=margin)
    removed: set[int] = set()
    guessed = None
    while groups := state.ask():
        asked = [frozenset(removed | set(group.tolist())) for group in groups]
        assert guessed is None or set(asked) <= guessed
        rows = np.stack([rule.start & ~np.isin(cell, list(gone)) for gone in asked])
        guessed = None
        if state.kind == "unions":
            guessed = {frozenset(removed | set(group.tolist())) for group in run_ahead(state, 500)}
        answers = rule.answers(rows)
        row = state.learn(answers.holds, np.round(answers.margin, 9))
        removed |= set() if row is None else set(groups[row].tolist())


def count_waits(seed, rows):
    """How many waves there are, and how many have to be waited for with this many guesses for each that is."""
    rule = Rule((16, 16), seed, "linear")
    search, known, waves, waits = started(rule, seed, 1, solid=True), set(), 0, 0
    state = step(search, None)
    while not isinstance(state, Done):
        waves += 1
        if not {row.tobytes() for row in np.asarray(state)} <= known:
            waits += 1
            known |= {row.tobytes() for row in state.lookahead(rows)} if rows else set()
        state = step(search, rule.answers(np.asarray(state)))
    return waves, waits


def test_guesses_save_waiting_and_more_of_them_save_more():
    waves, waits = np.transpose([np.sum([count_waits(seed, rows) for seed in range(8)], axis=0) for rows in (0, 8, 32)])
    assert waits[0] == waves[0]
    assert waits[1] < 0.6 * waves[0]
    assert waits[2] < 0.8 * waits[1]
