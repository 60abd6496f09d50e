"""Confidence intervals of shares: Wilson's, and the exact ones of Clopper and Pearson."""

from bisect import bisect_left
from functools import lru_cache
from math import exp, lgamma, log, log1p, sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

MOST_CASES = 10_000  # up to here the exact bounds are accurate to 1e-9
_STEP = 1e-15  # of the bisection; below it, numbers next to 1 have nothing between them


def wilson_interval(count: int, total: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's two-sided interval of a share.

    Args:
        count: Number of cases among `total`.
        total: Number of cases in all, at least 1.
        confidence: How often such an interval contains the true share, above 0 and below 1.

    Returns:
        The lower and the upper bound; exactly 0 for no case, exactly 1 for all.
    """
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share, weight = count / total, z**2 / total
    middle = (share + weight / 2) / (1 + weight)
    half = z * sqrt(share * (1 - share) / total + weight / (4 * total)) / (1 + weight)
    return (0.0 if count == 0 else max(0.0, middle - half)), (1.0 if count == total else min(1.0, middle + half))


def lower_bound(count: int, total: int, confidence: float = 0.95) -> float:
    """The exact one-sided lower bound of a share (Clopper and Pearson, 1934).

    It is the share for which `count` or more cases have a probability of 1 - confidence. Whatever the true share is, the
    bound exceeds it with at most this probability.

    Args:
        count: Number of cases among `total`.
        total: Number of cases in all, 1 to MOST_CASES.
        confidence: How often such a bound is right, at least; above 0 and below 1.

    Returns:
        The bound; exactly 0 for no case. It is rounded downwards, by less than 1e-9.
    """
    if count == 0:
        return 0.0
    weights = _log_binomials(total)[count:]
    cases = np.arange(count, total + 1)
    low, high = 0.0, 1.0
    while high - low > _STEP:
        middle = (low + high) / 2
        if _sum_of_logs(weights + cases * log(middle) + (total - cases) * log1p(-middle)) <= 1 - confidence:
            low = middle
        else:
            high = middle
    return low


def exact_interval(count: int, total: int, confidence: float = 0.95) -> tuple[float, float]:
    """The exact two-sided interval of a share (Clopper and Pearson, 1934): each side is wrong half as often.

    Args:
        count: Number of cases among `total`.
        total: Number of cases in all, 1 to MOST_CASES.
        confidence: How often such an interval contains the true share, at least; above 0 and below 1.

    Returns:
        The lower and the upper bound; exactly 0 for no case, exactly 1 for all.
    """
    each = (1 + confidence) / 2
    return lower_bound(count, total, each), 1.0 - lower_bound(total - count, total, each)


def allowed_failures(total: int, share: float, confidence: float = 0.95) -> int | None:
    """The most failures among `total` cases with which the lower bound of the others is still at least `share`.

    None where even no failure is too few: more cases are needed.
    """
    first_too_many = bisect_left(
        range(total + 1), True, key=lambda failures: lower_bound(total - failures, total, confidence) < share
    )
    return first_too_many - 1 if first_too_many else None


@lru_cache(maxsize=8)
def _log_binomials(total: int) -> NDArray[np.float64]:
    """The logarithms of all binomial coefficients of `total`, (total + 1,)."""
    logs = np.array([lgamma(k + 1.0) for k in range(total + 1)])
    return np.asarray(logs[-1] - logs - logs[::-1], np.float64)


def _sum_of_logs(logs: NDArray[np.float64]) -> float:
    """The sum of values given as logarithms."""
    largest = float(logs.max())
    return exp(largest) * float(np.exp(logs - largest).sum())
