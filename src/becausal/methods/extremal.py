"""`extremal`: Extremal Perturbations (Fong, Patrick and Vedaldi, 2019), from the paper's mathematics.

The objective, the sorted template and the smooth maximum are those of the paper. The optimisation is tuned to few steps:

                        here                                    the authors' program, for images of 224 pixels
    steps, rate         200, 0.05                               800, 0.01
    momentum            0.9                                     0.9, dampened by 0.9
    weight of the area  30 to 3,000, geometrically              300 to 4,900, 0.35 % more at each step
    parameters          16 along the longest side, from 0.5     32, from 1
    kernel              1 up to 3/4 of a cell, 0 from 3/2       1 up to 10.5 pixels, then a Gaussian
    areas, map          5 to 60 % of the view, mean             2.5 to 20 % with a margin around the view, sum, blurred
    masked parts        the background of the fill              eight degrees of blur
    mirror images       never                                   at every second step

Larger areas are needed because explanations rank all pixels. The start is 0.5, with a smaller weight, because the logit of
the bundled classifier falls with the contrast of the object near full contrast, where the authors start.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from becausal.core.contracts import Finding, Needs, Search
from becausal.core.errors import OptionError
from becausal.core.problem import Problem
from becausal.methods.gradients import Tensor, TorchProblem, attribution_context, sum_channels, to_torch

AREA_WEIGHT_FIRST, AREA_WEIGHT_LAST = 30.0, 3000.0  # weight of the area term, growing geometrically


@dataclass(frozen=True, kw_only=True)
class Extremal:
    """Smooth masks of fixed area that maximise the label's logit when only the masked-in part is visible.

    For each area a, gradient ascent with momentum maximises the logit of the view blended with the background by a mask,
    minus λ times the distance of the mask's sorted values to a template with a share a of ones; λ grows. The map is the
    mean of the masks, so that pixels in the mask of the smallest area rank first.

    Attributes:
        areas: Shares of the view, separated by commas.
        steps: Number of gradient steps.
        rate: Learning rate.
        cells: Number of mask parameters along the view's longest side.
    """

    areas: str = "0.05,0.1,0.2,0.4,0.6"
    steps: int = 200
    rate: float = 0.05
    cells: int = 16

    name: ClassVar[str] = "extremal"
    needs: ClassVar[Needs] = "gradients"

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise OptionError(f"steps must be at least 1, not {self.steps}")
        if self.rate <= 0:
            raise OptionError(f"rate must be above 0, not {self.rate}")
        if self.cells < 2:
            raise OptionError(f"cells must be at least 2, not {self.cells}")
        self.shares()

    def shares(self) -> list[float]:
        """The areas as numbers. Raises OptionError where they cannot be read."""
        try:
            shares = [float(word) for word in self.areas.split(",")]
        except ValueError:
            raise OptionError(f"areas must be shares separated by commas, e.g. 0.05,0.2, not {self.areas!r}") from None
        if not all(0 < share < 1 for share in shares):
            raise OptionError(f"areas must lie between 0 and 1, not {self.areas}")
        return shares

    def search(self, problem: Problem, rng: np.random.Generator) -> Search[Finding]:
        """The map, without model calls of the engine."""
        yield from ()
        torch_problem = to_torch(problem, self.name)
        with attribution_context(self.name, torch_problem):
            masks = self.optimise(torch_problem)
        return Finding(sum_channels(masks.mean(0, keepdim=True)))

    def optimise(self, torch_problem: TorchProblem) -> Tensor:
        """One mask per area, (areas, 1, h, w)."""
        import torch

        from becausal.methods.smooth_masks import SmoothMasks, area_loss, area_templates

        view, background = torch_problem.view, torch_problem.background
        h, w = view.shape[2:]
        make = SmoothMasks((h, w), max(1, round(max(h, w) / self.cells)), view)
        parameters = make.start(len(self.shares())).requires_grad_(True)
        templates = area_templates(self.shares(), h * w, view)
        ascent = torch.optim.SGD([parameters], lr=self.rate, momentum=0.9)
        for weight in np.geomspace(AREA_WEIGHT_FIRST, AREA_WEIGHT_LAST, self.steps):
            masks = make(parameters)
            logits = torch_problem.logits(background + masks * (view - background))[:, torch_problem.label_id]
            loss = float(weight) * area_loss(masks, templates).sum() - logits.sum()
            (parameters.grad,) = torch.autograd.grad(loss, parameters)
            ascent.step()
            with torch.no_grad():
                parameters.clamp_(0, 1)
        with torch.no_grad():
            finished: Tensor = make(parameters)
        return finished
