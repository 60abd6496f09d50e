"""The command line that reproduces an explanation."""

import shlex
from typing import Any

from becausal.core.explanation import ExplanationRecord
from becausal.core.request import Request


def format_command(explanation: ExplanationRecord) -> str:
    """The command line that reproduces the explanation from any folder, on several lines; defaults are left out."""
    origin, target, request, default = explanation.origin, explanation.target, explanation.origin.request, Request()
    lines = [["becausal", "explain", origin.path_of("image") or origin.image], ["--model", origin.model]]
    for key, value in origin.loading.items():
        is_names = key == "labels" and not isinstance(value, str)
        lines[-1] += _format_option(key, origin.path_of("labels") if is_names else value)
    lines.append([] if origin.method == default.method else ["--method", origin.method])
    for key, value in ((request.options or {}) if origin.method == request.method else origin.options).items():
        if not isinstance(value, dict):  # the tuning of causal can be set from Python only
            lines[-1] += ["--option", f"{key}={value}"]
    lines.append([] if request.target is None else ["--target", str(request.target)])
    if request.box is not None:
        lines[-1] += ["--box", str(request.box)]
    if target.against is not None:
        lines[-1] += ["--against", str(target.against if request.against is None else request.against)]
    if target.top > 1:
        lines[-1] += ["--top", str(target.top)]
    if request.confidence is not None:
        lines[-1] += ["--confidence", f"{request.confidence:.6g}"]
    if request.smallest:
        lines[-1].append("--smallest")
    lines.append([word for fill in origin.fills for word in ("--fill", fill) if origin.fills != default.fills])
    if request.holds is not None:
        lines[-1] += ["--holds", f"{request.holds:.6g}"]
    if isinstance(request.backgrounds, str):  # a function can be given from Python only
        lines[-1] += ["--backgrounds", request.backgrounds]
    if request.grain != default.grain:
        lines[-1] += ["--grain", "none" if request.grain is None else str(request.grain)]
    if origin.seed != default.seed:
        lines[-1] += ["--seed", str(origin.seed)]
    if request.seeds != default.seeds:
        lines[-1] += ["--seeds", str(request.seeds)]
    if origin.contrast:
        lines[-1].append("--contrast")
    if request.several > 1:
        lines[-1] += ["--several", str(request.several)]
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
