"""Which methods run: those that were named and that the model can run."""

from collections.abc import Sequence
from importlib import import_module

import numpy as np

from becausal.bench.plan import split_method
from becausal.core.contracts import Classifier
from becausal.core.errors import BecausalError, OptionError
from becausal.images.fills import make_background
from becausal.methods import METHODS, make_explainer


def check_fill(fill: str) -> None:
    """Refuse a fill that does not exist before anything is spent."""
    if not fill.startswith("image:"):
        make_background(fill, np.zeros((8, 8, 3), np.uint8), rng=np.random.default_rng(0))


def choose_methods(wanted: str | Sequence[str], classifier: Classifier) -> tuple[tuple[str, ...], dict[str, str]]:
    """The methods that are to run, and those this model cannot run, with the reason. Raises OptionError."""
    texts = wanted.split(",") if isinstance(wanted, str) else list(wanted)
    texts = list(dict.fromkeys(text.strip() for text in texts if text.strip()))
    if not texts:
        raise OptionError("no method was named: give names with commas between, or all")
    expanded = list(METHODS) if texts == ["all"] else texts
    chosen, unable = [], {}
    for text in expanded:
        name, options = split_method(text)
        make_explainer(name, options)
        reason = _inability(name, classifier)
        if reason is None:
            chosen.append(text)
        else:
            unable[text] = reason
    if not chosen:
        raise OptionError("none of the methods can run: " + "; ".join(f"{m}: {why}" for m, why in unable.items()))
    return tuple(chosen), unable


def _inability(name: str, classifier: Classifier) -> str | None:
    if METHODS[name].needs == "scores" and classifier.info.output == "labels":
        return "needs scores, and this model gives labels only"
    if METHODS[name].needs != "gradients":
        return None
    gradients = import_module("becausal.methods.gradients")
    try:
        gradients.require("torch", name)
        gradients.differentiable(classifier, name)
    except BecausalError as error:
        return str(error)
    return None
