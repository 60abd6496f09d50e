"""What each part of an explanation may spend of a limited number of calls."""

import pytest

from becausal.core.request import Request
from becausal.search.budget import Budget

# max_calls, further options, then: the engine's limit, the rows of the last batch, where sets and maps end, and how many
# backgrounds each set is evaluated on.
NUMBERS = [
    (10, {}, 9, 0, 4, 3, 1),
    (12, {}, 11, 0, 6, 5, 1),
    (150, {}, 140, 9, 121, 81, 15),
    (500, {}, 483, 16, 439, 293, 40),
    (2000, {}, 1983, 16, 1939, 1709, 40),
    (2000, {"smallest": True}, 1983, 16, 1941, 1861, 40),
    (150, {"fills": ("grey", "blur")}, 140, 4, 121, 81, 15),
    (500, {"contrast": True}, 483, 16, 441, 295, 40),
    (500, {"several": 3}, 483, 16, 429, 349, 16),
    (20, {"several": 9}, 18, 1, 11, 8, 0),
]


@pytest.mark.parametrize(("calls", "options", "engine", "rows", "sets", "maps", "backgrounds"), NUMBERS)
def test_what_is_kept_back_of_a_limit(calls, options, engine, rows, sets, maps, backgrounds):
    budget = Budget.of(Request(max_calls=calls, **options))
    assert (budget.engine_limit, budget.last_rows) == (engine, rows)
    assert (budget.set_limit, budget.map_limit) == (sets, maps)
    assert budget.transfers(options.get("several", 1) - 1) == backgrounds


@pytest.mark.parametrize(
    "options", [{}, {"smallest": True}, {"several": 4}, {"fills": ("grey", "blur")}, {"contrast": True}]
)
@pytest.mark.parametrize("calls", [10, 11, 25, 60, 137, 500, 3000])
def test_what_is_kept_back_is_enough_for_what_comes_later(calls, options):
    """The last checks of each set, its fresh backgrounds, the last evaluation: all of them fit, and something is left."""
    request = Request(max_calls=calls, **options)
    budget = Budget.of(request)
    later = budget.transfers(request.several - 1) * request.several
    later += 2 * budget.fills * (2 if request.share_held else 1)
    assert 0 < budget.map_limit <= budget.set_limit <= budget.engine_limit - later
    assert budget.engine_limit + (1 + budget.last_rows) * budget.fills == calls


def test_without_a_limit_there_is_none():
    budget = Budget.of(Request(holds=0.9))
    assert budget.last_rows == 16
    assert (budget.engine_limit, budget.set_limit, budget.map_limit) == (None, None, None)
    assert (budget.transfers(0), budget.transfers(9), budget.certificate) == (40, 40, 0)
    assert budget.share(None, 40, 0) is None
    assert budget.questions(None, 40) is None


def test_several_seeds_share_what_is_left():
    budget = Budget.of(Request(seeds=3, max_calls=500))
    assert [budget.share(300, spent, number) for number, spent in enumerate((2, 101, 150))] == [101, 200, 300]
    assert budget.share(300, 400, 1) == 400
    assert Budget.of(Request(fills=("grey", "blur"), contrast=True)).questions(300, 101) == 49
    assert budget.questions(300, 301) == 0


def test_the_certificate_keeps_its_calls():
    assert Budget.of(Request(max_calls=3000)).certificate == 80
    assert Budget.of(Request(max_calls=300)).certificate == 30
