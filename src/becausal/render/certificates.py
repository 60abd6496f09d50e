"""What certificates say, in plain words."""

import math

from becausal.core.certificates import Certificate


def describe_share(certificate: Certificate) -> str:
    """The share that was required, never rounded: at least 90 % of backgrounds."""
    return f"at least {100 * certificate.share:g} % of backgrounds"


def describe_certificate(certificate: Certificate) -> str:
    """What was shown: holds on at least 90 % of backgrounds (99 of 100 evaluated, 95 % confidence)."""
    share = describe_share(certificate)
    counts = f"{certificate.kept:,} of {certificate.asked:,} evaluated"
    confidence = f"{100 * certificate.confidence:g} % confidence"
    if certificate.holds:
        return f"holds on {share} ({counts}, {confidence})"
    shown = math.floor(1000 * certificate.bound) / 10  # never rounded up
    return f"NOT shown to hold on {share} ({counts}: at least {shown:g} % with {confidence})"
