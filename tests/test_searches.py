"""Ways to put searches together, tested by answering them by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from becausal.core.contracts import Answers, Question, Stop
from becausal.core.errors import AnswerError
from becausal.core.searches import Done, step
from becausal.search.drive import BudgetedRun, Terms, drive, gather

GRID = (4,)


def one(*pixels):
    visible = np.zeros(GRID, bool)
    visible[list(pixels)] = True
    return visible


def wave(*sets):
    return np.stack([one(*s) for s in sets])


def answers(holds, spent=0):
    holds = np.array(holds, bool)
    return Answers(holds, np.where(holds, 1.0, -1.0), np.arange(len(holds)) / 10, spent)


def asks(*waves, name=""):
    """Ask these waves; return what was heard: answers, or the reason to stop with the answers there were."""
    heard = []
    for asked in waves:
        try:
            got = yield asked
            heard.append((name, got.holds.tolist()))
        except Stop as stop:
            heard.append((name, stop.reason, stop.answers.holds.tolist()))
    return heard


# step, Done, Answers, Stop


def test_step_begins_sends_throws_and_ends():
    search = asks(wave([0]), wave([1], [2]))
    assert (step(search, None) == wave([0])).all()
    assert (step(search, answers([True])) == wave([1], [2])).all()
    end = step(search, Stop("budget", answers([False])))
    assert end == Done([("", [True]), ("", "budget", [False])])


def test_step_gives_the_end_of_a_search_that_asks_nothing():
    assert step(asks(), None) == Done([])


def test_step_lets_errors_through():
    with pytest.raises(Stop, match="interrupt"):
        step_into_deaf(Stop("interrupt"))
    with pytest.raises(AnswerError):
        step_into_deaf(AnswerError("broken"))


def step_into_deaf(message):
    def deaf():
        yield wave([0])

    search = deaf()
    step(search, None)
    return step(search, message)


def test_answers_in_part():
    some = answers([True, False, True], spent=9)
    assert len(some) == 3
    part = some.part(slice(1, 3))
    assert (part.holds.tolist(), part.margin.tolist(), part.confidence.tolist()) == ([False, True], [-1, 1], [0.1, 0.2])
    assert part.spent == 9
    assert len(Answers.none()) == 0
    assert len(Stop("budget").answers) == 0


# gather


def test_gather_asks_for_all_in_one_wave_and_hands_each_its_own():
    first, second, third = wave([0], [1]), wave([2]), wave([3], [0, 1], [2, 3])
    search = gather([asks(first, second, name="a"), asks(name="b"), asks(third, name="c")])
    state = step(search, None)
    assert (state == np.concatenate([first, third])).all()
    state = step(search, answers([True, False, False, False, True]))
    assert (state == second).all()  # c has ended, b never asked
    end = step(search, answers([True]))
    assert end == Done([[("a", [True, False]), ("a", [True])], [], [("c", [False, False, True])]])


def test_gather_of_nothing_and_of_the_silent():
    assert step(gather([]), None) == Done([])
    assert step(gather([asks(), asks()]), None) == Done([[], []])


def test_gather_keeps_the_order_of_results_whatever_ends_first():
    search = gather([asks(wave([0]), wave([1]), wave([2]), name="long"), asks(wave([3]), name="short")])
    state = step(search, None)
    while not isinstance(state, Done):
        state = step(search, answers([True] * len(state)))
    assert [result[0][0] for result in state.result] == ["long", "short"]


def test_gather_told_to_stop_gives_whole_answers_to_those_that_have_them():
    search = gather([asks(wave([i], [i, 3]), wave([i]), name=str(i)) for i in range(3)])
    step(search, None)
    end = step(search, Stop("budget", answers([True, False, True])))
    assert end == Done(
        [
            [("0", [True, False]), ("0", "budget", [])],  # both answers, then no more
            [("1", "budget", [True]), ("1", "budget", [])],  # one of two
            [("2", "budget", []), ("2", "budget", [])],  # none
        ]
    )


def test_gather_can_be_gathered():
    inner = gather([asks(wave([0]), name="a"), asks(wave([1]), name="b")])
    search = gather([inner, asks(wave([2], [3]), name="c")])
    state = step(search, None)
    assert (state == wave([0], [1], [2], [3])).all()
    end = step(search, Stop("interrupt", answers([True, False, True])))
    assert end == Done([[[("a", [True])], [("b", [False])]], [("c", "interrupt", [True])]])


@given(st.lists(st.lists(st.integers(1, 3), max_size=4), max_size=5))
@settings(max_examples=40, deadline=None)
def test_gather_hands_out_every_answer_once_and_in_order(plans):
    rng = np.random.default_rng(0)
    waves = [[rng.random((n, *GRID)) < 0.5 for n in plan] for plan in plans]

    def hearing(own):
        heard = []
        for asked in own:
            heard += [(row.tolist(), bool(h)) for row, h in zip(asked, (yield asked).holds, strict=True)]
        return heard

    search = gather([hearing(own) for own in waves])
    state = step(search, None)
    while not isinstance(state, Done):
        state = step(search, answers([row[0] ^ row[3] for row in state]))
    wanted = [[(row.tolist(), bool(row[0] ^ row[3])) for asked in own for row in asked] for own in waves]
    assert state.result == wanted


# BudgetedRun


def answer_all(search, table, *, spent=0, memo=None):
    """Answer a search as the engine does: `table(row)` says what holds, and a question costs one call, once."""
    memo = set() if memo is None else memo
    asked = []
    state = step(search, None)
    while not isinstance(state, Done):
        asked.append(len(state))
        for row in state:
            spent += row.tobytes() not in memo
            memo.add(row.tobytes())
        state = step(search, answers([table(row) for row in state], spent))
    return state.result, asked


def test_a_course_remembers_the_smallest_set_that_held():
    course = BudgetedRun(GRID)
    assert course.visible.all()
    assert course.pixels == 4
    waves = [wave([0, 1, 2], [1, 2]), wave([3], [2, 3]), wave([0, 1, 3], [0, 3])]
    answer_all(course.follow(asks(*waves)), lambda row: bool(row[2]) or row.sum() == 3)
    assert course.visible.tolist() == one(1, 2).tolist()  # the first of that size, [3] alone does not hold
    assert course.pixels == 2
    assert course.spent == 6
    assert course.stopped_by is None


def test_a_course_keeps_a_copy():
    course = BudgetedRun(GRID)
    asked = wave([1])
    course.note(Question(asked), answers([True], 1))
    asked[:] = False
    assert course.visible.tolist() == one(1).tolist()


def test_follow_passes_results_and_answers_through():
    result, asked = answer_all(BudgetedRun(GRID).follow(asks(wave([0], [1]), wave([2]))), lambda row: row[1])
    assert result == [("", [False, True]), ("", [False])]
    assert asked == [2, 1]


def test_follow_stops_a_search_at_its_limit_with_the_part_that_fitted():
    course = BudgetedRun(GRID)
    search = course.follow(asks(wave([0], [1]), wave([2], [3], [0, 1]), wave([1, 2])), limit=4)
    result, asked = answer_all(search, lambda row: row[3])
    assert asked == [2, 2]  # never more than the limit
    assert result == [("", [False, False]), ("", "budget", [False, True]), ("", "budget", [])]
    assert course.stopped_by == "budget"
    assert course.visible.tolist() == one(3).tolist()  # learnt from the part as well
    assert course.spent == 4


def test_follow_counts_what_was_spent_before():
    course = BudgetedRun(GRID)
    answer_all(course.follow(asks(wave([0], [1]))), lambda row: True)
    result, asked = answer_all(course.follow(asks(wave([2], [3])), limit=2), lambda row: True, spent=2)
    assert (result, asked) == ([("", "budget", [])], [])
    assert course.stopped_by == "budget"


def test_a_question_that_costs_several_calls_counts_as_such():
    course = BudgetedRun(GRID, price=3)
    search = course.follow(asks(wave([0], [1], [2], [3])), limit=8)
    assert len(step(search, None)) == 2  # nine calls would be too many
    assert step(search, answers([True, False], spent=6)) == Done([("", "budget", [True, False])])
    assert course.stopped_by == "budget"


def test_follow_hears_a_stop_from_outside():
    course = BudgetedRun(GRID)
    search = course.follow(asks(wave([0, 1], [0]), wave([3])))
    step(search, None)
    state = step(search, Stop("interrupt", answers([True], spent=7)))
    assert (state == wave([3])).all()  # this one asks on
    assert step(search, answers([False], spent=8)) == Done([("", "interrupt", [True]), ("", [False])])
    assert course.stopped_by == "interrupt"
    assert course.spent == 8
    assert course.visible.tolist() == one(0, 1).tolist()


def test_the_first_reason_to_stop_stays():
    course = BudgetedRun(GRID)
    search = course.follow(asks(wave([0]), wave([1])), limit=1)
    step(search, None)
    step(search, Stop("interrupt"))
    answer_all(course.follow(asks(wave([0])), limit=0), lambda row: True)
    assert course.stopped_by == "interrupt"


def test_a_stop_that_a_search_does_not_catch_comes_out():
    def deaf():
        yield wave([0])

    search = BudgetedRun(GRID).follow(deaf(), limit=0)
    with pytest.raises(Stop, match="budget"):
        step(search, None)


@given(st.lists(st.integers(1, 6), max_size=6), st.one_of(st.none(), st.integers(0, 20)))
@settings(max_examples=60, deadline=None)
def test_a_limit_is_never_passed_and_never_bites_early(sizes, limit):
    # All questions differ, so each costs a call.
    numbers = iter(range(1, 200))
    grid = (8,)
    waves = [
        np.array([[n >> i & 1 for i in range(8)] for n in (next(numbers) for _ in range(size))], bool) for size in sizes
    ]
    course = BudgetedRun(grid)
    result, asked = answer_all(course.follow(asks(*waves), limit=limit), lambda row: bool(row[0]))
    total = sum(sizes)
    assert sum(asked) == (total if limit is None else min(limit, total))
    assert course.stopped_by == (None if limit is None or total <= limit else "budget")
    heard = sum(len(entry[-1]) for entry in result)
    assert heard == sum(asked)


# contrastive


def margins(values):
    values = np.array(values, float)
    return Answers(values >= 0, values, np.arange(len(values)) / 10, 5)


def test_a_contrastive_search_asks_each_set_and_its_complement():
    def hearing():
        return (yield wave([0], [1, 2]))

    search = drive(hearing(), Terms(contrast=True))
    state = step(search, None)
    assert (state == wave([0], [1, 2, 3], [1, 2], [0, 3])).all()
    end = step(search, margins([2.0, -3.0, 1.0, 0.5]))
    assert end.result.holds.tolist() == [True, False]
    assert end.result.margin.tolist() == [2.0, -0.5]
    assert end.result.confidence.tolist() == [0.0, 0.2]
    assert end.result.spent == 5


def test_a_contrastive_search_that_is_stopped_hears_whole_pairs():
    search = drive(asks(wave([0], [1], [2])), Terms(contrast=True))
    step(search, None)
    assert step(search, Stop("budget", margins([1.0, -1.0, 1.0]))) == Done([("", "budget", [True])])


@given(st.lists(st.sampled_from([-1.0, -1e-30, 0.0, 0.5]), min_size=2, max_size=8).filter(lambda v: len(v) % 2 == 0))
@settings(max_examples=60, deadline=None)
def test_a_contrastive_margin_is_0_or_more_exactly_where_both_hold(values):
    def hearing():
        return (yield np.zeros((len(values) // 2, *GRID), bool))

    search = drive(hearing(), Terms(contrast=True))
    step(search, None)
    heard = step(search, margins(values)).result
    assert heard.holds.tolist() == [a >= 0 and not b >= 0 for a, b in zip(values[::2], values[1::2], strict=True)]
    assert ((heard.margin >= 0) == heard.holds).all()
