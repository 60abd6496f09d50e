"""`deeplift`: DeepLIFT with the rescale rule (Shrikumar, Greenside and Kundaje, 2017), through captum."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from becausal.core.contracts import Finding, Needs, Search
from becausal.core.errors import ModelError
from becausal.core.problem import Problem
from becausal.methods.gradients import (
    ALTERNATIVES,
    Sign,
    attribution_context,
    check_sign,
    find_reused,
    refuse_layer_norm,
    require,
    sum_channels,
    to_torch,
    trace_layers,
)

TOLERANCE = 0.01  # share of the change that may be missing from the sum without a note


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
        """The map, without model calls of the engine."""
        yield from ()
        torch_problem = to_torch(problem, self.name).copied()
        captum = require("captum.attr", self.name)
        from captum.attr._core.deep_lift import SUPPORTED_NON_LINEAR
        from torch import nn

        from becausal.methods.torch_layers import TwoReLUs, replace_layers

        replace_layers(torch_problem.own, nn.ReLU6, TwoReLUs)
        with attribution_context(self.name, torch_problem):
            calls = trace_layers(torch_problem)
            refuse_layer_norm(self.name, calls)
            if reused := find_reused(calls, *SUPPORTED_NON_LINEAR):
                raise ModelError(
                    f"the method deeplift needs a separate layer for each activation, and {reused} is used more than "
                    f"once: create one layer per use; or {ALTERNATIVES}"
                )
            values, missing = captum.DeepLift(torch_problem.logits).attribute(
                torch_problem.view,
                baselines=torch_problem.background,
                target=torch_problem.label_id,
                return_convergence_delta=True,
            )
        notes = _describe_missing(float(values.detach().sum()), float(missing.detach().sum()))
        return Finding(sum_channels(values, self.sign), notes=notes)


def _describe_missing(total: float, missing: float) -> tuple[str, ...]:
    change = abs(total - missing)
    if abs(missing) <= TOLERANCE * max(change, 1e-6):
        return ()
    return (
        f"deeplift: the sum of the map misses the change of the logit by {abs(missing) / max(change, 1e-6):.0%}: captum "
        "has no rules for parts of this model (functions such as F.relu, activations other than ReLU, overlapping pools)",
    )
