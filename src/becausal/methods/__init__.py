"""All methods by name; the module of a method is imported when the method is used."""

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from importlib import import_module
from typing import Any, get_type_hints

import numpy as np

from becausal.core.contracts import Needs
from becausal.core.errors import OptionError
from becausal.core.problem import Explainer, options_of
from becausal.core.schema import read_value

__all__ = ["METHODS", "Method", "MethodOption", "list_options", "make_explainer", "options_of", "read_meanings"]


@dataclass(frozen=True)
class Method:
    """A method: its class, what it needs of a model, and a one-line summary."""

    module: str
    class_name: str
    needs: Needs
    summary: str


@dataclass(frozen=True)
class MethodOption:
    """An option of a method, with its default and a description from the docstring of the method's class."""

    name: str
    default: Any
    meaning: str


def _method(module: str, class_name: str, needs: Needs, summary: str) -> Method:
    return Method(f"becausal.methods.{module}", class_name, needs, summary)


# A table of names and not of classes: a method's module may need torch, captum or shap, and is imported when it is used.
METHODS: dict[str, Method] = {
    "causal": _method(
        "causal.search", "Causal", "labels",
        "small, verified explanations: guided removal, coarse to fine; uses scores if available",
    ),
    "dc-causal": _method(
        "causal.refinement", "DcCausal", "labels",
        "the published method: responsibility of regions, refined and summed over random partitions",
    ),
    "sbfl": _method(
        "sbfl", "Sbfl", "labels", "statistical fault localisation: pixels that are masked when the label is lost"
    ),
    "rise": _method(
        "rise", "Rise", "labels", "mean score over the random mutants that show a pixel; uses scores if available"
    ),
    "d-rise": _method(
        "d_rise", "DRise", "boxes", "RISE for a box of an object detector: random mutants, weighted by score times overlap"
    ),
    "occlusion": _method(
        "occlusion", "Occlusion", "labels", "drop of the score under a sliding masked window; uses scores if available"
    ),
    "lime": _method(
        "lime_superpixels", "Lime", "labels",
        "linear model over superpixels, fitted around the view; uses scores if available",
    ),
    "shap": _method(
        "shap_partition", "Shap", "labels",
        "Owen values of a hierarchy of boxes, by the shap package; uses scores if available",
    ),
    "greedy": _method(
        "greedy", "Greedy", "labels",
        "superpixels added one by one, always the one that helps most; uses scores if available",
    ),
    "phasewin": _method(
        "phasewin", "PhaseWin", "labels",
        "the search of greedy in phases, with a window of candidates: fewer calls; uses scores if available",
    ),
    "hsic": _method(
        "hsic", "Hsic", "labels",
        "dependence of the score on random masks of grid cells (HSIC); uses scores if available",
    ),
    "sobol": _method(
        "sobol", "Sobol", "labels",
        "share of the variance of the score that a grid cell takes part in; uses scores if available",
    ),
    "ig": _method(
        "ig", "IntegratedGradients", "gradients",
        "Integrated Gradients: gradients along the line from the background to the view (captum)",
    ),
    "gbp": _method(
        "gbp", "GuidedBackpropagation", "gradients",
        "guided backpropagation: the gradient, without negative values at each ReLU (captum)",
    ),
    "deeplift": _method(
        "deeplift", "DeepLift", "gradients",
        "DeepLIFT: the change of the logit from the background, propagated back layer by layer (captum)",
    ),
    "grad-cam": _method(
        "grad_cam", "GradCam", "gradients",
        "Grad-CAM: channels of the last convolution, weighted by their gradients (captum)",
    ),
    "lrp": _method(
        "lrp", "Relevance", "gradients",
        "layer-wise relevance propagation: the logit, propagated back by contribution (captum)",
    ),
    "rap": _method(
        "rap", "RelativeAttributing", "gradients",
        "relative attributing propagation: the logit, propagated back by relative influence",
    ),
    "extremal": _method(
        "extremal", "Extremal", "gradients",
        "Extremal Perturbations: smooth masks of fixed area that maximise the logit",
    ),
    "random": _method("controls", "RandomMap", "labels", "control: random numbers, no model calls"),
    "centre": _method("controls", "CentreMap", "labels", "control: a Gaussian in the centre, no model calls"),
}  # fmt: skip


def make_explainer(name: str, options: Mapping[str, Any] | None = None) -> Explainer:
    """Make a method from its name and options.

    Args:
        name: Name of the method, a key of `METHODS`.
        options: Options by name; text, e.g. from a command line, is converted to the option's type.

    Raises:
        OptionError: The method or an option does not exist, or a value is invalid.
    """
    kind = _load_class(name)
    known = {f.name: f for f in fields(kind)}
    chosen = dict(options or {})
    for key, value in chosen.items():
        if key not in known or (isinstance(value, str) and not _is_offered(known[key])):
            offered = ", ".join(option.name for option in list_options(name))
            raise OptionError(f"the method {name} has no option {key!r}; it has {offered or 'none'}")
        chosen[key] = _check_type(name, kind, key, _convert(name, known[key], value))
    explainer: Explainer = kind(**chosen)
    return explainer


def list_options(name: str) -> list[MethodOption]:
    """The options of a method that can be given as text, e.g. on the command line.

    Args:
        name: Name of the method, a key of `METHODS`.

    Raises:
        OptionError: The method does not exist.
    """
    kind = _load_class(name)
    meanings = read_meanings(kind)
    return [
        MethodOption(f.name, None if f.default is MISSING else f.default, meanings.get(f.name, ""))
        for f in fields(kind)
        if _is_offered(f)
    ]


def _load_class(name: str) -> Any:
    if name not in METHODS:
        raise OptionError(f"unknown method {name!r}: use one of {', '.join(METHODS)}")
    return getattr(import_module(METHODS[name].module), METHODS[name].class_name)


def _is_offered(option: Field[Any]) -> bool:
    """Whether an option can be given as text: a nested record of options, such as `Tuning`, cannot."""
    return not is_dataclass(option.default)


def read_meanings(kind: type) -> dict[str, str]:
    """The description of each option in the class docstring of a method, in lines that begin with `option: `."""
    names = {f.name for f in fields(kind)}
    meanings: dict[str, str] = {}
    current = ""
    for line in (kind.__doc__ or "").splitlines():
        start, colon, rest = line.strip().partition(": ")
        if colon and start in names:
            current, meanings[start] = start, rest
        elif not line.strip():
            current = ""
        elif current:
            meanings[current] += f" {line.strip()}"
    return meanings


def _check_type(method: str, kind: type, option: str, value: Any) -> Any:
    """The same value, and numbers of other libraries as Python's own. Raises OptionError for one of another type."""
    if is_dataclass(value):
        return value
    plain = value.item() if isinstance(value, np.generic) else value
    return read_value(plain, get_type_hints(kind)[option], f"the option {option} of {method}")


def _convert(method: str, option: Field[Any], value: Any) -> Any:
    """A value as the option's type, from text or, for a nested record, from a mapping."""
    declared, default = option.type, option.default
    if is_dataclass(default) and not isinstance(default, type):
        if isinstance(value, Mapping) and value.keys() <= {f.name for f in fields(default)}:
            return replace(default, **{key: tuple(v) if isinstance(v, list) else v for key, v in value.items()})
        if not isinstance(value, type(default)):
            raise OptionError(f"the option {option.name} of {method} must be a {type(default).__name__}, not {value!r}")
    if not isinstance(value, str) or declared in (str, "str"):
        return value
    kind = declared if isinstance(declared, str) else getattr(declared, "__name__", str(declared))
    if "None" in kind and value.lower() == "none":
        return None
    try:
        if kind.startswith("bool"):
            return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[value.lower()]
        if kind.startswith("int"):
            return int(value)
        if kind.startswith("float"):
            return float(value)
    except (KeyError, ValueError):
        raise OptionError(f"the option {option.name} of {method} must be {kind}, not {value!r}") from None
    return value
