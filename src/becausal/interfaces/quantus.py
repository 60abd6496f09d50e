"""An `explain_func` for the metrics of Quantus.

    import quantus
    from becausal.interfaces.quantus import explain_func

    metric = quantus.PixelFlipping(perturb_baseline="mean")
    metric(model=model, x_batch=x, y_batch=y, explain_func=explain_func, explain_func_kwargs={"method": "rise"})

This module does not import Quantus.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.interfaces.captum import CausalAttribution
from becausal.models.torch_module import import_torch


def explain_func(
    model: Any,
    inputs: NDArray[Any],
    targets: Any,
    *,
    method: str = "causal",
    options: dict[str, Any] | None = None,
    baselines: float = 0.0,
    seed: int = 0,
    max_calls: int | None = None,
    device: Any = None,
    **unused: Any,
) -> NDArray[np.float32]:
    """Compute responsibility maps as Quantus expects them.

    Args:
        model: A torch module.
        inputs: (n, channels, *grid), normalised for the model.
        targets: (n,) label ids.
        method: Name of the method, as in `CausalAttribution`.
        options: Options of the method.
        baselines: Value of masked pixels, normalised.
        seed: Random seed. Same seed, same maps.
        max_calls: Maximum number of model calls per input; None for no limit.
        device: Device to run on. Default: that of the model.
        unused: Other arguments that Quantus passes to every explain_func; they are ignored.

    Returns:
        Maps (n, 1, *grid).
    """
    torch = import_torch("explaining for Quantus")
    if device is None:
        device = next((parameter.device for parameter in model.parameters()), "cpu")
    tensor = torch.as_tensor(np.asarray(inputs), dtype=torch.float32, device=device)
    attribution = CausalAttribution(model.to(device).eval(), method=method, options=options)
    labels = np.asarray(targets).astype(np.int64)
    maps = attribution.attribute(tensor, target=labels, baselines=baselines, seed=seed, max_calls=max_calls)
    return np.asarray(maps[:, :1].cpu().numpy(), np.float32)
