"""Ways to put searches together, tested by answering them by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from becausal.core.contracts import Answers, Done, Question, Stop, step
from becausal.core.errors import AnswerError
from becausal.core.targets import Target, quantise_margin, with_floor
from becausal.search.drive import BudgetedRun, drive

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
    answer_all(drive(asks(*waves), run=course), lambda row: bool(row[2]) or row.sum() == 3)
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


def test_drive_passes_results_and_answers_through():
    result, asked = answer_all(drive(asks(wave([0], [1]), wave([2])), run=BudgetedRun(GRID)), lambda row: row[1])
    assert result == [("", [False, True]), ("", [False])]
    assert asked == [2, 1]


def test_drive_stops_a_search_at_its_limit_with_the_part_that_fitted():
    course = BudgetedRun(GRID)
    search = drive(asks(wave([0], [1]), wave([2], [3], [0, 1]), wave([1, 2])), run=course, limit=4)
    result, asked = answer_all(search, lambda row: row[3])
    assert asked == [2, 2]  # never more than the limit
    assert result == [("", [False, False]), ("", "budget", [False, True]), ("", "budget", [])]
    assert course.stopped_by == "budget"
    assert course.visible.tolist() == one(3).tolist()  # learnt from the part as well
    assert course.spent == 4


def test_drive_counts_what_was_spent_before():
    course = BudgetedRun(GRID)
    answer_all(drive(asks(wave([0], [1])), run=course), lambda row: True)
    result, asked = answer_all(drive(asks(wave([2], [3])), run=course, limit=2), lambda row: True, spent=2)
    assert (result, asked) == ([("", "budget", [])], [])
    assert course.stopped_by == "budget"


def test_a_question_that_costs_several_calls_counts_as_such():
    course = BudgetedRun(GRID, price=3)
    search = drive(asks(wave([0], [1], [2], [3])), run=course, limit=8)
    assert len(step(search, None)) == 2  # nine calls would be too many
    assert step(search, answers([True, False], spent=6)) == Done([("", "budget", [True, False])])
    assert course.stopped_by == "budget"


def test_drive_hears_a_stop_from_outside():
    course = BudgetedRun(GRID)
    search = drive(asks(wave([0, 1], [0]), wave([3])), run=course)
    step(search, None)
    state = step(search, Stop("interrupt", answers([True], spent=7)))
    assert (state == wave([3])).all()  # this one asks on
    assert step(search, answers([False], spent=8)) == Done([("", "interrupt", [True]), ("", [False])])
    assert course.stopped_by == "interrupt"
    assert course.spent == 8
    assert course.visible.tolist() == one(0, 1).tolist()


def test_the_first_reason_to_stop_stays():
    course = BudgetedRun(GRID)
    search = drive(asks(wave([0]), wave([1])), run=course, limit=1)
    step(search, None)
    step(search, Stop("interrupt"))
    answer_all(drive(asks(wave([0])), run=course, limit=0), lambda row: True)
    assert course.stopped_by == "interrupt"


def test_a_stop_that_a_search_does_not_catch_comes_out():
    def deaf():
        yield wave([0])

    search = drive(deaf(), run=BudgetedRun(GRID), limit=0)
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
    result, asked = answer_all(drive(asks(*waves), run=course, limit=limit), lambda row: bool(row[0]))
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

    search = drive(hearing(), contrast=True)
    state = step(search, None)
    assert (state == wave([0], [1, 2, 3], [1, 2], [0, 3])).all()
    end = step(search, margins([2.0, -3.0, 1.0, 0.5]))
    assert end.result.holds.tolist() == [True, False]
    assert end.result.margin.tolist() == [2.0, -0.5]
    assert end.result.confidence.tolist() == [0.0, 0.2]
    assert end.result.spent == 5


def test_a_contrastive_search_that_is_stopped_hears_whole_pairs():
    search = drive(asks(wave([0], [1], [2])), contrast=True)
    step(search, None)
    assert step(search, Stop("budget", margins([1.0, -1.0, 1.0]))) == Done([("", "budget", [True])])


@given(st.lists(st.sampled_from([-1.0, -1e-30, 0.0, 0.5]), min_size=2, max_size=8).filter(lambda v: len(v) % 2 == 0))
@settings(max_examples=60, deadline=None)
def test_a_contrastive_margin_is_0_or_more_exactly_where_both_hold(values):
    def hearing():
        return (yield np.zeros((len(values) // 2, *GRID), bool))

    search = drive(hearing(), contrast=True)
    step(search, None)
    heard = step(search, margins(values)).result
    assert heard.holds.tolist() == [a >= 0 and not b >= 0 for a, b in zip(values[::2], values[1::2], strict=True)]
    assert ((heard.margin >= 0) == heard.holds).all()


# Floors


def collect(waves, heard):
    for wave in waves:
        try:
            heard.append((yield wave))
        except Stop as stop:
            heard.append(stop)
    return "done"


@given(st.integers(0, 2**32 - 1), st.floats(0.0, 1.0))
@settings(max_examples=60, deadline=None)
def test_keeping_a_floor_is_the_same_as_a_target_with_it(seed, floor):
    rng = np.random.default_rng(seed)
    scores = rng.dirichlet(np.full(4, 0.5), 30).astype(np.float32)
    scores[:5, 2] = np.float32(floor)
    direct = Target(2, floor=floor).judge(scores)
    plain = Target(2).judge(scores)
    answers = Answers(plain.holds, quantise_margin(plain.margin, plain.holds), plain.confidence, 30)
    heard = []
    search = drive(collect([np.ones((30, 4), bool)] * 2, heard), floor=floor)
    step(search, None)
    step(search, answers)
    assert step(search, Stop("budget", answers.part(slice(0, 9)))) == Done("done")
    assert isinstance(heard[1], Stop)
    assert heard[1].reason == "budget"
    for count, found in ((30, heard[0]), (9, heard[1].answers)):
        assert found.holds.tolist() == direct.holds[:count].tolist()
        assert found.margin == pytest.approx(quantise_margin(direct.margin, direct.holds)[:count])
        assert found.confidence.tolist() == direct.confidence[:count].tolist()
        assert found.spent == 30
        assert ((found.margin >= 0) == found.holds).all()
    assert with_floor(answers, 0.0) is answers


def test_the_best_set_on_the_way_keeps_the_floor():
    run = BudgetedRun((4,), floor=0.6)
    wave = np.array([[1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 0]], bool)
    run.note(
        Question(wave), Answers(np.array([True, True, False]), np.array([1.0, 1.0, -1.0]), np.array([0.7, 0.5, 0.9]), 3)
    )
    assert run.pixels == 3
    assert run.spent == 3
