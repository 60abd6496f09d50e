"""Confidence intervals of shares: Wilson's, the exact ones of Clopper and Pearson, and a bound that is valid at any time."""

from functools import lru_cache
from math import exp, lgamma, log, log1p, sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

MOST_CASES = 10_000  # up to here the exact bounds are accurate to 1e-9
EXPECTED = 0.3  # of the permitted failures; a set that is offered for a certificate should fail more rarely than it may
_STEP = 1e-15  # of the bisection; below it, numbers next to 1 have nothing between them


def wilson_interval(count: int, total: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's two-sided interval of the share of `count` cases among `total`, 1 or more; from 0 for none, to 1 for all."""
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share, weight = count / total, z**2 / total
    middle = (share + weight / 2) / (1 + weight)
    half = z * sqrt(share * (1 - share) / total + weight / (4 * total)) / (1 + weight)
    return (0.0 if count == 0 else max(0.0, middle - half)), (1.0 if count == total else min(1.0, middle + half))


def lower_bound(count: int, total: int, confidence: float = 0.95) -> float:
    """The exact one-sided lower bound of a share (Clopper and Pearson, 1934).

    It is the share for which `count` or more cases of `total`, 1 to MOST_CASES, have a probability of 1 - confidence.
    Whatever the true share is, the bound exceeds it with at most this probability. It is exactly 0 for no case, and rounded
    downwards, by less than 1e-9.
    """
    if count == 0:
        return 0.0
    weights = _log_binomials(total)[count:]
    cases = np.arange(count, total + 1)
    low, high = 0.0, 1.0
    while high - low > _STEP:
        middle = (low + high) / 2
        # The probability is a sum of terms that may be as small as 1e-3000, so it is taken relative to the largest of them.
        logs = weights + cases * log(middle) + (total - cases) * log1p(-middle)
        largest = float(logs.max())
        is_below = exp(largest) * float(np.exp(logs - largest).sum()) <= 1 - confidence
        low, high = (middle, high) if is_below else (low, middle)
    return low


def exact_interval(count: int, total: int, confidence: float = 0.95) -> tuple[float, float]:
    """The exact two-sided interval of a share (Clopper and Pearson, 1934): each side is wrong half as often."""
    each = (1 + confidence) / 2
    return lower_bound(count, total, each), 1.0 - lower_bound(total - count, total, each)


def log_evidence(kept: int, failed: int, share: float, against: float) -> float:
    """The logarithm of how much better the counts fit shares that are likely above `share` than the share `against`.

    It is a mixture likelihood ratio: the likelihood of the counts, averaged over shares p with the density a p^(a - 1), is
    divided by their likelihood for `against`. The mean failure rate of that density is EXPECTED of what `share` permits. If
    `against` is the true share, the ratio is a martingale with mean 1: the probability that it ever reaches x is at most
    1 / x (Ville, 1939), however often one looks at it.

    kept, failed: the counts. share, against: above 0 and below 1; what is hoped for is above `share`.
    """
    a = 1 / (EXPECTED * (1 - share)) - 1
    mixture = lgamma(a + kept) + lgamma(failed + 1.0) - lgamma(a + kept + failed + 1.0) + log(a)
    return mixture - kept * log(against) - failed * log1p(-against)


def anytime_bound(kept: int, failed: int, share: float, confidence: float = 0.95) -> float:
    """A lower bound of a share that is right whenever the counting ended, e.g. as soon as the bound was high enough.

    It is the smallest share against which the evidence is too weak. With probability `confidence`, at least, the bound is
    below the true share after every case. It is tightest for shares somewhat above `share`, which it is meant to reach. It
    is exactly 0 for no case, and rounded downwards, by less than 1e-9.
    """
    if kept == 0:
        return 0.0
    enough = -log(1 - confidence)
    low, high = 0.0, kept / (kept + failed)
    while high - low > _STEP:
        middle = (low + high) / 2
        low, high = (middle, high) if log_evidence(kept, failed, share, middle) >= enough else (low, middle)
    return low


@lru_cache(maxsize=8)
def _log_binomials(total: int) -> NDArray[np.float64]:
    """The logarithms of all binomial coefficients of `total`, (total + 1,)."""
    logs = np.array([lgamma(k + 1.0) for k in range(total + 1)])
    return np.asarray(logs[-1] - logs - logs[::-1], np.float64)
