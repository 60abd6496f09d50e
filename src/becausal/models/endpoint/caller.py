"""Inference by the Open Inference Protocol: its messages, and batches split to what the server accepts.

In JSON a number is written as Python writes the double it becomes, so every float32 arrives exactly. In the binary form
(the extension `binary_tensor_data`) a JSON head is followed by the tensors' bytes, little-endian. Answers come from the
cache where possible, and what was paid for is counted.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from becausal.core.errors import AnswerError, ModelError
from becausal.core.text import one_line
from becausal.models.endpoint.cache import Account
from becausal.models.endpoint.options import Address, EndpointOptions
from becausal.models.endpoint.transport import Reply, Transport, describe_status, read_json
from becausal.models.outputs import TensorInfo, pick_output
from becausal.models.preprocess import ImageInput

_HEAD_LENGTH = "Inference-Header-Content-Length"
_TOO_LARGE = (400, 413, 422, 500)  # how servers refuse a batch that is too large, among other things

ReadOutputs = Callable[[dict[str, NDArray[Any]], int], NDArray[Any]]  # from outputs by name, and the number of images


@dataclass(frozen=True)
class ServerMetadata:
    """What the server states about a model. document: the metadata as JSON, which identifies the state of the model."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    document: str


def read_metadata(reply: Reply, url: str) -> ServerMetadata:
    """A model's metadata. Raises ModelError if the reply is something else."""
    try:
        content = read_json(reply.body, url)
        inputs, outputs = (tuple(_read_tensor(item) for item in content.get(key) or ()) for key in ("inputs", "outputs"))
    except (AnswerError, KeyError, TypeError, ValueError, AttributeError, OverflowError):
        expected = "metadata of the Open Inference Protocol"
        raise ModelError(f"{url} sent no {expected}: check that it is the address of a model") from None
    return ServerMetadata(inputs, outputs, json.dumps(content, sort_keys=True))


def encode(tensor: TensorInfo, batch: NDArray[Any], output: str | None, *, binary: bool) -> tuple[bytes, dict[str, str]]:
    """Body and headers of an inference request for a batch, which has the tensor's type."""
    sent: dict[str, Any] = {"name": tensor.name, "shape": list(batch.shape), "datatype": tensor.datatype}
    wanted: dict[str, Any] = {} if output is None else {"outputs": [{"name": output}]}
    if binary:
        data = np.ascontiguousarray(batch, tensor.dtype).tobytes()
        sent["parameters"] = {"binary_data_size": len(data)}
        if output is None:
            wanted = {"parameters": {"binary_data_output": True}}
        else:
            wanted["outputs"][0]["parameters"] = {"binary_data": True}
        head = json.dumps({"inputs": [sent], **wanted}).encode()
        return head + data, {"Content-Type": "application/octet-stream", _HEAD_LENGTH: str(len(head))}
    distinct, indices = np.unique(batch, return_inverse=True)  # images have few distinct values: each is formatted once
    values = np.array([repr(value) for value in distinct.tolist()], object)[indices.reshape(-1)]
    text = json.dumps({**wanted, "inputs": [{**sent, "data": []}]}).removesuffix("]}]}")
    return (text + ",".join(values) + "]}]}").encode("ascii"), {"Content-Type": "application/json"}


def decode(reply: Reply, url: str) -> tuple[dict[str, NDArray[Any]], str | None]:
    """The outputs in a reply by name, and the model version. Raises AnswerError if it does not follow the protocol."""
    head, rest = reply.body, memoryview(b"")
    length = reply.headers.get(_HEAD_LENGTH.lower())
    if length is not None:
        if not length.strip().isdecimal() or float(length) > len(reply.body):
            raise AnswerError(f"{url} sent a binary response with an invalid head length, {one_line(length, 40)!r}")
        head, rest = reply.body[: int(length)], memoryview(reply.body)[int(length) :]
    content = read_json(head, url)
    items = content.get("outputs")
    if not isinstance(items, list) or not items:
        reason = f": {one_line(error, 200)}" if isinstance(error := content.get("error"), str) else ""
        raise AnswerError(f"{url} sent a response without outputs{reason}")
    found: dict[str, NDArray[Any]] = {}
    for item in items:
        try:
            tensor = _read_tensor(item)
            size = (item.get("parameters") or {}).get("binary_data_size")
            if tensor.dtype is None:
                rest = rest[size or 0 :]
                continue
            if size is not None:
                values = np.frombuffer(rest[:size], tensor.dtype)
                rest = rest[size:]
            else:  # flat or nested; null, which some servers write for NaN, becomes NaN
                is_float = tensor.datatype.startswith("FP")
                values = np.array(item["data"], np.float64 if is_float else None).reshape(-1)
                if not is_float and values.dtype.kind not in "iub":
                    raise ValueError("integers expected")
                with np.errstate(over="ignore"):  # values too large for the type become infinite, which is rejected later
                    values = values.astype(tensor.dtype)
            found[tensor.name] = values.reshape([int(side or 0) for side in tensor.shape])
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            shape = item.get("shape") if isinstance(item, dict) else None
            raise AnswerError(f"{url} sent an output whose values do not fit its shape {shape}") from None
    if not found:
        types = ", ".join(str(item.get("datatype")) for item in items)
        raise AnswerError(f"{url} sent no numeric output, only {types}")
    version = content.get("model_version")
    return found, str(version) if version not in (None, "") else None


def _read_tensor(item: Mapping[str, Any]) -> TensorInfo:
    shape = tuple(None if int(side) < 0 else int(side) for side in item["shape"])
    return TensorInfo(str(item["name"]), str(item["datatype"]).upper(), shape)


def pick_score_output(outputs: tuple[TensorInfo, ...], name: str | None) -> tuple[str | None, tuple[str, ...]]:
    """The name of the output with the scores, and a note if there was a choice; None if no output is known yet."""
    if not outputs:
        return name, ()
    tensor, notes = pick_output(outputs, name, axes=(0, 1, 2), hint="--endpoint output=NAME")
    return tensor.name, notes


@final
@dataclass(eq=False)
class Caller:
    """The raw output of one model on a server, from the cache where possible.

    An image that was evaluated in this process before is evaluated again: whoever repeats a question wants to know whether
    the answer is stable.
    """

    address: Address
    options: EndpointOptions
    transport: Transport
    input: ImageInput
    output: str | None  # the one to read; None to choose it from the first response
    binary: bool
    limit: int  # most images per request, halved whenever the server refuses a batch
    read: ReadOutputs | None = None  # makes one array, a row per image, of all outputs, where it is not one that is read
    _version: str | None = None
    _row: tuple[np.dtype[Any], tuple[int, ...]] | None = None  # type and shape of the output for one image
    _asked: set[bytes] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.account = Account(self.options)

    def probe(self, batch: NDArray[Any]) -> NDArray[Any]:
        """The raw output for the probe images, without the cache."""
        raw = np.concatenate(list(self._infer_all(batch)))
        self.account.probes = self.account.evaluated
        return raw

    def use_cache(self, document: str, read_as: str | None, probe: NDArray[Any]) -> None:
        """Start caching. document: the server's metadata. read_as: how answers are read. probe: to the probe images."""
        self.account.use_cache("\n".join([self.address.url, document, str(self.input.tensor), str(read_as)]), probe)

    def report(self) -> tuple[str, ...]:
        """Notes on what went wrong and what was paid for."""
        return self.account.report("image", "images evaluated by the server ({} of them probe images)")

    def __call__(self, batch: NDArray[Any]) -> NDArray[Any]:
        """The raw output for a normalised batch in the model's layout, one row per image."""
        account = self.account
        keys = [hashlib.sha256(account.salt + row.tobytes()).digest() for row in batch]
        found: dict[bytes, NDArray[Any]] = {}
        if self._row is not None:
            dtype, shape = self._row
            size = dtype.itemsize * int(np.prod(shape))
            values = account.find([key for key in keys if key not in self._asked])
            fitting = {key: value for key, value in values.items() if len(value) == size}
            found = {key: np.frombuffer(value, dtype).reshape(shape) for key, value in fitting.items()}
            account.cached += len(found)
        missing = {key: row for row, key in enumerate(keys) if key not in found}  # equal images are sent once
        remaining = list(missing)
        for raw in self._infer_all(batch[list(missing.values())]):
            new = dict(zip(remaining, raw, strict=False))
            remaining = remaining[len(raw) :]
            found |= new
            account.keep([(key, row.tobytes()) for key, row in new.items()])
        self._asked.update(keys)
        return np.stack([found[key] for key in keys])

    def _infer_all(self, batch: NDArray[Any]) -> Iterator[NDArray[Any]]:
        """The raw output for any number of images, in parts, as they arrive."""
        start = 0
        while start < len(batch):
            part = batch[start : start + self.limit]
            raw = self._infer(part)
            if raw is None:
                self.limit = len(part) // 2
                continue
            yield raw
            start += len(part)

    def _infer(self, batch: NDArray[Any]) -> NDArray[Any] | None:
        """The raw output for one request; None if the server may accept a smaller batch."""
        size, rows, url = self.input.batch, len(batch), self.address.url
        if size is not None and rows < size:
            batch = np.concatenate([batch, np.repeat(batch[-1:], size - rows, axis=0)])
        sent = batch if self.input.has_batch_axis else batch[0]
        body, headers = encode(self.input.tensor, sent, self.output, binary=self.binary)
        reply = self.transport.request("POST", f"{self.address.model}/infer", body, headers)
        if reply.status in _TOO_LARGE and rows > 1 and size is None:
            return None
        if reply.status != 200:
            shape = "x".join(str(side) for side in batch.shape)
            raise AnswerError(f"{url} refused images of shape {shape}: {describe_status(reply)}")
        try:
            outputs, version = decode(reply, url)
        except AnswerError as error:
            raise AnswerError(self.transport.scrub(str(error))) from None
        if version is not None and version != (self._version or version):
            raise AnswerError(
                f"the model version at {url} changed from {self._version} to {version}: name one in the address, "
                f"e.g. …/versions/{version}"
            )
        self._version = version or self._version
        if self.read is not None:
            raw = self.read(outputs, len(batch))
        else:
            if self.output is None:
                kinds = [(name, "FP32" if raw.dtype.kind == "f" else "INT64", raw.shape) for name, raw in outputs.items()]
                self.output, notes = pick_score_output(tuple(TensorInfo(*kind) for kind in kinds), None)
                self.account.notes += notes
            if self.output not in outputs:
                raise AnswerError(f"{url} sent no output {self.output!r}, only {', '.join(outputs)}")
            raw = outputs[self.output] if self.input.has_batch_axis else outputs[self.output][None]
        row = (raw.dtype, raw.shape[1:])
        if raw.ndim == 0 or len(raw) != len(batch) or row != (self._row or row):
            expected = f"({len(batch)}, …)" if self._row is None else f"{(len(batch), *self._row[1])} {self._row[0]}"
            found = f"an output of shape {raw.shape} {raw.dtype} for {len(batch)} images"
            raise AnswerError(f"{url} sent {found}; expected {expected}")
        if raw.dtype.kind == "f" and not np.isfinite(raw).all():
            raise AnswerError(f"{url} sent scores that are NaN or infinite")
        self._row = row
        self.account.evaluated += len(batch)
        return raw[:rows]
