"""The propagation rules of Relative Attributing Propagation for each operation; needs torch.

Unit i of a layer contributes z_ij = x_i w_ij to unit j of the next. With Z⁺_j the sum of the positive contributions and
Z⁻_j the sum of the absolute values of the negative ones:

    output layer      R_i = Σ_j |z_ij| / Σ_i |z_ij| · R_j                             absolute influence
    hidden layers     P_i = Σ_j z⁺_ij / Z⁺_j · R_j                                    share of positive contributions
                      N_i = Σ_j |z⁻_ij| / (Z⁺_j + Z⁻_j) · R_j                         share of negative ones
                      R_i = P_i + N_i - Ψ  where x_i ≠ 0, Ψ = (Σ_i P_i + N_i - Σ_j R_j) / Γ     uniform shifting

Γ is the number of active units, x_i ≠ 0, so Σ_i R_i = Σ_j R_j. At the input z_ij = x_i w_ij - l_i w⁺_ij - h_i w⁻_ij, with
l and h the lowest and highest colour, is never negative, and only the remainder of units without weights is shifted.
Biases get no relevance, and batch normalisation passes it on unchanged.

This is what the authors' program computes for networks of linear layers, ReLU and pooling, with these differences:

- It gives the negative relevance of a unit of a convolution, not of a linear layer, to negative contributions only. Here
  both have the rule above. The ranks of the pixels correlate to 0.97 or more with those of its rule.
- It has the lowest and highest value of the image for l and h; here they are those of any image.
- It shares the relevance of a sum in proportion to the summands, whose signs may differ; here a sum is a layer of weight 1.
- It starts from the logit; here from its absolute value, so that a negative logit does not turn the map upside down.

The operations come from a trace of the module by torch.fx, so that layers and functions are treated alike.
"""

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from becausal.core.errors import ModelError
from becausal.core.text import one_line
from becausal.methods.gradients import ALTERNATIVES

Tensor = Any  # torch.Tensor
Linear = Callable[[Tensor, Tensor], Tensor]  # input and weight to the layer's output without bias

_PASS = {
    F.relu, F.relu6, F.hardtanh, F.dropout, F.leaky_relu, torch.relu, torch.clamp, "relu", "clamp", "contiguous",
    nn.ReLU, nn.ReLU6, nn.Hardtanh, nn.LeakyReLU, nn.Dropout, nn.Dropout2d, nn.Identity, nn.BatchNorm2d,
}  # fmt: skip
_RESHAPE = {torch.flatten, torch.reshape, "flatten", "view", "reshape", nn.Flatten}
_WINNER = {F.max_pool2d, torch.max_pool2d, F.adaptive_max_pool2d, nn.MaxPool2d, nn.AdaptiveMaxPool2d}
_MEAN = {
    F.avg_pool2d, F.adaptive_avg_pool2d, torch.mean, "mean", nn.AvgPool2d, nn.AdaptiveAvgPool2d, F.pad, nn.ZeroPad2d,
}  # fmt: skip
_SUM = {operator.add, operator.iadd, torch.add, "add", "add_"}
_JOIN = {torch.cat, torch.concat}
_ONE = torch.ones((), dtype=torch.float64)


def propagate(module: nn.Module, view: Tensor, label_id: int, low: Tensor, high: Tensor) -> Tensor:
    """The relevance of the input, (1, channels, h, w), for one label's logit; its sum is the logit's absolute value.

    module: is converted to double precision. low, high: the darkest and the brightest possible input. Raises ModelError
    where an operation has no rule.
    """
    try:
        graph = fx.symbolic_trace(module.double())  # double: relevance of either sign is many times its sum
    except Exception as error:  # fx runs the user's own code, which may raise anything
        reason = one_line(error, 160)
        raise ModelError(f"the method rap cannot trace this model ({reason}): {ALTERNATIVES}") from error
    forward = RecordingInterpreter(graph)
    with torch.no_grad():
        logits = forward.run(view.double())
    flat = logits.reshape(1, -1)
    start, output = torch.zeros_like(flat), min(label_id, flat.shape[1] - 1)  # a module with one logit has one output
    start[0, output] = flat[0, output].abs()
    return RelevancePass(forward, low.double(), high.double()).relevance(start.reshape(logits.shape))


class RecordingInterpreter(fx.Interpreter):  # type: ignore[misc]
    """Runs the graph and records the output of every operation."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph)
        self.values: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        self.values[n] = super().run_node(n)
        return self.values[n]


class RelevancePass:
    """Propagates relevance back through the graph of a recorded forward pass."""

    def __init__(self, forward: RecordingInterpreter, low: Tensor, high: Tensor) -> None:
        self._forward, self._low, self._high = forward, low, high
        self._is_output = True  # until the first layer with weights

    def relevance(self, start: Tensor) -> Tensor:
        """The relevance of the graph's input from that of its output."""
        nodes = list(self._forward.module.graph.nodes)
        entry = next(node for node in nodes if node.op == "placeholder")
        held: dict[fx.Node, Tensor] = {nodes[-1].all_input_nodes[0]: start}
        for node in reversed(nodes[:-1]):
            if node not in held or node.op in ("placeholder", "get_attr"):
                continue
            for source, part in self._propagate(node, held.pop(node)).items():
                held[source] = held[source] + part if source in held else part
        if entry not in held:
            raise ModelError(f"the method rap found no path from the label back to the view: {ALTERNATIVES}")
        return held[entry]

    def _propagate(self, node: fx.Node, given: Tensor) -> dict[fx.Node, Tensor]:
        """The relevance of each input of an operation, from that of its output."""
        kind, layer = self._kind(node)
        sources = [n for n in node.all_input_nodes if torch.is_tensor(self._forward.values[n]) and n.op != "get_attr"]
        inputs = [self._forward.values[n] for n in sources]
        if kind in _PASS and inputs[0].shape == given.shape:
            return {sources[0]: given}
        if kind in _RESHAPE:
            return {sources[0]: given.reshape(inputs[0].shape)}
        if kind in _JOIN:
            cut = given.split([x.shape[1] for x in inputs], 1)
            return dict(zip(sources, cut, strict=True))
        if kind in _WINNER:
            return {sources[0]: vector_jacobian(lambda x: self._rerun(node, x), inputs[0], given)}
        if kind in _MEAN:
            return {sources[0]: share_hidden(lambda x, w: w * self._rerun(node, x), inputs[0], _ONE, given)}
        if kind in _SUM and len(inputs) == 2 and inputs[0].shape == inputs[1].shape == given.shape:
            parts = share_hidden(lambda x, w: w * x.sum(0, keepdim=True), torch.cat(inputs), _ONE, given).chunk(2)
            return dict(zip(sources, parts, strict=True)) if sources[0] is not sources[1] else {sources[0]: given}
        if (linear := self._linear(node, kind, layer)) is not None:
            (apply, weight), x, source = linear, inputs[0], sources[0]
            is_output, self._is_output = self._is_output, False
            padded = self._kind(source)[0] in (F.pad, nn.ZeroPad2d) and source.all_input_nodes[0].op == "placeholder"
            if source.op == "placeholder" or padded:
                # The colours that bound the view are padded as it is.
                low, high = (self._rerun(source, bound) if padded else bound for bound in (self._low, self._high))
                return {source: share_input(apply, x, weight, given, low, high)}
            return {source: (share_output if is_output else share_hidden)(apply, x, weight, given)}
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
        what = f"the layer {name} ({type(layer).__name__})" if layer is not None else f"the operation {name}"
        raise ModelError(f"the method rap has no rule for {what}: {ALTERNATIVES}")

    def _kind(self, node: fx.Node) -> tuple[Any, nn.Module | None]:
        """The kind of an operation: a function, a method's name, or a layer's class together with the layer."""
        if node.op != "call_module":
            return node.target, None
        layer = self._forward.module.get_submodule(str(node.target))
        return type(layer), layer

    def _linear(self, node: fx.Node, kind: Any, layer: nn.Module | None) -> tuple[Linear, Tensor] | None:
        """A layer with weights as a function of input and weight, without bias; None for other operations."""
        if isinstance(layer, nn.Conv2d) and layer.padding_mode == "zeros":
            return lambda x, w: layer._conv_forward(x, w, None), layer.weight
        if isinstance(layer, nn.Linear) or kind is F.linear:
            return F.linear, layer.weight if layer is not None else self._forward.values[node.args[1]]
        if kind in (F.conv2d, torch.conv2d):
            names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
            given = dict(zip(names, node.args, strict=False)) | node.kwargs
            rest = {key: value for key, value in given.items() if key not in names[:3]}
            return lambda x, w: F.conv2d(x, w, None, **rest), self._forward.values[given["weight"]]
        return None

    def _rerun(self, node: fx.Node, x: Tensor) -> Tensor:
        """The output of the operation for another input."""
        if node.op == "call_module":
            output: Tensor = self._forward.module.get_submodule(str(node.target))(x)
        elif node.op == "call_method":
            output = getattr(x, str(node.target))(*node.args[1:], **node.kwargs)
        else:
            kwargs = {key: value for key, value in node.kwargs.items() if key != "input"}
            output = node.target(x, *node.args[1:], **kwargs)
        return output


def vector_jacobian(apply: Callable[[Tensor], Tensor], x: Tensor, given: Tensor) -> Tensor:
    """The vector-Jacobian product Σ_j ∂y_j/∂x_i · given_j."""
    with torch.enable_grad():
        x = x.detach().requires_grad_(True)
        (gradient,) = torch.autograd.grad(apply(x), x, given)
    return gradient


def safe_divide(a: Tensor, b: Tensor) -> Tensor:
    """a / b; 0 where b is 0."""
    return torch.where(b != 0, a / torch.where(b != 0, b, torch.ones_like(b)), torch.zeros_like(a))


def share_hidden(apply: Linear, x: Tensor, weight: Tensor, given: Tensor) -> Tensor:
    """The rule of hidden layers: contributions of both signs get relevance, then all active units are shifted uniformly."""
    up, down = _contributions(apply, x, weight)
    z_up, z_down = up(x), -down(x)  # Z⁺ and Z⁻
    positive = x * vector_jacobian(up, x, safe_divide(given, z_up))
    negative = x * vector_jacobian(down, x, safe_divide(given, z_up + z_down))
    relevance = positive - negative
    active = (x != 0).to(x.dtype)
    excess = relevance.sum() - given.sum()
    return relevance - active * excess / active.sum().clamp_min(1)


def share_output(apply: Linear, x: Tensor, weight: Tensor, given: Tensor) -> Tensor:
    """The rule of the output layer: absolute influence."""
    up, down = _contributions(apply, x, weight)
    scaled = safe_divide(given, up(x) - down(x))
    return x * vector_jacobian(up, x, scaled) - x * vector_jacobian(down, x, scaled)


def share_input(apply: Linear, x: Tensor, weight: Tensor, given: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The rule of the input: contributions as distances from the lowest and the highest colour."""
    up, down = weight.clamp_min(0), weight.clamp_max(0)
    scaled = safe_divide(given, apply(x, weight) - apply(low, up) - apply(high, down))
    relevance = (
        x * vector_jacobian(lambda v: apply(v, weight), x, scaled)
        - low * vector_jacobian(lambda v: apply(v, up), x, scaled)
        - high * vector_jacobian(lambda v: apply(v, down), x, scaled)
    )
    return relevance - (relevance.sum() - given.sum()) / relevance.numel()


def _contributions(
    apply: Linear, x: Tensor, weight: Tensor
) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """The sums of positive and of negative contributions as functions of the input, with the signs of x."""
    is_up = x > 0
    positive, negative = weight.clamp_min(0), weight.clamp_max(0)

    def up(v: Tensor) -> Tensor:
        return apply(v * is_up, positive) + apply(v * ~is_up, negative)

    def down(v: Tensor) -> Tensor:
        return apply(v * is_up, negative) + apply(v * ~is_up, positive)

    return up, down
