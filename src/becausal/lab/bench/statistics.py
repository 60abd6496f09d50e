"""Bootstrap intervals, paired comparisons and cumulative shares; deterministic."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from becausal.core.intervals import wilson_interval

RESAMPLES = 2000  # of each bootstrap; Efron and Tibshirani (1993) advise 1,000 or more for percentiles
FLIPS = 10_000  # random signs of each test; the smallest p value is 1 in so many
LEVEL = 0.95  # of the intervals
SEED = 0  # the same for all estimates, so that the same rows give the same tables


@dataclass(frozen=True)
class Estimate:
    """The mean of n values, or a share, with a 95 % interval; NaN without values."""

    mean: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Difference:
    """One method minus another on the images that both explained.

    Attributes:
        difference: The mean difference.
        lower: Number of images on which the first method is lower.
        higher: Number of images on which it is higher.
        equal: Number of images on which both are equal.
        p: Probability of a mean difference at least as large if the sign of each difference were random.
    """

    difference: Estimate
    lower: int
    higher: int
    equal: int
    p: float


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of values and its percentile bootstrap interval."""
    data = _clean(values)
    if not len(data):
        return Estimate(float("nan"), float("nan"), float("nan"), 0)
    low, high = _interval(_resampled_means(data, np.random.default_rng(SEED)))
    return Estimate(float(data.mean()), low, high, len(data))


def estimate_share(flags: Sequence[float]) -> Estimate:
    """The share of flags (0 or 1) that are 1, and its interval.

    The interval is a bootstrap interval or, where all flags are equal and resampling gives no interval, Wilson's.
    """
    data = _clean(flags)
    found = estimate(flags)
    if not len(data) or data.min() != data.max() or data[0] not in (0.0, 1.0):
        return found
    return Estimate(float(data.mean()), *wilson_interval(int(data.sum()), len(data), LEVEL), len(data))


def compare_paired(one: Mapping[str, float], other: Mapping[str, float]) -> Difference:
    """`one` minus `other`, value by value, over their common names."""
    names = sorted(one.keys() & other.keys())
    gaps = _clean([one[name] - other[name] for name in names])
    lower, higher = int((gaps < 0).sum()), int((gaps > 0).sum())
    return Difference(estimate(list(gaps)), lower, higher, len(gaps) - lower - higher, _sign_flip(gaps))


def difference_of_means(one: Sequence[float], other: Sequence[float]) -> Estimate:
    """The mean of one group minus that of another, with a bootstrap interval; n is the size of the smaller group."""
    a, b = _clean(one), _clean(other)
    if not len(a) or not len(b):
        return Estimate(float("nan"), float("nan"), float("nan"), 0)
    first, second = np.random.default_rng(SEED).spawn(2)
    low, high = _interval(_resampled_means(a, first) - _resampled_means(b, second))
    return Estimate(float(a.mean() - b.mean()), low, high, min(len(a), len(b)))


def holm_adjust(ps: Sequence[float]) -> list[float]:
    """p values of several comparisons with Holm's correction, in the order given."""
    out = [float("nan")] * len(ps)
    known = sorted((p, i) for i, p in enumerate(ps) if p == p)
    largest = 0.0
    for rank, (p, i) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - rank) * p))
        out[i] = largest
    return out


def cumulative_share(values: Sequence[float], bounds: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each bound the share of values that do not exceed it, (bounds,)."""
    data = np.sort(_clean(values))
    return np.searchsorted(data, bounds + 1e-12, side="right") / max(1, len(data))


def _clean(values: Sequence[float]) -> NDArray[np.float64]:
    data = np.asarray(values, np.float64)
    return data[np.isfinite(data)]


def _resampled_means(data: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    chosen = rng.integers(0, len(data), (RESAMPLES, len(data)))
    return np.asarray(data[chosen].mean(axis=1), np.float64)


def _interval(means: NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _sign_flip(gaps: NDArray[np.float64]) -> float:
    if not len(gaps):
        return float("nan")
    rng = np.random.default_rng(SEED)
    signs = rng.integers(0, 2, (FLIPS, len(gaps)), dtype=np.int8) * 2 - 1
    flipped = np.abs((signs * gaps).mean(axis=1))
    return float((1 + (flipped >= abs(gaps.mean()) - 1e-12).sum()) / (FLIPS + 1))
