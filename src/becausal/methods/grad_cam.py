"""`grad-cam`: gradient-weighted class activation maps (Selvaraju et al., 2017), through captum."""

from dataclasses import dataclass
from math import isqrt
from typing import Any, ClassVar

import numpy as np

from becausal.core.contracts import Finding, Needs, Search
from becausal.core.errors import ModelError, OptionError
from becausal.core.problem import Problem
from becausal.methods.gradients import (
    ALTERNATIVES,
    LayerCall,
    Tensor,
    TorchProblem,
    attribution,
    require,
    sum_channels,
    trace_layers,
)

_MAX_EXTRA_TOKENS = 16  # class, distillation and register tokens, before those of the patches


@dataclass(frozen=True, kw_only=True)
class GradCam:
    """Channels of one layer, weighted by the mean gradient of the label's logit, summed, negative values set to 0.

    The map has the resolution of the layer and is resized to the view by bilinear interpolation. In a transformer the
    layer holds one token per patch; they are arranged as the patches are, without class and register tokens.

    Attributes:
        layer: Name of the layer, e.g. features.14; by default the last layer with more than one spatial position,
            usually the last convolution with its activation, or, in a transformer, the first normalisation of the tokens
            in the last block, as is common practice.
    """

    layer: str | None = None

    name: ClassVar[str] = "grad-cam"
    needs: ClassVar[Needs] = "gradients"

    def search(self, problem: Problem, rng: np.random.Generator) -> Search[Finding]:
        yield from ()
        with attribution(problem, self.name, copied=True) as model:
            captum = require("captum.attr", self.name)
            found = _find_spatial(trace_layers(model))
            if not found:
                raise ModelError(
                    f"the method grad-cam needs a layer with spatial output, and this model has none: {ALTERNATIVES}"
                )
            names = [item.call.name for item in found]
            if self.layer is None:
                chosen = _choose(model, found)
            elif self.layer in names:
                chosen = found[names.index(self.layer)]
            else:
                raise OptionError(
                    f"the model has no layer {self.layer!r} with spatial output; it has {', '.join(names[-8:])}"
                    + (f" and {len(names) - 8} before" if len(names) > 8 else "")
                )
            layer, grid = chosen.call.layer, chosen.grid
            if grid is None:
                values = captum.LayerGradCam(model.logits, layer).attribute(
                    model.view.clone().requires_grad_(True), target=model.label_id, relu_attributions=True
                )
            else:
                ((output, gradient),) = _differentiate(model, [layer])
                if gradient is None:
                    raise ModelError(f"the label does not depend on the layer {type(layer).__name__}: choose another layer")
                weights = _patches(gradient, grid).mean(dim=1, keepdim=True)
                values = (weights * _patches(output, grid)).sum(-1).clamp(min=0).detach().reshape(1, 1, *grid)
            large = captum.LayerAttribution.interpolate(values, problem.grid, interpolate_mode="bilinear")
        notes = () if self.layer is not None else (f"grad-cam used the layer {chosen.call}",)
        return Finding(sum_channels(large), notes=notes)


@dataclass(frozen=True)
class _SpatialLayer:
    """A layer with spatial output. grid: how its last tokens are arranged; None for feature maps, which have axes."""

    call: LayerCall
    grid: tuple[int, int] | None = None


def _find_spatial(calls: list[LayerCall]) -> list[_SpatialLayer]:
    """Layers with feature maps (1, channels, h, w), and those after them with tokens (1, tokens, channels)."""
    found: list[_SpatialLayer] = []
    patches: tuple[int, int] | None = None
    for call in calls:
        if len(call.shape) == 4 and call.shape[2] * call.shape[3] > 1:
            patches = call.shape[2], call.shape[3]
            found.append(_SpatialLayer(call))
        elif len(call.shape) == 3 and call.shape[0] == 1:
            grid = _arrange(call.shape[1], patches)
            found += [_SpatialLayer(call, grid)] if grid is not None else []
    return found


def _arrange(tokens: int, patches: tuple[int, int] | None) -> tuple[int, int] | None:
    """The grid of the patches' tokens: that of the last feature map, maybe with patches merged, else a square, or None."""
    if patches is None:
        side = isqrt(tokens)
        return (side, side) if side > 1 and tokens - side * side <= _MAX_EXTRA_TOKENS else None
    h, w = patches
    if 0 <= tokens - h * w <= _MAX_EXTRA_TOKENS:
        return patches
    return next(((h // n, w // n) for n in (2, 4, 8) if h // n * (w // n) == tokens > 1), None)


def _choose(problem: TorchProblem, found: list[_SpatialLayer]) -> _SpatialLayer:
    """The last feature map or, of tokens, the first normalisation of the last block, the last one, or the last layer.

    Tokens must have an influence on the label through more than the extra tokens.
    """
    if found[-1].grid is None:
        return found[-1]
    tokens = [item for item in found if item.grid is not None]
    norms = [item for item in tokens if "norm" in type(item.call.layer).__name__.lower()]
    # The last module with two normalisations or more is the last block.
    parents = [item.call.name.rpartition(".")[0] for item in norms]
    last = next((parent for parent in reversed(parents) if parents.count(parent) > 1), None)
    start = [] if last is None else [norms[parents.index(last)]]
    for candidates in (start, norms, tokens):
        gradients = _differentiate(problem, [item.call.layer for item in candidates])
        for item, (_, gradient) in zip(reversed(candidates), reversed(gradients), strict=True):
            if item.grid is not None and gradient is not None and bool(_patches(gradient, item.grid).any()):
                return item
    maps = [item for item in found if item.grid is None]
    return maps[-1] if maps else tokens[-1]


def _differentiate(problem: TorchProblem, layers: list[Any]) -> list[tuple[Tensor, Tensor | None]]:
    """The first output of each layer, and the gradient of the label's logit with respect to it, None if it has none."""
    torch = require("torch", GradCam.name)
    outputs: dict[int, Tensor] = {}

    def keep(layer: Any, _: Any, output: Tensor) -> None:
        outputs.setdefault(id(layer), output)

    handles = [layer.register_forward_hook(keep) for layer in layers]
    try:
        logit = problem.logits(problem.view.clone().requires_grad_(True))[0, problem.label_id]
    finally:
        for handle in handles:
            handle.remove()
    kept = [outputs[id(layer)] for layer in layers]
    return list(zip(kept, torch.autograd.grad(logit, kept, allow_unused=True), strict=True)) if kept else []


def _patches(tokens: Tensor, grid: tuple[int, int]) -> Tensor:
    """The tokens of the patches, (1, h * w, channels): the last ones."""
    return tokens[:, -grid[0] * grid[1] :]
