"""ONNX files, run by onnxruntime."""

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import ModelInfo
from becausal.core.errors import ModelError
from becausal.core.text import one_line
from becausal.models.array_model import ArrayClassifier, RunBatch, run_padded
from becausal.models.compose import Composer
from becausal.models.detect.names import has_boxes
from becausal.models.labels import MetadataLabels, choose_labels, read_metadata_labels
from becausal.models.onnx_arrays import INPUT_TYPES, takes_arrays, wrap_arrays
from becausal.models.onnx_binding import BoundSession
from becausal.models.onnx_graph import find_last_operation
from becausal.models.outputs import OutputClues, make_decoder, make_probe_images, name_classes, output_kind
from becausal.models.python_function import PythonClassifier
from becausal.models.settings import ModelSettings
from becausal.models.signature import ImageInput, TensorInfo, find_tensor, pick_output, read_image_input
from becausal.models.user_code import check_file, file_sha256, stdout_to_stderr

#: Larger batches took no less time per image, on an H200.
CUDA_BATCH_SIZE = 16


def load(target: str, settings: ModelSettings, *, spec: str | None = None) -> ArrayClassifier | PythonClassifier:
    """The classifier in an ONNX file. Raises ModelError if it is not one, or takes neither images nor arrays."""
    path, device = Path(target), settings.loading.device
    session = open_session(path, settings)
    inputs, outputs = read_tensors(session.get_inputs()), read_tensors(session.get_outputs())
    tensor = find_input(inputs, settings)
    if settings.output_name is None and has_boxes(item.name for item in outputs):
        raise ModelError(f"{path} looks like an object detector: use detect:{path}")
    output, output_notes = pick_output(outputs, settings.output_name, axes=(2,), hint="`output_name` in a TOML file")
    run = _make_run(session, tensor.name, output.name, device)
    info = ModelInfo(
        spec=spec or f"onnx:{target}",
        kind="onnx",
        geometry=None,
        channels=None,
        labels=settings.labels,
        output=output_kind(settings.returns),
        normalisation="none",
        sha256=file_sha256(path),
        device=device,
        inputs="; ".join(str(tensor) for tensor in inputs),
        outputs="; ".join(str(tensor) for tensor in outputs),
        notes=output_notes,
        loading=settings.loading.record(),
    )
    names = None if settings.labels else read_metadata_labels(session.get_modelmeta().custom_metadata_map)
    clues = OutputClues(output.name, lambda: find_last_operation(path, output.name))
    if takes_arrays(tensor, settings.layout):
        return wrap_arrays(tensor, run, info, settings, clues=clues, names=names, classes=output.shape[-1:])
    return _wrap_images(tensor, run, info, settings, clues=clues, names=names, path=path)


def _wrap_images(
    tensor: TensorInfo,
    run: RunBatch,
    info: ModelInfo,
    settings: ModelSettings,
    *,
    clues: OutputClues,
    names: MetadataLabels | None,
    path: Path,
) -> ArrayClassifier:
    """A network with an input of images as a classifier."""
    image_input = read_image_input(tensor, settings.layout, types=INPUT_TYPES, axes=(4,), hint="`layout` in a TOML file")
    plan = settings.plan_preprocessing(image_input.channels, image_input.grid, is_integer=image_input.dtype.kind in "iu")
    composer = Composer(plan.normalisation.apply, layout=image_input.layout, dtype=image_input.dtype, is_incremental=True)
    fixed, batch_size = _batch_sizes(image_input, settings)
    probe = _probe(run, composer.batch(make_probe_images(plan.geometry.grid, plan.channels)), fixed, path)
    if probe.ndim == 3 and min(probe.shape[1:]) > 1:
        shape = ",".join(str(side) for side in probe.shape[1:])
        raise ModelError(f"{path} returns [N,{shape}], so it looks like an object detector: use detect:{path}")
    decoder, decoder_notes = make_decoder(probe, returns=settings.returns, source="the option", clues=clues)
    labels, label_notes = choose_labels(info.labels, names, decoder.classes)
    info = replace(
        info,
        geometry=plan.geometry,
        channels=plan.channels,
        labels=name_classes(decoder, labels),
        output=decoder.kind,
        normalisation=str(plan.normalisation),
        notes=(*image_input.notes, *plan.notes, *info.notes, *decoder_notes, *label_notes),
    )
    return ArrayClassifier(info, composer, run, decoder.scores, batch_size=batch_size, fixed_sizes=fixed)


def make_session(
    source: str | bytes,
    *,
    threads: int | None,
    providers: Sequence[Any] = ("CPUExecutionProvider",),
    is_patient: bool = True,
) -> Any:
    """A session for an ONNX file, given by its name or content.

    threads: None for one per core, at most OMP_NUM_THREADS. is_patient: its threads keep a core busy between two batches, so
    that the next one begins at once; not where torch needs the cores meanwhile.
    """
    import onnxruntime

    onnxruntime.disable_telemetry_events()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised and reported once
    options.intra_op_num_threads = threads or _count_threads()
    if not is_patient:
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(source, options, providers=list(providers))


def open_session(path: Path, settings: ModelSettings) -> Any:
    """A session for the file of a model, on its device. Raises ModelError if there can be none."""
    import onnxruntime

    check_file(path)
    device = settings.loading.device
    providers: list[Any] = ["CPUExecutionProvider"]
    if re.fullmatch(r"cuda(:\d+)?", device):
        if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
            raise ModelError(
                "this onnxruntime has no CUDA: pip uninstall onnxruntime, then pip install onnxruntime-gpu; "
                "or remove --device cuda"
            )
        providers.insert(0, _cuda_provider(device))
    elif device != "cpu":
        raise ModelError(f"an ONNX model runs on cpu or cuda, not on {device!r}")
    if settings.loading.half:
        raise ModelError("the precision of an ONNX model is fixed: remove half, or convert the file to float16")
    try:
        session = make_session(str(path), threads=settings.loading.threads, providers=providers)
    except Exception as error:  # onnxruntime raises a dozen types of its own, with no common base
        reason = re.sub(r"\[ONNXRuntimeError\] : \d+ : \w+ : ", "", one_line(error, 200))
        raise ModelError(f"{path} cannot be loaded as an ONNX model: {reason}") from None
    if len(providers) > 1 and session.get_providers()[0] != "CUDAExecutionProvider":
        raise ModelError("onnxruntime could not start CUDA: its libraries do not fit those of this machine")
    return session


def _cuda_provider(device: str) -> tuple[str, dict[str, Any]]:
    """CUDA for a session. Its libraries are taken from pip packages where these are installed."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)  # as in `make_session`
    if hasattr(onnxruntime, "preload_dlls"):  # since 1.21
        with stdout_to_stderr():
            onnxruntime.preload_dlls()
    # True float32, as in torch; and no choice of algorithms by their time, which differs from run to run
    exact = {"use_tf32": 0, "cudnn_conv_algo_search": "HEURISTIC"}
    return "CUDAExecutionProvider", {"device_id": _device_id(device), **exact}


def _device_id(device: str) -> int:
    """The number in cuda:N, 0 for cuda."""
    return int(device.partition(":")[2] or 0)


def read_tensors(items: Any) -> tuple[TensorInfo, ...]:
    """The inputs or outputs of a session."""

    def read(item: Any) -> TensorInfo:
        shape = tuple(side if isinstance(side, int) and side > 0 else None for side in item.shape)
        return TensorInfo(item.name, item.type.removeprefix("tensor(").removesuffix(")"), shape)

    return tuple(read(item) for item in items)


def find_input(inputs: tuple[TensorInfo, ...], settings: ModelSettings) -> TensorInfo:
    """The input that takes images or arrays. Raises ModelError if there is none, or more than one to choose from."""
    if not inputs or (len(inputs) > 1 and settings.input_name is None):
        names = ", ".join(tensor.name for tensor in inputs) or "none"
        raise ModelError(f"the model has {len(inputs)} inputs ({names}); an image model has one")
    return find_tensor(inputs, settings.input_name or inputs[0].name, "input")


def _make_run(session: Any, input_name: str, output_name: str, device: str) -> RunBatch:
    if device != "cpu":
        return BoundSession(session, input_name, output_name, "cuda", _device_id(device))

    def run(batch: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(session.run([output_name], {input_name: batch})[0])

    return run


def _probe(run: RunBatch, batch: NDArray[Any], fixed: tuple[int, ...], path: Path) -> NDArray[Any]:
    try:
        return run_padded(run, batch, fixed)
    except Exception as error:  # see open_session
        raise ModelError(f"{path} cannot classify images of shape {batch.shape[1:]}: {one_line(error, 200)}") from None


def _batch_sizes(image_input: ImageInput, settings: ModelSettings) -> tuple[tuple[int, ...], int]:
    """The allowed batch sizes, empty for any, and the largest."""
    if image_input.batch is not None:
        return (image_input.batch,), image_input.batch
    if settings.loading.device == "cpu":
        return (), settings.loading.batch_size or 32
    # On CUDA, onnxruntime takes much longer for a batch of another size than the last one.
    size = settings.loading.batch_size or CUDA_BATCH_SIZE
    return (size,), size


def _count_threads() -> int:
    """One thread for each core this process may use; OMP_NUM_THREADS, which torch and numpy obey, sets a limit."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = os.environ.get("OMP_NUM_THREADS", "").strip()
    return min(cores, max(1, int(limit))) if limit.isdecimal() else cores
