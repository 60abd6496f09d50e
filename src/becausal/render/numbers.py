"""Numbers as text, the same everywhere: shares, confidences, counts."""

import math


def format_share(share: float) -> str:
    """A share in per cent with two significant digits: 3.1 %, 0.042 %, 28 %."""
    percent = 100 * share
    if percent >= 9.95 or percent == 0:
        return f"{percent:.0f} %"
    return f"{percent:.{max(1, 1 - math.floor(math.log10(percent)))}f} %"


def format_confidence(confidence: float) -> str:
    """A probability with two decimals, never rounded to 0 or 1; empty for NaN (a model that returns labels only)."""
    if math.isnan(confidence):
        return ""
    if 0.995 <= confidence < 1:
        return ">0.99"
    if 0 < confidence < 0.005:
        return "<0.01"
    return f"{confidence:.2f}"


def format_limit(share: float) -> str:
    """A share as it was given, in per cent: 5 %, 0.1 %."""
    return f"{100 * share:g} %"


def format_count(number: int, noun: str) -> str:
    """1 piece, 2 pieces, 1,555 pixels, 3 boxes."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}{'es' if noun.endswith('x') else 's'}"
