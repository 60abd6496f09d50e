"""`rap`: Relative Attributing Propagation (Nam et al., 2020), from the paper's definitions."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from becausal.core.contracts import Finding, Needs, Search
from becausal.core.problem import Problem
from becausal.methods.gradients import explained, on_grid, open_up


@dataclass(frozen=True, kw_only=True)
class RelativeAttributing:
    """The label's logit, handed back by relative influence: what weighs much is relevant, for or against alike.

    At each layer both positive and negative contributions earn relevance, and what the negative ones earned beyond the
    layer's total is then taken from all active units evenly. So relevance becomes bipolar, high on what matters and
    below 0 on what does not, and its sum stays the logit's. The map is the input's relevance, summed over channels.
    """

    name: ClassVar[str] = "rap"
    needs: ClassVar[Needs] = "gradients"

    def search(self, problem: Problem, rng: np.random.Generator) -> Search[Finding]:
        """The map, without a question."""
        yield from ()
        opened = open_up(problem, self.name).copied()
        from becausal.methods.relative import propagate

        bounds = [opened.to_input(np.full_like(problem.view[None], level)) for level in (0, 255)]
        with explained(self.name, opened):
            values = propagate(opened.own, opened.view, opened.label_id, bounds[0], bounds[1])
        return Finding(on_grid(values))
