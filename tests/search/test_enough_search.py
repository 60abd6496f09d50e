"""The search for `enough`, answered by hand: its panel, its two ways to a set, and what is true of its bounds."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from becausal import Request
from becausal.core.contracts import Answers, Done, Held, Question, Stop, step
from becausal.core.errors import OptionError
from becausal.core.intervals import MOST_CASES, anytime_bound
from becausal.core.problem import Problem
from becausal.core.regions import cells
from becausal.core.request import MOST_HOLDS
from becausal.core.targets import Target
from becausal.images.backgrounds import RandomBackgrounds
from becausal.search.checking import check_panel, most_backgrounds
from becausal.search.drive import BudgetedRun
from becausal.search.enough import FEW, RULES, DescentWay, Panel, RankingWay, confidence_of, find_enough
from becausal.search.pipeline import ENOUGH_CALLS, USUAL_CALLS, describe_failure, describe_steps

GRID = (6, 7)
PLAIN = -1  # in the place of a background's number
seeds = st.integers(0, 10**6)


def drive(search, margin_of, *, limit=None):
    """Answer a search. Returns its result, and the sets and numbers it asked about.

    margin_of: of a set, (*grid,), and a number. limit: it is interrupted after so many questions.
    """
    asked, state = [], step(search, None)
    while not isinstance(state, Done):
        question = Question.of(state)
        draws = np.full(len(question), PLAIN) if question.draws is None else question.draws
        questions = list(zip(question.visible.copy(), draws.tolist(), strict=True))
        room = len(questions) if limit is None else max(0, limit - len(asked))
        is_over = room < len(questions)
        questions = questions[:room]
        asked += questions
        margin = np.array([margin_of(visible, number) for visible, number in questions])
        answers = Answers(margin >= 0, margin, 1 / (1 + np.exp(-margin)), len(asked))
        state = step(search, Stop("interrupt", answers) if is_over else answers)
    return state.result, asked


def random_margin(seed):
    """A margin that tells nothing of other sets and backgrounds; the whole view always holds."""
    return lambda visible, number: (
        1.0 if visible.all() else float(np.random.default_rng([seed, number + 1, *visible.ravel().tolist()]).normal(0.7))
    )


def growing_margin(seed):
    """Each background demands some number of pixels; more of them never harm."""
    return lambda visible, number: float(
        visible.sum() / visible.size * 4 - np.random.default_rng([seed, number + 1]).uniform(0, 3)
    )


# The panel


@settings(max_examples=40, deadline=None)
@given(seeds, st.integers(1, 6), st.integers(1, 14))
def test_sets_hold_on_the_panel_where_they_hold_on_each_background_and_in_the_plain_fill(seed, count, size):
    rng = np.random.default_rng(seed)
    sets, margin_of = rng.random((count, *GRID)) < 0.5, random_margin(seed)
    panel = Panel(replace(RULES, panel=size))
    panel.numbers = rng.permutation(100)[:size]
    panel.margins = rng.integers(-3, 3, size).astype(float)
    before = dict(zip(panel.numbers.tolist(), panel.margins.tolist(), strict=True))
    answers, asked = drive(panel.judge(sets, (1, 3, *[4] * size), plain=True), margin_of)
    for row, visible in enumerate(sets):
        own = [number for one, number in asked if np.array_equal(one, visible)]
        assert answers.holds[row] == all(margin_of(visible, number) >= 0 for number in (*panel.numbers, PLAIN))
        worst = min(margin_of(visible, number) for number in own)
        assert answers.margin[row] == worst
        assert answers.confidence[row] == pytest.approx(1 / (1 + math.exp(-worst)))
        drawn = list(dict.fromkeys(number for number in own if number != PLAIN))
        assert [before[number] for number in drawn] == sorted(before.values())[: len(drawn)]  # the hardest first
        assert (PLAIN in own) == all(margin_of(visible, number) >= 0 for number in panel.numbers)


@settings(max_examples=30, deadline=None)
@given(seeds, st.integers(2, 14))
def test_the_last_margins_on_a_panel_are_those_of_the_last_single_set(seed, size):
    rng = np.random.default_rng(seed)
    visible, margin_of, panel = rng.random(GRID) < 0.5, random_margin(seed), Panel(replace(RULES, panel=size))
    panel.margins = rng.integers(-3, 3, size).astype(float)
    before = panel.margins.copy()
    holds, asked = drive(panel.holds(visible), margin_of)
    numbers = {number for _, number in asked}
    assert holds == all(margin_of(visible, number) >= 0 for number in (*panel.numbers, PLAIN))
    for place, number in enumerate(panel.numbers.tolist()):
        assert panel.margins[place] == (margin_of(visible, number) if number in numbers else before[place])


def test_backgrounds_that_are_added_are_part_of_the_panel():
    panel, visible = Panel(replace(RULES, panel=3)), np.ones(GRID, bool)
    panel.add(np.array([70, 71]), np.full(2, -np.inf))
    holds, asked = drive(panel.holds(visible), lambda visible, number: -1.0 if number == 71 else 1.0)
    assert not holds
    assert [number for _, number in asked][:2] == [70, 71]


@settings(max_examples=60, deadline=None)
@given(seeds, st.integers(0, 6), st.integers(1, 3))
def test_check_panel_asks_every_removal_on_every_background(seed, size, grain):
    """Against its definition; `verify` uses it, too."""
    rng = np.random.default_rng(seed)
    visible, numbers = rng.random(GRID) < 0.3, rng.permutation(50)[:size].tolist()
    bar = rng.uniform(0, 0.5)
    weights = rng.random(GRID)

    def margin_of(visible, number):
        own = 0.2 * np.random.default_rng([seed, number + 1]).random()
        return float((weights * visible).sum() / weights.sum() - bar * 0.5 - own)

    cell = cells(GRID, grain)
    everywhere = [PLAIN, *numbers]
    holds = all(margin_of(visible, number) >= 0 for number in everywhere)
    less = [visible & (cell != c) for c in np.unique(cell[visible])]
    is_minimal = not any(all(margin_of(one, number) >= 0 for number in everywhere) for one in less)
    assert drive(check_panel(visible, numbers, grain), margin_of)[0] == (holds and is_minimal)
    assert drive(check_panel(visible, numbers, None), margin_of)[0] == holds


# The whole search


def way_of(kind, seed, grid=GRID):
    rng = np.random.default_rng(seed)
    view = rng.integers(0, 256, (*grid, 3)).astype(np.uint8)
    problem = Problem(view, (np.zeros_like(view),), Target(0), holds=0.8, sampler=RandomBackgrounds(view, 0))
    if kind in ("descent", "few calls"):
        return DescentWay(problem, rng, RULES if kind == "descent" else FEW)
    inner = np.zeros(grid, bool)
    inner[0, :2] = True
    return RankingWay(problem, rng.random(grid), inner, rng)


def find(seed, margin_of, kind="descent", *, grid=GRID, limit=None, stop_after=None, reserve=0):
    way, run = way_of(kind, seed, grid), BudgetedRun(grid)
    held, asked = drive(find_enough(way, run=run, limit=limit, reserve=reserve), margin_of, limit=stop_after)
    return held, asked, run


def check_held(held, asked, margin_of, share=0.8):
    """What is claimed of a set, from the questions alone and by asking again."""
    numbers = [number for _, number in asked]
    last = range(held.first, held.first + held.asked)
    assert held.first >= RULES.first_fresh
    assert held.failures == sum(margin_of(held.visible, number) < 0 for number in last)
    assert held.bound <= anytime_bound(held.asked - held.failures, held.failures, share, 0.95)
    assert not set(held.panel) & set(last)
    if held.bound < share:
        return
    assert all((visible == held.visible).all() for visible, number in asked if number in last)  # no search has seen them
    assert [number for number in numbers if number in last] == list(last)
    everywhere = (PLAIN, *held.panel)
    assert all(margin_of(held.visible, number) >= 0 for number in everywhere)
    if held.grain is not None:
        cell = cells(held.visible.shape, held.grain)
        for c in np.unique(cell[held.visible]):
            less = held.visible & (cell != c)
            assert any(margin_of(less, number) < 0 for number in everywhere)


kinds = st.sampled_from(["descent", "few calls", "ranking"])


@settings(max_examples=20, deadline=None)
@given(seeds, st.sampled_from([growing_margin, random_margin]), kinds)
def test_what_is_claimed_is_true_and_fresh_backgrounds_are_used_once(seed, rule, kind):
    margin_of = rule(seed)
    held, asked, run = find(seed, margin_of, kind)
    assert run.spent == len(asked)
    if held is None:  # where calls are few, none are spent on the whole view
        assert kind == "few calls"
        return
    check_held(held, asked, margin_of)
    assert held.visible[0, :2].all() or kind != "ranking"  # the prefixes contain the given set
    assert (held.grain is None) == (kind != "descent")


@settings(max_examples=20, deadline=None)
@given(seeds, kinds)
def test_it_goes_on_from_the_smallest_set_on_its_way_that_holds_on_the_panel(seed, kind):
    """By a linear scan of nested sets, where more pixels never harm."""
    rng = np.random.default_rng(seed)
    way, margin_of = way_of(kind, seed), growing_margin(seed)
    way.seen = way.seen[:1]
    for _ in range(int(rng.integers(0, 12))):
        way.seen.append(way.seen[-1] & (rng.random(GRID) < 0.8))
    everywhere = (PLAIN, *way.panel.numbers.tolist())
    holding = [one for one in way.seen if all(margin_of(one, number) >= 0 for number in everywhere)]
    if holding:
        drive(way.go_back(), margin_of)
        assert way.seen[-1] is holding[-1]


@settings(max_examples=30, deadline=None)
@given(seeds, kinds, st.integers(0, 400))
def test_interrupted_it_claims_nothing_that_it_has_not_seen(seed, kind, stop_after):
    margin_of = growing_margin(seed)
    held, asked, run = find(seed, margin_of, kind, stop_after=stop_after)
    assert len(asked) <= stop_after
    assert run.stopped_by == "interrupt" or kind == "few calls" or held.bound >= 0.8
    if held is not None:
        check_held(held, asked, margin_of)


@settings(max_examples=30, deadline=None)
@given(seeds, kinds, st.integers(0, 400), st.sampled_from([0, 30, 100]))
def test_the_limit_is_kept_and_the_certificate_has_its_part(seed, kind, limit, reserve):
    margin_of = growing_margin(seed)
    held, asked, run = find(seed, margin_of, kind, limit=limit, reserve=reserve)
    assert len(asked) <= limit
    if held is not None:
        check_held(held, asked, margin_of)
    if reserve == 100 and limit > 100 and (held is not None or kind != "few calls"):  # see above
        assert held is not None
        assert held.asked > 0
        fits = all(margin_of(held.visible, number) >= 0 for number in (PLAIN, *held.panel))
        assert fits or run.stopped_by is None  # cut short, it goes back to a set that holds on the panel


def test_the_largest_grids_are_surveyed_first():
    held, asked, _ = find(1, growing_margin(1), grid=(20, 20))
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


@pytest.mark.parametrize("way", ["descent", "few calls", "ranking"])
@pytest.mark.parametrize("kind", ["just below", "growing"])
def test_the_bound_is_at_most_the_true_share_in_95_of_100_cases(kind, way):
    """Whether a background keeps the label is drawn anew in every case, with a probability that is known for every set."""
    cases, wrong, shown = 60, 0, 0

    def true_share(visible):
        size = visible.mean()
        if kind == "just below":
            return 1.0 if size == 1 else 0.79
        return min(1.0, 0.3 + 0.9 * size)

    for case in range(cases):

        def margin_of(visible, number, case=case):
            return 1.0 if number == PLAIN else 4 * (true_share(visible) - np.random.default_rng([case, number]).random())

        held, *_ = find(case, margin_of, way)
        if held is None:  # as above
            continue
        wrong += held.bound > true_share(held.visible)
        shown += held.bound >= 0.8 and not held.visible.all()
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
        ({"holds": 0.9, "contrast": True}, "holds asks for random backgrounds, and smallest, contrast and several for one"),
        ({"holds": 0.9, "several": 2}, "holds asks for random backgrounds, and smallest, contrast and several for one"),
        ({"holds": 0.9, "smallest": True}, "holds asks for random backgrounds, and smallest, contrast and several for one"),
        ({"backgrounds": 3}, "backgrounds are a folder of images or a function of view and rng, not 3"),
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


@pytest.mark.parametrize(
    ("options", "share", "held"),
    [
        ({}, 0.9, 0.9),
        ({"backgrounds": "rooms"}, 0.9, 0.9),
        ({"holds": 0.5}, 0.9, 0.5),
        ({"fills": ("black",)}, 0.9, None),
        ({"fills": ("black",), "holds": 0.7}, 0.9, 0.7),
        ({"confidence": 0.7}, 0.7, None),
        ({"confidence": 0.9}, 0.9, None),
        ({"confidence": 0.7, "holds": 0.8}, 0.7, 0.8),
        ({"smallest": True}, 0.0, None),
        ({"contrast": True}, 0.0, None),
        ({"several": 2}, 0.0, None),
    ],
)
def test_two_sets_are_looked_for_unless_one_set_in_one_fill_is_asked_for(options, share, held):
    request = Request(**options)
    assert (request.share, request.share_held) == (share, held)
    assert Request.from_record(request.record()).share_held == held


# What is said where calls were few


def some_set(bound, *, grain=None):
    return Held(np.eye(4, dtype=bool), grain, (0,), 1_000_000, 60, 20, bound)


@pytest.mark.parametrize(
    ("held", "stopped_by", "max_calls", "is_limit"),
    [
        (None, "budget", 300, True),
        (some_set(0.5), None, 300, True),  # large steps, and no proof
        (some_set(0.5), "budget", 1500, True),
        (some_set(0.5, grain=2), None, 1500, False),  # it was searched for to its end
        (some_set(0.5, grain=2), None, None, False),
        (some_set(0.5), "interrupt", 300, False),
    ],
)
def test_the_limit_on_calls_is_named_only_where_it_was_why(held, stopped_by, max_calls, is_limit):
    run = BudgetedRun((4, 4))
    run.stopped_by = stopped_by
    (note,) = describe_failure(0.9, held, run, max_calls)
    assert ("the limit on calls was too low" in note) == is_limit
    assert note.endswith(f": {USUAL_CALLS}") == is_limit
    assert run.stopped_by == ("budget" if is_limit else stopped_by)


def test_what_photographs_take_is_said_of_lower_limits_only():
    assert USUAL_CALLS == "without a limit, most photographs take 800 to 1,800"
    run = BudgetedRun((4, 4))
    run.stopped_by = "budget"
    (note,) = describe_failure(0.9, None, run, ENOUGH_CALLS)
    assert note == "the limit on calls was too low to find a set that holds on at least 90 % of random backgrounds"
    (few,), (many,) = (describe_steps(some_set(0.95), run, limit) for limit in (300, 2000))
    assert few.endswith("in large steps: more calls, up to 1,800, make it smaller as a rule")
    assert many.endswith("in large steps: more calls make it smaller as a rule")
