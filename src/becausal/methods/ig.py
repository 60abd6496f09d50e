"""`ig`: Integrated Gradients (Sundararajan, Taly and Yan, 2017), through captum."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from becausal.core.contracts import Finding, Needs, Search
from becausal.core.errors import OptionError
from becausal.core.problem import Problem
from becausal.methods.gradients import Sign, check_sign, explained, on_grid, open_up, require


@dataclass(frozen=True, kw_only=True)
class IntegratedGradients:
    """Gradients of the label's logit, summed on the straight way from the background to the view.

    Each channel of a pixel gets (x - x') times the mean gradient; all of them add up to the logit of the view less that
    of the background (completeness).

    steps: gradients on the way, by Gauss-Legendre quadrature.
    sign: absolute sums sizes over channels, as the paper's authors show it, for signs change from pixel to pixel within
    an object; signed keeps them: evidence for the label above 0, against it below.
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
        """The map, without a question."""
        yield from ()
        opened = open_up(problem, self.name)
        captum = require("captum.attr", self.name)
        with explained(self.name, opened):
            values = captum.IntegratedGradients(opened.logits).attribute(
                opened.view,
                baselines=opened.background,
                target=opened.label_id,
                n_steps=self.steps,
                internal_batch_size=10,
            )
        return Finding(on_grid(values, self.sign))
