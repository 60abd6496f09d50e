"""Data augmentation for the detector, on the training device: boxes move along, and masked objects disappear."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from augment import GONE, KEEP, add_blanks, chance, draw_fill, draw_mask, finish, recolour, uniform

#: Chances of the kinds of masks, see `augment.MASK_CHANCES`: objects shown alone are more frequent than for the classifier.
CHANCES = (0.17, 0.12, 0.12, 0.08, 0.11, 0.09, 0.03)


def augment(
    images: torch.Tensor, owners: torch.Tensor, boxes: torch.Tensor, labels: torch.Tensor, empties: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Augment a batch of scenes.

    Images (n, h, h, 3) uint8; the number of the visible object at each pixel, 0 for none (n, h, h); boxes (n, k, 4); labels
    (n, k), -1 for none; images without an object (m, h, h, 3). Returns inputs (n, 3, h, h) in -1..1, boxes (n, k, 4) and the
    state of each object (n, k): 1 if at least 20 % of its visible pixels are left, 0 below 3 %, -1 in between.
    """
    count, device, many = len(images), images.device, labels.shape[1]
    x = images.permute(0, 3, 1, 2).float() / 255.0
    numbers = torch.arange(1, many + 1, device=device, dtype=owners.dtype)
    area = torch.stack([(owners == k).sum((1, 2)) for k in numbers], 1).clamp(min=1)
    other = empties[torch.randint(len(empties), (count,), device=device)].permute(0, 3, 1, 2).float() / 255.0
    any_object = (owners > 0)[:, None].float()
    x = torch.where(chance(count, 0.2, device), x * any_object + other * (1 - any_object), x)
    x, owners, boxes, zoom = _move(x, owners, boxes, other)
    x = recolour(x)
    masked = draw_mask(_shown(owners, many), CHANCES)
    fill, blurred = draw_fill(x, other)
    x = torch.where(masked > 0.5, fill, x)
    rest = torch.where(masked[:, 0] > 0.5, 0, owners)
    left = torch.stack([(rest == k).sum((1, 2)) for k in numbers], 1) * zoom[:, None] / area
    # A blurred object may still be recognisable, so it is ignored.
    states = torch.where(left >= KEEP, 1, torch.where((left < GONE) & ~blurred[:, None], 0, -1))
    x, blank = add_blanks(x, 0.04)
    states = torch.where(blank[:, None] | (labels < 0), 0, states)
    return finish(x), boxes, states


def _shown(owners: torch.Tensor, many: int) -> torch.Tensor:
    """The mask (n, 1, h, h) of the objects that stay where all others are masked: one of them, several or all."""
    count, device = len(owners), owners.device
    # Each object is kept with a chance that varies from image to image.
    keep = torch.rand(count, many, device=device) < uniform(count, 0.25, 1.1, device)[:, None]
    keep = torch.cat([torch.zeros(count, 1, dtype=torch.bool, device=device), keep], 1)
    return torch.gather(keep, 1, owners.flatten(1).long()).view(owners.shape)[:, None].float()


def _move(
    x: torch.Tensor, owners: torch.Tensor, boxes: torch.Tensor, other: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Flip, shift and zoom images, numbers of objects and boxes; what comes into view is another image or one colour."""
    count, side, device = len(x), x.shape[-1], x.device
    still = torch.rand(count, device=device) < 0.25
    zoom = torch.where(still, 1.0, torch.exp(uniform(count, -0.35, 0.3, device)))
    flip = torch.where(torch.rand(count, device=device) < 0.5, -1.0, 1.0)
    shift = torch.where(still, 0.0, uniform(2 * count, -0.3, 0.3, device).view(2, count))
    zero = torch.zeros_like(zoom)
    theta = torch.stack([torch.stack([zoom * flip, zero, shift[0]], 1), torch.stack([zero, zoom, shift[1]], 1)], 1)
    where = F.affine_grid(theta, [count, 3, side, side], align_corners=False)
    moved = F.grid_sample(x, where, padding_mode="border", align_corners=False)
    inside = (where.abs() <= 1).all(3)[:, None]
    colour = torch.rand(count, 3, 1, 1, device=device).expand_as(x)
    x = torch.where(inside, moved, torch.where(chance(count, 0.7, device), other, colour))
    owners = (
        F.grid_sample(owners[:, None].float(), where, mode="nearest", align_corners=False)[:, 0].round().to(owners.dtype)
    )
    # A pixel at u in -1..1 of the new image shows the old image at zoom * u + shift.
    low = (boxes / side * 2 - 1)[:, :, :2]
    high = (boxes / side * 2 - 1)[:, :, 2:]
    scale = torch.stack([zoom * flip, zoom], 1)[:, None, :]
    ends = torch.stack([(low - shift.T[:, None, :]) / scale, (high - shift.T[:, None, :]) / scale])
    corners = torch.cat([ends.amin(0), ends.amax(0)], 2)
    return x, owners, ((corners + 1) / 2 * side).clamp(0, side), zoom * zoom
