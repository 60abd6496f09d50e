"""The command line that reproduces an explanation."""

import shlex
from typing import Any

from becausal.core.explanation import ExplanationRecord
from becausal.core.options import as_words, option_words
from becausal.core.request import Request


def format_command(explanation: ExplanationRecord) -> str:
    """The command line that reproduces the explanation from any folder, on several lines; defaults are left out."""
    origin, target, request = explanation.origin, explanation.target, explanation.origin.request
    loading = dict(origin.loading)
    if not isinstance(loading.get("labels", ""), str):  # names, which were read from a file, as a rule
        loading["labels"] = origin.path_of("labels")
    asked = request.record() | {"method": origin.method, "fills": origin.fills, "top": target.top}
    if origin.method != request.method:  # an explainer, given in Python
        asked["options"] = origin.options
    if target.against is not None and request.against is None:
        asked["against"] = target.against
    lines = [
        ["becausal", "explain", origin.path_of("image") or origin.image],
        ["--model", origin.model, *(word for name, value in loading.items() for word in _loading_words(name, value))],
        as_words(Request, asked),
    ]
    return " \\\n    ".join(shlex.join(line) for line in lines if line)


def _loading_words(name: str, value: Any) -> list[str]:
    """A loading option; a normalisation of one's own can be given from Python only."""
    return [] if isinstance(value, dict) else option_words(f"--{name.replace('_', '-')}", value)
