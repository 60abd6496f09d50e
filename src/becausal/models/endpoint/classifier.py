"""Models on a server that speaks the Open Inference Protocol (Triton, MLServer, TorchServe, KServe).

`oip:http://HOST:PORT/v2/models/NAME`. The server's metadata state shape, type and layout. Images are resized, masked and
normalised here, exactly as for a model in a file, and sent in batches. Answers are cached on disk. The notes of the
classifier report what was paid for.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import ModelInfo, Pixels
from becausal.core.errors import AnswerError, ModelError, OptionError, OutputError
from becausal.models.array_model import ArrayClassifier
from becausal.models.compose import Composer
from becausal.models.detect.names import has_boxes
from becausal.models.endpoint.cache import AnswerCache, default_folder
from becausal.models.endpoint.caller import Caller, ReadOutputs
from becausal.models.endpoint.metadata import pick_output, read_input
from becausal.models.endpoint.options import Address, EndpointOptions, make_headers, parse_address, parse_endpoint
from becausal.models.endpoint.transport import Transport, describe_status
from becausal.models.endpoint.wire import ServerMetadata, read_json, read_metadata
from becausal.models.outputs import OutputClues, make_decoder, make_probe_images, name_classes
from becausal.models.preprocess import Normalisation
from becausal.models.settings import ModelSettings, Preprocessing
from becausal.models.signature import ImageInput

_MAX_BODY = 16 * 2**20  # approximate size of a request in bytes, if the server does not limit the batch
_MAX_BATCH = 32


@dataclass(frozen=True)
class Endpoint:
    """A model at an address, as its server describes it."""

    address: Address
    options: EndpointOptions
    headers: dict[str, str]
    transport: Transport
    metadata: ServerMetadata
    extensions: tuple[str, ...]
    image_input: ImageInput

    def make_composer(self, plan: Preprocessing) -> Composer:
        """What makes batches of images. Raises ModelError if the input's type cannot hold them."""
        prepare = _make_prepare(plan.normalisation, self.image_input, plan.channels)
        return Composer(prepare, layout=self.image_input.layout, dtype=self.image_input.dtype)

    def make_caller(
        self, image: NDArray[Any], batch_size: int | None, *, output: str | None, read: ReadOutputs | None = None
    ) -> Caller:
        """What calls the model. image: one as it is sent. batch_size: as given. output, read: see `Caller`."""
        dtype, has = self.image_input.dtype, self.extensions
        binary = self.options.binary == "yes" or (self.options.binary == "auto" and "binary_tensor_data" in has)
        server_limit = _read_max_batch(self.transport, self.address) if "model_configuration" in has else None
        image_bytes = image.size * (dtype.itemsize if binary else _json_bytes(dtype))
        limit = _find_limit(self.image_input, batch_size, server_limit, image_bytes)
        return Caller(self.address, self.transport, self.image_input, output=output, binary=binary, limit=limit, read=read)

    def open_cache(self, caller: Caller, output: str | None, probe: NDArray[Any]) -> None:
        """Start caching. A folder given by the user must be usable; a problem with the default one is only noted.

        output: how the answers are read, as text.
        """
        options = self.options
        if options.cache is None:
            return
        parts = [self.address.url, self.metadata.document, str(self.image_input.tensor), str(output)]
        model = hashlib.sha256("\n".join(parts).encode()).digest()
        folder = default_folder() if options.cache == "default" else options.cache
        try:
            caller.use_cache(AnswerCache(folder, max_bytes=options.cache_mb * 2**20), model, probe)
        except OutputError as error:
            if options.cache != "default":
                raise
            caller.notes.append(f"answers are not cached: {error}")

    @property
    def notes(self) -> tuple[str, ...]:
        """Warnings about the connection."""
        if self.address.scheme == "http" and self.headers and not self.address.is_local:
            return ("headers and credentials are sent over plain http, which others can read: use https",)
        return ()


def open_endpoint(target: str, settings: ModelSettings) -> Endpoint:
    """Ask a server about a model. Raises ModelError, NetworkError or OptionError, none of which repeats a secret."""
    address = parse_address(target)
    options = _read_options(settings)
    headers = make_headers(address, options)
    transport = Transport(address, options, headers)
    metadata = _read_metadata(transport, address)
    extensions = _read_extensions(transport, address)
    return Endpoint(address, options, headers, transport, metadata, extensions, read_input(metadata, options))


def load(target: str, settings: ModelSettings) -> ArrayClassifier:
    """The model at an address. Raises ModelError, NetworkError or OptionError, none of which repeats a secret."""
    endpoint = open_endpoint(target, settings)
    address, image_input, metadata = endpoint.address, endpoint.image_input, endpoint.metadata
    if endpoint.options.output is None and has_boxes(tensor.name for tensor in metadata.outputs):
        raise ModelError(f"{address.url} looks like an object detector: use detect:oip:{address.url}")
    output, output_notes = pick_output(metadata.outputs, endpoint.options.output)
    is_integer = image_input.dtype.kind in "iu"
    plan = settings.plan_preprocessing(image_input.channels, image_input.grid, is_integer=is_integer)
    composer = endpoint.make_composer(plan)
    images = composer.batch(make_probe_images(plan.geometry.grid, plan.channels))
    caller = endpoint.make_caller(images[0], settings.loading.batch_size, output=output)
    limit = caller.limit
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
        notes=(*image_input.notes, *plan.notes, *output_notes, *decoder_notes, *endpoint.notes),
        loading=settings.loading.record(),
    )
    endpoint.open_cache(caller, caller.output, raw)
    price = endpoint.options.price
    return ArrayClassifier(info, composer, caller, decoder.scores, batch_size=limit, report=lambda: caller.report(price))


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
