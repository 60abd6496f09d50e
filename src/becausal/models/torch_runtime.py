"""What runs a torch module on a CPU: onnxruntime, where its outputs are the same and it is not slower, or torch."""

import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from becausal.core.errors import ModelError
from becausal.core.text import one_line
from becausal.models.loading import Loading
from becausal.models.onnx_file import make_session
from becausal.models.torch_export import (
    INPUT,
    OUTPUT,
    export_module,
    find_obstacle,
    largest_difference,
    read_state,
    reads_values,
)
from becausal.models.torch_probe import Tensor, probe

TOLERANCE = 1e-4  # of the outputs, relative to the largest if that exceeds 1; margins are rounded to 1/32
MIN_PARAMETERS = 1_000_000  # exporting a smaller module would take longer than it saves in one explanation
_MAX_BYTES = 2**30  # of parameters; they are copied three times while a module is exported
_OTHERS = (1, 4, 5)  # probe images to compare besides the mutants; more than are traced, as unrolled loops show only then
_CLEARLY_FASTER = 0.8  # share of torch's time in the first run of each, below which nothing more is measured
_SLOWER = 1.2  # so much slower than torch may onnxruntime be, since measured times vary


@dataclass(frozen=True, eq=False)
class RuntimeChoice:
    """A session of onnxruntime, None for torch; the reason, empty if there was no choice; and what it was made for."""

    session: Any | None = None
    reason: str = ""
    key: tuple[Any, ...] = ()


_CHOICES: "weakref.WeakKeyDictionary[Any, RuntimeChoice]" = weakref.WeakKeyDictionary()  # the latest of each module


@final
class ModuleRuntime:
    """Runs a module's batches, in onnxruntime or torch.

    make_images: makes the normalised probe images, (n, channels, h, w), new each time: a module may write to them.
    """

    def __init__(self, module: Any, make_images: Callable[[], Tensor], loading: Loading) -> None:
        self._module = module
        self._make_images = make_images
        self._loading = loading
        self._choice = RuntimeChoice()

    @property
    def uses_onnxruntime(self) -> bool:
        return self._choice.session is not None

    @property
    def notes(self) -> tuple[str, ...]:
        if not self._choice.reason:
            return ()
        return (f"the module runs in {'onnxruntime' if self.uses_onnxruntime else 'torch'}: {self._choice.reason}",)

    def run(self, batch: Tensor) -> Tensor:
        """The outputs of the exported module for a batch, (n, channels, h, w)."""
        return torch.from_numpy(_run(self._choice.session, batch))

    def choose(self, outputs: NDArray[Any], seconds: float) -> None:
        """Choose by the module's outputs for the probe images, and the time they took.

        Raises:
            ModelError: onnxruntime was asked for, and cannot be used.
        """
        is_small = count_parameters(self._module) < MIN_PARAMETERS
        mode = self._loading.runtime
        if mode == "torch" or (mode == "auto" and is_small):
            return
        images = self._make_images()
        key = (read_state(self._module), tuple(images.shape), mode, self._loading.threads)
        known = _CHOICES.get(self._module)
        if known is None or known.key != key:
            session, reason = self._try_export(images, outputs, seconds, key[0])
            known = _CHOICES[self._module] = RuntimeChoice(session, reason, key)
        if known.session is None and mode == "onnxruntime":
            raise ModelError(f"onnxruntime cannot run the module: {known.reason}; remove --runtime onnxruntime")
        self._choice = known

    def refresh(self) -> None:
        """Choose again if the exported module has changed since, e.g. in training."""
        if self._choice.session is None or self._choice.key[0] == read_state(self._module):
            return
        start = time.perf_counter()
        outputs = probe(torch, self._module, self._make_images())
        self._choice = RuntimeChoice()
        self.choose(outputs, time.perf_counter() - start)

    def _try_export(
        self, images: Tensor, outputs: NDArray[Any], seconds: float, state: tuple[Any, ...]
    ) -> tuple[Any | None, str]:
        """A session for the exported module, None if it is not used; and the reason."""
        is_automatic = self._loading.runtime == "auto"
        reason = find_obstacle(self._module)
        if reason is None and is_automatic and _count_bytes(self._module) > _MAX_BYTES:
            reason = "it is larger than 1 GB"
        if reason is not None:
            return None, reason
        mutants = make_mutants(images)
        try:
            exported = export_module(self._module, mutants.clone())  # a module may write to its input
            session = make_session(exported.data, threads=self._loading.threads)
        except Exception as error:  # the exporter and onnxruntime raise dozens of types, with no common base
            return None, f"it cannot be exported to ONNX ({type(error).__name__}: {one_line(error, 160)})"
        if read_state(self._module) != state:
            return None, "it changes its own state when it is called"
        if exported.is_in_doubt and reads_values(self._module, mutants.clone()):
            return None, "its control flow may depend on the image, which an export does not represent"
        start = time.perf_counter()
        others = list(_OTHERS)
        difference = _compare(session, images[others], outputs[others])
        share = (time.perf_counter() - start) / len(others) * len(images) / seconds
        for i in range(len(mutants)):  # one by one: an export may be bound to the batch size of the trace
            difference = max(difference, _compare(session, mutants[i : i + 1], exported.outputs[i : i + 1]))
        if difference > TOLERANCE:
            return None, f"exported to ONNX, its outputs differ by {difference:.2g} (tolerance {TOLERANCE:g})"
        if is_automatic and share > _CLEARLY_FASTER and self._is_slower(session, mutants):
            return None, "onnxruntime is slower here"
        return session, (
            f"exported to ONNX, its outputs for {len(others) + len(mutants)} probe images are the same within "
            f"{TOLERANCE:g} (--runtime torch switches this off)"
        )

    def _is_slower(self, session: Any, images: Tensor) -> bool:
        """Whether onnxruntime is clearly slower than torch, in the better of two rounds each."""
        ours, theirs = [], []
        for _ in range(2):
            ours.append(_measure(lambda: _run(session, images)))
            theirs.append(_measure(lambda: probe(torch, self._module, images.clone())))
        return min(ours) > _SLOWER * min(theirs)


def make_mutants(images: Tensor) -> Tensor:
    """Two masked images, made from the probe images: noise with a plain half, a gradient with a black half."""
    h, w = images.shape[2:]
    mutants = images[2:4].clone()
    mutants[0, :, :, w // 2 :] = images[5, :, :, w // 2 :]
    mutants[1, :, : h // 2] = images[0, :, : h // 2]
    return mutants


def prefer_channels_last(module: Any, images: Tensor, outputs: NDArray[Any]) -> bool:
    """Whether torch runs a module faster with channels last in memory. If so, its weights are left in that order."""
    is_convolutional = any(parameter.ndim == 4 for parameter in module.parameters())
    if not is_convolutional or count_parameters(module) < MIN_PARAMETERS:
        return False
    before = min(_measure(lambda: probe(torch, module, images[:2].clone())) for _ in range(3))
    try:
        module.to(memory_format=torch.channels_last)
        batch = images.contiguous(memory_format=torch.channels_last)
        if largest_difference(outputs, probe(torch, module, batch.clone())) <= TOLERANCE:
            after = min(_measure(lambda: probe(torch, module, batch[:2].clone())) for _ in range(3))
            if after < before:
                return True
    except (ModelError, RuntimeError):  # e.g. it reshapes with `view`, which this order does not allow
        pass
    module.to(memory_format=torch.contiguous_format)
    return False


def count_parameters(module: Any) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _count_bytes(module: Any) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())


def _run(session: Any, batch: Tensor) -> NDArray[Any]:
    return np.asarray(session.run([OUTPUT], {INPUT: np.ascontiguousarray(batch.numpy())})[0])


def _compare(session: Any, batch: Tensor, outputs: NDArray[Any]) -> float:
    """The largest difference between onnxruntime's outputs for a batch and torch's; infinite if it fails."""
    try:
        return largest_difference(outputs, _run(session, batch))
    except Exception:  # onnxruntime raises a dozen types of its own, with no common base
        return float("inf")


def _measure(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
