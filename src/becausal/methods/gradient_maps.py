"""`ig`, `gbp`, `deeplift`, `lrp` and `rap`: maps that are computed backwards through the layers of the model.

`ig`: Integrated Gradients (Sundararajan, Taly and Yan, 2017). `gbp`: guided backpropagation (Springenberg et al., 2015).
`deeplift`: DeepLIFT with the rescale rule (Shrikumar, Greenside and Kundaje, 2017). `lrp`: layer-wise relevance propagation
(Bach et al., 2015). `rap`: relative attributing propagation (Nam et al., 2020); `relative` has its rules. captum computes
all of them but `rap`. None takes model calls of the engine.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np

from becausal.core.contracts import Finding, Needs, Search
from becausal.core.errors import ModelError, OptionError
from becausal.core.problem import Problem
from becausal.methods import gradients
from becausal.methods.gradients import ALTERNATIVES, Sign, attribution, check_sign, require, sum_channels
from becausal.methods.waves import check_least

Rule = Literal["epsilon", "zplus"]
TOLERANCE = 0.01  # share of the relevance or of the change that may be missing from the sum without a note


@dataclass(frozen=True, kw_only=True)
class IntegratedGradients:
    """Gradients of the label's logit, integrated along the straight line from the background to the view.

    Each channel of a pixel gets (x - x') times the mean gradient. The sum over all of them is the logit of the view minus
    that of the background (completeness).

    Attributes:
        steps: Number of gradients along the line, by Gauss-Legendre quadrature.
        sign: absolute sums absolute values over the channels, as the authors of the paper show it, since signs change
            from pixel to pixel within an object; signed keeps the sign, positive for evidence for the label.
    """

    steps: int = 50
    sign: Sign = "absolute"

    name: ClassVar[str] = "ig"
    needs: ClassVar[Needs] = "gradients"

    def __post_init__(self) -> None:
        check_least(self, steps=1)
        check_sign(self.sign)

    def search(self, problem: Problem, rng: np.random.Generator) -> Search[Finding]:
        yield from ()
        with attribution(problem, self.name) as model:
            captum = require("captum.attr", self.name)
            values = captum.IntegratedGradients(model.logits).attribute(
                model.view, baselines=model.background, target=model.label_id, n_steps=self.steps, internal_batch_size=10
            )
        return Finding(sum_channels(values, self.sign))


@dataclass(frozen=True, kw_only=True)
class GuidedBackpropagation:
    """The gradient of the label's logit, with negative gradients set to 0 at every ReLU.

    A gradient tells how the logit changes with a colour, not whether the pixel is evidence for the label. The map is
    therefore the absolute value, summed over the channels.
    """

    name: ClassVar[str] = "gbp"
    needs: ClassVar[Needs] = "gradients"

    def search(self, problem: Problem, rng: np.random.Generator) -> Search[Finding]:
        yield from ()
        with attribution(problem, self.name, copied=True) as model:
            captum = require("captum.attr", self.name)
            from torch import nn

            from becausal.methods.torch_layers import GuidedReLU6, replace_layers

            replace_layers(model.own, nn.ReLU6, GuidedReLU6)
            if not any(isinstance(layer, nn.ReLU) for layer in model.own.modules()):
                raise ModelError(f"the method gbp needs ReLU layers, and this model has none: {ALTERNATIVES}")
            view = model.view.clone().requires_grad_(True)
            values = captum.GuidedBackprop(model.logits).attribute(view, target=model.label_id)
        return Finding(sum_channels(values, "absolute"))


@dataclass(frozen=True, kw_only=True)
class DeepLift:
    """The change of the label's logit from the background to the view, propagated back layer by layer.

    The contributions of all pixels and channels add up to the change where every activation is a layer of its own.

    Attributes:
        sign: absolute sums absolute contributions over the channels, signed the contributions themselves, as for ig.
    """

    sign: Sign = "absolute"

    name: ClassVar[str] = "deeplift"
    needs: ClassVar[Needs] = "gradients"

    def __post_init__(self) -> None:
        check_sign(self.sign)

    def search(self, problem: Problem, rng: np.random.Generator) -> Search[Finding]:
        yield from ()
        with attribution(problem, self.name, copied=True) as model:
            captum = require("captum.attr", self.name)
            from captum.attr._core.deep_lift import SUPPORTED_NON_LINEAR
            from torch import nn

            from becausal.methods.torch_layers import TwoReLUs, replace_layers

            replace_layers(model.own, nn.ReLU6, TwoReLUs)
            calls = gradients.trace_layers(model)
            gradients.refuse_layer_norm(self.name, calls)
            if reused := gradients.find_reused(calls, *SUPPORTED_NON_LINEAR):
                raise ModelError(
                    f"the method deeplift needs a separate layer for each activation, and {reused} is used more than "
                    f"once: create one layer per use; or {ALTERNATIVES}"
                )
            values, missing = captum.DeepLift(model.logits).attribute(
                model.view, baselines=model.background, target=model.label_id, return_convergence_delta=True
            )
        lost = abs(float(missing.detach().sum()))
        change = max(abs(float(values.detach().sum()) - float(missing.detach().sum())), 1e-6)
        note = (
            f"deeplift: the sum of the map misses the change of the logit by {lost / change:.0%}: captum has no rules for "
            "parts of this model (functions such as F.relu, activations other than ReLU, overlapping pools)"
        )
        return Finding(sum_channels(values, self.sign), notes=(note,) if lost > TOLERANCE * change else ())


@dataclass(frozen=True, kw_only=True)
class Relevance:
    """The label's logit, propagated back from layer to layer in proportion to what each unit contributed.

    The map is the relevance of the input, summed over the channels with its sign. Its sum is the logit, minus what biases
    and the stabiliser absorb.

    Attributes:
        rule: zplus propagates to positive contributions only, and uniformly in the first convolution; epsilon to
            positive and negative contributions in all layers, the first rule of the paper. With zplus, pooling shares
            in proportion to its inputs, and the summands with the sign of a sum share its relevance.
        epsilon: Stabiliser added to each denominator of the epsilon rule, away from 0.
    """

    rule: Rule = "zplus"
    epsilon: float = 1e-6

    name: ClassVar[str] = "lrp"
    needs: ClassVar[Needs] = "gradients"

    def __post_init__(self) -> None:
        if self.rule not in get_args(Rule):
            raise OptionError(f"rule must be one of {', '.join(get_args(Rule))}, not {self.rule!r}")
        if self.epsilon <= 0:
            raise OptionError(f"epsilon must be above 0, not {self.epsilon}")

    def search(self, problem: Problem, rng: np.random.Generator) -> Search[Finding]:
        yield from ()
        with attribution(problem, self.name, copied=True) as model:
            captum = require("captum.attr", self.name)
            from torch import nn

            from becausal.methods import lrp_rules as rules

            calls = gradients.trace_layers(model)
            gradients.refuse_layer_norm(self.name, calls)
            if reused := gradients.find_reused(calls):
                raise ModelError(
                    f"the method lrp needs each layer to be used once, and {reused} is used more than once: create one "
                    f"layer per use; or {ALTERNATIVES}"
                )
            for call in calls:
                if isinstance(call.layer, nn.Softmax) or not rules.is_known(call.layer):
                    raise ModelError(f"captum's LRP has no rule for the layer {call}: {ALTERNATIVES}")
            if self.rule == "epsilon":
                rules.attach_epsilon(model.own, self.epsilon)
            else:
                rules.attach_zplus(model.own, calls, self.epsilon)
            values, missing = captum.LRP(model.logits).attribute(
                model.view.clone(), target=model.label_id, return_convergence_delta=True
            )
        total, lost = float(values.detach().sum()), float(missing.detach().sum())
        logit = total + lost
        notes: tuple[str, ...] = ()
        if abs(lost) > TOLERANCE * max(abs(logit), 1e-6):
            notes = (
                f"lrp: relevance grew from {logit:.3g} to {total:.3g}: captum does not see sums written as functions "
                "(x + y), write them as layers"
                if abs(total) > abs(logit)
                else f"lrp: {total / logit:.1%} of the logit's relevance reached the view; biases absorbed the rest",
            )
        return Finding(sum_channels(values), notes=notes)


@dataclass(frozen=True, kw_only=True)
class RelativeAttributing:
    """The label's logit, propagated back by relative influence: large contributions of either sign are relevant.

    In each layer positive and negative contributions receive relevance; the excess over the layer's total is then
    subtracted uniformly from all active units. Relevance thus becomes bipolar, positive for important units and negative
    for unimportant ones, and its sum remains the logit, or its absolute value. The map is the relevance of the input,
    summed over the channels.
    """

    name: ClassVar[str] = "rap"
    needs: ClassVar[Needs] = "gradients"

    def search(self, problem: Problem, rng: np.random.Generator) -> Search[Finding]:
        yield from ()
        with attribution(problem, self.name, copied=True) as model:
            from becausal.methods.relative import propagate

            low, high = (model.to_input(np.full_like(problem.view[None], level)) for level in (0, 255))
            gradients.refuse_layer_norm(self.name, gradients.trace_layers(model))
            values = propagate(model.own, model.view, model.label_id, low, high)
        return Finding(sum_channels(values))
