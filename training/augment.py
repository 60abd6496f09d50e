"""Data augmentation on the training device.

It has two purposes: the classifier must rely on the object (backgrounds are swapped, objects are shown alone), and its
predictions must be sensible when parts of an image are masked by a fill, as an explainer does.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

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
    swap = chance(count, 0.25, device) & _view(has)
    x = torch.where(swap, x * m + other * (1 - m), x)
    x, m, zoom = move(x, m)
    x = recolour(x)
    masked = draw_mask(m)
    fill, blurred = draw_fill(x, other)
    x = torch.where(masked > 0.5, fill, x)
    left = (m * (1 - masked)).sum((1, 2, 3)) * zoom / area
    # A blurred object may still be recognisable, so such an image gets weight 0.
    weights = torch.where(has & (left < KEEP) & ((left >= GONE) | blurred), 0.0, 1.0)
    labels = torch.where(left < GONE, torch.full_like(labels, nothing), labels)
    x, labels, weights = _blanks(x, labels, weights, nothing)
    return finish(x), labels, weights


def _view(flags: torch.Tensor) -> torch.Tensor:
    return flags[:, None, None, None]


def chance(count: int, probability: float, device: torch.device) -> torch.Tensor:
    return torch.rand(count, 1, 1, 1, device=device) < probability


def uniform(count: int, low: float, high: float, device: torch.device) -> torch.Tensor:
    return low + (high - low) * torch.rand(count, device=device)


def move(x: torch.Tensor, m: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    count, device = len(x), x.device
    still = torch.rand(count, device=device) < 0.2
    zoom = torch.where(still, 1.0, torch.exp(uniform(count, -0.25, 0.25, device)))
    turn = torch.where(still, 0.0, uniform(count, -1, 1, device) * math.radians(10))
    flip = torch.where(torch.rand(count, device=device) < 0.5, -1.0, 1.0)
    shift_x = torch.where(still, 0.0, uniform(count, -0.25, 0.25, device))
    shift_y = torch.where(still, 0.0, uniform(count, -0.25, 0.25, device))
    first = torch.stack([zoom * torch.cos(turn) * flip, -zoom * torch.sin(turn), shift_x], 1)
    second = torch.stack([zoom * torch.sin(turn) * flip, zoom * torch.cos(turn), shift_y], 1)
    where = F.affine_grid(torch.stack([first, second], 1), [count, 4, *x.shape[2:]], align_corners=False)
    both = F.grid_sample(torch.cat([x, m], 1), where, padding_mode="reflection", align_corners=False)
    return both[:, :3], (both[:, 3:] > 0.5).float(), zoom * zoom


def recolour(x: torch.Tensor) -> torch.Tensor:
    count, device = len(x), x.device
    gain = 1 + (torch.rand(count, 3, 1, 1, device=device) - 0.5) * 0.3
    contrast = 1 + (torch.rand(count, 1, 1, 1, device=device) - 0.5) * 0.5
    lift = (torch.rand(count, 1, 1, 1, device=device) - 0.5) * 0.2
    changed = ((x - 0.5) * contrast + 0.5 + lift) * gain
    grey = changed.mean(1, keepdim=True).expand_as(changed)
    changed = torch.where(chance(count, 0.06, device), grey, changed)
    return torch.where(chance(count, 0.75, device), changed, x).clamp(0, 1)


def _boxes(count: int, side: int, device: torch.device) -> torch.Tensor:
    at = (torch.arange(side, device=device) + 0.5) / side
    size = torch.exp(uniform(count * 2, math.log(0.1), math.log(0.9), device)).view(2, count, 1)
    start = torch.rand(2, count, 1, device=device) * (1.15 - size) - 0.075
    inside = (at >= start) & (at < start + size)
    return (inside[0][:, :, None] & inside[1][:, None, :]).float()[:, None]


#: Chances of the kinds of masks: cells of a grid, blobs, boxes, all but a box, all but the object, all but some cells of
#: it, and the object itself; the rest is not masked.
MASK_CHANCES = (0.17, 0.12, 0.14, 0.08, 0.06, 0.05, 0.03)


def draw_mask(m: torch.Tensor, chances: tuple[float, ...] = MASK_CHANCES) -> torch.Tensor:
    """Draw the masked pixels, (n, 1, h, h), of images whose objects have the mask m; see `MASK_CHANCES`."""
    count, device, side = len(m), m.device, m.shape[-1]
    share = torch.rand(count, 1, 1, 1, device=device) * 0.95
    cells = int(torch.randint(0, 6, ()).item())
    grid = torch.rand(count, 1, (3, 4, 6, 8, 12, 16)[cells], (4, 4, 6, 8, 12, 16)[cells], device=device)
    blocks = (F.interpolate(grid, (side, side), mode="nearest") < share).float()
    knots = 4 + int(torch.randint(0, 8, ()).item())
    field = F.interpolate(torch.rand(count, 1, knots, knots, device=device), (side, side), mode="bicubic")
    blobs = (field < 0.15 + share * 0.7).float()
    one, two = _boxes(count, side, device), _boxes(count, side, device)
    some = torch.where(chance(count, 0.5, device), torch.maximum(one, two), one)
    reach = int(torch.randint(0, 5, ()).item())
    near = F.max_pool2d(m, 2 * reach + 1, 1, reach)
    kind = torch.rand(count, 1, 1, 1, device=device)
    masked = torch.zeros_like(m)
    choices = (blocks, blobs, some, 1 - one, 1 - near, torch.maximum(1 - near, blocks), near)
    for k, choice in enumerate(choices):
        masked = torch.where(kind < sum(chances[k:]), choice, masked)
    return masked


def draw_fill(x: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw a fill: grey, black, white, a colour, the mean, a blur, another image or noise.

    Returns the fill, (n, 3, h, h), and whether it is the blur, (n,).
    """
    count, device, side = len(x), x.device, x.shape[-1]
    mean = x.mean((2, 3), keepdim=True)
    cells = (8, 16, 32)[int(torch.randint(0, 3, ()).item())]
    blur = F.interpolate(F.avg_pool2d(x, cells), (side, side), mode="bilinear", align_corners=False)
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
    """Replace 4 % of a batch by images of nothing."""
    x, flags = add_blanks(x, 0.04)
    labels = torch.where(flags, torch.full_like(labels, nothing), labels)
    return x, labels, torch.where(flags, torch.ones_like(weights), weights)


def add_blanks(x: torch.Tensor, share: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Replace a share of a batch by flat, shaded or noisy images, or images blurred beyond recognition.

    Returns the images and which of them were replaced, (n,).
    """
    count, device, side = len(x), x.device, x.shape[-1]
    flat = torch.rand(count, 3, 1, 1, device=device)
    grey = torch.rand(count, 1, 1, 1, device=device).expand(count, 3, 1, 1)
    flat = torch.where(chance(count, 0.4, device), grey, flat)
    ramp = torch.linspace(-0.5, 0.5, side, device=device).view(1, 1, 1, side) * (
        torch.rand(count, 3, 1, 1, device=device) - 0.5
    )
    blur = F.interpolate(F.avg_pool2d(x, side // 4), (side, side), mode="bilinear", align_corners=False)
    kind = torch.rand(count, 1, 1, 1, device=device)
    blank = flat.expand_as(x)
    for limit, choice in ((0.6, flat + ramp), (0.4, torch.rand_like(x)), (0.25, blur)):
        blank = torch.where(kind < limit, choice, blank)
    chosen = chance(count, share, device)
    return torch.where(chosen, blank, x), chosen.view(-1)


def finish(x: torch.Tensor) -> torch.Tensor:
    """Soften some images, add noise, and scale all of them from 0..1 to -1..1."""
    count, device = len(x), x.device
    soft = F.avg_pool2d(F.pad(x, (1, 1, 1, 1), mode="replicate"), 3, 1)
    x = torch.where(chance(count, 0.12, device), soft, x)
    x = x + torch.randn_like(x) * (torch.rand(count, 1, 1, 1, device=device) * 0.05 * chance(count, 0.6, device))
    return x.clamp(0, 1) * 2 - 1
