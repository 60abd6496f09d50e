"""The detector as a torch module, its training targets and its loss.

One level of 24 x 24 cells, without anchors: each cell has a score for each class and the distances from its centre to the
four sides of a box. An object belongs to the cell at the centre of its box.
"""

from __future__ import annotations

import math
from typing import cast

import torch
import torch.nn.functional as F
from torch import nn

from becausal.scenes import LABELS, NOTHING

CLASSES = tuple(label for label in LABELS if label != NOTHING)
SIDE, STRIDE = 192, 8
CELLS = SIDE // STRIDE
#: Number of boxes returned.
MOST_BOXES = 32
#: Cells on each side over which a peak of the scores must be the highest.
PEAK = 3

#: Convolutions: name, input, channels in, channels out, kernel side, stride. An input "a+b" is the sum of a and of b
#: enlarged to twice its side. All but the outputs "heat" and "box" are followed by ReLU.
LAYERS: tuple[tuple[str, str, int, int, int, int], ...] = (
    ("s2", "input", 3, 16, 3, 2),
    ("s4", "s2", 16, 24, 3, 2),
    ("s4b", "s4", 24, 24, 3, 1),
    ("s8", "s4b", 24, 64, 3, 2),
    ("s8b", "s8", 64, 64, 3, 1),
    ("s8c", "s8b", 64, 64, 3, 1),
    ("s16", "s8c", 64, 96, 3, 2),
    ("s16b", "s16", 96, 96, 3, 1),
    ("s32", "s16b", 96, 96, 3, 2),
    ("s32b", "s32", 96, 96, 3, 1),
    ("s32c", "s32b", 96, 96, 3, 1),
    ("up16", "s16b+s32c", 96, 64, 3, 1),
    ("up8", "s8c+up16", 64, 64, 3, 1),
    ("heat1", "up8", 64, 64, 3, 1),
    ("box1", "up8", 64, 32, 3, 1),
    ("heat", "heat1", 64, len(CLASSES), 1, 1),
    ("box", "box1", 32, 4, 1, 1),
)
OUTPUTS = ("heat", "box")


class DetectorNet(nn.Module):  # type: ignore[misc]
    """Plain convolutions: images (n, 3, 192, 192) in -1..1 to class logits (n, 12, 24, 24) and distances (n, 4, 24, 24)."""

    def __init__(self, *, normalised: bool = False) -> None:
        """Build the network; `normalised` adds batch normalisation, which `fold` removes after training."""
        super().__init__()
        self.convolutions = nn.ModuleDict()
        self.norms = nn.ModuleDict()
        for name, _, wide, out, side, stride in LAYERS:
            plain = not normalised or name in OUTPUTS
            self.convolutions[name] = nn.Conv2d(wide, out, side, stride, side // 2, bias=plain)
            if not plain:
                self.norms[name] = nn.BatchNorm2d(out)
        with torch.no_grad():
            cast(nn.Conv2d, self.convolutions["heat"]).bias.fill_(-4.0)
            cast(nn.Conv2d, self.convolutions["box"]).bias.fill_(4.0)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Class logits, and distances to the left, top, right and bottom in cells."""
        flow = {"input": images}
        for name, source, *_ in LAYERS:
            first, _, second = source.partition("+")
            x = flow[first]
            if second:
                x = x + F.interpolate(flow[second], scale_factor=2.0, mode="nearest")
            x = self.convolutions[name](x)
            if name in self.norms:
                x = self.norms[name](x)
            flow[name] = x if name in OUTPUTS else F.relu(x)
        return flow["heat"], F.softplus(flow["box"].float())


def fold(trained: DetectorNet) -> DetectorNet:
    """The same network without batch normalisation, which is folded into the convolutions."""
    plain = DetectorNet().to(next(trained.parameters()).device)
    with torch.no_grad():
        for name, source in trained.convolutions.items():
            goal = plain.convolutions[name]
            if name not in trained.norms:
                goal.load_state_dict(source.state_dict())
                continue
            norm = trained.norms[name]
            scale = norm.weight.double() / torch.sqrt(norm.running_var.double() + norm.eps)
            goal.weight.copy_((source.weight.double() * scale[:, None, None, None]).float())
            goal.bias.copy_((norm.bias.double() - norm.running_mean.double() * scale).float())
    return plain.eval()


def decode(heat: torch.Tensor, box: torch.Tensor, peak: int = PEAK) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The 32 best boxes (n, 32, 4) in pixels, their scores (n, 32) and classes (n, 32): the peaks of the class scores."""
    count = len(heat)
    scores = torch.sigmoid(heat.float())
    scores = scores * (F.max_pool2d(scores, peak, 1, peak // 2) == scores)
    best, place = scores.flatten(1).topk(MOST_BOXES, dim=1)
    cell = place % (CELLS * CELLS)
    corners = to_corners(box).flatten(2).transpose(1, 2)
    return corners.gather(1, cell[:, :, None].expand(count, MOST_BOXES, 4)), best, place // (CELLS * CELLS)


def to_corners(box: torch.Tensor) -> torch.Tensor:
    """Left, top, right and bottom in pixels, (n, 4, 24, 24), from distances in cells."""
    at = (torch.arange(CELLS, device=box.device) + 0.5) * STRIDE
    x, y = at[None, None, :].expand(1, CELLS, CELLS), at[None, :, None].expand(1, CELLS, CELLS)
    left, top, right, bottom = (box.float() * STRIDE).unbind(1)
    return torch.stack([x - left, y - top, x + right, y + bottom], 1).clamp(0, SIDE)


def targets(
    boxes: torch.Tensor, labels: torch.Tensor, states: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Training targets of objects: boxes (n, k, 4), labels (n, k), states (n, k): 1 present, 0 absent, -1 to be ignored.

    Returns the class scores (n, 12, 24, 24) with a bump around the centre of each object, their weights, the box of each
    cell (n, 4, 24, 24) in pixels and its weight (n, 24, 24).
    """
    count, many = labels.shape
    device = boxes.device
    heat = torch.zeros(count, len(CLASSES), CELLS, CELLS, device=device)
    weight = torch.ones_like(heat)
    at = torch.arange(CELLS, device=device)
    wanted = torch.zeros(count, 4, CELLS, CELLS, device=device)
    strength = torch.zeros(count, CELLS, CELLS, device=device)
    every = torch.arange(count, device=device)
    for k in range(many):
        box, label, state = boxes[:, k], labels[:, k].clamp(min=0), states[:, k]
        size = (box[:, 2:] - box[:, :2]) / STRIDE
        centre = ((box[:, :2] + box[:, 2:]) / 2 / STRIDE).floor().clamp(0, CELLS - 1)
        spread = (0.11 * size).clamp(min=0.6)
        away = (at[None, None, :] - centre[:, :, None]) / spread[:, :, None]
        bump = torch.exp(-0.5 * (away[:, 1, :, None] ** 2 + away[:, 0, None, :] ** 2))
        present = torch.where((state == 1)[:, None, None], bump, torch.zeros_like(bump))
        heat[every, label] = torch.maximum(heat[every, label], present)
        corner = (at + 0.5) * STRIDE
        inside = (corner >= box[:, :2, None] - STRIDE) & (corner <= box[:, 2:, None] + STRIDE)
        hidden = inside[:, 1, :, None] & inside[:, 0, None, :] & (state == -1)[:, None, None]
        weight[every, label] = torch.where(hidden, 0.0, weight[every, label])
        take = (present > strength) & (present > 0.35)
        wanted = torch.where(take[:, None], box[:, :, None, None], wanted)
        strength = torch.where(take, present, strength)
    weight = torch.where(heat > 0.35, 1.0, weight)
    return heat, weight, wanted, strength


def loss(
    heat: torch.Tensor, box: torch.Tensor, wanted: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
) -> torch.Tensor:
    """Focal loss of the class scores with fewer penalties near a centre, plus GIoU loss of the boxes."""
    goal, weight, corners, strength = wanted
    logits = heat.float()
    score = torch.sigmoid(logits).clamp(1e-5, 1 - 1e-5)
    positive = goal == 1
    gain = torch.where(positive, (1 - score) ** 2 * F.logsigmoid(logits), (1 - goal) ** 4 * score**2 * F.logsigmoid(-logits))
    number = positive.sum().clamp(min=1)
    focal = -(gain * weight).sum() / number
    overlap = giou(to_corners_open(box), corners)
    return focal + 2.0 * ((1 - overlap) * strength).sum() / strength.sum().clamp(min=1.0)


def to_corners_open(box: torch.Tensor) -> torch.Tensor:
    """As `to_corners`, without clipping to the image, so that gradients do not vanish."""
    at = (torch.arange(CELLS, device=box.device) + 0.5) * STRIDE
    left, top, right, bottom = (box.float() * STRIDE).unbind(1)
    x, y = at[None, None, :], at[None, :, None]
    return torch.stack([x - left, y - top, x + right, y + bottom], 1)


def giou(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    """Generalised intersection over union of boxes (n, 4, ...)."""
    low, high = torch.maximum(ours[:, :2], theirs[:, :2]), torch.minimum(ours[:, 2:], theirs[:, 2:])
    both = (high - low).clamp(min=0).prod(1)
    areas = [(each[:, 2:] - each[:, :2]).clamp(min=0).prod(1) for each in (ours, theirs)]
    either = areas[0] + areas[1] - both + 1e-6
    hull = (torch.maximum(ours[:, 2:], theirs[:, 2:]) - torch.minimum(ours[:, :2], theirs[:, :2])).prod(1) + 1e-6
    return both / either - (hull - either) / hull


def parameters_of(network: nn.Module) -> int:
    """The number of parameters."""
    return sum(math.prod(value.shape) for value in network.parameters())
