"""Smooth masks and their area, the mathematics of Extremal Perturbations; needs torch.

A mask is computed from a coarse grid of parameters in 0..1 by a smooth maximum convolution. Pixel u gets

    m(u) = smax_v k(u - v) p(v),    smax f = Σ f e^(f/T) / Σ e^(f/T),

over the coarse cells v around it, so that m is as smooth as the kernel k and still reaches 1 where a parameter does.
"""

from math import ceil
from typing import Any

import torch
import torch.nn.functional as F

Tensor = Any  # torch.Tensor

REACH = 1  # neighbouring cells on each side that affect a pixel
TEMPERATURE = 1 / 20


class SmoothMasks:
    """From parameters, (k, 1, rows, columns), to masks, (k, 1, h, w).

    cell: side of a parameter's cell in pixels. The kernel is 1 up to 3/4 of a cell from the parameter's position, so that
    it covers the whole cell, and falls smoothly to 0 at 3/2.
    """

    def __init__(self, grid: tuple[int, int], cell: int, like: Tensor) -> None:
        self.grid = grid
        self.cell = cell
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
    rank = torch.arange(pixels, dtype=like.dtype, device=like.device) + 0.5
    return torch.stack([(rank > (1 - area) * pixels).to(like.dtype) for area in areas])


def area_loss(masks: Tensor, templates: Tensor) -> Tensor:
    """The mean squared distance of each mask's sorted values to its template, (k,)."""
    ordered = masks.reshape(len(masks), -1).sort(1).values
    return ((ordered - templates) ** 2).mean(1)
