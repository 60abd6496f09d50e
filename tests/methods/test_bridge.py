"""A library with a callback as a search: turns, results, errors, stops, threads, random numbers."""

import gc
import threading

import numpy as np
import pytest

from becausal.core.contracts import Answers, Done, Stop, step
from becausal.methods.bridge import SearchStopped, bridge

QUESTION = np.ones((1, 2, 2), bool)


def replies(*confidences):
    values = np.array(confidences, float)
    return Answers(values >= 0.5, values - 0.5, values)


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "becausal-bridge"]


@pytest.fixture(autouse=True)
def no_thread_left_behind():
    yield
    gc.collect()
    assert not threads()


def ask_thrice(ask):
    return [float(ask(QUESTION).confidence[0]) for _ in range(3)]


def test_each_call_is_one_wave_and_the_result_comes_out():
    search = bridge(ask_thrice, seed=0)
    wave = step(search, None)
    for value in (0.1, 0.2, 0.3):
        assert np.array_equal(wave, QUESTION)
        wave = step(search, replies(value))
    assert wave == Done([0.1, 0.2, 0.3])


def test_a_function_that_asks_nothing():
    assert step(bridge(lambda ask: 7, seed=0), None) == Done(7)


def test_an_error_of_the_library_comes_out_as_it_was():
    def fail(ask):
        ask(QUESTION)
        raise ZeroDivisionError("theirs")

    search = bridge(fail, seed=0)
    step(search, None)
    with pytest.raises(ZeroDivisionError, match="theirs"):
        step(search, replies(1.0))


def test_told_to_stop_it_returns_none_whatever_the_library_swallows():
    tries = []

    def stubborn(ask):
        for _ in range(3):
            try:
                ask(QUESTION)
            except Exception:  # what libraries do
                tries.append("swallowed")
        return "done"

    search = bridge(stubborn, seed=0)
    step(search, None)
    assert step(search, Stop("budget")) == Done(None)
    assert not tries


def test_a_function_may_catch_the_end_and_return_its_best_but_ask_no_more():
    def modest(ask):
        best = []
        try:
            best.append(float(ask(QUESTION).confidence[0]))
            ask(np.ones((3, 2, 2), bool))
        except SearchStopped as stop:
            best.extend(stop.answers.confidence.tolist())
        with pytest.raises(SearchStopped):
            ask(QUESTION)
        return best

    search = bridge(modest, seed=0)
    step(search, None)
    step(search, replies(0.9))
    assert step(search, Stop("budget", replies(0.1, 0.2))) == Done([0.9, 0.1, 0.2])


def test_a_search_given_up_leaves_no_thread():
    search = bridge(ask_thrice, seed=0)
    step(search, None)
    assert len(threads()) == 1
    search.close()
    assert not threads()
    search = bridge(ask_thrice, seed=0)
    step(search, None)
    del search  # and so does one that is only forgotten
    gc.collect()
    assert not threads()


def test_two_run_side_by_side():
    one, two = bridge(ask_thrice, seed=0), bridge(ask_thrice, seed=0)
    states = [step(one, None), step(two, None)]
    for value in (0.1, 0.2, 0.3):
        states = [step(one, replies(value)), step(two, replies(value + 0.5))]
    assert states == [Done([0.1, 0.2, 0.3]), Done([0.6, 0.7, 0.8])]


def test_global_random_numbers_are_seeded_for_the_library_and_put_back_for_everyone_else():
    def gamble(ask):
        drawn = [np.random.randn()]  # noqa: NPY002
        ask(QUESTION)
        return [*drawn, np.random.randn()]  # noqa: NPY002

    def play(disturb):
        search = bridge(gamble, seed=3)
        step(search, None)
        if disturb:
            np.random.seed(99)  # noqa: NPY002
        return step(search, replies(1.0)).result

    before = np.random.get_state()  # noqa: NPY002
    first = play(disturb=False)
    after = np.random.get_state()  # noqa: NPY002
    assert np.array_equal(before[1], after[1])
    assert first == play(disturb=True)
