"""What each part of an explanation may spend of a limited number of calls."""

import pytest

from becausal.core.request import Request
from becausal.search.budget import Budget, before_certificate

# max_calls, further options, then: the engine's limit, the rows of the last batch, where sets and maps end for three levels.
NUMBERS = [
    (10, {}, 9, 0, 3, 3),
    (12, {}, 11, 0, 5, 4),
    (150, {}, 140, 9, 134, 90),
    (500, {}, 483, 16, 477, 319),
    (2000, {}, 1983, 16, 1977, 1737),
    (150, {"fills": ("grey", "blur")}, 140, 4, 128, 86),
    (500, {"contrast": True}, 483, 16, 477, 319),
    (500, {"several": 3}, 483, 16, 465, 311),
    (20, {"several": 9}, 18, 1, 7, 5),
]


@pytest.mark.parametrize(("calls", "options", "engine", "rows", "sets", "maps"), NUMBERS)
def test_what_is_kept_back_of_a_limit(calls, options, engine, rows, sets, maps):
    budget = Budget.of(Request(max_calls=calls, **options))
    assert (budget.engine_limit, budget.last_rows) == (engine, rows)
    assert (budget.set_limit(3), budget.map_limit(3)) == (sets, maps)


def test_without_a_limit_there_is_none():
    budget = Budget.of(Request(holds=0.9))
    assert budget.for_levels() == budget
    assert budget.last_rows == 16
    limits = (budget.engine_limit, budget.set_limit(3), budget.map_limit(3), budget.any_limit)
    assert limits == (None, None, None, None)
    assert budget.share(None, 40, 0) is None
    assert budget.questions(None, 40) is None
    assert before_certificate(None) is None


def test_several_seeds_share_what_is_left():
    budget = Budget.of(Request(seeds=3, max_calls=500))
    assert [budget.share(300, spent, number) for number, spent in enumerate((2, 101, 150))] == [101, 200, 300]
    assert budget.share(300, 400, 1) == 400
    assert Budget.of(Request(fills=("grey", "blur"), contrast=True)).questions(300, 101) == 49
    assert budget.questions(300, 301) == 0


def test_the_level_any_keeps_its_calls():
    budget = Budget.of(Request(max_calls=3000, holds=0.9))
    assert (budget.engine_limit, budget.any_limit) == (2983, 2997)
    assert before_certificate(budget.any_limit) == 2897
    assert budget.for_levels().max_calls == 2300
    assert (budget.for_levels().set_limit(3), budget.for_levels().map_limit(3)) == (2277, 2037)
    few = Budget.of(Request(max_calls=300, holds=0.9))
    assert few.for_levels().last_rows == 12  # of 200
    assert few.last_rows == 16
