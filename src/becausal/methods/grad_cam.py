"""`grad-cam`: gradient-weighted class activation maps (Selvaraju et al., 2017), through captum."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from becausal.core.contracts import Finding, Needs, Search
from becausal.core.errors import ModelError, OptionError
from becausal.core.problem import Problem
from becausal.methods.gradients import (
    ALTERNATIVES,
    TorchProblem,
    attribution_context,
    require,
    sum_channels,
    to_torch,
    trace_layers,
)


@dataclass(frozen=True, kw_only=True)
class GradCam:
    """Channels of one layer, weighted by the mean gradient of the label's logit, summed, negative values set to 0.

    The map has the resolution of the layer and is resized to the view by bilinear interpolation.

    Attributes:
        layer: Name of the layer, e.g. features.14; by default the last layer with more than one spatial position,
            usually the last convolution with its activation.
    """

    layer: str | None = None

    name: ClassVar[str] = "grad-cam"
    needs: ClassVar[Needs] = "gradients"

    def search(self, problem: Problem, rng: np.random.Generator) -> Search[Finding]:
        """The map, without model calls of the engine."""
        yield from ()
        torch_problem = to_torch(problem, self.name).copied()
        captum = require("captum.attr", self.name)
        with attribution_context(self.name, torch_problem):
            layer = self._find(torch_problem)
            values = captum.LayerGradCam(torch_problem.logits, layer).attribute(
                torch_problem.view.clone().requires_grad_(True), target=torch_problem.label_id, relu_attributions=True
            )
            large = captum.LayerAttribution.interpolate(values, problem.grid, interpolate_mode="bilinear")
        return Finding(sum_channels(large))

    def _find(self, torch_problem: TorchProblem) -> Any:
        calls = [call for call in trace_layers(torch_problem) if len(call.shape) == 4 and call.shape[2] * call.shape[3] > 1]
        names = [call.name for call in calls]
        if not calls:
            raise ModelError(
                f"the method grad-cam needs a layer with spatial output, and this model has none: {ALTERNATIVES}"
            )
        if self.layer is None:
            return calls[-1].layer
        if self.layer not in names:
            raise OptionError(
                f"the model has no layer {self.layer!r} with spatial output; it has {', '.join(names[-8:])}"
                + (f" and {len(names) - 8} before" if len(names) > 8 else "")
            )
        return calls[names.index(self.layer)].layer
