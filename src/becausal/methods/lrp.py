"""`lrp`: layer-wise relevance propagation (Bach et al., 2015), through captum."""

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np

from becausal.core.contracts import Finding, Needs, Search
from becausal.core.errors import ModelError, OptionError
from becausal.core.problem import Problem
from becausal.methods.gradients import (
    INSTEAD,
    Opened,
    Step,
    explained,
    name_reused,
    on_grid,
    open_up,
    require,
    say_layer,
    walk,
)

Rule = Literal["epsilon", "zplus"]
LEAKED = 0.01  # share of the relevance that may get lost before it is said


@dataclass(frozen=True, kw_only=True)
class Relevance:
    """The label's logit, handed back from layer to layer in proportion to what each unit contributed.

    The map is the relevance of the input, summed over channels with its sign. Its sum is the logit, less what biases
    and the stabiliser took.

    rule: zplus hands relevance to positive contributions only, in the first convolution to all alike; epsilon to
    positive and negative ones everywhere, as the paper's first rule does.
    epsilon: what is added to each denominator of the epsilon rule, away from 0.
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
        """The map, without a question."""
        yield from ()
        opened = open_up(problem, self.name).copied()
        captum = require("captum.attr", self.name)
        with explained(self.name, opened):
            self._attach_rules(opened, walk(opened))
            values, missing = captum.LRP(opened.logits).attribute(
                opened.view.clone(), target=opened.label_id, return_convergence_delta=True
            )
        notes = _say_leak(float(values.detach().sum()), float(missing.detach().sum()))
        return Finding(on_grid(values), notes=notes)

    def _attach_rules(self, opened: Opened, steps: list[Step]) -> None:
        """Say for each layer how relevance passes it; captum finds the rule on the layer."""
        if reused := name_reused(steps):
            raise ModelError(
                f"the method lrp needs each layer to be used once, and {reused} is used more than once: give every "
                f"place its own; {INSTEAD}"
            )
        from torch import nn

        from becausal.methods import lrp_rules as rules

        for step in steps:
            if isinstance(step.layer, nn.Softmax) or not rules.is_known(step.layer):
                what = say_layer(step.name, step.layer)
                raise ModelError(f"captum's LRP has no rule for the layer {what}; {INSTEAD}")
        if self.rule == "epsilon":
            rules.attach_epsilon(opened.own, self.epsilon)
        else:
            rules.attach_zplus(opened.own, steps, self.epsilon)


def _say_leak(total: float, missing: float) -> tuple[str, ...]:
    logit = total + missing
    if abs(missing) <= LEAKED * max(abs(logit), 1e-6):
        return ()
    if abs(total) > abs(logit):
        return (
            f"lrp: relevance grew from {logit:.3g} to {total:.3g}: sums written as functions (x + y) are invisible to "
            "captum, so write them as layers",
        )
    return (f"lrp: {total / logit:.1%} of the logit's relevance reached the view; biases kept the rest",)
