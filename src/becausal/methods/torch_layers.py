"""Layers that wrap or replace those of a user's module; needs torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

SAME = 1e-4  # difference up to which two outputs are the same
LOWEST = 1e-12  # probability whose logarithm is still taken


class Logits(nn.Module):  # type: ignore[misc]
    """A module with (n, classes) logits as output, whatever the form of its own output.

    A single column v, the logit of the second of two classes, becomes (-v/2, v/2). Probabilities become their logarithms.
    """

    def __init__(self, own: nn.Module, *, gives_probabilities: bool) -> None:
        super().__init__()
        self.own = own
        self.gives_probabilities = gives_probabilities

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        table = output_table(self.own(images))
        if table.shape[1] == 1:
            both = torch.cat([1 - table, table], 1) if self.gives_probabilities else torch.cat([-table, table], 1) / 2
        else:
            both = table
        return both.clamp_min(LOWEST).log() if self.gives_probabilities else both


def as_logits(own: nn.Module, view: torch.Tensor, scores: NDArray[Any]) -> Logits:
    """The module with logits as output. It returns probabilities if its output for the view equals the scores.

    scores: what the classifier returns for the view, (1, classes) probabilities or (1,) a label.
    """
    with torch.no_grad():
        table = output_table(own(view)).float().cpu().numpy()
    expected = scores[:, -table.shape[1] :] if scores.ndim == 2 else table * np.nan
    logits = Logits(own, gives_probabilities=expected.shape == table.shape and np.allclose(expected, table, atol=SAME))
    logits.eval()
    return logits


def output_table(output: Any) -> torch.Tensor:
    """The scores in a module's output of any form, (n, columns)."""
    if hasattr(output, "logits"):
        output = output.logits
    elif isinstance(output, dict):
        output = output.get("logits", next(iter(output.values())))
    elif isinstance(output, (tuple, list)):
        output = output[0]
    table: torch.Tensor = output.reshape(len(output), -1)
    return table


class GuidedReLU6(nn.ReLU):  # type: ignore[misc]
    """ReLU6 as a subclass of ReLU, so that hooks for ReLU apply to it."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values.clamp(0, 6)


class TwoReLUs(nn.Module):  # type: ignore[misc]
    """ReLU6 as 6 - relu(6 - relu(x)), so that rules for ReLU apply to it."""

    def __init__(self) -> None:
        super().__init__()
        self.low = nn.ReLU()
        self.high = nn.ReLU()

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return 6 - self.high(6 - self.low(values))


def replace_layers(module: nn.Module, kind: type[nn.Module], make: Callable[[], nn.Module]) -> None:
    """Replace every layer of exactly this class by a new one, in place."""
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is kind:
                setattr(parent, name, make())
