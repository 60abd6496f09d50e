"""ONNX files, run by onnxruntime: classifiers, and object detectors, `detect:FILE.onnx`.

A network may take signals, volumes or other arrays, as they are in a .npy file. Their shape is that of the input without the
batch axis; axes of size one may be missing. Nothing is known of the values' meaning, so they are passed unchanged, and what
the output means is detected with the first array.
"""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.core.boxes import Detections
from becausal.core.contracts import ModelInfo, Pixels
from becausal.core.errors import AnswerError, ImageError, ModelError, OptionError
from becausal.core.text import one_line
from becausal.models.array_model import ArrayClassifier, Composer, RunBatch, run_padded
from becausal.models.box_layouts import Outputs, choose_reader, has_boxes
from becausal.models.boxes import (
    choose_batch_size,
    choose_names,
    choose_threshold,
    plan_boxes,
    refuse_batches,
)
from becausal.models.labels import MetadataLabels, choose_labels, read_metadata_labels
from becausal.models.loading import ModelSettings, check_threshold
from becausal.models.onnx_graph import find_last_operation
from becausal.models.outputs import (
    NAMED_OUTPUTS,
    OutputClues,
    TensorInfo,
    make_decoder,
    make_probe_images,
    name_classes,
    pick_output,
)
from becausal.models.preprocess import ImageInput, find_input, read_image_input
from becausal.models.python_function import PythonClassifier
from becausal.models.user_code import check_file, file_sha256, stdout_to_stderr

INPUT_TYPES = ("float", "float16", "double", "uint8", "int8", "int32", "int64")
#: Larger batches took no less time per image, on an H200.
CUDA_BATCH_SIZE = 16
MASK = "pixel_mask"  # an input that says which pixels are not padding, in some exports of DETR: all of them


@dataclass(frozen=True)
class _OpenFile:
    """An ONNX file with its session: what scores and boxes are read from. names: class names in its metadata."""

    path: Path
    session: Any
    metadata: dict[str, str]
    names: MetadataLabels | None
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    info: ModelInfo

    def probe(self, run: Callable[[], Any], shape: tuple[int, ...]) -> Any:
        """What the network returns for probe images. Raises ModelError for any error in it."""
        try:
            return run()
        except Exception as error:  # see open_session
            verb = "process" if self.info.output == "boxes" else "classify"
            raise ModelError(f"{self.path} cannot {verb} images of shape {shape}: {one_line(error, 200)}") from None


def load(target: str, settings: ModelSettings, *, spec: str | None = None) -> ArrayClassifier | PythonClassifier:
    """The model in an ONNX file. Raises ModelError if it is not one, or takes neither images nor arrays."""
    path = Path(target)
    session = open_session(path, settings)

    def read(item: Any) -> TensorInfo:
        shape = tuple(side if isinstance(side, int) and side > 0 else None for side in item.shape)
        return TensorInfo(item.name, item.type.removeprefix("tensor(").removesuffix(")"), shape)

    inputs, outputs = (tuple(map(read, items)) for items in (session.get_inputs(), session.get_outputs()))
    info = replace(
        settings.begin_info("onnx", spec or f"{settings.name_kind('onnx')}:{target}", file_sha256(path)),
        device=settings.loading.device,
        inputs="; ".join(str(tensor) for tensor in inputs),
        outputs="; ".join(str(tensor) for tensor in outputs),
    )
    metadata = session.get_modelmeta().custom_metadata_map
    opened = _OpenFile(path, session, metadata, read_metadata_labels(metadata), inputs, outputs, info)
    return _load_boxes(opened, settings) if settings.detects else _load_scores(opened, settings)


def _load_scores(opened: _OpenFile, settings: ModelSettings) -> ArrayClassifier | PythonClassifier:
    path, session, info = opened.path, opened.session, opened.info
    tensor = find_input(opened.inputs, settings.input_name)
    if settings.output_name is None and has_boxes(item.name for item in opened.outputs):
        raise ModelError(f"{path} looks like an object detector: use detect:{path}")
    axes = 4 if settings.question == "segment" else 2
    embeds, hint = settings.question == "embed", "`output_name` in a TOML file"
    output, notes = pick_output(opened.outputs, settings.output_name, axes=(axes,), hint=hint, embeds=embeds)

    def run_on_cpu(batch: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(session.run([output.name], {tensor.name: batch})[0])

    is_on_cpu = info.device == "cpu"
    run = run_on_cpu if is_on_cpu else BoundSession(session, tensor.name, output.name, "cuda", _device_id(info.device))
    clues = OutputClues(output.name, lambda: find_last_operation(path, output.name))
    shape = tensor.shape
    is_one_image = len(shape) == 3 and None not in shape and (shape[0] == 3 or (shape[2] == 3 and shape[0] != 1))
    if len(shape) in (2, 3, 5) and settings.layout is None and not is_one_image:
        opened = replace(opened, info=replace(info, notes=notes))
        return _wrap_arrays(opened, settings, run, tensor, clues, output.shape[-1] if output.shape else None)
    image_input = read_image_input(tensor, settings.layout, types=INPUT_TYPES, axes=(4,), hint="`layout` in a TOML file")
    plan = settings.plan_preprocessing(image_input.channels, image_input.grid, is_integer=image_input.is_integer)
    composer = Composer(plan.normalisation.apply, layout=image_input.layout, dtype=image_input.dtype, is_incremental=True)
    size = settings.loading.batch_size or (32 if is_on_cpu else CUDA_BATCH_SIZE)
    # On CUDA, onnxruntime takes much longer for a batch of another size than the last one.
    fixed = (image_input.batch,) if image_input.batch is not None else () if is_on_cpu else (size,)
    images = composer.batch(make_probe_images(plan.geometry.grid, plan.channels))
    probe = opened.probe(lambda: run_padded(run, images, fixed), images.shape[1:])
    if probe.ndim == 3 and min(probe.shape[1:]) > 1 and not settings.question:
        sides = ",".join(str(side) for side in probe.shape[1:])
        raise ModelError(f"{path} returns [N,{sides}], so it looks like an object detector: use detect:{path}")
    decoder, decoder_notes = make_decoder(probe, returns=settings.returns, source="the option", clues=clues)
    labels, label_notes = choose_labels(settings.labels, opened.names, None if embeds else decoder.classes)
    if embeds and settings.output_name is None and (labels or output.name.lower() in (*NAMED_OUTPUTS, "scores")):
        advice = f"if these are scores of classes, give the output with the embedding by {hint}"
        notes = (*notes, f"the embedding is the output {output.name}: {advice}")
    info = replace(
        plan.complete(info),
        labels=name_classes(decoder, labels),
        output=decoder.kind,
        notes=(*settings.notes, *image_input.notes, *plan.notes, *notes, *decoder_notes, *label_notes),
    )
    size = fixed[0] if fixed else size
    return ArrayClassifier(info, composer, run, decoder.scores, batch_size=size, fixed_sizes=fixed)


def _wrap_arrays(
    opened: _OpenFile, settings: ModelSettings, run: RunBatch, tensor: TensorInfo, clues: OutputClues, classes: int | None
) -> PythonClassifier:
    """A network with an input of arrays as a classifier. classes: their declared number."""
    info, dtype = opened.info, tensor.dtype
    if tensor.datatype not in INPUT_TYPES or dtype is None:
        raise ModelError(f"the input {tensor} has a type that arrays cannot be converted to: {', '.join(INPUT_TYPES)}")
    if settings.resize is not None or settings.crop is not None:
        raise ModelError(f"the input {tensor} takes arrays, not images: remove --resize")
    batch, *sides = tensor.shape
    fixed = () if batch is None else (batch,)

    def predict(pixels: Pixels) -> NDArray[Any]:
        shape = fit_shape(pixels.shape[1:], tuple(sides))
        if shape is None:
            given = pixels.shape[1:-1] if pixels.shape[-1] == 1 else pixels.shape[1:]
            raise ImageError(f"the array has shape {_format(given)}; the model takes arrays of shape {_format(sides)}")
        values = pixels.reshape(len(pixels), *shape)
        if dtype.kind in "iu":
            values, limits = np.rint(values), np.iinfo(dtype)
            if values.min() < limits.min or values.max() > limits.max:
                raise ImageError(f"the array holds {values.min():g}..{values.max():g}; the model takes {dtype} values")
        return run_padded(run, np.ascontiguousarray(values, dtype), fixed)

    labels, notes = choose_labels(settings.labels, opened.names, classes)
    note = f"the input takes arrays of shape {_format(sides)}, e.g. from a .npy file: values are passed unchanged"
    info = replace(
        info,
        labels=labels,
        notes=(*settings.notes, *(() if settings.normalisation else (note,)), *info.notes, *notes),
    )
    loading = replace(settings.loading, batch_size=batch or settings.loading.batch_size)
    settings = replace(settings, labels=labels, loading=loading)
    return PythonClassifier(predict, info, settings, keeps_channel_axis=True, clues=clues)


def fit_shape(shape: tuple[int, ...], sides: tuple[int | None, ...]) -> tuple[int, ...] | None:
    """The shape with axes of size one added or removed, so that it fits the sides (None: any size); None if it cannot."""

    def fits(own: tuple[int, ...]) -> bool:
        return len(own) == len(sides) and all(side in (None, one) for one, side in zip(own, sides, strict=True))

    for own in (shape, shape[:-1]):
        if np.prod(own) == np.prod(shape) and fits(own):
            return own
    left = [side for side in shape if side != 1]
    found = tuple(1 if side == 1 or not left else left.pop(0) for side in sides)
    return found if not left and fits(found) else None


def _format(shape: Sequence[int | None]) -> str:
    return "x".join("any" if side is None else str(side) for side in shape)


def _load_boxes(opened: _OpenFile, settings: ModelSettings) -> ArrayClassifier:
    info, found = opened.info, opened.names
    if "threshold" in opened.metadata:
        try:
            stated = ModelSettings(threshold=check_threshold(float(opened.metadata["threshold"])))
        except (ValueError, OptionError):
            note = "the threshold in the file's metadata is not used: it is not a score above 0 and up to 1"
            stated = ModelSettings(notes=(note,))
        settings = settings.over(stated)
    tensor = find_input(tuple(each for each in opened.inputs if each.name != MASK), settings.input_name)
    image_input = read_image_input(tensor, settings.layout, types=INPUT_TYPES, axes=(3, 4), hint="`layout` in a TOML file")
    is_integer = image_input.is_integer
    plan = plan_boxes(settings, image_input.channels, image_input.grid, is_integer=is_integer, outputs=opened.outputs)
    composer = Composer(plan.normalisation.apply, layout=image_input.layout, dtype=image_input.dtype, is_incremental=True)
    images = composer.batch(make_probe_images(plan.geometry.grid, plan.channels))
    run = _make_box_run(opened, image_input)
    rows = image_input.batch or 1
    probes = opened.probe(lambda: [(run(np.repeat(image[None], rows, axis=0)), rows) for image in images], images.shape[1:])
    classes = len(settings.labels) if settings.labels else len(found.names) if found is not None else None
    try:
        reader, notes = choose_reader(probes, plan.geometry.grid, classes, settings.output_name)
        alone = np.concatenate([reader(outputs, rows)[:1] for outputs, rows in probes])
    except (AnswerError, ModelError) as error:
        raise ModelError(f"{opened.path}: {error}") from None

    def detect(batch: NDArray[Any]) -> Detections:
        return reader(run(batch), len(batch))

    labels, label_notes = choose_names(settings.labels, found, reader.layout.classes)
    threshold, threshold_notes = choose_threshold(settings, reader.layout.threshold)
    size = choose_batch_size(settings, plan.geometry.grid, info.device)
    fixed, batch_notes = (image_input.batch,) if image_input.batch is not None else (), tuple[str, ...]()
    if not fixed:
        batch_notes = refuse_batches(reader.layout.has_batch_axis, detect, images, alone, size)
        fixed = (1,) if batch_notes else ()
    info = replace(
        plan.complete(info),
        labels=labels,
        notes=(
            *settings.notes, *image_input.notes, *plan.notes, *notes, *threshold_notes, *label_notes, *batch_notes
        ),
        threshold=threshold,
    )  # fmt: skip
    return ArrayClassifier(info, composer, detect, np.asarray, batch_size=fixed[-1] if fixed else size, fixed_sizes=fixed)


def _make_box_run(opened: _OpenFile, image_input: ImageInput) -> Callable[[NDArray[Any]], Outputs]:
    """All numeric outputs for a batch, by name."""
    mask = next((each for each in opened.inputs if each.name == MASK), None)
    wanted = tuple(item.name for item in opened.outputs if item.dtype is not None)

    def run(batch: NDArray[Any]) -> Outputs:
        feeds = {image_input.tensor.name: batch if image_input.has_batch_axis else batch[0]}
        if mask is not None:
            sides = (batch.shape[2:] if image_input.layout == "nchw" else batch.shape[1:3], mask.shape[1:])
            shape = [own if own is not None else side for side, own in zip(*sides, strict=True)]
            feeds[MASK] = np.ones((len(batch), *shape), mask.dtype)
        found = opened.session.run(wanted, feeds)
        return {name: np.asarray(values) for name, values in zip(wanted, found, strict=True)}

    return run


def open_session(path: Path, settings: ModelSettings) -> Any:
    """A session for the file of a model, on its device. Raises ModelError if there can be none."""
    import onnxruntime

    check_file(path)
    loading = settings.loading
    providers: list[Any] = ["CPUExecutionProvider"]
    if re.fullmatch(r"cuda(:\d+)?", loading.device):
        if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
            raise ModelError(
                "this onnxruntime has no CUDA: pip uninstall onnxruntime, then pip install onnxruntime-gpu; "
                "or remove --device cuda"
            )
        providers.insert(0, _cuda_provider(loading.device))
    elif loading.device != "cpu":
        raise ModelError(f"an ONNX model runs on cpu or cuda, not on {loading.device!r}")
    if loading.half:
        raise ModelError("the precision of an ONNX model is fixed: remove half, or convert the file to float16")
    onnxruntime.disable_telemetry_events()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised and reported once
    options.intra_op_num_threads = loading.threads or _count_threads()
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=providers)
    except Exception as error:  # onnxruntime raises a dozen types of its own, with no common base
        reason = re.sub(r"\[ONNXRuntimeError\] : \d+ : \w+ : ", "", one_line(error, 200))
        raise ModelError(f"{path} cannot be loaded as an ONNX model: {reason}") from None
    if len(providers) > 1 and session.get_providers()[0] != "CUDAExecutionProvider":
        raise ModelError("onnxruntime could not start CUDA: its libraries do not fit those of this machine")
    return session


def _cuda_provider(device: str) -> tuple[str, dict[str, Any]]:
    """CUDA for a session. Its libraries are taken from pip packages where these are installed."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)  # as in `open_session`
    if hasattr(onnxruntime, "preload_dlls"):  # since 1.21
        with stdout_to_stderr():
            onnxruntime.preload_dlls()
    # True float32, as in torch; and no choice of algorithms by their time, which differs from run to run
    exact = {"use_tf32": 0, "cudnn_conv_algo_search": "HEURISTIC"}
    return "CUDAExecutionProvider", {"device_id": _device_id(device), **exact}


def _device_id(device: str) -> int:
    return int(device.partition(":")[2] or 0)


def _count_threads() -> int:
    """One thread for each core this process may use; OMP_NUM_THREADS, which torch and numpy obey, sets a limit."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = os.environ.get("OMP_NUM_THREADS", "").strip()
    return min(cores, max(1, int(limit))) if limit.isdecimal() else cores


class BoundSession:
    """Runs batches with one copy to the device and one back; device memory is bound once for each batch shape."""

    def __init__(self, session: Any, input_name: str, output_name: str, device: str, device_id: int = 0) -> None:
        self._session = session
        self._input_name = input_name
        self._output_name = output_name
        self._device = device, device_id
        self._bindings: dict[tuple[tuple[int, ...], str], tuple[Any, Any]] = {}  # input memory and its binding

    def __call__(self, batch: NDArray[Any]) -> NDArray[Any]:
        key = batch.shape, batch.dtype.str
        if key not in self._bindings:
            from onnxruntime import OrtValue

            value = OrtValue.ortvalue_from_shape_and_type(list(batch.shape), batch.dtype.type, *self._device)
            binding = self._session.io_binding()
            binding.bind_ortvalue_input(self._input_name, value)
            binding.bind_output(self._output_name, *self._device)
            self._bindings[key] = value, binding
        value, binding = self._bindings[key]
        value.update_inplace(batch)
        self._session.run_with_iobinding(binding)
        return np.asarray(binding.copy_outputs_to_cpu()[0])
