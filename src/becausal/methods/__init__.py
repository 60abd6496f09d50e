"""All methods by name; the module of a method is imported when the method is used."""

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from importlib import import_module
from typing import Any, get_type_hints

import numpy as np

from becausal.core.contracts import Needs
from becausal.core.errors import OptionError
from becausal.core.problem import Explainer, options_of
from becausal.core.schema import read_fields, read_text, read_value

__all__ = ["METHODS", "Method", "MethodOption", "list_options", "make_explainer", "options_of", "read_meanings"]


@dataclass(frozen=True)
class Method:
    """A row of `METHODS`: the class of a method, what it needs of a model, and a one-line summary."""

    module: str  # in this package
    class_name: str
    needs: Needs
    summary: str


@dataclass(frozen=True)
class MethodOption:
    """An option of a method, with its default and a description from the docstring of the method's class."""

    name: str
    default: Any
    meaning: str


# A table of names and not of classes: a method's module may need torch, captum or shap, and is imported when it is used.
METHODS: dict[str, Method] = {
    "causal": Method("causal.search", "Causal", "labels",
        "small, verified explanations: guided removal, coarse to fine; uses scores if available"),
    "dc-causal": Method("causal.refinement", "DcCausal", "labels",
        "the published method: responsibility of regions, refined and summed over random partitions"),
    "sbfl": Method("sbfl", "Sbfl", "labels",
        "statistical fault localisation: pixels that are masked when the label is lost"),
    "rise": Method("rise", "Rise", "labels",
        "a pixel has the mean score of the random mutants in which it is visible; uses scores if available"),
    "d-rise": Method("rise", "DRise", "boxes",
        "RISE for a box of an object detector: random mutants, weighted by score times overlap"),
    "occlusion": Method("occlusion", "Occlusion", "labels",
        "drop of the score under a sliding masked window; uses scores if available"),
    "lime": Method("lime_superpixels", "Lime", "labels",
        "linear model over superpixels, fitted around the view; uses scores if available"),
    "shap": Method("shap_partition", "Shap", "labels",
        "Owen values of a hierarchy of boxes, by the shap package; uses scores if available"),
    "greedy": Method("greedy", "Greedy", "labels",
        "superpixels added one by one, always the one that helps most; uses scores if available"),
    "phasewin": Method("greedy", "PhaseWin", "labels",
        "the search of greedy in phases, with a window of candidates: fewer calls; uses scores if available"),
    "hsic": Method("coarse_grid", "Hsic", "labels",
        "dependence of the score on random masks of grid cells (HSIC); uses scores if available"),
    "sobol": Method("coarse_grid", "Sobol", "labels",
        "share of the variance of the score that a grid cell takes part in; uses scores if available"),
    "ig": Method("gradient_maps", "IntegratedGradients", "gradients",
        "Integrated Gradients: gradients along the line from the background to the view (captum)"),
    "gbp": Method("gradient_maps", "GuidedBackpropagation", "gradients",
        "guided backpropagation: the gradient, without negative values at each ReLU (captum)"),
    "deeplift": Method("gradient_maps", "DeepLift", "gradients",
        "DeepLIFT: the change of the logit from the background, propagated back layer by layer (captum)"),
    "grad-cam": Method("grad_cam", "GradCam", "gradients",
        "Grad-CAM: channels of the last convolution, weighted by their gradients (captum)"),
    "lrp": Method("gradient_maps", "Relevance", "gradients",
        "layer-wise relevance propagation: the logit, propagated back by contribution (captum)"),
    "rap": Method("gradient_maps", "RelativeAttributing", "gradients",
        "relative attributing propagation: the logit, propagated back by relative influence"),
    "extremal": Method("extremal", "Extremal", "gradients",
        "Extremal Perturbations: smooth masks of fixed area that maximise the logit"),
    "random": Method("controls", "RandomMap", "labels", "control: random numbers, no model calls"),
    "centre": Method("controls", "CentreMap", "labels", "control: a Gaussian in the centre, no model calls"),
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
    known, hints = {f.name: f for f in fields(kind)}, get_type_hints(kind)
    chosen = dict(options or {})
    for key, value in chosen.items():
        if key not in known or (isinstance(value, str) and not _is_offered(known[key])):
            offered = ", ".join(option.name for option in list_options(name))
            raise OptionError(f"the method {name} has no option {key!r}; it has {offered or 'none'}")
        chosen[key] = _read_option(known[key], value, hints[key], f"the option {key} of {name}")
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
    module = import_module(f"becausal.methods.{METHODS[name].module}")
    return getattr(module, METHODS[name].class_name)


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


def _read_option(option: Field[Any], value: Any, hint: Any, where: str) -> Any:
    """A value as the option's type, from text or, for a nested record, from a mapping. where: the option, for messages."""
    if not _is_offered(option):
        default: Any = option.default
        return value if isinstance(value, type(default)) else replace(default, **read_fields(type(default), value, where))
    if isinstance(value, str):
        return read_text(value, hint, where)
    # Numbers of numpy become Python's own, so that a record of the options can be written as JSON.
    return read_value(value.item() if isinstance(value, np.generic) else value, hint, where)
