"""`extremal`: Extremal Perturbations (Fong, Patrick and Vedaldi, 2019), from the paper's mathematics."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from becausal.core.contracts import Finding, Needs, Search
from becausal.core.errors import OptionError
from becausal.core.problem import Problem
from becausal.methods.gradients import Opened, Tensor, explained, on_grid, open_up

PULL_FIRST, PULL_LAST = 30.0, 3000.0  # weight of the area, growing in equal ratios


@dataclass(frozen=True, kw_only=True)
class Extremal:
    """The smooth masks of fixed area that, shown alone, keep the label's logit highest.

    For each area a, stochastic gradient ascent with momentum maximises the logit of the view blended with the
    background by a mask, less λ times the distance of the mask's sorted values to a template of a share of ones and
    zeros else, λ growing. The map is the mean of the masks: what is needed even at the smallest area ranks first.

    areas: shares of the view, with commas between.
    steps: of the ascent.
    rate: of learning.
    cells: parameters along the view's longest side.
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
        """The areas as numbers. Raises OptionError for what is none."""
        try:
            shares = [float(word) for word in self.areas.split(",")]
        except ValueError:
            raise OptionError(f"areas are shares with commas between, as 0.05,0.2, not {self.areas!r}") from None
        if not all(0 < share < 1 for share in shares):
            raise OptionError(f"areas must lie between 0 and 1, not {self.areas}")
        return shares

    def search(self, problem: Problem, rng: np.random.Generator) -> Search[Finding]:
        """The map, without a question."""
        yield from ()
        opened = open_up(problem, self.name)
        with explained(self.name, opened):
            masks = self.optimise(opened)
        return Finding(on_grid(masks.mean(0, keepdim=True)))

    def optimise(self, opened: Opened) -> Tensor:
        """The masks, (areas, 1, h, w), one per area."""
        import torch

        from becausal.methods.smooth_masks import SmoothMasks, area_loss, area_templates

        view, background = opened.view, opened.background
        h, w = view.shape[2:]
        make = SmoothMasks((h, w), max(1, round(max(h, w) / self.cells)), view)
        parameters = make.start(len(self.shares())).requires_grad_(True)
        templates = area_templates(self.shares(), h * w, view)
        ascent = torch.optim.SGD([parameters], lr=self.rate, momentum=0.9)
        for pull in np.geomspace(PULL_FIRST, PULL_LAST, self.steps):
            masks = make(parameters)
            scores = opened.logits(background + masks * (view - background))[:, opened.label_id]
            loss = float(pull) * area_loss(masks, templates).sum() - scores.sum()
            (parameters.grad,) = torch.autograd.grad(loss, parameters)
            ascent.step()
            with torch.no_grad():
                parameters.clamp_(0, 1)
        with torch.no_grad():
            finished: Tensor = make(parameters)
        return finished
