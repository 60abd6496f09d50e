"""Layers that stand around or in place of a user's: imported only where torch is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

NEAR = 1e-4
FAINT = 1e-12


class Logits(nn.Module):  # type: ignore[misc]
    """A classifier's module as (n, classes) logits, whatever form it answers in.

    A single column v, the evidence for the second of two classes, becomes (-v/2, v/2); probabilities their logarithms.
    """

    def __init__(self, own: nn.Module, *, gives_probabilities: bool) -> None:
        super().__init__()
        self.own = own
        self.gives_probabilities = gives_probabilities

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        table = as_table(self.own(pictures))
        if table.shape[1] == 1:
            both = torch.cat([1 - table, table], 1) if self.gives_probabilities else torch.cat([-table, table], 1) / 2
        else:
            both = table
        return both.clamp_min(FAINT).log() if self.gives_probabilities else both


def as_logits(own: nn.Module, view: torch.Tensor, said: NDArray[Any]) -> Logits:
    """The module with logits. It gives probabilities where its answer to the view is what the classifier says of it.

    said: (1, classes) probabilities, or (1,) a label, from the classifier.
    """
    with torch.no_grad():
        table = as_table(own(view)).float().cpu().numpy()
    told = said[:, -table.shape[1] :] if said.ndim == 2 else table * np.nan
    logits = Logits(own, gives_probabilities=told.shape == table.shape and np.allclose(told, table, atol=NEAR))
    logits.eval()
    return logits


def as_table(output: Any) -> torch.Tensor:
    """The scores in whatever a module returned, (n, columns)."""
    if hasattr(output, "logits"):
        output = output.logits
    elif isinstance(output, dict):
        output = output.get("logits", next(iter(output.values())))
    elif isinstance(output, (tuple, list)):
        output = output[0]
    table: torch.Tensor = output.reshape(len(output), -1)
    return table


class GuidedReLU6(nn.ReLU):  # type: ignore[misc]
    """ReLU6 that hooks for ReLU find."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values.clamp(0, 6)


class TwoReLUs(nn.Module):  # type: ignore[misc]
    """ReLU6 as 6 - relu(6 - relu(x)), so that a rule for ReLU gives the rule for it."""

    def __init__(self) -> None:
        super().__init__()
        self.low = nn.ReLU()
        self.high = nn.ReLU()

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return 6 - self.high(6 - self.low(values))


def replace_layers(module: nn.Module, kind: type[nn.Module], make: Callable[[], nn.Module]) -> None:
    """Put a new layer in the place of each one of a kind, in the module itself."""
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is kind:
                setattr(parent, name, make())
