"""The search on random backgrounds, without a model: against its definition, and against what is true of its bounds."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from becausal import Request
from becausal.core.contracts import Answers, Stop
from becausal.core.errors import OptionError
from becausal.core.intervals import MOST_CASES, anytime_bound
from becausal.core.problem import Problem
from becausal.core.request import MOST_HOLDS
from becausal.core.searches import Done, step
from becausal.core.targets import Target
from becausal.images.backgrounds import RandomBackgrounds
from becausal.search.any_background import RULES, AnySearch, Panel, confidence_of, find_any
from becausal.search.budget import Budget
from becausal.search.certifying import most_backgrounds
from becausal.search.drive import BudgetedRun

GRID = (6, 7)


def drive(search, margin_of, *, limit=None):
    """Answer a search on random backgrounds. Returns its result, and the sets and numbers it asked about.

    margin_of: of a set, (*grid,), and a number. limit: it is interrupted after so many questions.
    """
    asked, state = [], step(search, None)
    while not isinstance(state, Done):
        questions = list(zip(np.asarray(state).copy(), state.draws.tolist(), strict=True))
        room = len(questions) if limit is None else max(0, limit - len(asked))
        is_over = room < len(questions)
        questions = questions[:room]
        asked += questions
        margin = np.array([margin_of(visible, number) for visible, number in questions])
        answers = Answers(margin >= 0, margin, 1 / (1 + np.exp(-margin)), len(asked))
        state = step(search, Stop("interrupt", answers) if is_over else answers)
    return state.result, asked


def random_margin(seed):
    """A margin that tells nothing of other sets and backgrounds."""
    return lambda visible, number: float(np.random.default_rng([seed, number, *visible.ravel().tolist()]).normal(0.7))


def growing_margin(seed):
    """Each background demands some number of pixels; more of them never harm."""
    return lambda visible, number: float(
        visible.sum() / visible.size * 4 - np.random.default_rng([seed, number]).uniform(0, 3)
    )


seeds = st.integers(0, 10**6)


# The panel


@settings(max_examples=40, deadline=None)
@given(seeds, st.integers(1, 9), st.integers(1, 13))
def test_the_hardest_backgrounds_judge_the_candidates(seed, count, size):
    rng = np.random.default_rng(seed)
    sets = rng.random((count, *GRID)) < 0.5
    panel, margin_of = Panel(size), random_margin(seed)
    panel.margins = rng.integers(-3, 3, size).astype(float)
    hardest = sorted(range(size), key=lambda place: (panel.margins[place], place))[: RULES.hardest]
    answers, asked = drive(panel.ask_hardest(sets), margin_of)
    for row, visible in enumerate(sets):
        met, worst = True, math.inf
        for number in hardest:
            if met:
                worst = min(worst, margin_of(visible, number))
                met = worst >= 0
        assert answers.holds[row] == met
        assert answers.margin[row] == worst
        assert answers.confidence[row] == pytest.approx(1 / (1 + math.exp(-worst)))
    assert len(asked) <= RULES.hardest * count
    assert {number for _, number in asked} <= set(hardest)


@settings(max_examples=40, deadline=None)
@given(seeds, st.integers(1, 14))
def test_a_set_holds_on_the_panel_where_it_holds_on_each_background(seed, size):
    rng = np.random.default_rng(seed)
    visible, margin_of = rng.random(GRID) < 0.5, random_margin(seed)
    panel = Panel(size)
    panel.numbers = rng.permutation(100)[:size]
    panel.margins = rng.integers(-3, 3, size).astype(float)
    before = dict(zip(panel.numbers.tolist(), panel.margins.tolist(), strict=True))
    holds, asked = drive(panel.holds(visible), margin_of)
    numbers = [number for _, number in asked]
    assert holds == all(margin_of(visible, number) >= 0 for number in panel.numbers)
    assert [before[number] for number in numbers] == sorted(before.values())[: len(numbers)]  # the hardest first
    failing = [place for place, number in enumerate(numbers) if margin_of(visible, number) < 0]
    assert len(numbers) == (size if holds else min(size, (failing[0] // RULES.wave + 1) * RULES.wave))
    for number, margin in zip(panel.numbers.tolist(), panel.margins.tolist(), strict=True):
        assert margin == (margin_of(visible, number) if number in numbers else before[number])


def test_backgrounds_that_are_added_are_part_of_the_panel():
    panel, visible = Panel(3), np.ones(GRID, bool)
    panel.add(np.array([70, 71]), np.full(2, -np.inf))
    holds, asked = drive(panel.holds(visible), lambda visible, number: -1.0 if number == 71 else 1.0)
    assert not holds
    assert [number for _, number in asked][:2] == [70, 71]


# The whole search


def make_search(seed, grid=GRID, inner=None):
    view = np.random.default_rng(seed).integers(0, 256, (*grid, 3)).astype(np.uint8)
    problem = Problem(view, (np.zeros_like(view),), Target(0), sampler=RandomBackgrounds(view, 0))
    if inner is None:
        inner = np.zeros(grid, bool)
        inner[0, :2] = True
    return problem, inner


def find(seed, margin_of, share=0.8, *, grid=GRID, limit=None, stop_after=None, confidence=0.99):
    problem, inner = make_search(seed, grid)
    run = BudgetedRun(grid)
    rng = np.random.default_rng(seed)
    search = find_any(problem, inner, share, confidence=confidence, run=run, limit=limit, rng=rng)
    held, asked = drive(search, margin_of, limit=stop_after)
    return held, asked, inner, run


@settings(max_examples=15, deadline=None)
@given(seeds, st.sampled_from([growing_margin, random_margin]))
def test_every_set_contains_the_inner_one_and_fresh_backgrounds_are_used_once(seed, kind):
    held, asked, inner, run = find(seed, kind(seed))
    assert not (inner & ~held.visible).any()
    numbers = [number for _, number in asked]
    fresh = [number for number in numbers if number >= RULES.first_fresh]
    tally = held.tally
    last = fresh[-tally.asked :]
    assert last == list(range(tally.first, tally.first + tally.asked))
    assert not set(last) & set(numbers[: len(numbers) - tally.asked])  # the search has not seen them
    assert all((visible == held.visible).all() for visible, _ in asked[-tally.asked :])
    assert run.spent == len(asked)
    assert tally.failed == tuple(n for n in last if kind(seed)(held.visible, n) < 0)


@settings(max_examples=15, deadline=None)
@given(seeds)
def test_it_goes_on_from_the_smallest_set_on_its_way_that_holds_on_the_panel(seed):
    """By a linear scan of nested sets, where more pixels never harm."""
    rng = np.random.default_rng(seed)
    problem, inner = make_search(seed)
    search, margin_of = AnySearch(problem, inner, rng), growing_margin(seed)
    visible = search.seen[0]
    for _ in range(int(rng.integers(0, 12))):
        visible = visible & (inner | (rng.random(GRID) < 0.8))
        search.seen.append(visible)
    holding = [s for s in search.seen if all(margin_of(s, n) >= 0 for n in search.panel.numbers)]
    if not len(holding):
        return  # not even the whole view: no background is visible on it, so this cannot be
    first = holding[-1]
    drive(search.go_on(), margin_of)
    sizes = [int(s.sum()) for s in search.seen]
    assert sizes == sorted(sizes, reverse=True)
    assert search.seen[-1].sum() <= first.sum()
    assert any(s is first or (s == first).all() for s in search.seen)
    assert all(margin_of(search.seen[-1], n) >= 0 for n in search.panel.numbers)
    assert not (inner & ~search.seen[-1]).any()


@pytest.mark.parametrize("stop_after", [0, 1, 20, 40, 60])
def test_interrupted_it_claims_nothing_that_it_has_not_seen(stop_after):
    held, asked, _, run = find(3, growing_margin(3), stop_after=stop_after)
    assert len(asked) <= stop_after
    assert run.stopped_by == "interrupt"
    if held is not None:
        assert held.tally.asked <= len(asked)
        assert held.bound(0.8) < 0.8


@pytest.mark.parametrize("limit", [0, 5, 99, 100, 101, 130, 160, 10_000])
def test_the_limit_is_kept(limit):
    held, asked, _, run = find(3, growing_margin(3), limit=limit)
    assert len(asked) <= limit
    assert run.stopped_by == (None if limit == 10_000 else "budget") or held.bound(0.8) >= 0.8


def test_the_largest_grids_are_surveyed_first():
    held, asked, _, _ = find(1, growing_margin(1), grid=(20, 20))
    numbers = {number for _, number in asked}
    assert any(1000 <= number < RULES.first_fresh for number in numbers)
    assert 0 < held.visible.sum() < 400


# What is true of the bound


@pytest.mark.parametrize("share", [0.01, 0.5, 0.8, 0.9, 0.95, 0.99, MOST_HOLDS])
def test_enough_fresh_backgrounds_are_taken_for_every_share(share):
    most = most_backgrounds(share)
    assert most <= MOST_CASES
    assert anytime_bound(most, 0, share, confidence_of(4)) >= share


def test_all_attempts_together_have_the_permitted_error():
    assert sum(1 - confidence_of(attempt) for attempt in range(50)) == pytest.approx(1 - RULES.confidence)


@pytest.mark.parametrize("kind", ["just below", "growing"])
def test_the_bound_is_at_most_the_true_share_in_95_of_100_cases(kind):
    """Whether a background keeps the label is drawn anew in every case, with a probability that is known for every set."""
    cases, wrong, shown = 150, 0, 0

    def true_share(visible):
        size = visible.mean()
        if kind == "just below":
            return 1.0 if size == 1 else 0.79
        return min(1.0, 0.3 + 0.9 * size)

    for case in range(cases):

        def margin_of(visible, number, case=case):
            return 4 * (true_share(visible) - np.random.default_rng([case, number]).random())

        held, *_ = find(case, margin_of)
        wrong += held.bound(0.8) > true_share(held.visible)
        shown += held.bound(0.8) >= 0.8 and not held.visible.all()
    assert wrong <= 0.05 * cases
    assert kind == "just below" or shown > cases / 2


# What is asked for


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"holds": 0}, "holds is a share of random backgrounds, above 0 and up to 1, not 0"),
        ({"holds": 1.2}, "holds is a share of random backgrounds, above 0 and up to 1, not 1.2"),
        ({"holds": 1}, "holds must be at most 0.999, not 1.0: more would take too many backgrounds"),
        ({"holds": float("nan")}, "holds is a share of random backgrounds"),
        ({"holds": "0.9"}, "holds is a share of random backgrounds"),
        ({"holds": True}, "holds is a share of random backgrounds"),
        ({"backgrounds": "rooms"}, "backgrounds are used with holds only, e.g. holds=0.9 (--holds 0.9)"),
        ({"holds": 0.9, "contrast": True}, "holds is for a single sufficient set: leave out contrast and several"),
        ({"holds": 0.9, "several": 2}, "holds is for a single sufficient set: leave out contrast and several"),
        ({"holds": 0.9, "backgrounds": 3}, "backgrounds are a folder of images or a function of view and rng, not 3"),
    ],
)
def test_bad_values_are_refused_in_one_line(options, said):
    with pytest.raises(OptionError) as error:
        Request(**options)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_request_is_recorded_without_its_function(tmp_path):
    request = Request(holds=0.9, backgrounds=str(tmp_path))
    assert Request.from_record(request.record()) == request
    assert Request(holds=0.9, backgrounds=lambda view, rng: view).record()["backgrounds"] is None


def test_calls_are_reserved_for_the_level_only_where_it_is_asked_for():
    assert Budget.of(Request(max_calls=300)).for_levels().max_calls == 300
    assert Budget.of(Request(max_calls=300, holds=0.9)).for_levels().max_calls == 200
    assert Budget.of(Request(max_calls=10_000, holds=0.9)).for_levels().max_calls == 9_300
    assert Budget.of(Request(max_calls=10, holds=0.9)).for_levels().max_calls == 10
    assert Budget.of(Request(holds=0.9)).for_levels().max_calls is None
