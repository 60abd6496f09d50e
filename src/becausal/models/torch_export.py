"""Torch modules as ONNX models in memory, made in a process of their own: the exporter may crash, or hang.

This file imports torch, so it is loaded on demand. The module is traced: its Python code runs once, and the operations on
tensors are recorded. State, hooks and control flow that depends on the image are not recorded, so an export may guide a
search and nothing more (`search.twins`).
"""

import faulthandler
import inspect
import io
import os
import selectors
import signal
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch.nn.functional import pad
from torch.overrides import TorchFunctionMode

from becausal.models.torch_probe import Tensor, first_tensor

INPUT, OUTPUT = "images", "scores"  # tensors of the exported model
SECONDS = 30.0  # after which an export is given up
_CHUNK = 2**20


def export_module(module: Any, images: Tensor) -> bytes:
    """A module in eval mode, traced on two or more images, as an ONNX model; empty if it could not be exported in time."""
    return run_apart(lambda: _export(module, images), SECONDS)


def run_apart(function: Callable[[], bytes], seconds: float) -> bytes:
    """What a function returns in a copy of this process; nothing if it fails, or the process dies or takes too long.

    The copy has the module as it is, with whatever cannot be pickled. Needs a system that can fork.
    """
    if not hasattr(os, "fork"):
        return b""
    receiving, sending = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads: should the copy hang, it is ended
        child = os.fork()
    if child == 0:
        _answer(function, receiving, sending)
    os.close(sending)
    try:
        return _receive(receiving, time.monotonic() + seconds)
    finally:
        os.close(receiving)
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _answer(function: Callable[[], bytes], receiving: int, sending: int) -> None:
    """In the copy: send what the function returns, silently, and end without any of this process's own clearing up."""
    try:
        faulthandler.disable()
        os.close(receiving)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nowhere, stream)
        torch.set_num_threads(1)  # the other threads of the pool exist in the parent only
        data = function()
        with os.fdopen(sending, "wb") as pipe:
            pipe.write(len(data).to_bytes(8, "big") + data)
    except BaseException:  # the exporter has dozens of types; and nothing may leave this function
        pass
    finally:
        os._exit(0)


def _receive(pipe: int, deadline: float) -> bytes:
    """What comes through a pipe, if it is complete before the deadline."""
    parts: list[bytes] = []
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while selector.select(max(0.0, deadline - time.monotonic())):
            part = os.read(pipe, _CHUNK)
            if not part:
                break
            parts.append(part)
    data = b"".join(parts)
    return data[8:] if len(data) >= 8 and int.from_bytes(data[:8], "big") == len(data) - 8 else b""


def _export(module: Any, images: Tensor) -> bytes:
    scores = _Scores(module)
    scores.training = False  # the exporter looks at this one
    options: dict[str, Any] = {"input_names": [INPUT], "output_names": [OUTPUT]}
    options["dynamic_axes"] = {INPUT: {0: "n"}, OUTPUT: {0: "n"}}
    if "dynamo" in inspect.signature(torch.onnx.export).parameters:
        options["dynamo"] = False  # the newer exporter takes ten times as long
    file = io.BytesIO()
    warnings.simplefilter("ignore")
    with torch.no_grad():
        is_scripted = isinstance(module, torch.jit.ScriptModule)  # its graph is there already, and is no part of a trace
        torch.onnx.export(module if is_scripted else scores, (images,), file, **options)
    return file.getvalue()


class _Scores(torch.nn.Module):  # type: ignore[misc]
    """A module reduced to its tensor of scores."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module

    def forward(self, images: Tensor) -> Tensor:
        with _ExplicitPadding():
            return first_tensor(self.module(images))


class _ExplicitPadding(TorchFunctionMode):  # type: ignore[misc]
    """Pads with an explicit zero; else onnxruntime does not merge a padding with the convolution after it."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = dict(kwargs or {})
        if function is pad and options.get("mode") == "constant" and options.get("value") is None:
            options["value"] = 0.0
        return function(*args, **options)
