"""What the methods that look inside share: the model as a differentiable module, its layers, maps over the grid.

torch is imported only when such a method runs. All of them explain the logit of the label, the number before softmax;
where a module itself ends in a softmax, the logarithm of its probability stands in for it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, get_args

import numpy as np

from becausal.core.contracts import Classifier, Pixels, Saliency
from becausal.core.errors import MissingExtraError, ModelError, OptionError
from becausal.core.problem import Problem

Tensor = Any  # torch.Tensor
Module = Any  # torch.nn.Module
ToInput = Callable[[Pixels], Tensor]  # pixels (n, h, w, channels) to the module's own numbers (n, channels, h, w)

Sign = Literal["absolute", "signed"]

EXTRA = "gradients"
SMALL = 1_000_000  # weights
INSTEAD = "ig and grad-cam take any torch model, and methods that only ask (causal, rise, …) any model at all"


@dataclass(frozen=True)
class Opened:
    """A model opened up for one problem.

    logits: the module, (n, channels, h, w) to (n, classes). own: the user's module inside of it. view, background: both
    as its input, (1, channels, h, w), without gradients.
    """

    logits: Module
    own: Module
    view: Tensor
    background: Tensor
    label_id: int
    to_input: ToInput

    @property
    def is_small(self) -> bool:
        """Whether the module is on a CPU and has few weights."""
        weights = sum(int(p.numel()) for p in self.own.parameters())
        return bool(self.view.device.type == "cpu") and weights < SMALL

    def copied(self) -> "Opened":
        """The same with a copy of the module that may be hooked and changed; no layer of it works in place."""
        logits = deepcopy(self.logits).requires_grad_(False)
        for layer in logits.modules():
            if getattr(layer, "inplace", False) is True:
                layer.inplace = False
        return Opened(logits, logits.own, self.view, self.background, self.label_id, self.to_input)


@dataclass(frozen=True)
class Step:
    """One call of a layer without children, in the order of the computation."""

    name: str
    layer: Module
    shape: tuple[int, ...]  # of its output
    lowest: float  # value of its input
    is_sum: bool  # of its two inputs


def require(library: str, method: str) -> Any:
    """The library. Raises MissingExtraError where it is not installed."""
    try:
        return import_module(library)
    except ImportError:
        raise MissingExtraError(library.partition(".")[0], EXTRA, f"the method {method}") from None


def differentiable(model: Classifier, method: str) -> tuple[Module, ToInput]:
    """The torch module of a classifier, and how pixels become its input.

    Torch modules have one, and so has the bundled classifier. Raises ModelError for any other.
    """
    if hasattr(model, "module") and hasattr(model, "gradient_input"):
        own: Any = model
        return own.module, lambda pixels: own.gradient_input(pixels).detach()
    info = model.info
    if info.spec == "bundled" and info.numbers == _bundled_numbers():
        network = import_module("becausal.scenes.network")
        return network.load_network(), network.to_input
    raise ModelError(
        f"the method {method} needs gradients, and a model from {_origin(info.kind)} gives none: load it as "
        "torch:file.py:build, or take a method that only asks, such as causal or rise"
    )


def open_up(problem: Problem, method: str) -> Opened:
    """The model of a problem, ready to be differentiated. Raises MissingExtraError, ModelError."""
    require("torch", method)
    model = problem.model
    if model is None:
        raise ModelError(f"the method {method} needs gradients, and there is no model to take them from")
    own, to_input = differentiable(model, method)
    view, background = (to_input(pixels[None]) for pixels in (problem.view, problem.background))
    layers = import_module("becausal.methods.torch_layers")
    logits = layers.as_logits(own, view, model.classify(problem.view[None]))
    return Opened(logits, own, view, background, problem.label_id, to_input)


def walk(opened: Opened) -> list[Step]:
    """Every call of a layer while the view is classified."""
    import torch

    steps: list[Step] = []
    names = {layer: name for name, layer in opened.own.named_modules()}

    def note(layer: Module, given: tuple[Any, ...], made: Any) -> None:
        if torch.is_tensor(made):
            tensors = [x for x in given if torch.is_tensor(x)]
            lowest = min((float(x.min()) for x in tensors), default=0.0)
            alike = len(tensors) == 2 and tensors[0].shape == tensors[1].shape == made.shape
            is_sum = alike and bool(torch.equal(made, tensors[0] + tensors[1]))
            steps.append(Step(names[layer], layer, tuple(made.shape), lowest, is_sum))

    leaves = [layer for layer in opened.own.modules() if next(layer.children(), None) is None]
    handles = [layer.register_forward_hook(note) for layer in leaves]
    try:
        with torch.no_grad():
            opened.logits(opened.view)
    finally:
        for handle in handles:
            handle.remove()
    return steps


def name_reused(steps: list[Step], *kinds: Any) -> str | None:
    """The first layer of these kinds (any, without) that is called more than once, in words; None where all are not."""
    seen: set[int] = set()
    for step in steps:
        if id(step.layer) in seen and (not kinds or isinstance(step.layer, kinds)):
            return say_layer(step.name, step.layer)
        seen.add(id(step.layer))
    return None


def say_layer(name: str, layer: Module) -> str:
    """A layer in words: features.3 (ReLU)."""
    return f"{name or 'the model itself'} ({type(layer).__name__})"


@contextmanager
def explained(method: str, opened: Opened) -> Iterator[None]:
    """Whatever torch or captum trips over in a user's module becomes a ModelError.

    Meanwhile a small network on a CPU runs on one thread: its layers are too short for several to wait on each other.
    """
    import warnings

    import torch

    threads = torch.get_num_threads()
    if opened.is_small:
        torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # captum warns of its own hooks
        try:
            yield
        except ModelError:
            raise
        except (RuntimeError, TypeError, AssertionError, AttributeError, IndexError, ValueError) as error:
            reason = " ".join(str(error).split())[:240]
            raise ModelError(
                f"the method {method} fails on this model ({type(error).__name__}: {reason}); {INSTEAD}"
            ) from error
        finally:
            torch.set_num_threads(threads)


def on_grid(values: Tensor, sign: Sign = "signed") -> Saliency:
    """(1, channels, h, w) summed over the channels, (h, w), with their sign or without."""
    values = values.detach().double()
    return np.asarray((values.abs() if sign == "absolute" else values).sum(1)[0].cpu().numpy(), np.float64)


def check_sign(sign: str) -> None:
    """Raise OptionError for what is no sign."""
    if sign not in get_args(Sign):
        raise OptionError(f"sign must be one of {', '.join(get_args(Sign))}, not {sign!r}")


def _origin(kind: str) -> str:
    return {"onnx": "an ONNX file", "python": "a Python function", "keras": "a Keras file"}.get(kind, f"kind {kind}")


def _bundled_numbers() -> str:
    """The numbers the torch form of the bundled classifier was made for."""
    presets = import_module("becausal.models.preprocess").PRESETS
    return str(presets["tf"])
