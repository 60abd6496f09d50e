"""Our methods where captum users expect them: a forward function, tensors in, a tensor of the same shape out.

    from becausal.interfaces.captum import CausalAttribution

    maps = CausalAttribution(model).attribute(inputs, target=labels)

captum itself is not needed, and nothing of the model but its forward function.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Finding, ModelInfo, Pixels, Visible
from becausal.core.errors import OptionError, TargetError
from becausal.core.problem import Explainer, Problem
from becausal.core.targets import Target
from becausal.engine.engine import Engine
from becausal.methods import make_explainer
from becausal.models.outputs import Reading, looks_like_probabilities
from becausal.models.torch_module import first_tensor, import_torch

Tensor = Any  # torch.Tensor; torch is imported only when something is attributed
Forward = Callable[..., Any]  # inputs (n, channels, *grid) and further arguments to scores (n, classes)


class CausalAttribution:
    """Attribution by any method that only asks.

    forward_func: a module or a function from inputs (n, channels, *grid), in its own numbers, to logits or
    probabilities (n, classes). method, options: as in `explain`; a method that needs gradients is refused, since
    captum has those.
    """

    def __init__(self, forward_func: Forward, *, method: str = "causal", options: dict[str, Any] | None = None) -> None:
        self.forward_func = forward_func
        self._explainer: Explainer = make_explainer(method, options)
        if self._explainer.needs == "gradients":
            raise OptionError(f"the method {method} needs gradients: take it from captum.attr, or one that only asks")

    def attribute(
        self,
        inputs: Tensor,
        target: int | Sequence[int] | Tensor | None = None,
        *,
        baselines: float | Tensor = 0.0,
        additional_forward_args: Any = None,
        seed: int = 0,
        max_calls: int | None = None,
        perturbations_per_eval: int = 32,
    ) -> Tensor:
        """The map of each input, (n, channels, *grid), the same in all channels, as feature ablation gives it.

        target: a label for all inputs or one for each, the one on top by default. A label that is not on top of an
        input is explained as one among its first k, k the label's place. baselines: what hidden pixels become, in the
        model's own numbers. max_calls: a limit per input. perturbations_per_eval: mutants per call of forward_func.
        """
        torch = import_torch("attribution of tensors")
        if not torch.is_tensor(inputs) or inputs.ndim < 3:
            raise OptionError("inputs must be one tensor (n, channels, *grid), as (1, 3, 224, 224)")
        further = _as_tuple(additional_forward_args)
        hidden = torch.as_tensor(baselines, dtype=inputs.dtype, device=inputs.device).expand_as(inputs)
        labels = _as_labels(target, len(inputs))
        maps = []
        for i in range(len(inputs)):
            own = tuple(a[i : i + 1] if torch.is_tensor(a) and a.ndim and len(a) == len(inputs) else a for a in further)
            model = _Asked(self.forward_func, own, inputs[i].detach(), perturbations_per_eval)
            found = self._find(model, inputs[i].detach(), hidden[i].detach(), labels[i], seed, max_calls)
            maps.append(torch.as_tensor(found.saliency, dtype=inputs.dtype, device=inputs.device))
        stacked = torch.stack(maps).unsqueeze(1)
        return stacked.expand_as(inputs).clone()

    def _find(
        self, model: "_Asked", view: Tensor, hidden: Tensor, label: int | None, seed: int, max_calls: int | None
    ) -> Finding:
        scores = model.whole
        label = int(scores.argmax()) if label is None else label
        if not 0 <= label < len(scores):
            raise TargetError(f"the target {label} is no class of a model with {len(scores)}")
        place = int((scores > scores[label]).sum()) + 1
        shown, behind = _to_pixels(view), _to_pixels(hidden)
        problem = Problem(shown, (behind,), Target(label, top=place))
        search = self._explainer.search(problem, np.random.default_rng(seed))
        return Engine(model).run(problem, search, max_calls=max_calls).result


@dataclass(frozen=True)
class _Staged:
    """A view and its background, each (1, channels, *grid)."""

    view: Tensor
    background: Tensor


@final
class _Asked:
    """A forward function as a classifier of one input's mutants."""

    def __init__(self, forward: Forward, further: tuple[Any, ...], view: Tensor, batch_size: int) -> None:
        self._forward = forward
        self._further = further
        self._like = view
        self._batch_size = max(1, batch_size)
        raw = self._raw(view[None])
        self._reading = Reading("probabilities" if looks_like_probabilities(raw) else "logits", raw.shape[1])
        self.whole: NDArray[Any] = self._reading.scores(raw)[0]

    @property
    def info(self) -> ModelInfo:
        return ModelInfo(
            spec="forward_func", kind="torch", geometry=None, channels=None, labels=None, output="probabilities",
            numbers="as they are",
        )  # fmt: skip

    @property
    def batch_size(self) -> int:
        return self._batch_size

    @property
    def fixed_sizes(self) -> tuple[int, ...]:
        return ()

    def stage(self, view: Pixels, background: Pixels) -> _Staged:
        return _Staged(self._to_tensor(view)[None], self._to_tensor(background)[None])

    def ask(self, staged: Sequence[_Staged], which: NDArray[np.intp], visible: Visible) -> NDArray[Any]:
        import torch

        shown = torch.from_numpy(np.ascontiguousarray(visible)).to(self._like.device).unsqueeze(1)
        view = torch.cat([staged[i].view for i in which]) if len(staged) > 1 else staged[0].view
        background = torch.cat([staged[i].background for i in which]) if len(staged) > 1 else staged[0].background
        return self._reading.scores(self._raw(torch.where(shown, view, background)))

    def classify(self, pixels: Pixels) -> NDArray[Any]:
        import torch

        return self._reading.scores(self._raw(torch.stack([self._to_tensor(one) for one in pixels])))

    def _raw(self, batch: Tensor) -> NDArray[Any]:
        import torch

        further = tuple(
            a.expand(len(batch), *a.shape[1:]) if torch.is_tensor(a) and a.ndim and len(a) == 1 else a for a in self._further
        )
        with torch.no_grad():
            raw = first_tensor(self._forward(batch, *further))
        if raw.ndim != 2 or raw.shape[1] < 2:
            raise OptionError(f"forward_func gave a shape of {tuple(raw.shape)}; expected (n, classes), 2 or more")
        return np.asarray(raw.float().cpu().numpy())

    def _to_tensor(self, pixels: Pixels) -> Tensor:
        import torch

        return torch.from_numpy(np.moveaxis(pixels, -1, 0).copy()).to(self._like.device, self._like.dtype)


def _to_pixels(values: Tensor) -> Pixels:
    """(channels, *grid) as (*grid, channels)."""
    return np.ascontiguousarray(np.moveaxis(values.float().cpu().numpy(), 0, -1))


def _as_labels(target: int | Sequence[int] | Tensor | None, count: int) -> list[int | None]:
    if target is None:
        return [None] * count
    given = np.asarray(target.detach().cpu() if hasattr(target, "detach") else target)
    if not np.issubdtype(given.dtype, np.integer) or prod(given.shape) not in (1, count):
        raise TargetError(f"target must be a label for all {count} inputs, or {count} of them, not {target!r}")
    return [int(label) for label in np.broadcast_to(given.reshape(-1), (count,))]


def _as_tuple(further: Any) -> tuple[Any, ...]:
    if further is None:
        return ()
    return further if isinstance(further, tuple) else (further,)
