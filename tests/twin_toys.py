"""Torch modules whose export computes something else, and ways to change a module between two explanations."""

import random
import struct
import threading
import types

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

SIDE, CLASSES = 48, 6


class Base(nn.Module):
    """A small network; `kind` names the function of `FORWARDS` that it computes."""

    def __init__(self, kind="plain"):
        super().__init__()
        torch.manual_seed(0)
        self.kind = kind
        self.conv = nn.Conv2d(3, 16, 4, stride=2, padding=1)
        self.pool = nn.AvgPool2d(4)
        self.big = nn.Linear(16 * 36, 64)
        self.fc = nn.Linear(64, CLASSES)
        nn.init.zeros_(self.fc.bias)
        self.fc.bias.data[2] = 0.02  # plain images have this label
        self.register_buffer("n", torch.zeros(1))
        self.state = {"c": 0.0}
        self.box = types.SimpleNamespace(c=0.0, shift=0)
        self.extra = {"w": torch.eye(CLASSES)}
        self.listed = [torch.eye(CLASSES)]
        self.weights = np.eye(CLASSES, dtype=np.float32)

    def features(self, x):
        """What an image has more than a plain one of its mean colour, so that plain images are all alike."""
        return self.see(x) - self.see(x.mean((2, 3), keepdim=True).expand(-1, -1, *x.shape[2:]))

    def see(self, x):
        return self.big(self.pool(torch.relu(self.conv(x))).flatten(1)).relu()

    def base(self, x):
        return self.fc(self.features(x)) * 20

    def forward(self, x):
        return FORWARDS[self.kind](self, x)


def flip(y):
    return torch.roll(y, 3, 1)


def between(value):
    """Whether the spread of an image lies where masked images are, and whole ones are not."""
    return (value > 0.2) & (value < 0.9)


def flip_if(condition):
    """A network whose scores are rolled where a condition on the batch, computed in Python, holds."""
    return lambda s, x: flip(s.base(x)) if condition(s, x) else s.base(x)


def per_image(s, x):
    rows = []
    for image in x:
        y = s.base(image[None])
        bright = image[0][image[0] > 0.5]
        rows.append(flip(y) if 100 < bright.numel() < 900 else y)
    return torch.cat(rows)


def in_thread(s, x):
    found = []
    thread = threading.Thread(target=lambda: found.append(x.std().item()))
    thread.start()
    thread.join()
    return between(found[0])


def counted(count):
    def forward(s, x):
        count(s)
        return flip(s.base(x)) if s.state["c"] + s.box.c + float(s.n) > 40 else s.base(x)

    return forward


def smoothed(s, x):
    features = s.features(x)
    s.box.c = 0.9 * s.box.c + 0.1 * float(features.mean())
    return s.fc(features - s.box.c) * 20


def ties(index):
    def forward(s, x):
        level = torch.round(F.avg_pool2d(x.mean(1, keepdim=True), 8).flatten(1) * 2) / 2
        return s.base(x) + (index(level).float().reshape(len(x), -1).mean(1, keepdim=True) / 36 * torch.arange(6) * 4).sin()

    return forward


def caught(attempt, instead):
    """A branch that is taken because torch raised: exporters have crashed on these."""

    def forward(s, x):
        y = s.base(x)
        try:
            return attempt(s, x, y)
        except RuntimeError:
            return instead(s, x, y)

    return forward


def rotated(s, x):
    turn = torch.tensor([[0.8, 0.2, 0], [-0.2, 0.8, 0.0]]).expand(len(x), 2, 3)
    grid = F.affine_grid(turn, x.shape, align_corners=False)
    return s.base(F.grid_sample(x, grid, align_corners=False, padding_mode="reflection", mode="bicubic"))


def unpooled(s, x):
    high, places = F.max_pool2d(x, 4, 4, return_indices=True)
    return s.base(F.max_unpool2d(high, places, 4, 4))


class Rolls(torch.autograd.Function):
    @staticmethod
    def forward(context, y, x):
        return flip(y) if between(float(x.std())) else y.clone()


def first_bytes(x):
    return struct.unpack("f", bytes(x.std().untyped_storage().tolist()[:4]))[0]


def scaled(s, x):
    spread = x.flatten(1).std(1)[:, None, None, None]
    return s.base(torch.relu((x - x.mean((1, 2, 3), keepdim=True)) / spread))


def noisy_sum(s, x):
    total = x.double().flatten(1).sum(1, keepdim=True) * 1e9
    return s.base(x) + (total - torch.floor(total)).float()


FORWARDS = {
    "plain": lambda s, x: s.base(x),
    "shape of nonzero": flip_if(lambda s, x: 100 < (x[:, 0] < -1.9).nonzero().shape[0] / len(x) < 1200),
    "size of a selection": per_image,
    "unique": flip_if(lambda s, x: 60 < len(torch.unique(x)) < 900 * len(x)),
    "dlpack": flip_if(lambda s, x: between(float(np.from_dlpack(x.detach().contiguous()).std()))),
    "f-string": flip_if(lambda s, x: between(float(f"{x.std():.3f}"))),
    "item": flip_if(lambda s, x: between(x.std().item())),
    "storage": flip_if(lambda s, x: between(first_bytes(x))),
    "thread": flip_if(in_thread),
    "state in a dict": counted(lambda s: s.state.update(c=s.state["c"] + 1)),
    "state in an object": counted(lambda s: setattr(s.box, "c", s.box.c + 1)),
    "state in a buffer": counted(lambda s: s.n.add_(1)),
    "moving mean": smoothed,
    "mean of the batch": lambda s, x: s.fc(s.features(x) - s.features(x).mean(0, keepdim=True)) * 20,
    "from eight on": flip_if(lambda s, x: len(x) >= 8),
    "chunks of four": flip_if(lambda s, x: len(x) > 4),
    "double": noisy_sum,
    "round": lambda s, x: s.base(x) + (torch.round(x * 255).sum((1, 2, 3)) % 7)[:, None] * torch.arange(6) * 0.1,
    "sign": lambda s, x: s.fc(torch.sign(s.big(s.pool(torch.sign(s.conv(x))).flatten(1)))) * 3,
    "sign of nothing": lambda s, x: s.base(x * (1 + torch.sign(F.avg_pool2d(x, 3, 1, 1) - F.avg_pool2d(x, 5, 1, 2)) / 9)),
    "uint8": lambda s, x: s.base((x * 60).to(torch.uint8).float() / 60),
    "int8": lambda s, x: s.base((x * 100).to(torch.int8).float() / 100),
    "integer division": lambda s, x: s.base(((x * 100).to(torch.int32) // 7).float() / 14),
    "remainder": lambda s, x: s.base(torch.remainder(x, 0.7)),
    "fmod": lambda s, x: s.base(torch.fmod(x, 0.7)),
    "ties of topk": ties(lambda level: level.topk(8, 1).indices),
    "ties of sort": ties(lambda level: level.sort(1).indices[:, :8]),
    "ties of argmax": ties(lambda level: level.argmax(1)),
    "unpool": unpooled,
    "median": lambda s, x: s.base(x * x.flatten(1).median(1).values[:, None, None, None].abs()),
    "NaN of a plain image": scaled,
    "dropout": lambda s, x: s.fc(F.dropout(s.features(x), 0.5, training=True)) * 20,
    "tiny noise": lambda s, x: s.base(x) + torch.randn(1) * 1e-5,
    "random": flip_if(lambda s, x: random.random() < 0.1),
    "rarely random": lambda s, x: s.base(x) + (torch.rand(len(x), 1) < 0.05) * torch.arange(6) * 10,
    "writes to its input": lambda s, x: s.base(x.mul_(0.5)),
    "antialias": lambda s, x: s.base(F.interpolate(F.interpolate(x, size=20, mode="bicubic", antialias=True), size=48)),
    "grid sample": rotated,
    "autograd function": lambda s, x: Rolls.apply(s.base(x), x),
    "caught view": caught(lambda s, x, y: y.t().view(len(x), -1), lambda s, x, y: y.reshape(len(x), -1)),
    "caught decomposition": caught(
        lambda s, x, y: (torch.linalg.cholesky(torch.diag(0.9 - x.std()[None])), flip(y))[1], lambda s, x, y: y
    ),
    "caught product": caught(lambda s, x, y: y @ torch.ones(7, 7), lambda s, x, y: y),
    "caught index": caught(lambda s, x, y: y.index_select(1, torch.tensor([99])), lambda s, x, y: y),
    "where": lambda s, x: torch.where(between(x.flatten(1).std(1, keepdim=True)), flip(s.base(x)), s.base(x)),
    "bincount": flip_if(lambda s, x: torch.bincount(((x[:, 0] + 3) * 10).long().flatten()).shape[0] in (52, 53)),
    "masked select": flip_if(lambda s, x: 0 < torch.masked_select(x[:, 0], x[:, 0] < -1.9).shape[0] < 800 * len(x)),
    "object": lambda s, x: torch.roll(s.base(x), s.box.shift, 1),
    "dict": lambda s, x: s.base(x) @ s.extra["w"],
    "list": lambda s, x: s.base(x) @ s.listed[0],
    "numpy": lambda s, x: s.base(x) @ torch.from_numpy(s.weights),
    "global": lambda s, x: torch.roll(s.base(x), GLOBAL["shift"], 1),
}

GLOBAL = {"shift": 0}
ROWS = [3, 4, 5, 0, 1, 2]
ROLLED = torch.roll(torch.eye(CLASSES), 3, 1)


def permute_in_place(m):
    for p in (m.fc.weight, m.fc.bias):
        p.data.copy_(p.data[ROWS].clone())


def permute_data(m):
    for p in (m.fc.weight, m.fc.bias):
        p.data = p.data[ROWS].clone()


def permute_without_gradients(m):
    with torch.no_grad():
        for p in (m.fc.weight, m.fc.bias):
            p.copy_(p[ROWS].clone())


def permute_as_numpy(m):
    for p in (m.fc.weight, m.fc.bias):
        values = p.detach().numpy()
        values[:] = values[ROWS].copy()


def shuffle_all(m):
    for p in m.parameters():
        p.data.copy_(p.data.flatten()[torch.randperm(p.numel())].view_as(p))


def load_permuted(m):
    state = {name: value.clone() for name, value in m.state_dict().items()}
    m.load_state_dict(state | {name: state[name][ROWS] for name in ("fc.weight", "fc.bias")})


def patch_forward(m):
    before = m.forward
    m.forward = lambda x: flip(before(x))


CHANGES = {
    "one row": ("plain", lambda m: m.fc.weight.data[3].mul_(-3)),
    "rows in place": ("plain", permute_in_place),
    "rows as data": ("plain", permute_data),
    "rows without gradients": ("plain", permute_without_gradients),
    "rows as numpy": ("plain", permute_as_numpy),
    "all weights shuffled": ("plain", shuffle_all),
    "load_state_dict": ("plain", load_permuted),
    "object": ("object", lambda m: setattr(m.box, "shift", 3)),
    "dict": ("dict", lambda m: m.extra.update(w=ROLLED)),
    "list": ("list", lambda m: m.listed.__setitem__(0, ROLLED)),
    "numpy": ("numpy", lambda m: m.weights.__setitem__(slice(None), ROLLED.numpy())),
    "global": ("global", lambda m: GLOBAL.update(shift=3)),
    "forward": ("plain", patch_forward),
    "hook": ("plain", lambda m: m.fc.register_forward_hook(lambda of, given, found: flip(found))),
}
