"""`ig`: Integrated Gradients (Sundararajan, Taly and Yan, 2017), through captum."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from becausal.core.contracts import Finding, Needs, Search
from becausal.core.errors import OptionError
from becausal.core.problem import Problem
from becausal.methods.gradients import Sign, attribution_context, check_sign, require, sum_channels, to_torch


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
        if self.steps < 1:
            raise OptionError(f"steps must be at least 1, not {self.steps}")
        check_sign(self.sign)

    def search(self, problem: Problem, rng: np.random.Generator) -> Search[Finding]:
        """The map, without model calls of the engine."""
        yield from ()
        torch_problem = to_torch(problem, self.name)
        captum = require("captum.attr", self.name)
        with attribution_context(self.name, torch_problem):
            values = captum.IntegratedGradients(torch_problem.logits).attribute(
                torch_problem.view,
                baselines=torch_problem.background,
                target=torch_problem.label_id,
                n_steps=self.steps,
                internal_batch_size=10,
            )
        return Finding(sum_channels(values, self.sign))
