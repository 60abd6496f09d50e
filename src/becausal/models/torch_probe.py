"""Looking at a torch module before it is used: what it takes, what it returns for a few images."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.core.errors import ModelError
from becausal.core.text import one_line
from becausal.models.user_code import stdout_to_stderr

Tensor = Any  # torch.Tensor; torch is imported only when a torch model is loaded


def first_tensor(output: Any) -> Tensor:
    """The tensor of scores in a module's output."""
    if hasattr(output, "logits"):
        return output.logits
    if isinstance(output, dict):
        return output.get("logits", next(iter(output.values())))
    return output[0] if isinstance(output, (tuple, list)) else output


def to_numpy(raw: Tensor) -> NDArray[Any]:
    """The output as a numpy array; half precision becomes float32."""
    return np.asarray((raw.float() if raw.is_floating_point() else raw).cpu().numpy())


def probe(torch: Any, module: Any, batch: Tensor) -> NDArray[Any]:
    """The module's output for a batch. Raises ModelError for any error in the module."""
    with torch.inference_mode(), stdout_to_stderr():
        try:
            output = module(batch)
            if isinstance(output, (list, tuple)) and output and isinstance(output[0], dict) and "boxes" in output[0]:
                raise ModelError("the module returns boxes, so it is an object detector: use detect:torch: or as_detector")
            return to_numpy(first_tensor(output))
        except ModelError:
            raise
        except Exception as error:  # the module is the user's code: any error is possible
            message = f"{type(error).__name__}: {one_line(error, 200)}"
            raise ModelError(f"the module cannot classify a batch of shape {tuple(batch.shape)}: {message}") from error


def find_last_layer(torch: Any, module: Any, batch: Tensor) -> str | None:
    """The kind of the layer whose output is the module's, e.g. "Sigmoid"; None if the module computes on it further."""
    last: list[tuple[str, Any]] = []
    leaves = [layer for layer in module.modules() if next(layer.children(), None) is None]
    handles: list[Any] = []
    try:
        for layer in leaves:
            handles.append(layer.register_forward_hook(lambda of, _, out: last.append((type(of).__name__, out))))
        with torch.inference_mode(), stdout_to_stderr():
            output = first_tensor(module(batch))
    except RuntimeError:  # scripted modules take no hooks
        return None
    finally:
        for handle in handles:
            handle.remove()
    return last[-1][0] if last and last[-1][1] is output else None


def count_channels(torch: Any, module: Any) -> int:
    """Input channels of the first convolution; 3 if there is none."""
    first = next((part for part in module.modules() if isinstance(part, torch.nn.Conv2d)), None)
    return int(first.in_channels) if first is not None else 3
