"""What the gradient-based methods share: the model as a differentiable module, its layers, maps over the grid.

torch is imported only when such a method runs. All of these methods explain the logit of the label. For a module that
ends in a softmax, the logarithm of the probability is used instead.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import numpy as np

from becausal.core.contracts import Classifier, Pixels, Saliency
from becausal.core.errors import MissingExtraError, ModelError, OptionError
from becausal.core.problem import Problem
from becausal.core.text import one_line

Tensor = Any  # torch.Tensor
Module = Any  # torch.nn.Module
ToInput = Callable[[Pixels], Tensor]  # pixels (n, h, w, channels) to the module's normalised input (n, channels, h, w)

Sign = Literal["absolute", "signed"]

EXTRA = "gradients"
FEW_WEIGHTS = 1_000_000
ALTERNATIVES = "use ig or grad-cam, which take any torch model, or a black-box method, e.g. causal"
_KIND_NAMES = {"onnx": "an ONNX file", "python": "a Python function", "keras": "a Keras file"}


@runtime_checkable
class Differentiable(Protocol):
    """A classifier that also exists as a torch module."""

    def torch_form(self) -> tuple[Module, ToInput]:
        """The module in eval mode, and the function that normalises pixels to its input, without gradients."""


@dataclass(frozen=True)
class TorchProblem:
    """A problem as torch tensors."""

    logits: Module  # the module with logits as output, (n, channels, h, w) to (n, classes)
    own: Module  # the user's module inside `logits`
    view: Tensor  # the module's input for the view, (1, channels, h, w), without gradients
    background: Tensor  # the same for the background of the first fill
    label_id: int  # the class that is explained
    to_input: ToInput


@dataclass(frozen=True)
class LayerCall:
    """One call of a layer without children, in the order of the forward pass."""

    name: str  # of the layer in the module
    layer: Module
    shape: tuple[int, ...]  # of its output
    lowest: float  # value of its input
    is_sum: bool  # whether the output is the sum of its two inputs

    def __str__(self) -> str:
        """Name and class of the layer, e.g. features.3 (ReLU)."""
        return f"{self.name or 'the model itself'} ({type(self.layer).__name__})"


def require(library: str, method: str) -> Any:
    """Import the library. Raises MissingExtraError where it is not installed."""
    try:
        return import_module(library)
    except ImportError:
        raise MissingExtraError(library.partition(".")[0], EXTRA, f"the method {method}") from None


def differentiable(model: Classifier, method: str) -> tuple[Module, ToInput]:
    """The torch module of a classifier, and its normalisation. Raises ModelError where there is no module."""
    if isinstance(model, Differentiable):
        return model.torch_form()
    kind = model.info.kind
    raise ModelError(
        f"the method {method} needs gradients, and a model from {_KIND_NAMES.get(kind, f'kind {kind}')} gives none: load "
        "it as torch:file.py:build, or use a black-box method such as causal or rise"
    )


def to_torch(problem: Problem, method: str) -> TorchProblem:
    """The problem as torch tensors. Raises MissingExtraError, ModelError."""
    require("torch", method)
    model = problem.model
    if model is None:
        raise ModelError(f"the method {method} needs gradients, and the problem has no model")
    own, to_input = differentiable(model, method)
    view, background = (to_input(pixels[None]) for pixels in (problem.view, problem.background))
    layers = import_module("becausal.methods.torch_layers")
    logits = layers.as_logits(own, view, model.classify(problem.view[None]))
    return TorchProblem(logits, own, view, background, problem.label_id, to_input)


def trace_layers(problem: TorchProblem) -> list[LayerCall]:
    """Every call of a layer while the view is classified."""
    import torch

    calls: list[LayerCall] = []
    names = {layer: name for name, layer in problem.own.named_modules()}

    def record(layer: Module, inputs: tuple[Any, ...], output: Any) -> None:
        if torch.is_tensor(output):
            tensors = [x for x in inputs if torch.is_tensor(x)]
            lowest = min((float(x.min()) for x in tensors), default=0.0)
            alike = len(tensors) == 2 and tensors[0].shape == tensors[1].shape == output.shape
            is_sum = alike and bool(torch.equal(output, tensors[0] + tensors[1]))
            calls.append(LayerCall(names[layer], layer, tuple(output.shape), lowest, is_sum))

    leaves = [layer for layer in problem.own.modules() if next(layer.children(), None) is None]
    handles = [layer.register_forward_hook(record) for layer in leaves]
    try:
        with torch.no_grad():
            problem.logits(problem.view)
    finally:
        for handle in handles:
            handle.remove()
    return calls


def find_reused(calls: list[LayerCall], *kinds: Any) -> str | None:
    """The first layer of these kinds (all kinds if none is given) that is called more than once, described; else None."""
    seen: set[int] = set()
    for call in calls:
        if id(call.layer) in seen and (not kinds or isinstance(call.layer, kinds)):
            return str(call)
        seen.add(id(call.layer))
    return None


def refuse_layer_norm(method: str, calls: list[LayerCall]) -> None:
    """Raise ModelError if a layer normalises its input, as in a transformer: the method has no rule for that."""
    from torch import nn

    for call in calls:
        if isinstance(call.layer, (nn.LayerNorm, nn.RMSNorm)):
            raise ModelError(f"the method {method} has no rule for the layer {call}: {ALTERNATIVES}")


@contextmanager
def attribution(problem: Problem, method: str, *, copied: bool = False) -> Iterator[TorchProblem]:
    """The problem as torch tensors; errors of torch or captum on the user's module become ModelErrors meanwhile.

    copied: whether the module is a copy that may be hooked and changed; none of its layers works in place.
    """
    found = to_torch(problem, method)
    import torch

    if copied:
        logits = deepcopy(found.logits).requires_grad_(False)
        for layer in logits.modules():
            if getattr(layer, "inplace", False) is True:
                layer.inplace = False
        found = replace(found, logits=logits, own=logits.own)
    threads = torch.get_num_threads()
    # The layers of a small network on the CPU are too short for several threads to pay off.
    if found.view.device.type == "cpu" and sum(int(p.numel()) for p in found.own.parameters()) < FEW_WEIGHTS:
        torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # captum warns about its own hooks
        try:
            yield found
        except ModelError:
            raise
        except (RuntimeError, TypeError, AssertionError, AttributeError, IndexError, ValueError) as error:
            reason = one_line(error, 240)
            raise ModelError(
                f"the method {method} fails on this model ({type(error).__name__}: {reason}): {ALTERNATIVES}"
            ) from error
        finally:
            torch.set_num_threads(threads)


def sum_channels(values: Tensor, sign: Sign = "signed") -> Saliency:
    """(1, channels, h, w) summed over the channels, (h, w), with their sign or as absolute values."""
    values = values.detach().double()
    return np.asarray((values.abs() if sign == "absolute" else values).sum(1)[0].cpu().numpy(), np.float64)


def check_sign(sign: str) -> None:
    """Raise OptionError for an unknown sign."""
    if sign not in get_args(Sign):
        raise OptionError(f"sign must be one of {', '.join(get_args(Sign))}, not {sign!r}")
