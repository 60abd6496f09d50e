"""What else can be asked about an explanation, in a sentence each, in the terminal and in the report."""

from becausal.core.explanation import ExplanationRecord
from becausal.core.options import list_options
from becausal.core.request import Request

_ONE_FILL = ("smallest", "confidence", "contrast", "several", "fills")  # options that ask for one kind of set, in one fill
_RANDOM = ("causal", "dc-causal")  # methods that find their sets with random choices


def list_hints(explanation: ExplanationRecord) -> list[tuple[str, str]]:
    """A word and a sentence for what was not asked: what holds on random backgrounds, what another seed finds."""
    request, hints = explanation.origin.request, []
    if request.share_held is None:
        named = {option.name: option.flag for option in list_options(Request)
                 if option.name in _ONE_FILL and getattr(request, option.name) != option.default}  # fmt: skip
        if len(named) > 1 and len(request.fills) == 1:  # it may have been chosen for the image
            named.pop("fills", None)
        fills = "one fill" if len(request.fills) == 1 else "these fills"
        ask = f"leave out {' and '.join(named.values())} to get `enough`, which holds on random backgrounds"
        hints.append(("scope", f"one kind of set was asked for, in {fills}: {ask}"))
    if request.seeds == 1 and explanation.origin.method in _RANDOM and explanation.stopped_by == "finished":
        hints.append(("seeds", "another seed may find another set: --seeds 4 shows how much they differ"))
    return hints
