"""Rules of relevance propagation, as captum takes them, and which layer gets which: imported only where captum is.

captum's rule of positive contributions clamps weights, which is right only where inputs are not negative. Where they
are, the layer is written anew over the positive and the negative part of its input, both counted upwards; it computes
the same, and the rule is right again.
"""

from typing import Any

import torch
from captum.attr._utils.custom_modules import Addition_Module
from captum.attr._utils.lrp_rules import Alpha1_Beta0_Rule, EpsilonRule, IdentityRule, PropagationRule
from torch import nn

from becausal.methods.gradients import Step

_OWN = (nn.ReLU, nn.Dropout, nn.Tanh)  # captum passes relevance through these by itself
_PASS = (
    nn.ReLU6, nn.Hardtanh, nn.GELU, nn.SiLU, nn.Hardswish, nn.ELU, nn.LeakyReLU, nn.Sigmoid, nn.Hardsigmoid,
    nn.Softplus, nn.Mish,
)  # fmt: skip
_LINEAR = (nn.Conv2d, nn.Linear, nn.BatchNorm2d)
_POOLS = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)


class FlatRule(PropagationRule):  # type: ignore[misc]
    """Every input of a unit gets the same share: for the first layer, whose inputs are colours of either sign."""

    def _manipulate_weights(self, module: Any, inputs: Any, outputs: Any) -> None:
        module.weight.data = torch.ones_like(module.weight.data)
        if module.bias is not None:
            module.bias.data = torch.zeros_like(module.bias.data)
        for device, values in module.activations.items():
            module.activations[device] = tuple(torch.ones_like(value) for value in values)


class Signs(nn.Module):  # type: ignore[misc]
    """(n, c, …) as (n, 2c, …): the positive part, then the negative one counted upwards; relevance passes unchanged."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return torch.cat([values.clamp_min(0), (-values).clamp_min(0)], 1)


class Join(nn.Module):  # type: ignore[misc]
    """The way back from `Signs`: positive less negative part. The one that gave the result its sign gets relevance."""

    def forward(self, parts: torch.Tensor) -> torch.Tensor:
        up, down = parts.chunk(2, 1)
        total = (up - down).detach()
        share = torch.where(total > 0, total / up.detach().clamp_min(1e-30), 0.0)
        other = torch.where(total < 0, total / down.detach().clamp_min(1e-30), 0.0)
        return up * share + down * other


class SignedSum(nn.Module):  # type: ignore[misc]
    """a + b, so that each part of it that has the sum's sign gets relevance in proportion."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Signs(), Signs()
        self.sum = Addition_Module()
        self.join = Join()

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        joined: torch.Tensor = self.join(self.sum(self.first(a), self.second(b)))
        return joined


class SignedConv(nn.Module):  # type: ignore[misc]
    """A convolution over both parts of its input, with the weights of the negative part turned round."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        conv.weight = nn.Parameter(torch.cat([conv.weight, -conv.weight], 1), requires_grad=False)
        conv.in_channels *= 2
        self.signs, self.conv = Signs(), conv

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.conv(self.signs(values))
        return result


def is_known(layer: nn.Module) -> bool:
    """Whether relevance can pass the layer: known kinds, and layers of the user's own without weights, as sums."""
    known = (*_OWN, *_PASS, *_LINEAR, *_POOLS, nn.Flatten, nn.Identity, nn.Dropout2d, nn.ZeroPad2d)
    foreign = not type(layer).__module__.startswith("torch.nn") and next(layer.parameters(), None) is None
    return isinstance(layer, known) or foreign


def attach_epsilon(own: nn.Module, epsilon: float) -> None:
    """Give every layer the epsilon rule, but for activations, which relevance passes unchanged."""
    for layer in _leaves(own):
        if type(layer) not in _OWN:
            layer.rule = IdentityRule() if isinstance(layer, _PASS) else EpsilonRule(epsilon)


def attach_zplus(own: nn.Module, steps: list[Step], epsilon: float) -> None:
    """Give linear layers the positive contributions, the first convolution an even share, biases nothing."""
    first: Any = next((step.layer for step in steps if isinstance(step.layer, nn.Conv2d)), None)
    for step in steps:
        layer = step.layer
        if step.is_sum:
            _put(own, step.name, SignedSum())
        elif isinstance(layer, nn.Conv2d) and layer.groups == 1 and step.lowest < 0 and layer is not first:
            _put(own, step.name, SignedConv(layer))
    for layer in _leaves(own):
        if layer is first:
            first.rule = FlatRule()
        elif isinstance(layer, (nn.Conv2d, nn.Linear)):
            layer.rule = Alpha1_Beta0_Rule(set_bias_to_zero=True)
        elif isinstance(layer, (*_PASS, nn.BatchNorm2d)):
            layer.rule = IdentityRule()
        elif type(layer) not in _OWN:
            layer.rule = EpsilonRule(epsilon)


def _leaves(own: nn.Module) -> list[nn.Module]:
    return [layer for layer in own.modules() if next(layer.children(), None) is None]


def _put(own: nn.Module, name: str, layer: nn.Module) -> None:
    """Put a layer in the place of that name."""
    parent, _, last = name.rpartition(".")
    setattr(own.get_submodule(parent), last, layer)
