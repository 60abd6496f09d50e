"""Rules of relevance propagation in captum's form, and their assignment to layers; needs captum.

Unit i of a layer contributes z_ij = x_i w_ij to unit j of the next, and y_j is the output of unit j, with its bias:

    epsilon     R_i = Σ_j z_ij / (y_j + ε sign y_j) · R_j     Bach et al. 2015; a bias takes its share
    zplus       R_i = Σ_j z⁺_ij / Σ_i z⁺_ij · R_j             Bach et al. 2015, alpha 1 and beta 0, without biases
    flat        R_i = Σ_j 1 / (number of inputs of j) · R_j   Lapuschkin et al. 2019

captum's rule of positive contributions clamps weights, which is correct only for non-negative inputs. For other inputs
the layer is rewritten over the positive part and the negated negative part of its input. It computes the same result,
and the rule is correct again.
"""

from itertools import pairwise
from typing import Any

import torch
from captum.attr._utils.custom_modules import Addition_Module
from captum.attr._utils.lrp_rules import EpsilonRule, IdentityRule, PropagationRule
from torch import nn

from becausal.methods.gradients import LayerCall

_OWN = (nn.ReLU, nn.Dropout, nn.Tanh)  # captum propagates relevance through these itself
_PASS = (
    nn.ReLU6, nn.Hardtanh, nn.GELU, nn.SiLU, nn.Hardswish, nn.ELU, nn.LeakyReLU, nn.Sigmoid, nn.Hardsigmoid,
    nn.Softplus, nn.Mish,
)  # fmt: skip
_LINEAR = (nn.Conv2d, nn.Linear, nn.BatchNorm2d)
_POOLS = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)


class FlatRule(PropagationRule):  # type: ignore[misc]
    """Every input of a unit gets the same share; for the first layer, whose inputs are colours of either sign."""

    def _manipulate_weights(self, module: Any, inputs: Any, outputs: Any) -> None:
        module.weight.data = torch.ones_like(module.weight.data)
        if module.bias is not None:
            module.bias.data = torch.zeros_like(module.bias.data)
        for device, values in module.activations.items():
            module.activations[device] = tuple(torch.ones_like(value) for value in values)


class PositiveRule(PropagationRule):  # type: ignore[misc]
    """Positive contributions get relevance, for inputs that are not negative.

    signs: the signs of the scales of the batch normalisation after the layer, (out,), which decide together with the
    weights which contributions are positive; None without one.
    """

    def __init__(self, signs: torch.Tensor | None) -> None:
        self.signs = signs

    def _manipulate_weights(self, module: Any, inputs: Any, outputs: Any) -> None:
        weight = module.weight.data
        if self.signs is not None:
            weight = weight * self.signs.reshape(-1, *[1] * (weight.ndim - 1))
        module.weight.data = weight.clamp_min(0)
        if module.bias is not None:
            module.bias.data = torch.zeros_like(module.bias.data)


class Signs(nn.Module):  # type: ignore[misc]
    """The positive part of each group of channels, then its negated negative part; relevance passes unchanged.

    axis: the axis of the channels, of which there are twice as many after it.
    """

    def __init__(self, axis: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.axis, self.groups = axis, groups

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        parts = values.chunk(self.groups, self.axis)
        return torch.cat([half for part in parts for half in (part.clamp_min(0), (-part).clamp_min(0))], self.axis)


class Join(nn.Module):  # type: ignore[misc]
    """The inverse of `Signs`: first minus second part. The part that determines the result's sign gets the relevance."""

    def forward(self, parts: torch.Tensor) -> torch.Tensor:
        up, down = parts.chunk(2, 1)
        total = (up - down).detach()
        share = torch.where(total > 0, total / up.detach().clamp_min(1e-30), 0.0)
        other = torch.where(total < 0, total / down.detach().clamp_min(1e-30), 0.0)
        return up * share + down * other


class SignedSum(nn.Module):  # type: ignore[misc]
    """a + b; relevance is shared in proportion by the parts with the sign of the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Signs(), Signs()
        self.sum = Addition_Module()
        self.join = Join()

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        joined: torch.Tensor = self.join(self.sum(self.first(a), self.second(b)))
        return joined


class SignedLayer(nn.Module):  # type: ignore[misc]
    """A convolution or linear layer over both parts of its input, with negated weights for the negative part."""

    def __init__(self, layer: nn.Conv2d | nn.Linear) -> None:
        super().__init__()
        layer.weight = nn.Parameter(torch.cat([layer.weight, -layer.weight], 1), requires_grad=False)
        if isinstance(layer, nn.Conv2d):
            layer.in_channels *= 2
            self.signs = Signs(groups=layer.groups)
        else:
            layer.in_features *= 2
            self.signs = Signs(axis=-1)
        self.layer = layer

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(self.signs(values))
        return result


def is_known(layer: nn.Module) -> bool:
    """Whether there is a rule for the layer: known classes, and the user's own layers without weights, e.g. sums."""
    known = (*_OWN, *_PASS, *_LINEAR, *_POOLS, nn.Flatten, nn.Identity, nn.Dropout2d, nn.ZeroPad2d)
    foreign = not type(layer).__module__.startswith("torch.nn") and next(layer.parameters(), None) is None
    return isinstance(layer, known) or foreign


def attach_epsilon(own: nn.Module, epsilon: float) -> None:
    """Give every layer the epsilon rule, except activations, which pass relevance unchanged."""
    for layer in own.modules():
        if next(layer.children(), None) is None and type(layer) not in _OWN:
            layer.rule = IdentityRule() if isinstance(layer, _PASS) else EpsilonRule(epsilon)


def attach_zplus(own: nn.Module, calls: list[LayerCall], epsilon: float) -> None:
    """Give linear layers the rule of positive contributions, the first convolution the flat rule, biases nothing."""
    first: Any = next((call.layer for call in calls if isinstance(call.layer, nn.Conv2d)), None)
    signs = {
        call.layer: after.layer.weight.data.sign()
        for call, after in pairwise(calls)
        if isinstance(call.layer, nn.Conv2d) and isinstance(after.layer, nn.BatchNorm2d)
        if after.layer.affine and call.shape == after.shape
    }
    for call in calls:
        layer: Any = call.layer
        new: nn.Module | None = None
        if call.is_sum:
            new = SignedSum()
        elif isinstance(layer, (nn.Conv2d, nn.Linear)) and call.lowest < 0 and layer is not first:
            new = SignedLayer(layer)
        if new is not None:
            parent, _, name = call.name.rpartition(".")
            setattr(own.get_submodule(parent), name, new)
    for layer in own.modules():
        if next(layer.children(), None) is not None:
            continue
        if layer is first:
            first.rule = FlatRule()
        elif isinstance(layer, (nn.Conv2d, nn.Linear)):
            layer.rule = PositiveRule(signs.get(layer))
        elif isinstance(layer, (*_PASS, nn.BatchNorm2d)):
            layer.rule = IdentityRule()
        elif type(layer) not in _OWN:
            layer.rule = EpsilonRule(epsilon)
