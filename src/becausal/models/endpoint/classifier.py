"""Models on a server that speaks the Open Inference Protocol (Triton, MLServer, TorchServe, KServe).

`oip:http://HOST:PORT/v2/models/NAME`. The server's metadata state shape, type and layout. Images are resized, masked and
normalised here, exactly as for a model in a file, and sent in batches. Answers are cached on disk. The notes of the
classifier report what was paid for.
"""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import ModelInfo, Pixels
from becausal.core.errors import AnswerError, ModelError, OptionError, OutputError
from becausal.models.array_model import ArrayClassifier
from becausal.models.compose import Composer
from becausal.models.endpoint.cache import AnswerCache, default_folder
from becausal.models.endpoint.caller import Caller
from becausal.models.endpoint.metadata import pick_output, read_input
from becausal.models.endpoint.options import Address, EndpointOptions, make_headers, parse_address, parse_endpoint
from becausal.models.endpoint.transport import Transport, describe_status
from becausal.models.endpoint.wire import ServerMetadata, read_json, read_metadata
from becausal.models.outputs import OutputClues, make_decoder, make_probe_images, name_classes
from becausal.models.preprocess import Normalisation
from becausal.models.settings import ModelSettings
from becausal.models.signature import ImageInput

_MAX_BODY = 16 * 2**20  # approximate size of a request in bytes, if the server does not limit the batch
_MAX_BATCH = 32


def load(target: str, settings: ModelSettings) -> ArrayClassifier:
    """The model at an address. Raises ModelError, NetworkError or OptionError, none of which repeats a secret."""
    address = parse_address(target)
    options = _read_options(settings)
    headers = make_headers(address, options)
    transport = Transport(address, options, headers)
    metadata = _read_metadata(transport, address)
    extensions = _read_extensions(transport, address)
    image_input = read_input(metadata, options)
    output, output_notes = pick_output(metadata.outputs, options.output)
    binary = options.binary == "yes" or (options.binary == "auto" and "binary_tensor_data" in extensions)
    dtype = image_input.dtype
    plan = settings.plan_preprocessing(image_input.channels, image_input.grid, is_integer=dtype.kind in "iu")
    prepare = _make_prepare(plan.normalisation, image_input, plan.channels)
    composer = Composer(prepare, layout=image_input.layout, dtype=dtype)
    images = composer.batch(make_probe_images(plan.geometry.grid, plan.channels))
    server_limit = _read_max_batch(transport, address) if "model_configuration" in extensions else None
    image_bytes = images[0].size * (dtype.itemsize if binary else _json_bytes(dtype))
    limit = _find_limit(image_input, settings.loading.batch_size, server_limit, image_bytes)
    caller = Caller(address, transport, image_input, output=output, binary=binary, limit=limit)
    raw = caller.probe(images)
    clues = OutputClues(caller.output or "")
    decoder, decoder_notes = make_decoder(raw, returns=settings.returns, source="the option", clues=clues)
    info = ModelInfo(
        spec=f"oip:{address.url}",
        kind="oip",
        geometry=plan.geometry,
        channels=plan.channels,
        labels=name_classes(decoder, settings.labels),
        output=decoder.kind,
        normalisation=str(plan.normalisation),
        device=address.location,
        inputs=str(image_input.tensor),
        outputs="; ".join(str(tensor) for tensor in metadata.outputs) or f"{caller.output} {list(raw.shape[1:])}",
        notes=(*image_input.notes, *plan.notes, *output_notes, *decoder_notes, *_warn(address, headers)),
        loading=settings.loading.record(),
    )
    _open_cache(caller, options, _identify(address, metadata, image_input, caller.output), raw)
    return ArrayClassifier(info, composer, caller, decoder, batch_size=limit, report=lambda: caller.report(options.price))


def _read_options(settings: ModelSettings) -> EndpointOptions:
    """The endpoint options, with names and layout from a TOML file where the options do not state them."""
    for name, is_given in (("--device", settings.loading.device != "cpu"), ("--half", settings.loading.half)):
        if is_given:
            raise OptionError(f"the server decides where its model runs: remove {name}")
    options = parse_endpoint(settings.loading.endpoint)
    return replace(
        options,
        input=options.input or settings.input_name,
        output=options.output or settings.output_name,
        layout=options.layout or settings.layout,
    )


def _make_prepare(normalisation: Normalisation, image_input: ImageInput, channels: int) -> Callable[[Pixels], NDArray[Any]]:
    """The function that normalises pixels. Raises ModelError if the input's type cannot hold the result."""
    dtype = image_input.dtype
    if dtype.kind == "f":
        return normalisation.apply
    values = normalisation.apply(np.repeat(np.arange(256, dtype=np.uint8)[:, None], channels, axis=1))
    limits = np.iinfo(dtype)
    is_integer = np.abs(values - np.rint(values)).max() <= 0.01
    if not is_integer or values.min() < limits.min - 0.01 or values.max() > limits.max + 0.01:
        raise ModelError(
            f"the input {image_input.tensor} takes integers from {limits.min} to {limits.max}, but the normalisation "
            f"{normalisation.name} produces other values: use raw, or write mean and scale in a TOML file"
        )
    return lambda pixels: np.rint(normalisation.apply(pixels))


def _read_metadata(transport: Transport, address: Address) -> ServerMetadata:
    reply = transport.request("GET", address.model)
    if reply.status != 200:
        raise ModelError(f"there is no model at {address.url}: {describe_status(reply)}")
    metadata = read_metadata(reply, address.url)
    ready = transport.request("GET", f"{address.model}/ready")
    if ready.status not in (200, 404, 405):  # not every server has this page
        raise ModelError(f"{address.url} is not ready: {describe_status(ready)}")
    return metadata


def _read_extensions(transport: Transport, address: Address) -> tuple[str, ...]:
    """The protocol extensions that the server supports."""
    names = _read_entry(transport, address, address.server, "extensions")
    return tuple(str(name) for name in names) if isinstance(names, list) else ()


def _read_max_batch(transport: Transport, address: Address) -> int | None:
    """The maximum batch size in Triton's configuration of the model."""
    size = _read_entry(transport, address, f"{address.model}/config", "max_batch_size")
    return size if isinstance(size, int) and size > 0 else None


def _read_entry(transport: Transport, address: Address, path: str, key: str) -> Any:
    """An entry of the JSON object at a path; None if it is not there."""
    reply = transport.request("GET", path)
    try:
        return read_json(reply.body, address.url).get(key) if reply.status == 200 else None
    except AnswerError:
        return None


def _find_limit(image_input: ImageInput, given: int | None, server_limit: int | None, image_bytes: int) -> int:
    """Maximum number of images per request."""
    if image_input.batch is not None:
        return image_input.batch
    wanted = given or max(1, min(_MAX_BATCH, _MAX_BODY // image_bytes))
    return wanted if server_limit is None else min(wanted, server_limit)


def _json_bytes(dtype: np.dtype[Any]) -> int:
    """Approximate size of a number in JSON."""
    return 4 if dtype.kind in "iu" else 20


def _identify(address: Address, metadata: ServerMetadata, image_input: ImageInput, output: str | None) -> bytes:
    """The identity of the model that cached answers belong to, as far as address and metadata show it."""
    parts = [address.url, metadata.document, str(image_input.tensor), str(output)]
    return hashlib.sha256("\n".join(parts).encode()).digest()


def _open_cache(caller: Caller, options: EndpointOptions, model: bytes, probe: NDArray[Any]) -> None:
    """Start caching. A folder given by the user must be usable; a problem with the default one is only noted."""
    if options.cache is None:
        return
    folder = default_folder() if options.cache == "default" else options.cache
    try:
        caller.use_cache(AnswerCache(folder, max_bytes=options.cache_mb * 2**20), model, probe)
    except OutputError as error:
        if options.cache != "default":
            raise
        caller.notes.append(f"answers are not cached: {error}")


def _warn(address: Address, headers: dict[str, str]) -> tuple[str, ...]:
    if address.scheme == "http" and headers and not address.is_local:
        return ("headers and credentials are sent over plain http, which others can read: use https",)
    return ()
