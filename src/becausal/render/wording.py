"""Numbers and results in plain words, the same on pages, in figures and on the command line."""

import math
import shlex
from dataclasses import dataclass, replace
from typing import Any

from becausal.core.explanation import ExplanationRecord


@dataclass(frozen=True)
class Check:
    """One property of an explanation in words.

    Attributes:
        name: The property, e.g. sufficient.
        holds: Whether it holds; None where that is neither good nor bad.
        answer: The result in a few words.
        meaning: What the result means.
    """

    name: str
    holds: bool | None
    answer: str
    meaning: str


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


def format_label(explanation: ExplanationRecord) -> str:
    """The label and, if known, the model's confidence in it on the whole view: bus (0.97)."""
    confidence = format_confidence(explanation.confidence)
    return f"{explanation.label} ({confidence})" if confidence else explanation.label


def format_count(number: int, noun: str) -> str:
    """1 piece, 2 pieces, 1,555 pixels."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def unit_name(explanation: ExplanationRecord) -> str:
    """What one element of the view is called."""
    return {1: "sample", 3: "voxel"}.get(explanation.visible.ndim, "pixel")


def describe_extent(explanation: ExplanationRecord) -> str:
    """The size of the explanation: 0.56 % of the view: 92 pixels in 3 pieces."""
    count = format_count(explanation.pixels, unit_name(explanation))
    return f"{format_share(explanation.size)} of the view: {count} in {format_count(explanation.pieces, 'piece')}"


def describe_others(explanation: ExplanationRecord) -> list[str]:
    """The further explanations, one line each; only their sufficiency was checked."""
    others = [replace(explanation, visible=visible) for visible in explanation.others]
    return [f"{describe_extent(other)}, also sufficient on its own" for other in others]


def describe_target(explanation: ExplanationRecord) -> str:
    """The condition that every sufficient set has to meet."""
    target = explanation.target
    if target.threshold is not None:
        rule = f"{explanation.label} has a probability of at least {target.threshold:g}"
    elif target.against is not None:
        rule = f"{explanation.label} stays ahead of class {target.against}"
    elif target.top > 1:
        rule = f"{explanation.label} stays among the top {target.top} labels"
    else:
        rule = f"{explanation.label} stays the top label"
    return f"{rule}, with a confidence of at least {target.floor:.2f}" if target.floor > 0 else rule


def describe_checks(explanation: ExplanationRecord) -> list[Check]:
    """Every check of the explanation."""
    checks, unit = explanation.checks, unit_name(explanation)
    kept = "the label and its confidence" if explanation.target.floor > 0 else "the label"
    alone = format_confidence(checks.confidence)
    return [
        Check(
            "sufficient",
            checks.sufficient,
            "yes" if checks.sufficient else "no",
            f"these {unit}s alone, with all others masked, keep {kept}"
            if checks.sufficient
            else f"these {unit}s alone do not keep {kept}",
        ),
        _describe_minimality(explanation),
        _describe_necessity(explanation),
        Check(
            "confidence alone",
            None,
            alone or "unknown",
            f"the whole view has {format_confidence(explanation.confidence)}"
            if alone
            else "not measured, or the model returns labels only",
        ),
        Check(
            "pieces",
            None,
            f"{explanation.pieces:,}",
            "connected components" if unit == "sample" else "connected components, diagonals excluded",
        ),
    ]


def _describe_minimality(explanation: ExplanationRecord) -> Check:
    grain, unit = explanation.checks.minimal_grain, unit_name(explanation)
    if grain is None:
        answer = "not checked" if explanation.origin.grain is None else "not established"
        return Check("minimal", None, answer, "parts of it may be removable")
    side = " × ".join([str(grain)] * explanation.visible.ndim)
    cell = f"single {unit}" if grain == 1 else f"cell of {side} {unit}s"
    tested = f" ({format_count(explanation.checks.cells, 'removal')} tested)" if explanation.checks.cells else ""
    loss = f"{_lost(explanation)}, or the set's necessity" if explanation.origin.contrast else _lost(explanation)
    size = f"{grain} px" if unit == "pixel" else format_count(grain, unit)
    return Check("minimal", True, f"yes, at {size}", f"no {cell} can be removed without losing {loss}{tested}")


def _lost(explanation: ExplanationRecord) -> str:
    """What is lost where the target is not met."""
    return "the label or its confidence" if explanation.target.floor > 0 else "the label"


def _describe_necessity(explanation: ExplanationRecord) -> Check:
    necessary, lost = explanation.checks.necessary, _lost(explanation)
    masked = f"when these {unit_name(explanation)}s are masked"
    if necessary is None:
        return Check("necessary", None, "not checked", f"whether {lost} is lost {masked}")
    if necessary:
        return Check("necessary", True, "yes", f"{masked}, {lost} is lost")
    # Not a defect, and not marked as one: a label may have several causes.
    stays = "the label stays" if explanation.target.floor <= 0 else "the label and its confidence stay"
    return Check("necessary", None, "no", f"{masked}, {stays}: other regions are sufficient too")


def describe_stop(explanation: ExplanationRecord) -> str:
    """A warning for a search that ended early; empty for one that finished."""
    limit = explanation.origin.max_calls
    reason = {
        "budget": f"The limit of {limit:,} model calls was reached" if limit is not None else "The limit was reached",
        "interrupt": "The search was interrupted",
        "failure": "The model failed",
    }.get(explanation.stopped_by)
    if reason is None:
        return ""
    return f"{reason} before the search finished. This is the best explanation found so far; a smaller one may exist."


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


def format_command(explanation: ExplanationRecord) -> str:
    """The command line that reproduces the explanation, on several lines."""
    origin, target = explanation.origin, explanation.target
    lines = [["becausal", "explain", origin.image], ["--model", origin.model]]
    for key, value in origin.loading.items():
        lines[-1] += _format_option(key, value)
    lines.append(["--method", origin.method])
    for key, value in origin.options.items():
        if not isinstance(value, dict):  # the tuning of causal can be set from Python only
            lines[-1] += ["--option", f"{key}={value}"]
    lines.append(["--target", str(explanation.label_id)])
    if target.against is not None:
        lines[-1] += ["--against", str(target.against)]
    if target.top > 1:
        lines[-1] += ["--top", str(target.top)]
    if target.floor > 0 and explanation.confidence > 0:
        lines[-1] += ["--confidence", f"{min(1.0, target.floor / explanation.confidence):.6g}"]
    lines.append([word for fill in origin.fills for word in ("--fill", fill)])
    lines[-1] += ["--grain", "none" if origin.grain is None else str(origin.grain), "--seed", str(origin.seed)]
    if origin.contrast:
        lines[-1].append("--contrast")
    if origin.request.several > 1:
        lines[-1] += ["--several", str(origin.request.several)]
    if origin.max_calls is not None:
        lines[-1] += ["--max-calls", str(origin.max_calls)]
    return " \\\n    ".join(shlex.join(line) for line in lines if line)


def _format_option(key: str, value: Any) -> list[str]:
    """A loading option as arguments of the command line; empty for a default."""
    name = f"--{key.replace('_', '-')}"
    if isinstance(value, list):
        return [word for item in value for word in (name, str(item))]
    if not isinstance(value, (str, int, float)) or value is False:
        return []
    return [name] if value is True else [name, str(value)]
