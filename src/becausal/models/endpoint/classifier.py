"""Models on a server that speaks the Open Inference Protocol (Triton, MLServer, TorchServe, KServe).

`oip:http://HOST:PORT/v2/models/NAME`, or `detect:oip:…` for an object detector, whose outputs are those of an ONNX file. The
server's metadata state shape, type and layout. Images are resized, masked and normalised here, exactly as for a model in a
file, and sent in batches. Answers are cached on disk; of a detector these are the boxes, as they are read. The notes of the
classifier report what was paid for.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.core.boxes import MAX_BOXES
from becausal.core.contracts import ModelInfo, Pixels
from becausal.core.errors import AnswerError, ModelError, OptionError
from becausal.models.array_model import ArrayClassifier, Composer
from becausal.models.box_layouts import Outputs, choose_reader, has_boxes
from becausal.models.boxes import choose_names, choose_threshold, plan_boxes, refuse_batches
from becausal.models.endpoint.caller import Caller, ServerMetadata, pick_score_output, read_metadata
from becausal.models.endpoint.options import Address, EndpointOptions, parse_address, parse_endpoint
from becausal.models.endpoint.transport import Transport, describe_status, read_json
from becausal.models.loading import ModelSettings, Preprocessing
from becausal.models.outputs import OutputClues, TensorInfo, make_decoder, make_probe_images, name_classes
from becausal.models.preprocess import ImageInput, Normalisation, find_input, read_image_input

INPUT_TYPES = ("UINT8", "UINT16", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64")
_MAX_BODY = 16 * 2**20  # approximate size of a request in bytes, if the server does not limit the batch
_MAX_BATCH = 32


@dataclass(frozen=True)
class _Endpoint:
    """A model at an address, as its server describes it."""

    address: Address
    options: EndpointOptions
    transport: Transport
    metadata: ServerMetadata
    image_input: ImageInput
    info: ModelInfo

    def open(self, plan: Preprocessing, given: int | None, output: str | None) -> tuple[Composer, NDArray[Any], Caller]:
        """What makes batches of images, the probe images as they are sent, and what calls the model.

        given: the batch size that was asked for. output: see `Caller`.
        """
        image_input = self.image_input
        dtype = image_input.dtype
        prepare = _make_prepare(plan.normalisation, image_input, plan.channels)
        composer = Composer(prepare, layout=image_input.layout, dtype=dtype)
        images = composer.batch(make_probe_images(plan.geometry.grid, plan.channels))
        extensions = self._read_entry(self.address.server, "extensions")
        known = [str(name) for name in extensions] if isinstance(extensions, list) else []
        binary = self.options.binary == "yes" or (self.options.binary == "auto" and "binary_tensor_data" in known)
        number_bytes = dtype.itemsize if binary else 4 if dtype.kind in "iu" else 20  # as JSON, about
        limit = given or max(1, min(_MAX_BATCH, _MAX_BODY // (images[0].size * number_bytes)))
        if "model_configuration" in known:  # Triton's
            most = self._read_entry(f"{self.address.model}/config", "max_batch_size")
            limit = min(limit, most) if isinstance(most, int) and most > 0 else limit
        limit = image_input.batch or limit
        caller = Caller(self.address, self.options, self.transport, image_input, output, binary, limit)
        return composer, images, caller

    def _read_entry(self, path: str, key: str) -> Any:
        """An entry of the JSON object at a path; None if it is not there."""
        reply = self.transport.request("GET", path)
        try:
            return read_json(reply.body, self.address.url).get(key) if reply.status == 200 else None
        except AnswerError:
            return None


def load(target: str, settings: ModelSettings) -> ArrayClassifier:
    """The model at an address. Raises ModelError, NetworkError or OptionError, none of which repeats a secret."""
    address, loading = parse_address(target), settings.loading
    for name, is_given in (("--device", loading.device != "cpu"), ("--half", loading.half)):
        if is_given:
            raise OptionError(f"the server decides where its model runs: remove {name}")
    options = parse_endpoint(loading.endpoint)
    options = replace(  # what the options do not state may be in a TOML file
        options,
        input=options.input or settings.input_name,
        output=options.output or settings.output_name,
        layout=options.layout or settings.layout,
    )
    transport = Transport(address, options)
    reply = transport.request("GET", address.model)
    if reply.status != 200:
        raise ModelError(f"there is no model at {address.url}: {describe_status(reply)}")
    metadata = read_metadata(reply, address.url)
    ready = transport.request("GET", f"{address.model}/ready")
    if ready.status not in (200, 404, 405):  # not every server has this page
        raise ModelError(f"{address.url} is not ready: {describe_status(ready)}")
    known = metadata.inputs
    if not known and options.shape is None:
        raise ModelError(
            "the server does not state the model's input: give --endpoint shape=N,3,224,224 (and input, datatype)"
        )
    found = find_input(known, options.input) if known else TensorInfo(options.input or "input", "FP32", ())
    tensor = TensorInfo(found.name, options.datatype or found.datatype, options.shape or found.shape)
    hint = "--endpoint layout=nchw or nhwc"
    image_input = read_image_input(tensor, options.layout, types=INPUT_TYPES, axes=(3, 4), hint=hint)
    info = replace(
        settings.begin_info("oip", f"{settings.name_kind('oip')}:{address.url}"),
        device=address.location,
        inputs=str(tensor),
        outputs="; ".join(str(tensor) for tensor in metadata.outputs),
        notes=transport.notes,
    )
    endpoint = _Endpoint(address, options, transport, metadata, image_input, info)
    return _load_boxes(endpoint, settings) if settings.detects else _load_scores(endpoint, settings)


def _load_scores(endpoint: _Endpoint, settings: ModelSettings) -> ArrayClassifier:
    info, image_input, outputs = endpoint.info, endpoint.image_input, endpoint.metadata.outputs
    if endpoint.options.output is None and has_boxes(tensor.name for tensor in outputs):
        url = endpoint.address.url
        raise ModelError(f"{url} looks like an object detector: use detect:oip:{url}")
    output, output_notes = pick_score_output(outputs, endpoint.options.output)
    plan = settings.plan_preprocessing(image_input.channels, image_input.grid, is_integer=image_input.is_integer)
    composer, images, caller = endpoint.open(plan, settings.loading.batch_size, output)
    limit = caller.limit
    raw = caller.probe(images)
    clues = OutputClues(caller.output or "")
    decoder, decoder_notes = make_decoder(raw, returns=settings.returns, source="the option", clues=clues)
    info = replace(
        plan.complete(info),
        labels=name_classes(decoder, settings.labels),
        output=decoder.kind,
        outputs=info.outputs or f"{caller.output} {list(raw.shape[1:])}",
        notes=(*image_input.notes, *plan.notes, *output_notes, *decoder_notes, *info.notes),
    )
    caller.use_cache(endpoint.metadata.document, caller.output, raw)
    return ArrayClassifier(info, composer, caller, decoder.scores, batch_size=limit, report=caller.report)


def _load_boxes(endpoint: _Endpoint, settings: ModelSettings) -> ArrayClassifier:
    info, image_input = endpoint.info, endpoint.image_input
    plan = plan_boxes(
        settings, image_input.channels, image_input.grid,
        is_integer=image_input.is_integer, outputs=endpoint.metadata.outputs,
    )  # fmt: skip
    composer, images, caller = endpoint.open(plan, settings.loading.batch_size, None)
    limit, caller.limit = caller.limit, 1  # one image at a time, until it is known whether outputs have a batch axis
    seen: list[tuple[Outputs, int]] = []

    def collect(outputs: dict[str, NDArray[Any]], rows: int) -> NDArray[Any]:
        seen.append((outputs, rows))
        return np.zeros((rows, MAX_BOXES, 6), np.float32)  # of the shape that a `BoxReader` returns

    caller.read = collect
    caller.probe(images)
    classes = len(settings.labels) if settings.labels else None
    try:
        reader, notes = choose_reader(seen, plan.geometry.grid, classes, endpoint.options.output)
        alone = np.concatenate([reader(outputs, rows)[:1] for outputs, rows in seen])
    except AnswerError as error:
        raise ModelError(f"the model cannot be read: {error}") from None
    caller.read, caller.limit = reader, limit
    batch_notes = refuse_batches(reader.layout.has_batch_axis, caller.probe, images, alone, limit)
    if batch_notes:
        caller.limit = 1
    labels, _ = choose_names(settings.labels, None, reader.layout.classes)
    threshold, threshold_notes = choose_threshold(settings, reader.layout.threshold)
    info = replace(
        plan.complete(info),
        labels=labels,
        notes=(*image_input.notes, *plan.notes, *notes, *threshold_notes, *batch_notes, *info.notes),
        threshold=threshold,
    )
    caller.use_cache(endpoint.metadata.document, str(reader), alone)
    return ArrayClassifier(info, composer, caller, np.asarray, batch_size=caller.limit, report=caller.report)


def _make_prepare(normalisation: Normalisation, image_input: ImageInput, channels: int) -> Callable[[Pixels], NDArray[Any]]:
    """The function that normalises pixels. Raises ModelError if the input's type cannot hold the result."""
    if image_input.dtype.kind == "f":
        return normalisation.apply
    values = normalisation.apply(np.repeat(np.arange(256, dtype=np.uint8)[:, None], channels, axis=1))
    limits = np.iinfo(image_input.dtype)
    is_integer = np.abs(values - np.rint(values)).max() <= 0.01
    if not is_integer or values.min() < limits.min - 0.01 or values.max() > limits.max + 0.01:
        raise ModelError(
            f"the input {image_input.tensor} takes integers from {limits.min} to {limits.max}, but the normalisation "
            f"{normalisation.name} produces other values: use raw, or write mean and scale in a TOML file"
        )
    return lambda pixels: np.rint(normalisation.apply(pixels))
