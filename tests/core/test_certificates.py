"""Certificates: the counting search, answered by hand; records, which are not trusted; what they say in words."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from becausal.core.checks import Certificate
from becausal.core.contracts import Answers, Done, Stop, step
from becausal.core.errors import OptionError
from becausal.core.intervals import anytime_bound, exact_interval
from becausal.core.metrics import Transfer
from becausal.core.problem import Problem
from becausal.core.targets import Target
from becausal.engine.engine import Engine
from becausal.images.backgrounds import RandomBackgrounds
from becausal.models import as_classifier
from becausal.search.checking import WAVE, Tally, certify, count_kept, is_hopeless, most_backgrounds, transfer

VISIBLE = np.array([[True, False], [False, True]])
FROM = {"kind": "becausal", "version": 1, "seed": 7}


def answered(draws, failing):
    holds = np.array([int(number) not in failing for number in draws], bool)
    return Answers(holds, np.where(holds, 1.0, -1.0), np.full(len(holds), 0.5))


def run(search, failing=frozenset(), stop_after=None):
    """Answer a search; the set loses its label on these backgrounds. Returns the result and the backgrounds asked for."""
    asked, state = [], step(search, None)
    while not isinstance(state, Done):
        assert (np.asarray(state) == VISIBLE).all()
        draws = [int(number) for number in state.draws]
        if stop_after is not None and len(asked) + len(draws) > stop_after:
            kept = draws[: stop_after - len(asked)]
            asked += kept
            state = step(search, Stop("budget", answered(kept, failing)))
            assert isinstance(state, Done)
        else:
            asked += draws
            state = step(search, answered(draws, failing))
    return state.result, asked


# the search


def test_the_set_is_evaluated_on_each_background_once():
    tally, asked = run(count_kept(VISIBLE, first=1000, count=100), failing={1003, 1099, 5})
    assert asked == list(range(1000, 1100))
    assert tally == Tally(first=1000, asked=100, failed=(1003, 1099))


def test_it_ends_as_soon_as_the_bound_is_high_enough():
    tally, asked = run(certify(VISIBLE, first=1000, share=0.9, confidence=0.95))
    assert asked == list(range(1000, 1000 + len(asked)))
    assert anytime_bound(len(asked), 0, 0.9) >= 0.9 > anytime_bound(len(asked) - 1, 0, 0.9)
    later, _ = run(certify(VISIBLE, first=1000, share=0.9, confidence=0.95), failing={1000})
    assert later.asked > tally.asked


def test_it_ends_once_it_is_hopeless():
    tally, asked = run(certify(VISIBLE, first=0, share=0.9, confidence=0.95), failing=set(range(20)))
    assert asked == list(range(WAVE))
    assert tally == Tally(0, WAVE, tuple(range(20)))
    assert is_hopeless(tally, 0.9)
    assert [is_hopeless(Tally(0, n, (0, 1, 2)), 0.9) for n in (5, 29, 30, 100)] == [True, True, False, False]


def test_it_ends_in_any_case():
    """A tenth fails: nothing is ever shown, and for long nothing is hopeless."""
    tally, asked = run(certify(VISIBLE, first=0, share=0.9, confidence=0.95), failing=set(range(14, 10_000, 16)))
    assert tally.asked == len(asked) <= most_backgrounds(0.9) == 400


def test_stopped_it_counts_the_answers_there_are():
    tally, _ = run(certify(VISIBLE, first=0, share=0.9, confidence=0.95), failing={33}, stop_after=40)
    assert tally == Tally(0, 40, (33,))
    assert run(count_kept(VISIBLE, first=0, count=100), failing={33}, stop_after=40)[0] == tally
    assert run(certify(VISIBLE, first=0, share=0.9, confidence=0.95), stop_after=0)[0] == Tally(0, 0, ())


@settings(max_examples=60, deadline=None)
@given(st.sets(st.integers(0, 149)), st.sampled_from([0.5, 0.8, 0.9]))
def test_what_is_certified_has_the_bound(failing, share):
    tally, asked = run(certify(VISIBLE, first=0, share=share, confidence=0.95), failing)
    assert tally.failed == tuple(number for number in asked if number in failing)
    is_shown = anytime_bound(tally.kept, tally.failures, share) >= share
    assert is_shown or is_hopeless(tally, share) or tally.asked == most_backgrounds(share)


def test_transfer_is_the_share_of_held_out_backgrounds_with_its_interval():
    found, asked = run(transfer(VISIBLE, first=500, count=50), failing=set(range(500, 520)))
    assert asked == list(range(500, 550))  # all of them, however many fail
    assert found == Transfer(30, 50, *exact_interval(30, 50))
    assert found.share == 0.6
    assert run(transfer(VISIBLE, first=0, count=9))[0].low == exact_interval(9, 9)[0]
    nothing, _ = run(transfer(VISIBLE, first=0, count=50), stop_after=0)
    assert np.isnan(nothing.share)
    assert (nothing.low, nothing.high) == (0.0, 1.0)


def test_the_engine_evaluates_the_set_on_these_backgrounds():
    """The slow twin: compose every mutant and classify it."""

    def brightest(batch):  # of the four corners
        corners = batch[:, [0, 0, -1, -1], [0, -1, 0, -1]].mean(axis=-1) + 1.0
        return corners / corners.sum(axis=1, keepdims=True)

    view = np.zeros((12, 12, 3), np.uint8)
    view[0, 0] = 160
    visible = np.zeros((12, 12), bool)
    visible[0, 0] = True
    drawn = RandomBackgrounds(view, 3)
    problem = Problem(view, (view,), Target(0), sampler=drawn)
    found = Engine(as_classifier(brightest)).run(problem, count_kept(visible, first=20, count=60)).result
    mutants = np.stack([np.where(visible[..., None], view, drawn.draw(number)) for number in range(20, 80)])
    failed = tuple(20 + int(row) for row in np.flatnonzero(brightest(mutants).argmax(axis=1) != 0))
    assert found == Tally(20, 60, failed)
    assert 0 < found.failures < 60


# records

GOOD = Certificate(0.9, 100, 1, anytime_bound(99, 1, 0.9), 0.95, 1000, FROM)


def test_a_record_goes_through_json():
    assert GOOD.holds
    assert GOOD.kept == 99
    assert Certificate.from_record(json.loads(json.dumps(GOOD.record()))) == GOOD
    assert {GOOD: 1}[GOOD] == 1


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"share": 1.0}, "share"),
        ({"share": 0}, "share"),
        ({"share": "most"}, "share"),
        ({"confidence": 1.0}, "confidence"),
        ({"confidence": float("nan")}, "confidence"),
        ({"asked": 10**9}, "asked"),
        ({"asked": 2.5}, "asked"),
        ({"asked": True}, "asked"),
        ({"failures": -1}, "failures"),
        ({"failures": 101}, "failures"),
        ({"first": -1}, "first"),
        ({"bound": 0.99}, "bound"),  # more than the counts show
        ({"bound": -0.1}, "bound"),
        ({"bound": None}, "bound"),
        ({"failures": 50}, "bound"),
        ({"asked": 0, "failures": 0}, "bound"),
        ({"backgrounds": []}, "backgrounds"),
        ({"backgrounds": {"kind": ["becausal"]}}, "backgrounds"),
        ({"other": 1}, "other"),
    ],
)
def test_a_record_that_cannot_be_true_is_refused(change, expected):
    with pytest.raises(OptionError, match=expected) as refused:
        Certificate.from_record(GOOD.record() | change, "levels[3].certificate")
    assert "levels[3].certificate" in str(refused.value)


@pytest.mark.parametrize("name", sorted(GOOD.record()))
def test_every_field_is_required(name):
    with pytest.raises(OptionError, match=f"certificate.{name} is missing"):
        Certificate.from_record({key: value for key, value in GOOD.record().items() if key != name})
    with pytest.raises(OptionError, match="expected an object"):
        Certificate.from_record(None)
