"""`gbp`: guided backpropagation (Springenberg et al., 2015), through captum."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from becausal.core.contracts import Finding, Needs, Search
from becausal.core.errors import ModelError
from becausal.core.problem import Problem
from becausal.methods.gradients import ALTERNATIVES, attribution_context, require, sum_channels, to_torch


@dataclass(frozen=True, kw_only=True)
class GuidedBackpropagation:
    """The gradient of the label's logit, with negative gradients set to 0 at every ReLU.

    A gradient tells how the logit changes with a colour, not whether the pixel is evidence for the label. The map is
    therefore the absolute value, summed over the channels.
    """

    name: ClassVar[str] = "gbp"
    needs: ClassVar[Needs] = "gradients"

    def search(self, problem: Problem, rng: np.random.Generator) -> Search[Finding]:
        """The map, without model calls of the engine."""
        yield from ()
        torch_problem = to_torch(problem, self.name).copied()
        captum = require("captum.attr", self.name)
        from torch import nn

        from becausal.methods.torch_layers import GuidedReLU6, replace_layers

        replace_layers(torch_problem.own, nn.ReLU6, GuidedReLU6)
        if not any(isinstance(layer, nn.ReLU) for layer in torch_problem.own.modules()):
            raise ModelError(f"the method gbp needs ReLU layers, and this model has none: {ALTERNATIVES}")
        with attribution_context(self.name, torch_problem):
            values = captum.GuidedBackprop(torch_problem.logits).attribute(
                torch_problem.view.clone().requires_grad_(True), target=torch_problem.label_id
            )
        return Finding(sum_channels(values, "absolute"))
