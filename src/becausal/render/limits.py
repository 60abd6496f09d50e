"""What ended a search early, and what its calls cost, in plain words."""

from becausal.core.explanation import ExplanationRecord


def describe_stop(explanation: ExplanationRecord) -> str:
    """A warning for a search that ended early; empty for one that finished."""
    reason = {
        "budget": _describe_limit(explanation),
        "interrupt": "The search was interrupted.",
        "failure": f"{(what := name_failure(explanation))[0].upper()}{what[1:]} before the search finished.",
    }.get(explanation.stopped_by)
    return f"{reason} This is the best explanation found so far; a smaller one may exist." if reason else ""


def name_failure(explanation: ExplanationRecord) -> str:
    """What ended a search that failed, in a few words. The last note has the reason."""
    reason = explanation.notes[-1] if explanation.notes else ""
    if reason.startswith("the background function "):
        return "the background function failed"
    return "a background could not be read" if reason.startswith("the background ") else "the model failed"


def _describe_limit(explanation: ExplanationRecord) -> str:
    limit, calls = explanation.origin.max_calls, explanation.calls
    if limit is None or calls >= limit:
        return f"The limit {'on' if limit is None else f'of {limit:,}'} model calls was reached before the search finished."
    return (
        f"The limit of {limit:,} model calls ended the search after {calls:,}: the rest was reserved for extracting and "
        "checking the explanation, which took fewer calls, or was too small for the next step."
    )


def describe_price(explanation: ExplanationRecord) -> str:
    """The price of the calls, and the budget, for an endpoint with a price per image; else empty.

    The amount spent may be lower, since cached answers are free.
    """
    pairs = [option.partition("=") for option in explanation.origin.loading.get("endpoint", ())]
    prices = [float(value) for name, _, value in pairs if name == "price"]
    if not prices:
        return ""
    limit = explanation.origin.max_calls
    budget = f" (budget {limit * prices[-1]:,.2f})" if limit is not None else ""
    return f"priced at {explanation.calls * prices[-1]:,.2f}{budget}"
