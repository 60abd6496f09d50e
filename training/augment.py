"""Data augmentation on the training device.

It has two purposes: the classifier must rely on the object (backgrounds are swapped, objects are shown alone), and its
predictions must be sensible when parts of an image are masked by a fill, as an explainer does.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

SIDE = 128

#: An image keeps its label if at least this share of the visible object is left,
KEEP = 0.2
#: and is labelled "nothing" below this share; in between it has weight 0.
GONE = 0.03


def augment(
    images: torch.Tensor, visible: torch.Tensor, labels: torch.Tensor, empties: torch.Tensor, nothing: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Augment a batch of images (n, 128, 128, 3) uint8 with masks of the visible object (n, 128, 128) and labels (n,).

    `empties`, (m, 128, 128, 3), are images without an object. Returns inputs (n, 3, 128, 128) in -1..1, labels and weights.
    """
    count, device = len(images), images.device
    x = images.permute(0, 3, 1, 2).float() / 255.0
    m = visible[:, None].float()
    area = m.sum((1, 2, 3)).clamp(min=1.0)
    has = labels != nothing
    other = empties[torch.randint(len(empties), (count,), device=device)].permute(0, 3, 1, 2).float() / 255.0
    swap = _chance(count, 0.25, device) & _view(has)
    x = torch.where(swap, x * m + other * (1 - m), x)
    x, m, zoom = _move(x, m)
    x = _recolour(x)
    masked = _draw_mask(m)
    fill, blurred = _fill(x, other)
    x = torch.where(masked > 0.5, fill, x)
    left = (m * (1 - masked)).sum((1, 2, 3)) * zoom / area
    # A blurred object may still be recognisable, so such an image gets weight 0.
    weights = torch.where(has & (left < KEEP) & ((left >= GONE) | blurred), 0.0, 1.0)
    labels = torch.where(left < GONE, torch.full_like(labels, nothing), labels)
    x, labels, weights = _blanks(x, labels, weights, nothing)
    soft = F.avg_pool2d(F.pad(x, (1, 1, 1, 1), mode="replicate"), 3, 1)
    x = torch.where(_chance(count, 0.12, device), soft, x)
    x = x + torch.randn_like(x) * (torch.rand(count, 1, 1, 1, device=device) * 0.05 * _chance(count, 0.6, device))
    return x.clamp(0, 1) * 2 - 1, labels, weights


def _view(flags: torch.Tensor) -> torch.Tensor:
    return flags[:, None, None, None]


def _chance(count: int, probability: float, device: torch.device) -> torch.Tensor:
    return torch.rand(count, 1, 1, 1, device=device) < probability


def _uniform(count: int, low: float, high: float, device: torch.device) -> torch.Tensor:
    return low + (high - low) * torch.rand(count, device=device)


def _move(x: torch.Tensor, m: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    count, device = len(x), x.device
    still = torch.rand(count, device=device) < 0.2
    zoom = torch.where(still, 1.0, torch.exp(_uniform(count, -0.25, 0.25, device)))
    turn = torch.where(still, 0.0, _uniform(count, -1, 1, device) * math.radians(10))
    flip = torch.where(torch.rand(count, device=device) < 0.5, -1.0, 1.0)
    shift_x = torch.where(still, 0.0, _uniform(count, -0.25, 0.25, device))
    shift_y = torch.where(still, 0.0, _uniform(count, -0.25, 0.25, device))
    first = torch.stack([zoom * torch.cos(turn) * flip, -zoom * torch.sin(turn), shift_x], 1)
    second = torch.stack([zoom * torch.sin(turn) * flip, zoom * torch.cos(turn), shift_y], 1)
    where = F.affine_grid(torch.stack([first, second], 1), [count, 4, SIDE, SIDE], align_corners=False)
    both = F.grid_sample(torch.cat([x, m], 1), where, padding_mode="reflection", align_corners=False)
    return both[:, :3], (both[:, 3:] > 0.5).float(), zoom * zoom


def _recolour(x: torch.Tensor) -> torch.Tensor:
    count, device = len(x), x.device
    gain = 1 + (torch.rand(count, 3, 1, 1, device=device) - 0.5) * 0.3
    contrast = 1 + (torch.rand(count, 1, 1, 1, device=device) - 0.5) * 0.5
    lift = (torch.rand(count, 1, 1, 1, device=device) - 0.5) * 0.2
    changed = ((x - 0.5) * contrast + 0.5 + lift) * gain
    grey = changed.mean(1, keepdim=True).expand_as(changed)
    changed = torch.where(_chance(count, 0.06, device), grey, changed)
    return torch.where(_chance(count, 0.75, device), changed, x).clamp(0, 1)


def _boxes(count: int, device: torch.device) -> torch.Tensor:
    at = (torch.arange(SIDE, device=device) + 0.5) / SIDE
    size = torch.exp(_uniform(count * 2, math.log(0.1), math.log(0.9), device)).view(2, count, 1)
    start = torch.rand(2, count, 1, device=device) * (1.15 - size) - 0.075
    inside = (at >= start) & (at < start + size)
    return (inside[0][:, :, None] & inside[1][:, None, :]).float()[:, None]


def _draw_mask(m: torch.Tensor) -> torch.Tensor:
    """Draw the masked pixels, (n, 1, 128, 128): none, cells of a grid, blobs, boxes, or all but the object."""
    count, device = len(m), m.device
    share = torch.rand(count, 1, 1, 1, device=device) * 0.95
    cells = int(torch.randint(0, 6, ()).item())
    grid = torch.rand(count, 1, (3, 4, 6, 8, 12, 16)[cells], (4, 4, 6, 8, 12, 16)[cells], device=device)
    blocks = (F.interpolate(grid, (SIDE, SIDE), mode="nearest") < share).float()
    knots = 4 + int(torch.randint(0, 8, ()).item())
    field = F.interpolate(torch.rand(count, 1, knots, knots, device=device), (SIDE, SIDE), mode="bicubic")
    blobs = (field < 0.15 + share * 0.7).float()
    one, two = _boxes(count, device), _boxes(count, device)
    some = torch.where(_chance(count, 0.5, device), torch.maximum(one, two), one)
    reach = int(torch.randint(0, 5, ()).item())
    near = F.max_pool2d(m, 2 * reach + 1, 1, reach)
    kind = torch.rand(count, 1, 1, 1, device=device)
    masked = torch.zeros_like(m)
    for limit, choice in (
        (0.65, blocks),
        (0.48, blobs),
        (0.36, some),
        (0.22, 1 - one),
        (0.14, 1 - near),
        (0.08, torch.maximum(1 - near, blocks)),
        (0.03, near),
    ):
        masked = torch.where(kind < limit, choice, masked)
    return masked


def _fill(x: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw a fill: grey, black, white, a colour, the mean, a blur, another image or noise.

    Returns the fill, (n, 3, 128, 128), and whether it is the blur, (n,).
    """
    count, device = len(x), x.device
    mean = x.mean((2, 3), keepdim=True)
    cells = (8, 16, 32)[int(torch.randint(0, 3, ()).item())]
    blur = F.interpolate(F.avg_pool2d(x, cells), (SIDE, SIDE), mode="bilinear", align_corners=False)
    colour = torch.rand(count, 3, 1, 1, device=device)
    kind = torch.rand(count, 1, 1, 1, device=device)
    fill = torch.full_like(x, 128 / 255)
    for limit, choice in (
        (0.72, torch.zeros_like(x)), (0.6, torch.ones_like(x)), (0.52, colour.expand_as(x)), (0.38, mean.expand_as(x)),
        (0.26, blur), (0.12, other), (0.05, torch.rand_like(x)),
    ):  # fmt: skip
        fill = torch.where(kind < limit, choice, fill)
    return fill, ((kind < 0.26) & (kind >= 0.12)).view(-1)


def _blanks(
    x: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor, nothing: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Replace 4 % of a batch by images of nothing: flat, shaded, noisy or blurred beyond recognition."""
    count, device = len(x), x.device
    flat = torch.rand(count, 3, 1, 1, device=device)
    grey = torch.rand(count, 1, 1, 1, device=device).expand(count, 3, 1, 1)
    flat = torch.where(_chance(count, 0.4, device), grey, flat)
    ramp = torch.linspace(-0.5, 0.5, SIDE, device=device).view(1, 1, 1, SIDE) * (
        torch.rand(count, 3, 1, 1, device=device) - 0.5
    )
    blur = F.interpolate(F.avg_pool2d(x, 32), (SIDE, SIDE), mode="bilinear", align_corners=False)
    kind = torch.rand(count, 1, 1, 1, device=device)
    blank = flat.expand_as(x)
    for limit, choice in ((0.6, flat + ramp), (0.4, torch.rand_like(x)), (0.25, blur)):
        blank = torch.where(kind < limit, choice, blank)
    chosen = _chance(count, 0.04, device)
    flags = chosen.view(-1)
    return (
        torch.where(chosen, blank, x),
        torch.where(flags, torch.full_like(labels, nothing), labels),
        torch.where(flags, torch.ones_like(weights), weights),
    )
