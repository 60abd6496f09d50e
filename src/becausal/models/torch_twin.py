"""Twins of torch modules: on a CPU an export to ONNX, run by onnxruntime, on a GPU a copy in half precision.

A twin guides a search and certifies nothing (`search.twins`), so nothing here tries to show that it computes the same.
"""

import copy
import importlib.util
import time
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch

from becausal.core.errors import ModelError
from becausal.models.onnx_file import make_session
from becausal.models.torch_export import INPUT, OUTPUT, export_module
from becausal.models.torch_probe import Tensor, first_tensor, probe

TOLERANCE, HALF_TOLERANCE = 1e-3, 0.05  # of a confidence
HALF = "a copy of the module in half precision"
MIN_PARAMETERS = 1_000_000  # exporting a smaller module would take longer than it saves in one explanation
_MAX_BYTES = 2**30  # of parameters; they are copied three times while a module is exported
_FASTER = 0.9  # share of torch's time that onnxruntime must not exceed, to be worth it


@dataclass(frozen=True, eq=False)
class StandIn:
    """What computes in place of a module. run: from a batch, (n, channels, h, w) float32, to its scores."""

    name: str
    tolerance: float
    run: Callable[[Tensor], Tensor]


@dataclass(eq=False)
class _Known:
    """The stand-in of a module, None for none; for which `key` it was made, and how often it was found."""

    key: Hashable
    stand_in: StandIn | None
    uses: int = 0


_KNOWN: "weakref.WeakKeyDictionary[Any, _Known]" = weakref.WeakKeyDictionary()


@final
class StandIns:
    """Makes the stand-in of a module, and remembers it.

    key: what it depends on besides the module. make: makes it. A module may change after that: whoever uses a stand-in
    compares it with the module, and drops it where they differ.
    """

    def __init__(self, module: Any, key: Hashable, make: Callable[[], StandIn | None]) -> None:
        self._module = module
        self._key = key
        self._make = make

    def find(self) -> StandIn | None:
        known = _KNOWN.get(self._module)
        if known is None or known.key != self._key:
            known = _KNOWN[self._module] = _Known(self._key, self._make())
        known.uses += 1
        return known.stand_in

    def drop(self) -> None:
        """Forget the stand-in. One that was made just now is not made again; an older one may only be out of date."""
        known = _KNOWN.get(self._module)
        if known is not None and known.uses > 1:
            del _KNOWN[self._module]
        elif known is not None:
            known.stand_in = None


def make_export(module: Any, images: Tensor, threads: int | None) -> StandIn | None:
    """The module in onnxruntime; None where it cannot be exported, or is too small or too large, or no faster.

    images: probe images to trace it with, (n, channels, h, w).
    """
    size = sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())
    if count_parameters(module) < MIN_PARAMETERS or size > _MAX_BYTES or importlib.util.find_spec("onnx") is None:
        return None
    data = export_module(module, images.clone())
    if not data:
        return None
    try:
        session = make_session(data, threads=threads, is_patient=False)

        def run(batch: Tensor) -> Tensor:
            return torch.from_numpy(np.asarray(session.run([OUTPUT], {INPUT: np.ascontiguousarray(batch.numpy())})[0]))

        run(images)
        ours = min(measure(lambda: run(images)) for _ in range(2))
        theirs = min(measure(lambda: probe(torch, module, images.clone())) for _ in range(2))
    except Exception:  # onnxruntime raises a dozen types of its own, with no common base
        return None
    return StandIn("the module exported to ONNX", TOLERANCE, run) if ours <= _FASTER * theirs else None


def make_half(module: Any) -> StandIn | None:
    """The module in half precision; None where it cannot be copied."""
    half = copy_half(module)
    return None if half is None else StandIn(HALF, HALF_TOLERANCE, lambda batch: first_tensor(half(batch.half())))


def copy_half(module: Any) -> Any | None:
    """A copy of a module in half precision; None where it cannot be copied."""
    try:
        return copy.deepcopy(module).half()
    except Exception:  # the module is the user's code: any error is possible
        return None


def prefer_channels_last(module: Any, images: Tensor, outputs: np.ndarray[Any, Any]) -> bool:
    """Whether torch runs a module faster with channels last in memory. If so, its weights are left in that order."""
    is_convolutional = any(parameter.ndim == 4 for parameter in module.parameters())
    if not is_convolutional or count_parameters(module) < MIN_PARAMETERS:
        return False
    before = min(measure(lambda: probe(torch, module, images[:2].clone())) for _ in range(2))
    try:
        module.to(memory_format=torch.channels_last)
        batch = images.contiguous(memory_format=torch.channels_last)
        found = probe(torch, module, batch.clone())
        if np.allclose(found, outputs, rtol=0, atol=1e-4 * max(1.0, float(np.abs(outputs).max()))):
            after = min(measure(lambda: probe(torch, module, batch[:2].clone())) for _ in range(2))
            if after < before:
                return True
    except (ModelError, RuntimeError):  # e.g. it reshapes with `view`, which this order does not allow
        pass
    module.to(memory_format=torch.contiguous_format)
    return False


def count_parameters(module: Any) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def measure(function: Callable[[], Any]) -> float:
    """The seconds that a call takes."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
