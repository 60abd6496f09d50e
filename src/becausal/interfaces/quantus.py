"""Our methods where Quantus expects one: an `explain_func` for its metrics.

    import quantus
    from becausal.interfaces.quantus import explain_func

    metric = quantus.PixelFlipping(perturb_baseline="mean")
    metric(model=model, x_batch=x, y_batch=y, explain_func=explain_func, explain_func_kwargs={"method": "rise"})

Quantus itself is not needed here.
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
    """Maps (n, 1, *grid) for inputs (n, channels, *grid) and their labels (n,).

    model: a torch module. Options as in `CausalAttribution`. device: where to run, the model's own by default. What
    else Quantus passes to every such function is not used.
    """
    torch = import_torch("explaining for Quantus")
    if device is None:
        device = next((parameter.device for parameter in model.parameters()), "cpu")
    tensor = torch.as_tensor(np.asarray(inputs), dtype=torch.float32, device=device)
    attribution = CausalAttribution(model.to(device).eval(), method=method, options=options)
    labels = np.asarray(targets).astype(np.int64)
    maps = attribution.attribute(tensor, target=labels, baselines=baselines, seed=seed, max_calls=max_calls)
    return np.asarray(maps[:, :1].cpu().numpy(), np.float32)
