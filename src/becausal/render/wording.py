"""Numbers and claims in plain words, the same on the page, in figures and on the command line."""

import math
import shlex
from dataclasses import dataclass, replace
from typing import Any

from becausal.core.explanation import ExplanationRecord


@dataclass(frozen=True)
class Check:
    """One thing that was checked: its name, whether it holds (None: nothing to be marked), and in words."""

    name: str
    holds: bool | None
    answer: str
    meaning: str


def say_share(share: float) -> str:
    """A share in per cent with two digits that count: 3.1 %, 0.042 %, 28 %."""
    percent = 100 * share
    if percent >= 9.95 or percent == 0:
        return f"{percent:.0f} %"
    return f"{percent:.{max(1, 1 - math.floor(math.log10(percent)))}f} %"


def say_confidence(confidence: float) -> str:
    """A probability with two digits, never rounded up to 1 or down to 0; empty for a model that gives labels only."""
    if math.isnan(confidence):
        return ""
    if 0.995 <= confidence < 1:
        return ">0.99"
    if 0 < confidence < 0.005:
        return "<0.01"
    return f"{confidence:.2f}"


def say_label(explanation: ExplanationRecord) -> str:
    """The label and, where there is one, the classifier's confidence in the whole view: bus (0.97)."""
    confidence = say_confidence(explanation.confidence)
    return f"{explanation.label} ({confidence})" if confidence else explanation.label


def say_count(number: int, noun: str) -> str:
    """1 piece, 2 pieces, 1,555 pixels."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def name_points(explanation: ExplanationRecord) -> str:
    """What the smallest parts of this view are called."""
    return {1: "sample", 3: "voxel"}.get(explanation.visible.ndim, "pixel")


def say_extent(explanation: ExplanationRecord) -> str:
    """How much of the view it is: 0.56 % of the view: 92 pixels in 3 pieces."""
    count = say_count(explanation.pixels, name_points(explanation))
    return f"{say_share(explanation.size)} of the view: {count} in {say_count(explanation.pieces, 'piece')}"


def say_further(explanation: ExplanationRecord) -> list[str]:
    """The further explanations, a line each; the search saw that they keep the target, and nothing more was measured."""
    found = [replace(explanation, visible=other) for other in explanation.others]
    return [f"{say_extent(other)}, also enough alone" for other in found]


def say_target(explanation: ExplanationRecord) -> str:
    """What had to stay true."""
    target = explanation.target
    if target.threshold is not None:
        rule = f"{explanation.label} has a probability of at least {target.threshold:g}"
    elif target.against is not None:
        rule = f"{explanation.label} is ahead of class {target.against}"
    elif target.top > 1:
        rule = f"{explanation.label} is among the first {target.top}"
    else:
        rule = f"the label is {explanation.label}"
    return f"{rule}, with a confidence of at least {target.floor:.2f}" if target.floor > 0 else rule


def name_kept(explanation: ExplanationRecord) -> str:
    """What was to be kept, in two or three words: more than the label where a confidence was asked for too."""
    return "the label and its confidence" if explanation.target.floor > 0 else "the label"


def say_checks(explanation: ExplanationRecord) -> list[Check]:
    """Every check of the explanation, in words."""
    checks, points, kept = explanation.checks, name_points(explanation), name_kept(explanation)
    alone = say_confidence(checks.confidence)
    return [
        Check(
            "sufficient",
            checks.sufficient,
            "yes" if checks.sufficient else "no",
            f"these {points}s alone, all others hidden, keep {kept}"
            if checks.sufficient
            else f"these {points}s alone do not keep {kept}",
        ),
        _say_minimal(explanation),
        _say_necessary(explanation),
        Check(
            "confidence alone",
            None,
            alone or "unknown",
            f"the whole view has {say_confidence(explanation.confidence)}"
            if alone
            else "not measured, or a model that gives labels only",
        ),
        Check("pieces", None, f"{explanation.pieces:,}", "connected parts, touching by a side"),
    ]


def _say_minimal(explanation: ExplanationRecord) -> Check:
    grain, points = explanation.checks.minimal_grain, name_points(explanation)
    if grain is None:
        answer = "not asked" if explanation.origin.grain is None else "not shown"
        return Check("minimal", None, answer, "a part of it might be removable still")
    cell = f"single {points}" if grain == 1 else f"cell of {say_count(grain, points)} a side"
    asked = f" ({say_count(explanation.checks.cells, 'removal')} asked)" if explanation.checks.cells else ""
    unit = "px" if points == "pixel" else points if grain == 1 else f"{points}s"
    said = f"no {cell} can go without losing {_name_lost(explanation)}{asked}"
    return Check("minimal", True, f"yes, at {grain} {unit}", said)


def _name_lost(explanation: ExplanationRecord) -> str:
    """What goes when the target is not met: any one of the things that were asked for."""
    lost = "the label or its confidence" if explanation.target.floor > 0 else "the label"
    return f"{lost}, or leaving it to the rest" if explanation.origin.contrast else lost


def _say_necessary(explanation: ExplanationRecord) -> Check:
    necessary, points = explanation.checks.necessary, name_points(explanation)
    lost = "the label or its confidence" if explanation.target.floor > 0 else "the label"
    if necessary is None:
        return Check("necessary", None, "not asked", f"whether {lost} is lost when these {points}s are hidden")
    if necessary:
        return Check("necessary", True, "yes", f"when these {points}s are hidden, {lost} is lost")
    # Not a defect, so not marked as one: a label may well have several causes.
    stays = "the label stays" if explanation.target.floor <= 0 else "the label and its confidence stay"
    return Check("necessary", None, "no", f"when these {points}s are hidden, {stays}: other parts give it too")


def say_stopped(explanation: ExplanationRecord) -> str:
    """What a reader must know of an answer that was cut short; empty where it was not."""
    what = {
        "budget": f"The budget of {explanation.origin.max_calls:,} calls was spent before the search was done."
        if explanation.origin.max_calls is not None
        else "The budget was spent before the search was done.",
        "interrupt": "The search was interrupted before it was done.",
        "failure": "The model failed before the search was done.",
    }.get(explanation.stopped_by)
    return f"{what} This is the best explanation found until then; a smaller one may exist." if what else ""


def say_money(explanation: ExplanationRecord) -> str:
    """What the calls are worth, and the budget, where an endpoint has a price; empty where it has none.

    What was spent may be less: answers that were kept cost nothing.
    """
    words = explanation.origin.loading.get("endpoint", ())
    prices = [float(word.partition("=")[2]) for word in words if word.partition("=")[0] == "price"]
    if not prices:
        return ""
    limit = explanation.origin.max_calls
    budget = f" of a budget of {limit * prices[-1]:,.2f}" if limit is not None else ""
    return f"worth {explanation.calls * prices[-1]:,.2f}{budget}"


def say_command(explanation: ExplanationRecord) -> str:
    """The command line that gives this answer again, over several lines."""
    origin, target = explanation.origin, explanation.target
    lines = [["becausal", "explain", origin.image], ["--model", origin.model]]
    for key, value in origin.loading.items():
        lines[-1] += _flag(key, value)
    lines.append(["--method", origin.method])
    for key, value in origin.options.items():
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
    if origin.max_calls is not None:
        lines[-1] += ["--max-calls", str(origin.max_calls)]
    return " \\\n    ".join(shlex.join(line) for line in lines if line)


def _flag(key: str, value: Any) -> list[str]:
    """A loading option as the command line takes it; nothing for one that was left alone."""
    name = f"--{key.replace('_', '-')}"
    if isinstance(value, list):
        return [word for item in value for word in (name, str(item))]
    if not isinstance(value, (str, int, float)) or value is False:
        return []
    return [name] if value is True else [name, str(value)]
