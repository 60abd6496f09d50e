"""`gbp`: guided backpropagation (Springenberg et al., 2015), through captum."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from becausal.core.contracts import Finding, Needs, Search
from becausal.core.errors import ModelError
from becausal.core.problem import Problem
from becausal.methods.gradients import INSTEAD, explained, on_grid, open_up, require


@dataclass(frozen=True, kw_only=True)
class GuidedBackpropagation:
    """The gradient of the label's logit, with what is negative at a ReLU left out on the way back.

    A gradient says how the logit changes with a colour, not whether the pixel speaks for the label, so the map is its
    size: absolute values summed over channels.
    """

    name: ClassVar[str] = "gbp"
    needs: ClassVar[Needs] = "gradients"

    def search(self, problem: Problem, rng: np.random.Generator) -> Search[Finding]:
        """The map, without a question."""
        yield from ()
        opened = open_up(problem, self.name).copied()
        captum = require("captum.attr", self.name)
        from torch import nn

        from becausal.methods.torch_layers import GuidedReLU6, replace_layers

        replace_layers(opened.own, nn.ReLU6, GuidedReLU6)
        if not any(isinstance(layer, nn.ReLU) for layer in opened.own.modules()):
            raise ModelError(f"the method gbp guides the gradient at ReLU layers, and this model has none; {INSTEAD}")
        with explained(self.name, opened):
            values = captum.GuidedBackprop(opened.logits).attribute(
                opened.view.clone().requires_grad_(True), target=opened.label_id
            )
        return Finding(on_grid(values, "absolute"))
