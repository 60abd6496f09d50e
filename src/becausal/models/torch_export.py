"""Torch modules as ONNX models in memory, and what speaks against exporting one.

This file imports torch, so it is loaded on demand. The module is traced: its Python code runs once, and the operations on
tensors are recorded. State, hooks and control flow that depends on the image are not recorded, so they are looked for.
"""

import importlib.util
import inspect
import io
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import pad
from torch.overrides import TorchFunctionMode

from becausal.models.torch_probe import Tensor, first_tensor, to_numpy
from becausal.models.user_code import stdout_to_stderr

INPUT, OUTPUT = "images", "scores"  # tensors of the exported model
_ONE_AT_A_TIME = threading.Lock()  # the exporter and the filters of warnings have global state
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

_READS = {
    "__bool__", "__int__", "__float__", "__complex__", "__index__", "__array__", "__contains__",
    "item", "tolist", "numpy", "equal", "allclose", "is_nonzero",
}  # fmt: skip  # the functions of torch that return Python values or numpy arrays


@dataclass(frozen=True, eq=False)
class ExportedModule:
    """An ONNX model, and what the module itself returned for the images it was traced with.

    is_in_doubt: whether the code read values of tensors, which are constants in the trace. These may be sizes only.
    """

    data: bytes
    outputs: NDArray[Any]
    is_in_doubt: bool


def export_module(module: Any, images: Tensor) -> ExportedModule:
    """Trace a module in eval mode on two or more images. Any exception is possible: the exporter has many of its own."""
    scores = _Scores(module)
    scores.training = False  # otherwise the exporter would leave the module in training mode
    is_scripted = isinstance(module, torch.jit.ScriptModule)  # its graph is there already, and is no part of a trace
    options: dict[str, Any] = {"input_names": [INPUT], "output_names": [OUTPUT]}
    options["dynamic_axes"] = {INPUT: {0: "n"}, OUTPUT: {0: "n"}}
    if "dynamo" in inspect.signature(torch.onnx.export).parameters:
        options["dynamo"] = False  # the newer exporter takes ten times as long
    file = io.BytesIO()
    with _ONE_AT_A_TIME, _quiet(), torch.no_grad():
        torch.onnx.export(module if is_scripted else scores, (images,), file, **options)
        if is_scripted:
            scores(images)
    return ExportedModule(file.getvalue(), to_numpy(scores.returned), scores.watch.has_reads)


def find_obstacle(module: Any) -> str | None:
    """Why a module should not be exported, without trying; None if nothing is known."""
    if importlib.util.find_spec("onnx") is None:
        return "the package onnx is not installed: pip install onnx (the extra becausal[torch])"
    if any(part.training for part in module.modules()):
        return "it is in training mode"
    if any(getattr(part, name, None) for part in module.modules() for name in _HOOKS):
        return "it has hooks, which onnxruntime would not call"
    return None


def reads_values(module: Any, images: Tensor) -> bool:
    """Whether the module's Python code looks at values of tensors, e.g. in a condition. Sizes are no tensors here."""
    with torch.inference_mode(), stdout_to_stderr(), _Watch() as watch:
        module(images)
    return bool(watch.has_reads)


def read_state(module: Any) -> tuple[Any, ...]:
    """What a module computes with, in a form that can be compared: weights by checksum, plain attributes by value.

    Changes of any weight are noticed, also those that bypass torch's own counting of writes.
    """
    found: list[Any] = []
    for part in module.modules():
        for name, value in _attributes(part):
            if isinstance(value, torch.Tensor):
                found.append((name, value.shape, _checksum(value)))
            elif isinstance(value, (bool, int, float, str, type(None))):
                found.append((name, value))
            elif isinstance(value, (list, tuple, dict, set)):
                found.append((name, len(value)))
            else:
                found.append((name, id(value)))
    return tuple(found)


def _attributes(part: Any) -> Iterator[tuple[str, Any]]:
    """The attributes, parameters and buffers of one module, without those of its children."""
    yield from vars(part).items()
    yield from part.named_parameters(recurse=False)
    yield from part.named_buffers(recurse=False)


def _checksum(tensor: Tensor) -> tuple[int, int]:
    """The sum of the bits as integers, which is exact, and the number of writes that torch has counted."""
    writes = 0 if tensor.is_inference() else tensor._version
    try:
        values = tensor.detach().reshape(-1)
        return int(values.view(torch.int32 if values.element_size() == 4 else torch.uint8).sum()), writes
    except (RuntimeError, NotImplementedError):  # e.g. of a sparse or quantised tensor
        return 0, writes


class _Scores(torch.nn.Module):  # type: ignore[misc]
    """A module reduced to its tensor of scores."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module
        self.watch = _Watch()
        self.returned: Tensor = None

    def forward(self, images: Tensor) -> Tensor:
        with self.watch:
            self.returned = first_tensor(self.module(images))
        return self.returned


class _Watch(TorchFunctionMode):  # type: ignore[misc]
    """Notices when values of tensors become Python values. Pads with an explicit zero.

    Without it, onnxruntime does not merge a padding with the convolution after it.
    """

    has_reads = False

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = dict(kwargs or {})
        if getattr(function, "__name__", "") in _READS:
            self.has_reads = True
        elif function is pad and options.get("mode") == "constant" and options.get("value") is None:
            options["value"] = 0.0
        return function(*args, **options)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress warnings. If a module cannot be exported, keep torch from printing its whole graph to stdout."""
    log = getattr(torch._C, "_jit_onnx_log", None)
    with warnings.catch_warnings(), stdout_to_stderr():
        warnings.simplefilter("ignore")
        if log is not None:
            torch._C._jit_onnx_log = lambda *_: None
        try:
            yield
        finally:
            if log is not None:
                torch._C._jit_onnx_log = log


def largest_difference(outputs: NDArray[Any], others: NDArray[Any]) -> float:
    """The largest difference of two outputs, relative to the largest value if that exceeds 1; infinite for NaN."""
    if outputs.shape != others.shape:
        return float("inf")
    ours, theirs = outputs.astype(np.float64), others.astype(np.float64)
    difference = np.abs(ours - theirs).max() / max(1.0, np.abs(ours).max())
    return float(difference) if np.isfinite(difference) else float("inf")
