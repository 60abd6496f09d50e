"""`rap`: Relative Attributing Propagation (Nam et al., 2020); `relative` has its rules."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from becausal.core.contracts import Finding, Needs, Search
from becausal.core.problem import Problem
from becausal.methods.gradients import attribution_context, refuse_layer_norm, sum_channels, to_torch, trace_layers


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
        """The map, without model calls of the engine."""
        yield from ()
        torch_problem = to_torch(problem, self.name).copied()
        from becausal.methods.relative import propagate

        bounds = [torch_problem.to_input(np.full_like(problem.view[None], level)) for level in (0, 255)]
        with attribution_context(self.name, torch_problem):
            refuse_layer_norm(self.name, trace_layers(torch_problem))
            values = propagate(torch_problem.own, torch_problem.view, torch_problem.label_id, bounds[0], bounds[1])
        return Finding(sum_channels(values))
