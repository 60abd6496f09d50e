"""`lrp`: layer-wise relevance propagation (Bach et al., 2015), through captum."""

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np

from becausal.core.contracts import Finding, Needs, Search
from becausal.core.errors import ModelError, OptionError
from becausal.core.problem import Problem
from becausal.methods.gradients import (
    ALTERNATIVES,
    LayerCall,
    TorchProblem,
    attribution_context,
    describe_layer,
    find_reused,
    refuse_layer_norm,
    require,
    sum_channels,
    to_torch,
    trace_layers,
)

Rule = Literal["epsilon", "zplus"]
TOLERANCE = 0.01  # share of the relevance that may be lost without a note


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
        """The map, without model calls of the engine."""
        yield from ()
        torch_problem = to_torch(problem, self.name).copied()
        captum = require("captum.attr", self.name)
        with attribution_context(self.name, torch_problem):
            self._attach_rules(torch_problem, trace_layers(torch_problem))
            values, missing = captum.LRP(torch_problem.logits).attribute(
                torch_problem.view.clone(), target=torch_problem.label_id, return_convergence_delta=True
            )
        notes = _describe_leak(float(values.detach().sum()), float(missing.detach().sum()))
        return Finding(sum_channels(values), notes=notes)

    def _attach_rules(self, torch_problem: TorchProblem, calls: list[LayerCall]) -> None:
        """Set the propagation rule of each layer, where captum reads it."""
        refuse_layer_norm(self.name, calls)
        if reused := find_reused(calls):
            raise ModelError(
                f"the method lrp needs each layer to be used once, and {reused} is used more than once: create one layer "
                f"per use; or {ALTERNATIVES}"
            )
        from torch import nn

        from becausal.methods import lrp_rules as rules

        for call in calls:
            if isinstance(call.layer, nn.Softmax) or not rules.is_known(call.layer):
                raise ModelError(f"captum's LRP has no rule for the layer {describe_layer(call)}: {ALTERNATIVES}")
        if self.rule == "epsilon":
            rules.attach_epsilon(torch_problem.own, self.epsilon)
        else:
            rules.attach_zplus(torch_problem.own, calls, self.epsilon)


def _describe_leak(total: float, missing: float) -> tuple[str, ...]:
    logit = total + missing
    if abs(missing) <= TOLERANCE * max(abs(logit), 1e-6):
        return ()
    if abs(total) > abs(logit):
        return (
            f"lrp: relevance grew from {logit:.3g} to {total:.3g}: captum does not see sums written as functions (x + y), "
            "write them as layers",
        )
    return (f"lrp: {total / logit:.1%} of the logit's relevance reached the view; biases absorbed the rest",)
