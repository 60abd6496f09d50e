"""`grad-cam`: gradient-weighted class activation maps (Selvaraju et al., 2017), through captum."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from becausal.core.contracts import Finding, Needs, Search
from becausal.core.errors import ModelError, OptionError
from becausal.core.problem import Problem
from becausal.methods.gradients import INSTEAD, Opened, explained, on_grid, open_up, require, walk


@dataclass(frozen=True, kw_only=True)
class GradCam:
    """Channels of one layer, weighted by the mean gradient of the label's logit, summed, and cut off below 0.

    The map has the layer's resolution and is made as large as the view by bilinear interpolation.

    layer: name of the layer, as features.14; by default the last one with more than one position, which is the last
    convolution with its activation.
    """

    layer: str | None = None

    name: ClassVar[str] = "grad-cam"
    needs: ClassVar[Needs] = "gradients"

    def search(self, problem: Problem, rng: np.random.Generator) -> Search[Finding]:
        """The map, without a question."""
        yield from ()
        opened = open_up(problem, self.name).copied()
        captum = require("captum.attr", self.name)
        with explained(self.name, opened):
            layer = self._find(opened)
            values = captum.LayerGradCam(opened.logits, layer).attribute(
                opened.view.clone().requires_grad_(True), target=opened.label_id, relu_attributions=True
            )
            large = captum.LayerAttribution.interpolate(values, problem.grid, interpolate_mode="bilinear")
        return Finding(on_grid(large))

    def _find(self, opened: Opened) -> Any:
        steps = [step for step in walk(opened) if len(step.shape) == 4 and step.shape[2] * step.shape[3] > 1]
        names = [step.name for step in steps]
        if not steps:
            raise ModelError(f"the method grad-cam needs a layer with rows and columns, and this has none; {INSTEAD}")
        if self.layer is None:
            return steps[-1].layer
        if self.layer not in names:
            raise OptionError(
                f"the model has no layer {self.layer!r} with rows and columns; it has {', '.join(names[-8:])}"
                + (f" and {len(names) - 8} before" if len(names) > 8 else "")
            )
        return steps[names.index(self.layer)].layer
