"""Bounds of shares, compared with their definition in fractions, and their coverage by enumeration."""

from decimal import Decimal, localcontext
from fractions import Fraction
from math import comb, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from becausal.core.intervals import EXPECTED, MOST_CASES, anytime_bound, exact_interval, log_evidence, lower_bound

CONFIDENCES = st.sampled_from([0.5, 0.8, 0.9, 0.95, 0.99, 0.999])


@st.composite
def counts(draw, most=60):
    total = draw(st.integers(1, most))
    return draw(st.integers(0, total)), total


def tail(count, total, share):
    """The probability of `count` or more cases among `total`, from the definition; exact for a Fraction."""
    return sum(comb(total, k) * share**k * (1 - share) ** (total - k) for k in range(count, total + 1))


def slow_bound(count, total, confidence):
    """The share at which the tail is 1 - confidence, by bisection in fractions."""
    low, high = Fraction(0), Fraction(1)
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if tail(count, total, middle) <= 1 - Fraction(confidence) else (low, middle)
    return float(low)


@settings(max_examples=40, deadline=None)
@given(counts(most=25), CONFIDENCES)
def test_the_bound_is_that_of_the_definition(case, confidence):
    count, total = case
    assert lower_bound(count, total, confidence) == pytest.approx(slow_bound(count, total, confidence), abs=1e-11)


@pytest.mark.parametrize("total", [100, 1000, MOST_CASES])
@pytest.mark.parametrize("share", [0.0005, 0.1, 0.5, 0.9, 0.999, 1.0])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.9999])
def test_many_cases_are_exact_to_nine_digits(total, share, confidence):
    """The tail, added up with 40 digits, is on either side of the error next to the bound."""
    count = max(1, round(share * total))
    found = lower_bound(count, total, confidence)
    with localcontext(prec=40):

        def is_within_error(bound):
            p = Decimal(bound)
            term = added = comb(total, count) * p**count * (1 - p) ** (total - count)
            for k in range(count, total):
                term *= p / (1 - p) * (total - k) / (k + 1)
                added += term
            return added <= 1 - Decimal(confidence)

        assert is_within_error(found - 1e-9)
        assert not is_within_error(found + 1e-9)


def test_known_bounds():
    assert lower_bound(0, 10) == 0.0
    assert lower_bound(29, 29) == pytest.approx(0.05 ** (1 / 29), abs=1e-12)  # all cases: a root of the error
    low, high = exact_interval(0, 20)
    assert (low, high) == (0.0, pytest.approx(1 - 0.025 ** (1 / 20), abs=1e-12))
    assert exact_interval(20, 20)[1] == 1.0


@settings(max_examples=60, deadline=None)
@given(counts(most=300), CONFIDENCES)
def test_bounds_are_monotone_and_on_the_right_side(case, confidence):
    count, total = case
    bound = lower_bound(count, total, confidence)
    low, high = exact_interval(count, total, confidence)
    assert 0.0 <= low <= bound <= 1.0
    assert low <= count / total <= high
    assert lower_bound(count, total + 1, confidence) <= bound  # one more failure
    assert lower_bound(count + 1, total + 1, confidence) >= bound  # one more success
    assert lower_bound(count, total, confidence / 2) >= bound
    assert exact_interval(total - count, total, confidence) == pytest.approx((1 - high, 1 - low), abs=1e-12)


@pytest.mark.parametrize("total", [1, 7, 29, 40])
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_no_true_share_is_exceeded_more_often_than_promised(total, confidence):
    bounds = [lower_bound(count, total, confidence) for count in range(total + 1)]
    intervals = [exact_interval(count, total, confidence) for count in range(total + 1)]
    for step in range(1, 60):
        share = step / 60
        chances = [comb(total, k) * share**k * (1 - share) ** (total - k) for k in range(total + 1)]
        exceeded = sum(chance for chance, bound in zip(chances, bounds, strict=True) if bound > share)
        missed = sum(chance for chance, (low, high) in zip(chances, intervals, strict=True) if not low <= share <= high)
        assert exceeded <= 1 - confidence + 1e-12
        assert missed <= 1 - confidence + 1e-12


# Valid at any time


@pytest.mark.parametrize("share", [0.5, 0.9])
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_a_bound_for_all_times_is_exceeded_no_more_often_than_promised_even_if_one_looks_after_every_case(share, confidence):
    """Exactly, for 120 cases: the probability of all sequences in which the bound was ever above the true share."""
    for true in (0.3, 0.5, 0.7, 0.88, 0.9, 0.93, 0.99):
        paths, wrong = {0: 1.0}, 0.0  # probability of each number of failures, as long as no bound was wrong
        for total in range(1, 121):
            following: dict[int, float] = {}
            for failed, chance in paths.items():
                following[failed] = following.get(failed, 0.0) + chance * true
                following[failed + 1] = following.get(failed + 1, 0.0) + chance * (1 - true)
            above = [f for f in following if log_evidence(total - f, f, share, true) >= -log(1 - confidence)]
            wrong += sum(following.pop(f) for f in above if (total - f) / total > true)
            paths = following
        assert wrong <= 1 - confidence + 1e-12


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 300), st.integers(0, 40), st.sampled_from([0.5, 0.8, 0.9, 0.99]), CONFIDENCES)
def test_the_bound_is_where_the_evidence_is_just_enough_and_below_that_for_one_look(kept, failed, share, confidence):
    bound = anytime_bound(kept, failed, share, confidence)
    if kept == 0:
        assert bound == 0.0
        return
    assert 0.0 <= bound < kept / (kept + failed)
    if bound > 0.01:  # below that, the evidence changes by more than this from one number to the next
        assert log_evidence(kept, failed, share, bound) == pytest.approx(-log(1 - confidence), abs=1e-6)
    assert bound <= lower_bound(kept, kept + failed, confidence) + 1e-9
    assert anytime_bound(kept + 1, failed, share, confidence) >= bound


def test_the_evidence_is_a_mean_of_likelihood_ratios():
    """By numerical integration over the density, from the definition."""
    kept, failed, share, against = 37, 2, 0.9, 0.85
    a = 1 / (EXPECTED * (1 - share)) - 1
    assert 1 - a / (a + 1) == pytest.approx(EXPECTED * (1 - share))  # the mean failure rate
    p = (np.arange(200_000) + 0.5) / 200_000
    mean = np.mean(a * p ** (a - 1) * p**kept * (1 - p) ** failed)
    assert log_evidence(kept, failed, share, against) == pytest.approx(log(mean / (against**kept * (1 - against) ** failed)))


def test_how_many_backgrounds_are_needed_for_nine_of_ten():
    needed = [
        next(n for n in range(1, 400) if anytime_bound(n - failed, failed, 0.9, 0.975) >= 0.9) for failed in (0, 1, 2, 5)
    ]
    assert needed == [44, 69, 91, 148]
