"""Attribution with the interface of captum: a forward function, tensors in, a tensor of the same shape out.

    from becausal.interfaces.captum import CausalAttribution

    maps = CausalAttribution(model).attribute(inputs, target=labels)

Black-box: only the predictions of the forward function are needed. captum itself need not be installed.
"""

from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import ModelInfo, Pixels, Visible
from becausal.core.errors import OptionError, TargetError
from becausal.core.problem import Explainer
from becausal.interfaces.maps import find_map, keep_rank
from becausal.methods import make_explainer
from becausal.models.outputs import OutputDecoder, looks_like_probabilities
from becausal.models.torch_module import first_tensor, import_torch

Tensor = Any  # torch.Tensor; torch is imported only when something is attributed
Forward = Callable[..., Any]  # from inputs (n, channels, *grid) and further arguments to scores (n, classes)


class CausalAttribution:
    """Attribution by any black-box method of becausal.

    Args:
        forward_func: A module or a function from normalised inputs (n, channels, *grid) to logits or probabilities
            (n, classes).
        method: Name of the method, as in `explain`. Methods that need gradients are refused: captum has its own.
        options: Options of the method.

    Raises:
        OptionError: The method needs gradients, or an option is not valid.
    """

    def __init__(self, forward_func: Forward, *, method: str = "causal", options: dict[str, Any] | None = None) -> None:
        self.forward_func = forward_func
        self._explainer: Explainer = make_explainer(method, options)
        if self._explainer.needs == "gradients":
            raise OptionError(f"the method {method} needs gradients: use captum.attr, or choose a black-box method")

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
        """Compute a responsibility map for each input.

        Args:
            inputs: Tensor (n, channels, *grid), normalised for the model.
            target: Label id for all inputs, or one for each. Default: the top label. A label at rank k is explained as
                staying among the top k, the last label as keeping half of its confidence.
            baselines: Value of masked pixels: a number, or a tensor that broadcasts to `inputs`, normalised.
            additional_forward_args: Further arguments of forward_func; tensors of length n are split by input.
            seed: Random seed. Same seed, same maps.
            max_calls: Maximum number of model calls per input; None for no limit.
            perturbations_per_eval: Maximum batch size of forward_func.

        Returns:
            Tensor of the shape of `inputs`; the map is the same in all channels.

        Raises:
            OptionError: The inputs or the outputs of forward_func have an unexpected shape.
            TargetError: A target is not a class of the model.
        """
        torch = import_torch("attribution of tensors")
        if not torch.is_tensor(inputs) or inputs.ndim < 3:
            raise OptionError("inputs must be one tensor (n, channels, *grid), e.g. (1, 3, 224, 224)")
        further = () if additional_forward_args is None else additional_forward_args
        further = further if isinstance(further, tuple) else (further,)
        background = torch.as_tensor(baselines, dtype=inputs.dtype, device=inputs.device).expand_as(inputs)
        labels: list[int | None] = [None] * len(inputs)
        if target is not None:
            given = np.asarray(target.detach().cpu() if hasattr(target, "detach") else target)
            if not np.issubdtype(given.dtype, np.integer) or given.size not in (1, len(inputs)):
                raise TargetError(
                    f"target must be one label id for all {len(inputs)} inputs, or one for each, not {target!r}"
                )
            labels = [int(label) for label in np.broadcast_to(given.reshape(-1), (len(inputs),))]
        maps = []
        for i in range(len(inputs)):
            args = tuple(a[i : i + 1] if torch.is_tensor(a) and a.ndim and len(a) == len(inputs) else a for a in further)
            model = _ForwardClassifier(self.forward_func, args, inputs[i].detach(), perturbations_per_eval)
            scores = model.unmasked_scores
            chosen = labels[i]
            label = int(scores.argmax()) if chosen is None else chosen
            if not 0 <= label < len(scores):
                raise TargetError(f"the target {label} is not a class of the model, which has {len(scores)} classes")
            pixels, masked = _to_pixels(inputs[i].detach()), _to_pixels(background[i].detach())
            saliency = find_map(
                model, pixels, masked, keep_rank(scores, label), self._explainer, seed=seed, max_calls=max_calls
            )
            maps.append(torch.as_tensor(saliency, dtype=inputs.dtype, device=inputs.device))
        stacked = torch.stack(maps).unsqueeze(1)
        return stacked.expand_as(inputs).clone()


@final
class _ForwardClassifier:
    """A forward function as a classifier of masked versions of one input."""

    fixed_sizes: tuple[int, ...] = ()

    def __init__(self, forward: Forward, further_args: tuple[Any, ...], view: Tensor, batch_size: int) -> None:
        self.info = ModelInfo("forward_func", "torch", None, None, None, "probabilities", "none")
        self._forward = forward
        self._further_args = further_args
        self._like = view
        self.batch_size = max(1, batch_size)
        raw = self._raw(view[None])
        self._decoder = OutputDecoder("probabilities" if looks_like_probabilities(raw) else "logits", raw.shape[1])
        self.unmasked_scores: NDArray[Any] = self._decoder.scores(raw)[0]

    def stage(self, view: Pixels, background: Pixels) -> tuple[Tensor, Tensor]:
        return self._to_tensor(view)[None], self._to_tensor(background)[None]

    def ask(self, staged: Sequence[tuple[Tensor, Tensor]], which: NDArray[np.intp], visible: Visible) -> NDArray[Any]:
        import torch

        shown = torch.from_numpy(np.ascontiguousarray(visible)).to(self._like.device).unsqueeze(1)
        view, background = staged[0]
        if len(staged) > 1:
            view, background = (torch.cat([staged[i][part] for i in which]) for part in (0, 1))
        return self._decoder.scores(self._raw(torch.where(shown, view, background)))

    def classify(self, pixels: Pixels) -> NDArray[Any]:
        import torch

        return self._decoder.scores(self._raw(torch.stack([self._to_tensor(one) for one in pixels])))

    def _raw(self, batch: Tensor) -> NDArray[Any]:
        import torch

        args = (
            a.expand(len(batch), *a.shape[1:]) if torch.is_tensor(a) and a.ndim and len(a) == 1 else a
            for a in self._further_args
        )
        with torch.no_grad():
            raw = first_tensor(self._forward(batch, *args))
        if raw.ndim != 2 or raw.shape[1] < 2:
            raise OptionError(f"forward_func returned shape {tuple(raw.shape)}; expected (n, classes), at least 2 classes")
        return np.asarray(raw.float().cpu().numpy())

    def _to_tensor(self, pixels: Pixels) -> Tensor:
        import torch

        return torch.from_numpy(np.moveaxis(pixels, -1, 0).copy()).to(self._like.device, self._like.dtype)


def _to_pixels(values: Tensor) -> Pixels:
    """(channels, *grid) as (*grid, channels)."""
    return np.ascontiguousarray(np.moveaxis(values.float().cpu().numpy(), 0, -1))
