"""What ended a search, and what it cost, in words."""

from becausal.core.explanation import ExplanationRecord
from becausal.core.text import format_cost


def describe_stop(explanation: ExplanationRecord) -> str:
    """A warning for a search that ended early; empty for one that finished."""
    limit, calls = explanation.origin.request.max_calls, explanation.calls
    match explanation.stopped_by:
        case "budget":
            allowed = "on" if limit is None else f"of {limit:,}"
            what = f"The limit {allowed} model calls was reached before the search finished."
            if limit is not None and calls < limit:
                what = (
                    f"The limit of {limit:,} model calls ended the search after {calls:,}: the rest was too little to go on."
                )
        case "interrupt":
            what = "The search was interrupted."
        case "failure":
            failed = name_failure(explanation)
            what = f"{failed[0].upper()}{failed[1:]} before the search finished."
        case _:
            return ""
    return f"{what} This is the best explanation found so far; a smaller one may exist."


def name_failure(explanation: ExplanationRecord) -> str:
    """What ended a search that failed, in a few words. The last note has the reason."""
    reason = explanation.notes[-1] if explanation.notes else ""
    if reason.startswith("the background function "):
        return "the background function failed"
    return "a background could not be read" if reason.startswith("the background ") else "the model failed"


def describe_price(explanation: ExplanationRecord) -> str:
    """The price of the calls, and the budget, for an endpoint with a price per image; else empty.

    The amount spent may be lower, since cached answers are free.
    """
    pairs = [option.partition("=") for option in explanation.origin.loading.get("endpoint", ())]
    prices = [float(value) for name, _, value in pairs if name == "price"]
    if not prices:
        return ""
    limit = explanation.origin.request.max_calls
    budget = f" (budget {format_cost(limit * prices[-1])})" if limit is not None else ""
    return f"priced at {format_cost(explanation.calls * prices[-1])}{budget}"
