"""Torch modules, on the CPU or a GPU: asked in batches, and open to methods that need gradients."""

import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Grid, ModelInfo, Pixels, Promise, Visible
from becausal.core.errors import MissingExtraError, ModelError
from becausal.models.outputs import Reading, name_classes, probe_pictures, read_output
from becausal.models.preprocess import LUMINANCE, Normalisation, choose_numbers, plan_geometry
from becausal.models.settings import Metadata, Settings
from becausal.models.torch_compose import DeviceComposer, HostComposer, make_composer
from becausal.models.torch_device import DeviceRunner
from becausal.models.user_code import call, file_sha256, load_function, read_constants, split_target

Tensor = Any  # torch.Tensor; torch is imported only when a torch model is loaded

_PART = 256  # images a network is given at once: more bring nothing, and take memory


@final
class TorchClassifier:
    """A torch module as a classifier.

    module: the nn.Module, in eval mode, on its device. Its output may be a tensor, a tuple that begins with one, or
    an object with `logits`. One call at a time: threads wait for each other, since batches share one buffer.
    """

    def __init__(
        self,
        module: Any,
        info: ModelInfo,
        numbers: Normalisation,
        composer: HostComposer | DeviceComposer,
        reading: Reading,
        *,
        batch_size: int,
    ) -> None:
        self.module = module
        self._info = info
        self._numbers = numbers
        self._composer: Any = composer  # each stages its own kind of pair
        self._reading = reading
        self._part = min(_PART, batch_size)
        self._batch_size = batch_size // self._part * self._part  # whole parts, so that no odd one is left over
        self._lock = threading.Lock()
        self._ahead: int | None = None
        self._runner: DeviceRunner | None = None
        if info.device.startswith("cuda") and isinstance(composer, DeviceComposer):
            self._runner = DeviceRunner(self._network, self._read, composer, _sizes(self._part), info.device)

    @property
    def info(self) -> ModelInfo:
        return self._info

    @property
    def batch_size(self) -> int:
        return self._batch_size

    @property
    def fixed_sizes(self) -> tuple[int, ...]:
        """On a GPU a few sizes only, as each new one costs time to plan and record; larger ones are run in parts."""
        if self._info.device == "cpu":
            return ()
        part = min(_PART, self._batch_size)
        return (*_sizes(part), *range(2 * part, self._batch_size + 1, part))

    @property
    def depth(self) -> int:
        """Two batches on a CUDA device, one at work and one waiting; 0 where nothing works beside us."""
        return 0 if self._runner is None else 2

    @property
    def ahead(self) -> int:
        """How many rows take no longer than one: measured, when it is first asked for."""
        if self._ahead is None:
            self._ahead = self._measure_ahead()
        return self._ahead

    def _measure_ahead(self) -> int:
        geometry = self._info.geometry
        if self._runner is None or geometry is None:
            return 0
        blank = np.zeros((*geometry.grid, self._info.channels or 3), np.uint8)
        return self._runner.measure_ahead(self.stage(blank, blank), geometry.grid)

    def stage(self, view: Pixels, background: Pixels) -> Any:
        return self._composer.stage(view, background)

    def ask(self, staged: Sequence[Any], which: NDArray[np.intp], visible: Visible) -> NDArray[Any]:
        if self._runner is not None:
            packed = np.packbits(visible.reshape(len(visible), -1), axis=1)
            return self.submit(staged, which, packed, visible.shape[1:]).collect()
        return self._answer(len(visible), lambda rows: self._composer.compose(staged, which[rows], visible[rows]))

    def submit(self, staged: Sequence[Any], which: NDArray[np.intp], packed: NDArray[np.uint8], grid: Grid) -> Promise:
        """Begin with a batch on a CUDA device."""
        if self._runner is None:
            raise ModelError(f"a module on {self._info.device} answers at once: use ask")
        return self._runner.submit(staged, which, packed, grid)

    def classify(self, pixels: Pixels) -> NDArray[Any]:
        if self._runner is not None:
            return self._runner.classify(self._composer.bring(pixels).permute(0, 2, 3, 1))
        return self._answer(len(pixels), lambda rows: self._composer.bring(pixels[rows]))

    def normalise(self, pixels: Tensor) -> Tensor:
        """Pixels (n, channels, h, w) of 0..255 in the model's numbers, differentiable."""
        import torch

        numbers = self._numbers
        if numbers.order == "bgr":
            pixels = pixels.flip(1)
        elif numbers.order == "grey" and pixels.shape[1] == 3:
            weights = torch.tensor(LUMINANCE, dtype=pixels.dtype, device=pixels.device)
            pixels = (pixels * weights.reshape(1, 3, 1, 1)).sum(1, keepdim=True)
        mean, std = (
            torch.tensor(values, dtype=pixels.dtype, device=pixels.device).reshape(1, -1, 1, 1)
            for values in (numbers.mean, numbers.std)
        )
        return (pixels * numbers.scale - mean) / std

    def gradient_input(self, pixels: Pixels) -> Tensor:
        """Pixels (n, h, w, channels) as a normalised tensor (n, channels, h, w) on the device, asking for gradients."""
        return self._composer.bring(pixels).clone().requires_grad_(True)

    def _answer(self, count: int, make: Callable[[slice], Tensor]) -> NDArray[Any]:
        """The scores of `count` images, made and asked in parts; the parts get smaller where memory runs out.

        Nothing waits for the device until all parts are under way, so the next is made while one is classified.
        """
        import torch

        with self._lock, torch.inference_mode():
            while True:
                try:
                    starts = range(0, count, self._part)
                    raw = [self._classified(make(slice(i, min(i + self._part, count)))) for i in starts]
                    return self._scores(torch.cat(raw))
                except torch.cuda.OutOfMemoryError:
                    if self._part == 1:
                        raise
                self._part //= 2
                torch.cuda.empty_cache()

    def _classified(self, batch: Tensor) -> Tensor:
        import torch

        if self._info.device == "cpu":
            return first_tensor(self.module(batch))
        # float32 means float32: the short form convolutions take by default moves probabilities by 0.01
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
            return first_tensor(self.module(batch))

    def _scores(self, raw: Tensor) -> NDArray[Any]:
        return self._read(np.asarray(self._finished(raw).cpu().numpy()))

    def _network(self, batch: Tensor) -> Tensor:
        return self._finished(self._classified(batch))

    def _finished(self, raw: Tensor) -> Tensor:
        """The output with its softmax, where it needs one; half precision, which numpy half knows, becomes float32."""
        import torch

        if self._has_plain_logits(raw.ndim):
            # On the device: a thousand classes of a thousand mutants take longer in numpy than the whole network.
            return torch.softmax(raw.float(), 1)
        return raw.float() if raw.is_floating_point() else raw

    def _read(self, output: NDArray[Any]) -> NDArray[Any]:
        return output if self._has_plain_logits(output.ndim) else self._reading.scores(output)

    def _has_plain_logits(self, axes: int) -> bool:
        return self._reading.meaning == "logits" and not self._reading.is_single and axes == 2


def _sizes(part: int) -> tuple[int, ...]:
    """Batch sizes up to `part`: powers of two from 8 on, and itself."""
    return tuple(sorted({part, *(size for size in (8, 16, 32, 64, 128) if size < part)}))


def load(target: str, settings: Settings) -> TorchClassifier:
    """The module a function of a Python file builds. Raises ModelError for whatever goes wrong in building it.

    `file.py:build` calls build(), `file.py:build:text` calls build("text").
    """
    import_torch("a torch model")
    path, name, argument = split_target(target, "torch")
    function, code = load_function(path, name)
    module = call(function, path, *([] if argument is None else [argument]))
    found = read_constants(code, function, path.parent)
    return wrap(module, settings, found, spec=f"torch:{target}", kind="torch", sha256=file_sha256(path))


def wrap(
    module: Any,
    settings: Settings,
    found: Metadata | None = None,
    *,
    spec: str | None = None,
    kind: str = "torch",
    sha256: str | None = None,
) -> TorchClassifier:
    """A module in memory as a classifier; it is moved to the device and put in eval mode."""
    torch = import_torch("a torch model")
    found = found or Metadata()
    if not isinstance(module, torch.nn.Module):
        raise ModelError(f"{spec or 'the model'} gave a {type(module).__name__}; expected a torch.nn.Module")
    device = _find_device(torch, settings.device)
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    module = _settle(torch, module, device, half=settings.half)
    channels = _count_channels(torch, module)
    numbers, assumed = choose_numbers(settings.numbers or found.numbers, channels=channels)
    view_channels = 3 if numbers.order == "grey" else channels
    geometry, more = plan_geometry(
        settings.crop or found.grid,
        resize=settings.resize if settings.resize is not None else found.resize,
        crop=None,
        interpolation=settings.interpolation or found.interpolation,
    )
    composer = make_composer(numbers, device, half=settings.half)
    pictures = composer.bring(probe_pictures(geometry.grid, view_channels))
    before = pictures.clone()
    raw = _probe(torch, module, pictures)
    if isinstance(composer, HostComposer) and not torch.equal(before, pictures):
        composer.distrust()
    reading, heard = read_output(raw, said=settings.output or found.output)
    info = ModelInfo(
        spec=spec or f"module {type(module).__name__}",
        kind=kind,
        geometry=geometry,
        channels=view_channels,
        labels=name_classes(reading, settings.labels or found.labels),
        output=reading.output,
        numbers=str(numbers),
        sha256=sha256,
        device=device,
        inputs=f"float{'16' if settings.half else '32'} [N,{channels},{geometry.grid[0]},{geometry.grid[1]}]",
        outputs=f"[N,{','.join(str(side) for side in raw.shape[1:])}]",
        notes=(*found.notes, *assumed, *more, *heard),
        loading=settings.loading.record(),
    )
    batch_size = settings.batch_size or (32 if device == "cpu" else _PART)
    return TorchClassifier(module, info, numbers, composer, reading, batch_size=batch_size)


def import_torch(purpose: str) -> Any:
    """The torch library. Raises MissingExtraError where it is not installed."""
    try:
        import torch
    except ImportError:
        raise MissingExtraError("torch", "torch", purpose) from None
    return torch


def is_module(model: Any) -> bool:
    """Whether an object is a torch module, without importing torch: if it is one, torch has been imported already."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


def first_tensor(output: Any) -> Tensor:
    """The scores in whatever a module returned."""
    if hasattr(output, "logits"):
        return output.logits
    if isinstance(output, dict):
        return output.get("logits", next(iter(output.values())))
    return output[0] if isinstance(output, (tuple, list)) else output


def _settle(torch: Any, module: Any, device: str, *, half: bool) -> Any:
    module = module.eval().to(device)
    if half:
        module = module.half()
    return module if device == "cpu" else module.to(memory_format=torch.channels_last)


def _probe(torch: Any, module: Any, batch: Tensor) -> NDArray[Any]:
    with torch.inference_mode():
        try:
            return _to_numpy(first_tensor(module(batch)))
        except Exception as error:  # the module is the user's: anything may come
            message = " ".join(str(error).split())[:200]
            raise ModelError(
                f"the module cannot classify a batch of shape {tuple(batch.shape)}: {type(error).__name__}: {message}"
            ) from error


def _to_numpy(raw: Tensor) -> NDArray[Any]:
    """The output in numpy; half precision, which numpy half knows, becomes float32."""
    return np.asarray((raw.float() if raw.is_floating_point() else raw).cpu().numpy())


def _find_device(torch: Any, name: str) -> str:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ModelError(f"torch knows no device {name!r}: take cpu, cuda or mps") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ModelError("torch finds no CUDA device here: install a CUDA build of torch, or leave --device cuda out")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ModelError("torch finds no MPS device here: leave --device mps out")
    return str(device)


def _count_channels(torch: Any, module: Any) -> int:
    """Of the first convolution; 3 where there is none."""
    first = next((part for part in module.modules() if isinstance(part, torch.nn.Conv2d)), None)
    return int(first.in_channels) if first is not None else 3
