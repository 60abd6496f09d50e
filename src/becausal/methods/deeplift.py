"""`deeplift`: DeepLIFT with the rescale rule (Shrikumar, Greenside and Kundaje, 2017), through captum."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from becausal.core.contracts import Finding, Needs, Search
from becausal.core.errors import ModelError
from becausal.core.problem import Problem
from becausal.methods.gradients import (
    INSTEAD,
    Sign,
    check_sign,
    explained,
    name_reused,
    on_grid,
    open_up,
    require,
    walk,
)

MISSED = 0.01  # share of the difference that may be missing from the sum before it is said


@dataclass(frozen=True, kw_only=True)
class DeepLift:
    """The change of the label's logit between the background and the view, handed back layer by layer.

    The contributions of all pixels and channels add up to the change where every activation is a layer of its own.

    sign: absolute sums sizes over channels, signed the contributions themselves; as for ig.
    """

    sign: Sign = "absolute"

    name: ClassVar[str] = "deeplift"
    needs: ClassVar[Needs] = "gradients"

    def __post_init__(self) -> None:
        check_sign(self.sign)

    def search(self, problem: Problem, rng: np.random.Generator) -> Search[Finding]:
        """The map, without a question."""
        yield from ()
        opened = open_up(problem, self.name).copied()
        captum = require("captum.attr", self.name)
        from captum.attr._core.deep_lift import SUPPORTED_NON_LINEAR
        from torch import nn

        from becausal.methods.torch_layers import TwoReLUs, replace_layers

        replace_layers(opened.own, nn.ReLU6, TwoReLUs)
        with explained(self.name, opened):
            if reused := name_reused(walk(opened), *SUPPORTED_NON_LINEAR):
                raise ModelError(
                    f"the method deeplift needs each activation to be a layer of its own, and {reused} is used more "
                    f"than once: give every place its own; {INSTEAD}"
                )
            values, missed = captum.DeepLift(opened.logits).attribute(
                opened.view, baselines=opened.background, target=opened.label_id, return_convergence_delta=True
            )
        notes = _say_missed(float(values.detach().sum()), float(missed.detach().sum()))
        return Finding(on_grid(values, self.sign), notes=notes)


def _say_missed(total: float, missed: float) -> tuple[str, ...]:
    change = abs(total - missed)
    if abs(missed) <= MISSED * max(change, 1e-6):
        return ()
    return (
        f"deeplift: the map's sum misses the change of the logit by {abs(missed) / max(change, 1e-6):.0%}: captum's "
        "rules do not reach all of it (functions such as F.relu, activations other than ReLU, overlapping pools)",
    )
