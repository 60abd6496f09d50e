"""Every method by its name, loaded when asked for."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib import import_module
from typing import Any

from becausal.core.contracts import Needs
from becausal.core.errors import OptionError
from becausal.core.problem import Explainer


@dataclass(frozen=True)
class Method:
    """Where a method lives, what it needs of a model, and what it does in a line."""

    module: str
    class_name: str
    needs: Needs
    summary: str


METHODS: dict[str, Method] = {
    "causal": Method(
        "becausal.methods.causal.search",
        "Causal",
        "labels",
        "small, certified explanations: guided removal, coarse to fine; uses scores where there are any",
    ),
    "dc-causal": Method(
        "becausal.methods.causal.refinement",
        "DcCausal",
        "labels",
        "the paper's method: responsibility of regions, refined, summed over random partitions",
    ),
    "sbfl": Method(
        "becausal.methods.sbfl",
        "Sbfl",
        "labels",
        "statistical fault localisation: which pixels are hidden when the label goes",
    ),
    "rise": Method(
        "becausal.methods.rise",
        "Rise",
        "labels",
        "the mean score over random mutants that show a pixel; uses scores where there are any",
    ),
    "occlusion": Method(
        "becausal.methods.occlusion",
        "Occlusion",
        "labels",
        "the drop of the score under a sliding hidden window; uses scores where there are any",
    ),
    "lime": Method(
        "becausal.methods.lime_superpixels",
        "Lime",
        "labels",
        "a linear model over superpixels, fitted around the view; uses scores where there are any",
    ),
    "shap": Method(
        "becausal.methods.shap_partition",
        "Shap",
        "labels",
        "Owen values of a hierarchy of boxes, by the shap package; uses scores where there are any",
    ),
    "ig": Method(
        "becausal.methods.ig",
        "IntegratedGradients",
        "gradients",
        "Integrated Gradients: gradients summed on the way from the background to the view (captum)",
    ),
    "gbp": Method(
        "becausal.methods.gbp",
        "GuidedBackpropagation",
        "gradients",
        "guided backpropagation: the gradient, without what is negative at a ReLU (captum)",
    ),
    "deeplift": Method(
        "becausal.methods.deeplift",
        "DeepLift",
        "gradients",
        "DeepLIFT: the change of the logit from the background, handed back layer by layer (captum)",
    ),
    "grad-cam": Method(
        "becausal.methods.grad_cam",
        "GradCam",
        "gradients",
        "Grad-CAM: the last convolution's channels, weighted by their gradients (captum)",
    ),
    "lrp": Method(
        "becausal.methods.lrp",
        "Relevance",
        "gradients",
        "layer-wise relevance propagation: the logit, handed back by contribution (captum)",
    ),
    "rap": Method(
        "becausal.methods.rap",
        "RelativeAttributing",
        "gradients",
        "relative attributing propagation: the logit, handed back by relative influence",
    ),
    "extremal": Method(
        "becausal.methods.extremal",
        "Extremal",
        "gradients",
        "Extremal Perturbations: smooth masks of fixed area that keep the logit highest",
    ),
    "random": Method("becausal.methods.controls", "RandomMap", "labels", "a control: random numbers, no calls"),
    "centre": Method("becausal.methods.controls", "CentreMap", "labels", "a control: a bump in the middle, no calls"),
}


def make_explainer(name: str, options: Mapping[str, Any] | None = None) -> Explainer:
    """The method of that name with these options; OptionError for a name or an option that does not exist."""
    if name not in METHODS:
        raise OptionError(f"unknown method {name!r}: take one of {', '.join(METHODS)}")
    method = METHODS[name]
    kind: Any = getattr(import_module(method.module), method.class_name)
    known = {f.name: f for f in fields(kind)}
    chosen = dict(options or {})
    for key, value in chosen.items():
        if key not in known:
            raise OptionError(f"the method {name} has no option {key!r}; it has {', '.join(known) or 'none'}")
        chosen[key] = _as_declared(name, key, value, known[key].type)
    explainer: Explainer = kind(**chosen)
    return explainer


def _as_declared(method: str, key: str, value: Any, declared: Any) -> Any:
    """An option's value as its field's type; text from a command line is converted."""
    if not isinstance(value, str) or declared in (str, "str"):
        return value
    name = declared if isinstance(declared, str) else getattr(declared, "__name__", str(declared))
    if "None" in name and value.lower() == "none":
        return None
    try:
        if name.startswith("bool"):
            return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[value.lower()]
        if name.startswith("int"):
            return int(value)
        if name.startswith("float"):
            return float(value)
        if name.startswith("tuple"):
            return tuple(float(part) for part in value.strip("()[] ").split(",") if part.strip())
    except (KeyError, ValueError):
        raise OptionError(f"the option {key} of {method} takes {name}, not {value!r}") from None
    return value
