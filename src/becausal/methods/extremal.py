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
from math import ceil
from typing import ClassVar

import numpy as np

from becausal.core.contracts import Finding, Needs, Search
from becausal.core.errors import OptionError
from becausal.core.problem import Problem
from becausal.methods.gradients import Tensor, TorchProblem, attribution, sum_channels
from becausal.methods.waves import check_least

AREA_WEIGHT_FIRST, AREA_WEIGHT_LAST = 30.0, 3000.0  # weight of the area term, growing geometrically
REACH = 1  # neighbouring cells of parameters on each side that affect a pixel
TEMPERATURE = 1 / 20  # of the smooth maximum


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
        check_least(self, steps=1, cells=2)
        if self.rate <= 0:
            raise OptionError(f"rate must be above 0, not {self.rate}")
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
        yield from ()
        with attribution(problem, self.name) as model:
            masks = self.optimise(model)
        return Finding(sum_channels(masks.mean(0, keepdim=True)))

    def optimise(self, model: TorchProblem) -> Tensor:
        """One mask per area, (areas, 1, h, w)."""
        import torch

        view, background = model.view, model.background
        h, w = view.shape[2:]
        make = SmoothMasks((h, w), max(1, round(max(h, w) / self.cells)), view)
        parameters = make.start(len(self.shares())).requires_grad_(True)
        templates = area_templates(self.shares(), h * w, view)
        ascent = torch.optim.SGD([parameters], lr=self.rate, momentum=0.9)
        for weight in np.geomspace(AREA_WEIGHT_FIRST, AREA_WEIGHT_LAST, self.steps):
            masks = make(parameters)
            logits = model.logits(background + masks * (view - background))[:, model.label_id]
            loss = float(weight) * area_loss(masks, templates).sum() - logits.sum()
            (parameters.grad,) = torch.autograd.grad(loss, parameters)
            ascent.step()
            with torch.no_grad():
                parameters.clamp_(0, 1)
        with torch.no_grad():
            finished: Tensor = make(parameters)
        return finished


class SmoothMasks:
    """From parameters, (k, 1, rows, columns), to masks, (k, 1, h, w), by a smooth maximum convolution: pixel u gets

        m(u) = smax_v k(u - v) p(v),    smax f = Σ f e^(f/T) / Σ e^(f/T),

    over the coarse cells v around it, so that m is as smooth as the kernel k and still reaches 1 where a parameter does.
    cell: side of a parameter's cell in pixels. The kernel is 1 up to 3/4 of a cell from the parameter's position, so that
    it covers the whole cell, and falls smoothly to 0 at 3/2.
    """

    def __init__(self, grid: tuple[int, int], cell: int, like: Tensor) -> None:
        import torch

        self.grid, self.cell = grid, cell
        self.rows, self.columns = (ceil(side / cell) for side in grid)
        position = (torch.arange(cell, dtype=like.dtype, device=like.device) + 0.5) / cell - 0.5  # of pixels, in cells
        offset = torch.arange(-REACH, REACH + 1, dtype=like.dtype, device=like.device)
        gap = (position[:, None] - offset[None]) ** 2  # (cell, 2·REACH + 1)
        distance = (gap[:, None, :, None] + gap[None, :, None, :]).sqrt()
        rise = ((1.5 - distance) / 0.75).clamp(0, 1)
        kernel = rise**2 * (3 - 2 * rise)
        self._kernel = kernel.reshape(1, cell * cell, -1, 1)  # (1, pixels of a cell, neighbours, 1)

    def start(self, count: int) -> Tensor:
        """Initial parameters of `count` masks, all 0.5."""
        return self._kernel.new_full((count, 1, self.rows, self.columns), 0.5)

    def __call__(self, parameters: Tensor) -> Tensor:
        import torch
        import torch.nn.functional as F

        count, side = len(parameters), 2 * REACH + 1
        padded = F.pad(parameters, (REACH,) * 4, mode="replicate")
        around = F.unfold(padded, side).unsqueeze(1)  # (k, 1, neighbours, cells)
        weighted = self._kernel * around  # (k, pixels of a cell, neighbours, cells)
        values = (weighted * torch.softmax(weighted / TEMPERATURE, 2)).sum(2)  # (k, pixels of a cell, cells)
        masks = F.fold(values, (self.rows * self.cell, self.columns * self.cell), self.cell, stride=self.cell)
        h, w = self.grid
        return masks.reshape(count, 1, *masks.shape[2:])[:, :, :h, :w]


def area_templates(areas: list[float], pixels: int, like: Tensor) -> Tensor:
    """The sorted values that a mask of each area should have, (k, pixels): zeros, then ones."""
    import torch

    rank = torch.arange(pixels, dtype=like.dtype, device=like.device) + 0.5
    return torch.stack([(rank > (1 - area) * pixels).to(like.dtype) for area in areas])


def area_loss(masks: Tensor, templates: Tensor) -> Tensor:
    """The mean squared distance of each mask's sorted values to its template, (k,)."""
    ordered = masks.reshape(len(masks), -1).sort(1).values
    return ((ordered - templates) ** 2).mean(1)
