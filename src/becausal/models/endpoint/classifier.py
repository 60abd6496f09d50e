"""Models that can only be called: endpoints of the Open Inference Protocol (Triton, MLServer, TorchServe, KServe).

`oip:http://HOST:PORT/v2/models/NAME`. What the server says of the model decides shape, type and layout; images are
resized, hidden and normalised here, exactly as for a model in a file, and sent in batches. Answers are kept on disk.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import ModelInfo, Pixels, Visible
from becausal.core.errors import AnswerError, ModelError, OptionError, OutputError
from becausal.models.array_model import ArrayClassifier
from becausal.models.compose import Composer, StagedArrays
from becausal.models.endpoint.cache import AnswerCache, own_folder
from becausal.models.endpoint.caller import Caller
from becausal.models.endpoint.metadata import NAMED, Entry, pick_output, read_entry
from becausal.models.endpoint.options import Address, EndpointOptions, make_headers, parse_address, parse_endpoint
from becausal.models.endpoint.transport import Transport, say_status
from becausal.models.endpoint.wire import DTYPES, Served, read_json, read_metadata
from becausal.models.outputs import name_classes, probe_pictures, read_output
from becausal.models.preprocess import Normalisation, choose_numbers, plan_geometry
from becausal.models.settings import Settings

_BODY = 16 * 2**20  # bytes of a request, about, where nothing says how many images it may have
_MOST = 32


@final
class OipClassifier:
    """An endpoint as a classifier; `info.notes` grows by what was spent."""

    def __init__(self, inner: ArrayClassifier, caller: Caller, price: float | None) -> None:
        self._inner = inner
        self._caller = caller
        self._price = price

    @property
    def info(self) -> ModelInfo:
        info, spent = self._inner.info, self._caller.tally.say(self._price)
        return replace(info, notes=(*info.notes, *self._caller.notes, *([spent] if spent else [])))

    @property
    def batch_size(self) -> int:
        return self._inner.batch_size

    @property
    def fixed_sizes(self) -> tuple[int, ...]:
        return ()

    def stage(self, view: Pixels, background: Pixels) -> StagedArrays:
        return self._inner.stage(view, background)

    def ask(self, staged: Sequence[StagedArrays], which: NDArray[np.intp], visible: Visible) -> NDArray[Any]:
        return self._inner.ask(staged, which, visible)

    def classify(self, pixels: Pixels) -> NDArray[Any]:
        return self._inner.classify(pixels)


def load(target: str, settings: Settings) -> OipClassifier:
    """The model behind an address. Raises ModelError, NetworkError or OptionError, none of which repeats a secret."""
    address = parse_address(target)
    options = _with_settings(parse_endpoint(settings.endpoint), settings)
    headers = make_headers(address, options)
    transport = Transport(address, options, headers)
    served = _read_served(transport, address)
    extensions = _read_extensions(transport, address)
    entry = read_entry(served, options)
    output, chosen = pick_output(served.outputs, options.output)
    binary = options.binary == "yes" or (options.binary == "auto" and "binary_tensor_data" in extensions)
    dtype = np.dtype(DTYPES[entry.tensor.datatype])
    numbers, how = choose_numbers(settings.numbers, channels=entry.channels, is_integer=dtype.kind in "iu")
    geometry, assumed = plan_geometry(
        entry.grid, resize=settings.resize, crop=settings.crop, interpolation=settings.interpolation
    )
    channels = entry.channels if numbers.order != "grey" else 3
    composer = Composer(_make_prepare(numbers, entry, channels), layout=entry.layout, dtype=dtype)
    pixels = composer.batch(probe_pictures(geometry.grid, channels))
    largest = _read_largest(transport, address) if "model_configuration" in extensions else None
    limit = _find_limit(entry, settings.batch_size, largest, pixels[0].size * (dtype.itemsize if binary else _digits(dtype)))
    caller = Caller(address, transport, entry, output=output, binary=binary, limit=limit)
    raw = caller.probe(pixels)
    said = settings.output or NAMED.get((caller.output or "").lower())
    reading, heard = read_output(raw, said=said, by="the option" if settings.output else f"the name {caller.output}")
    info = ModelInfo(
        spec=f"oip:{address.url}",
        kind="oip",
        geometry=geometry,
        channels=channels,
        labels=name_classes(reading, settings.labels),
        output=reading.output,
        numbers=str(numbers),
        device=address.place,
        inputs=str(entry.tensor),
        outputs="; ".join(str(tensor) for tensor in served.outputs) or f"{caller.output} {list(raw.shape[1:])}",
        notes=(*entry.notes, *how, *assumed, *chosen, *heard, *_warn(address, headers)),
        loading=settings.loading.record(),
    )
    _open_cache(caller, options, _identity(address, served, entry, caller.output), raw)
    inner = ArrayClassifier(info, composer, caller, reading, batch_size=limit)
    return OipClassifier(inner, caller, options.price)


def _with_settings(options: EndpointOptions, settings: Settings) -> EndpointOptions:
    """The options, with what a TOML file says of names and layout where they say nothing."""
    for name, given in (("--device", settings.device != "cpu"), ("--half", settings.half)):
        if given:
            raise OptionError(f"an endpoint runs as its server decides: leave {name} out")
    return replace(
        options,
        input=options.input or settings.input_name,
        output=options.output or settings.output_name,
        layout=options.layout or settings.layout,
    )


def _make_prepare(numbers: Normalisation, entry: Entry, channels: int) -> Callable[[Pixels], NDArray[Any]]:
    """Pixels to the model's numbers. Raises ModelError where its type cannot hold them."""
    dtype = np.dtype(DTYPES[entry.tensor.datatype])
    if dtype.kind == "f":
        return numbers.apply
    grey = numbers.apply(np.repeat(np.arange(256, dtype=np.uint8)[:, None], channels, axis=1))
    limits = np.iinfo(dtype)
    if np.abs(grey - np.rint(grey)).max() > 0.01 or grey.min() < limits.min - 0.01 or grey.max() > limits.max + 0.01:
        raise ModelError(
            f"the input {entry.tensor} takes whole numbers from {limits.min} to {limits.max}, and the preprocessing "
            f"{numbers.name} makes others: take raw, or write mean and scale in a TOML file"
        )
    return lambda pixels: np.rint(numbers.apply(pixels))


def _read_served(transport: Transport, address: Address) -> Served:
    reply = transport.request("GET", address.model)
    if reply.status != 200:
        raise ModelError(f"there is no model at {address.url}: {say_status(reply)}")
    served = read_metadata(reply, address.url)
    ready = transport.request("GET", f"{address.model}/ready")
    if ready.status not in (200, 404, 405):  # not every server has this page
        raise ModelError(f"{address.url} is not ready: {say_status(ready)}")
    return served


def _read_extensions(transport: Transport, address: Address) -> tuple[str, ...]:
    """What the server can do besides; nothing where it does not say."""
    reply = transport.request("GET", address.server)
    try:
        said = read_json(reply, address.url).get("extensions") if reply.status == 200 else None
    except AnswerError:
        said = None
    return tuple(str(word) for word in said) if isinstance(said, list) else ()


def _read_largest(transport: Transport, address: Address) -> int | None:
    """The largest batch in Triton's configuration of the model."""
    reply = transport.request("GET", f"{address.model}/config")
    try:
        said = read_json(reply, address.url).get("max_batch_size") if reply.status == 200 else None
    except AnswerError:
        said = None
    return said if isinstance(said, int) and said > 0 else None


def _find_limit(entry: Entry, said: int | None, largest: int | None, size: int) -> int:
    """How many images to send at once; size: the bytes of one."""
    if entry.batch is not None:
        return entry.batch
    return min(said or max(1, min(_MOST, _BODY // size)), largest or _MOST * _BODY)


def _digits(dtype: np.dtype[Any]) -> int:
    """About how many bytes a number has in JSON."""
    return 4 if dtype.kind in "iu" else 20


def _identity(address: Address, served: Served, entry: Entry, output: str | None) -> bytes:
    """Which model the kept answers belong to, as far as its address and its metadata tell."""
    return hashlib.sha256("\n".join([address.url, served.document, str(entry.tensor), str(output)]).encode()).digest()


def _open_cache(caller: Caller, options: EndpointOptions, identity: bytes, probe: NDArray[Any]) -> None:
    """Let answers be kept. A folder that was asked for must be usable; our own may fail, which is noted."""
    if options.cache is None:
        return
    folder = own_folder() if options.cache == "own" else options.cache
    try:
        caller.remember(AnswerCache(folder, max_bytes=options.cache_mb * 2**20), identity, probe)
    except OutputError as error:
        if options.cache != "own":
            raise
        caller.notes.append(f"answers are not kept: {error}")


def _warn(address: Address, headers: dict[str, str]) -> tuple[str, ...]:
    if address.scheme == "http" and headers and not address.is_local:
        return ("headers and credentials go over plain http, which others on the way can read: take https",)
    return ()
