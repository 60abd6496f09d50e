"""ONNX files, run by onnxruntime."""

import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import ModelInfo
from becausal.core.errors import ModelError
from becausal.models.array_model import ArrayClassifier, run_padded
from becausal.models.compose import Composer, Layout
from becausal.models.onnx_binding import BoundRun
from becausal.models.outputs import OutputOption, name_classes, probe_pictures, read_output
from becausal.models.preprocess import choose_numbers, plan_geometry
from becausal.models.settings import Settings

_DTYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(uint8)": np.uint8,
    "tensor(int8)": np.int8,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
}
_SCORES = ("tensor(float)", "tensor(float16)", "tensor(double)")
_NAMED: dict[str, OutputOption] = {"probs": "probabilities", "probabilities": "probabilities", "logits": "logits"}


@dataclass(frozen=True)
class _Entry:
    """The network's input, as its shape tells: where channels are, how many, which sizes are fixed."""

    name: str
    dtype: np.dtype[Any]
    layout: Layout
    channels: int
    grid: tuple[int, int] | None
    batch: int | None
    notes: tuple[str, ...]


def load(target: str, settings: Settings, *, spec: str | None = None) -> ArrayClassifier:
    """The classifier in an ONNX file. Raises ModelError for a file that is none, or takes no images."""
    path = Path(target)
    session = _open(path, settings)
    entry = _read_entry(session, settings)
    numbers, how = choose_numbers(
        settings.numbers, channels=entry.channels, is_integer=np.issubdtype(entry.dtype, np.integer)
    )
    geometry, assumed = plan_geometry(
        entry.grid, resize=settings.resize, crop=settings.crop, interpolation=settings.interpolation
    )
    output, chosen = _pick_output(session, settings)
    composer = Composer(numbers.apply, layout=entry.layout, dtype=entry.dtype, remembers=True)
    run = _runner(session, entry.name, output.name, settings.device)
    fixed, batch_size = _sizes(entry, settings)
    channels = entry.channels if numbers.order != "grey" else 3
    probe = _probe(run, composer.batch(probe_pictures(geometry.grid, channels)), fixed, path)
    said = settings.output or _NAMED.get(output.name.lower())
    reading, heard = read_output(probe, said=said, by="the option" if settings.output else f"the name {output.name}")
    info = ModelInfo(
        spec=spec or f"onnx:{target}",
        kind="onnx",
        geometry=geometry,
        channels=channels,
        labels=name_classes(reading, settings.labels),
        output=reading.output,
        numbers=str(numbers),
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        device=settings.device,
        inputs="; ".join(_described(item) for item in session.get_inputs()),
        outputs="; ".join(_described(item) for item in session.get_outputs()),
        notes=(*entry.notes, *how, *assumed, *chosen, *heard),
        loading=settings.loading.record(),
    )
    return ArrayClassifier(info, composer, run, reading, batch_size=batch_size, fixed_sizes=fixed)


def _open(path: Path, settings: Settings) -> Any:
    import onnxruntime

    onnxruntime.disable_telemetry_events()  # a tool for auditors reports to nobody
    if not path.is_file():
        raise ModelError(f"there is no file {path}")
    providers: list[Any] = ["CPUExecutionProvider"]
    if re.fullmatch(r"cuda(:\d+)?", settings.device):
        if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
            raise ModelError(
                "this onnxruntime has no CUDA: pip uninstall onnxruntime, then pip install onnxruntime-gpu; "
                "or leave --device cuda out"
            )
        providers.insert(0, ("CUDAExecutionProvider", {"device_id": _number_of(settings.device)}))
    elif settings.device != "cpu":
        raise ModelError(f"an ONNX model runs on cpu or cuda, not on {settings.device!r}")
    if settings.half:
        raise ModelError("an ONNX model has its own precision: leave half out, or convert the file to float16")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what goes wrong is raised, and said once
    options.intra_op_num_threads = settings.threads or _cores()
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=providers)
    except Exception as error:  # onnxruntime raises a dozen types of its own, with no common base
        raise ModelError(f"{path} cannot be loaded as an ONNX model: {_one_line(error)}") from None
    if len(providers) > 1 and session.get_providers()[0] != "CUDAExecutionProvider":
        raise ModelError("onnxruntime could not start CUDA: its libraries do not fit this machine's")
    return session


def _number_of(device: str) -> int:
    """Of cuda or cuda:N."""
    return int(device.partition(":")[2] or 0)


def _read_entry(session: Any, settings: Settings) -> _Entry:
    inputs = session.get_inputs()
    item = _named(inputs, settings.input_name, "input")
    if len(inputs) > 1 and settings.input_name is None:
        raise ModelError(f"the model has {len(inputs)} inputs ({_names(inputs)}); a classifier of images has one")
    shape = [side if isinstance(side, int) and side > 0 else None for side in item.shape]
    if len(shape) != 4:
        raise ModelError(
            f"the input {_described(item)} has {len(shape)} axes; images need 4, such as [N,3,224,224]: "
            "for signals and volumes give a python: function"
        )
    if item.type not in _DTYPES:
        raise ModelError(f"the input {_described(item)} is of a type that images cannot be turned into")
    layout, notes = _find_layout(shape, settings.layout)
    channels, h, w = (shape[1], shape[2], shape[3]) if layout == "nchw" else (shape[3], shape[1], shape[2])
    if channels is None:
        channels = 3
        notes.append("the number of channels is free: 3 taken")
    grid = (h, w) if h is not None and w is not None else None
    return _Entry(item.name, np.dtype(_DTYPES[item.type]), layout, channels, grid, shape[0], tuple(notes))


def _find_layout(shape: list[int | None], said: Layout | None) -> tuple[Layout, list[str]]:
    if said is not None:
        return said, []
    first, last = shape[1], shape[3]
    if first in (1, 3) and last not in (1, 3):
        return "nchw", []
    if last in (1, 3) and first not in (1, 3):
        return "nhwc", []
    layout: Layout = "nhwc" if last is not None and (first is None or last < first) else "nchw"
    return layout, [f"the shape does not tell where channels are: {layout} assumed; `layout` in a TOML file says so"]


def _pick_output(session: Any, settings: Settings) -> tuple[Any, list[str]]:
    outputs = session.get_outputs()
    if settings.output_name is not None:
        return _named(outputs, settings.output_name, "output"), []
    for wanted in _NAMED:
        for item in outputs:
            if item.name.lower() == wanted:
                return item, []
    fitting = [item for item in outputs if item.type in _SCORES and len(item.shape) == 2]
    item = (fitting or outputs)[0]
    if len(outputs) == 1:
        return item, []
    return item, [f"of the outputs {_names(outputs)} {item.name} is read; `output_name` in a TOML file chooses another"]


def _named(items: Any, name: str | None, what: str) -> Any:
    for item in items:
        if name is None or item.name == name:
            return item
    raise ModelError(f"the model has no {what} {name!r}; it has {_names(items)}")


def _runner(session: Any, entry: str, output: str, device: str) -> Callable[[NDArray[Any]], NDArray[Any]]:
    if device != "cpu":
        return BoundRun(session, entry, output, "cuda", _number_of(device))

    def run(batch: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(session.run([output], {entry: batch})[0])

    return run


def _probe(
    run: Callable[[NDArray[Any]], NDArray[Any]], batch: NDArray[Any], fixed: tuple[int, ...], path: Path
) -> NDArray[Any]:
    try:
        return run_padded(run, batch, fixed)
    except Exception as error:  # see _open
        raise ModelError(f"{path} cannot classify images of shape {batch.shape[1:]}: {_one_line(error)}") from None


def _sizes(entry: _Entry, settings: Settings) -> tuple[tuple[int, ...], int]:
    """The batch sizes allowed, and the largest."""
    if entry.batch is not None:
        return (entry.batch,), entry.batch
    if settings.device == "cpu":
        return (), settings.batch_size or 32
    size = settings.batch_size or 256
    return tuple(sorted({max(1, size // 16), max(1, size // 4), size})), size  # each new size costs planning time


def _described(item: Any) -> str:
    sides = ",".join(str(side) if isinstance(side, int) else "N" for side in item.shape)
    return f"{item.name} {item.type.removeprefix('tensor(').removesuffix(')')} [{sides}]"


def _names(items: Any) -> str:
    return ", ".join(item.name for item in items)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
