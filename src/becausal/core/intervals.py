"""Confidence intervals of shares."""

from math import sqrt
from statistics import NormalDist


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
