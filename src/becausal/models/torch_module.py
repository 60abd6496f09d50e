"""Torch modules, on the CPU or a GPU; methods that need gradients can reach the module."""

import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Grid, ModelInfo, Pixels, Promise, Visible
from becausal.core.errors import MissingExtraError, ModelError
from becausal.core.twins import Twin
from becausal.models.outputs import OutputClues, OutputDecoder, make_decoder, make_probe_images, name_classes
from becausal.models.preprocess import LUMINANCE, Normalisation
from becausal.models.settings import ModelSettings
from becausal.models.torch_compose import DeviceComposer, HostComposer, make_composer
from becausal.models.torch_device import DeviceRunner
from becausal.models.torch_probe import Tensor, count_channels, find_last_layer, first_tensor, probe
from becausal.models.user_code import (
    call,
    file_sha256,
    load_function,
    read_constants,
    split_target,
    stdout_to_stderr,
)

if TYPE_CHECKING:
    from becausal.models.torch_twin import StandIns

_MAX_PART = 256  # images per forward pass: more are not faster, and need memory
_CPU_BATCH = 32  # images per batch on a CPU
_CPU_PIXELS = 4 * 224 * 224  # per forward pass on a CPU: the memory of larger tensors is mapped anew each time


@final
class TorchClassifier:
    """A torch module as a classifier.

    module: the nn.Module, in eval mode, on its device. Its output may be a tensor, a tuple that starts with one, or an
    object with `logits`. part: images per forward pass. stand_ins: makes its twin, None for none. Batches share one buffer,
    so threads take turns.
    """

    def __init__(
        self,
        module: Any,
        info: ModelInfo,
        normalisation: Normalisation,
        composer: HostComposer | DeviceComposer,
        decoder: OutputDecoder,
        *,
        batch_size: int,
        part: int = _MAX_PART,
        stand_ins: "StandIns | None" = None,
        lock: "threading.Lock | None" = None,
    ) -> None:
        self.module = module
        self.info = info
        self._stand_ins = stand_ins
        self._normalisation = normalisation
        self._composer: Any = composer  # each stages its own type of pair
        self._decoder = decoder
        self._part = min(part, batch_size)
        self.batch_size = batch_size // self._part * self._part  # a multiple of the part size
        self._lock = lock or threading.Lock()
        self._runner: DeviceRunner | None = None
        if info.device.startswith("cuda") and isinstance(composer, DeviceComposer):
            self._runner = DeviceRunner(self._network, self._decode, composer, _sizes(self._part), info.device)

    def __repr__(self) -> str:
        return f"<TorchClassifier {self.info}>"

    @property
    def fixed_sizes(self) -> tuple[int, ...]:
        """A few sizes on a GPU, since each new one takes time to plan and capture; larger ones are run in parts."""
        if self.info.device == "cpu":
            return ()
        part = min(_MAX_PART, self.batch_size)
        return (*_sizes(part), *range(2 * part, self.batch_size + 1, part))

    @property
    def depth(self) -> int:
        """Two batches on a CUDA device, one running and one queued; 0 on devices that run synchronously."""
        return 0 if self._runner is None else 2

    def stage(self, view: Pixels, background: Pixels) -> Any:
        return self._composer.stage(view, background)

    def ask(self, staged: Sequence[Any], which: NDArray[np.intp], visible: Visible) -> NDArray[Any]:
        if self._runner is not None:
            packed = np.packbits(visible.reshape(len(visible), -1), axis=1)
            return self.submit(staged, which, packed, visible.shape[1:]).collect()
        return self._classify_parts(len(visible), lambda rows: self._composer.compose(staged, which[rows], visible[rows]))

    def submit(self, staged: Sequence[Any], which: NDArray[np.intp], packed: NDArray[np.uint8], grid: Grid) -> Promise:
        """Start a batch on a CUDA device."""
        if self._runner is None:
            raise ModelError(f"a module on {self.info.device} runs synchronously: use ask")
        return self._runner.submit(staged, which, packed, grid)

    def find_twin(self) -> Twin | None:
        stand_in = None if self._stand_ins is None else self._stand_ins.find()
        if stand_in is None:
            return None
        same = (self.info, self._normalisation, self._composer, self._decoder)
        twin = TorchClassifier(stand_in.run, *same, batch_size=self.batch_size, lock=self._lock)
        return Twin(stand_in.name, stand_in.tolerance, twin.ask, None if twin._runner is None else twin.submit)

    def drop_twin(self) -> None:
        if self._stand_ins is not None:
            self._stand_ins.drop()

    def classify(self, pixels: Pixels) -> NDArray[Any]:
        if self._runner is not None:
            return self._runner.classify(self._composer.to_tensor(pixels).permute(0, 2, 3, 1))
        return self._classify_parts(len(pixels), lambda rows: self._composer.to_tensor(pixels[rows]))

    def normalise(self, pixels: Tensor) -> Tensor:
        """Normalise pixels (n, channels, h, w) in 0..255, differentiably."""
        import torch

        normalisation = self._normalisation
        if normalisation.order == "bgr":
            pixels = pixels.flip(1)
        elif normalisation.order == "grey" and pixels.shape[1] == 3:
            weights = torch.tensor(LUMINANCE, dtype=pixels.dtype, device=pixels.device)
            pixels = (pixels * weights.reshape(1, 3, 1, 1)).sum(1, keepdim=True)
        mean, std = (
            torch.tensor(values, dtype=pixels.dtype, device=pixels.device).reshape(1, -1, 1, 1)
            for values in (normalisation.mean, normalisation.std)
        )
        return (pixels * normalisation.scale - mean) / std

    def gradient_input(self, pixels: Pixels) -> Tensor:
        """Pixels (n, h, w, channels) as a normalised tensor (n, channels, h, w) on the device, with requires_grad."""
        return self._composer.to_tensor(pixels).clone().requires_grad_(True)

    def torch_form(self) -> tuple[Any, Callable[[Pixels], Tensor]]:
        """The module, and the function that normalises pixels to its input, for methods that need gradients."""
        return self.module, lambda pixels: self.gradient_input(pixels).detach()

    def _classify_parts(self, count: int, make: Callable[[slice], Tensor]) -> NDArray[Any]:
        """The scores of `count` images, made and classified in parts, which get smaller if memory runs out.

        Nothing waits for the device until all parts are queued, so the next is made while one is classified.
        """
        import torch

        with self._lock, torch.inference_mode():
            while True:
                try:
                    starts = range(0, count, self._part)
                    raw = [self._forward(make(slice(i, min(i + self._part, count)))) for i in starts]
                    return self._scores(torch.cat(raw))
                except torch.cuda.OutOfMemoryError:
                    if self._part == 1:
                        raise
                self._part //= 2
                torch.cuda.empty_cache()

    def _forward(self, batch: Tensor) -> Tensor:
        import torch

        if self.info.device == "cpu":
            with stdout_to_stderr():
                return first_tensor(self.module(batch))
        # True float32: TF32, the default for convolutions, changes probabilities by up to 0.01
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
            return first_tensor(self.module(batch))

    def _scores(self, raw: Tensor) -> NDArray[Any]:
        return self._decode(np.asarray(self._apply_softmax(raw).cpu().numpy()))

    def _network(self, batch: Tensor) -> Tensor:
        return self._apply_softmax(self._forward(batch))

    def _apply_softmax(self, raw: Tensor) -> Tensor:
        """The output with softmax applied if it needs one; half precision becomes float32."""
        import torch

        if self._has_plain_logits(raw.ndim):
            # On the device: for a thousand images and classes numpy would take longer than the whole network.
            return torch.softmax(raw.float(), 1)
        return raw.float() if raw.is_floating_point() else raw

    def _decode(self, output: NDArray[Any]) -> NDArray[Any]:
        return output if self._has_plain_logits(output.ndim) else self._decoder.scores(output)

    def _has_plain_logits(self, axes: int) -> bool:
        if self.info.device == "cpu":  # torch's threads would get in the way of those of a twin in onnxruntime
            return False
        return self._decoder.returns == "logits" and not self._decoder.is_single and axes == 2


def _sizes(part: int) -> tuple[int, ...]:
    """Batch sizes up to `part`: powers of two from 8, and `part` itself."""
    return tuple(sorted({part, *(size for size in (8, 16, 32, 64, 128) if size < part)}))


def load(target: str, settings: ModelSettings) -> TorchClassifier:
    """The module that a function of a Python file builds. Raises ModelError for any error while building it.

    `file.py:build` calls build(), `file.py:build:text` calls build("text").
    """
    import_torch("a torch model")
    path, name, argument = split_target(target, "torch")
    function, code = load_function(path, name)
    module = call(function, path, *([] if argument is None else [argument]))
    own = read_constants(code, function, path.parent)
    return wrap(module, settings, own, spec=f"torch:{target}", kind="torch", sha256=file_sha256(path))


def wrap(
    module: Any,
    settings: ModelSettings,
    own: ModelSettings | None = None,
    *,
    spec: str | None = None,
    kind: str = "torch",
    sha256: str | None = None,
) -> TorchClassifier:
    """A module in memory as a classifier; it is moved to the device and put in eval mode. own: its metadata."""
    torch = import_torch("a torch model")
    from becausal.models.torch_twin import StandIns, make_export, make_half, prefer_channels_last

    settings, loading = settings.over(own or ModelSettings()), settings.loading
    if not isinstance(module, torch.nn.Module):
        raise ModelError(f"{spec or 'the model'} returned {type(module).__name__}; expected a torch.nn.Module")
    device = find_device(torch, loading.device)
    if loading.threads is not None:
        torch.set_num_threads(loading.threads)
    module = move_module(torch, module, device)
    channels = count_channels(torch, module)
    plan = settings.plan_preprocessing(channels, None)
    composer = make_composer(plan.normalisation, device)
    pixels = make_probe_images(plan.geometry.grid, plan.channels)
    images = composer.to_tensor(pixels)
    raw = probe(torch, module, images)
    clues = OutputClues(find_last=lambda: find_last_layer(torch, module, images))
    decoder, notes = make_decoder(raw, returns=settings.returns, clues=clues)
    h, w = plan.geometry.grid
    info = ModelInfo(
        spec=spec or f"module {type(module).__name__}",
        kind=kind,
        geometry=plan.geometry,
        channels=plan.channels,
        labels=name_classes(decoder, settings.labels),
        output=decoder.kind,
        normalisation=str(plan.normalisation),
        sha256=sha256,
        device=device,
        inputs=f"float32 [N,{channels},{h},{w}]",
        outputs=f"[N,{','.join(str(side) for side in raw.shape[1:])}]",
        notes=(*settings.notes, *plan.notes, *notes),
        loading=loading.record(),
    )
    part, stand_ins = _MAX_PART, None
    if isinstance(composer, HostComposer):
        part = max(1, min(_CPU_BATCH, _CPU_PIXELS // (h * w)))
        if prefer_channels_last(module, composer.to_tensor(pixels), raw):
            composer = HostComposer(plan.normalisation, is_channels_last=True)
        if not torch.equal(composer.to_tensor(pixels), images):
            composer.disable_patching()
        if loading.runtime == "auto":
            make = partial(make_export, module, images[2:4].clone(), loading.threads)
            stand_ins = StandIns(module, (h, w, loading.threads), make)
    elif loading.half:
        stand_ins = StandIns(module, "half", partial(make_half, module))
    batch_size = loading.batch_size or (_CPU_BATCH if device == "cpu" else _MAX_PART)
    return TorchClassifier(
        module, info, plan.normalisation, composer, decoder, batch_size=batch_size, part=part, stand_ins=stand_ins
    )


def import_torch(purpose: str, extra: str = "torch") -> Any:
    """The torch library. Raises MissingExtraError, which names the extra, if it is not installed."""
    try:
        import torch
    except ImportError:
        raise MissingExtraError("torch", extra, purpose) from None
    return torch


def is_module(model: Any) -> bool:
    """Whether an object is a torch module. Does not import torch: a module exists only if torch is imported."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


def move_module(torch: Any, module: Any, device: str) -> Any:
    """The module in eval mode on a device."""
    module = module.eval().to(device)
    return module if device == "cpu" else module.to(memory_format=torch.channels_last)


def find_device(torch: Any, name: str) -> str:
    """The device of this name, as torch writes it. Raises ModelError if it is not there."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ModelError(f"unknown torch device {name!r}; expected cpu, cuda or mps") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ModelError("torch finds no CUDA device: install a CUDA build of torch, or remove --device cuda")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ModelError("torch finds no MPS device: remove --device mps")
    return str(device)
