"""Messages of the Open Inference Protocol: a model's metadata, inference requests and responses, as JSON or binary.

In JSON a number is written as Python writes the double it becomes, so every float32 arrives exactly. In the binary form
(the extension `binary_tensor_data`) a JSON head is followed by the tensors' bytes, little-endian.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.core.errors import AnswerError, ModelError
from becausal.core.text import one_line
from becausal.models.endpoint.transport import Reply
from becausal.models.signature import DTYPES, TensorInfo

_HEAD_LENGTH = "Inference-Header-Content-Length"


@dataclass(frozen=True)
class ServerMetadata:
    """What the server states about a model. document: the metadata as JSON, which identifies the state of the model."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    document: str


@dataclass(frozen=True)
class InferenceResult:
    """The outputs of one inference by name, and the model version, None if the server does not state it."""

    outputs: dict[str, NDArray[Any]]
    version: str | None


def read_json(body: bytes, url: str) -> dict[str, Any]:
    """The JSON object in a response. Raises AnswerError for anything else."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        start = one_line(body[:40].decode("utf-8", "replace"))
        raise AnswerError(f"{url} sent a response that is not JSON: {start!r}") from None
    if not isinstance(content, dict):
        raise AnswerError(f"{url} sent a JSON {type(content).__name__}; expected an object")
    return content


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
    text = json.dumps({**wanted, "inputs": [{**sent, "data": []}]})
    return (text[: -len("]}]}")] + _format_values(batch) + "]}]}").encode("ascii"), {"Content-Type": "application/json"}


def decode(reply: Reply, url: str) -> InferenceResult:
    """The outputs in a reply. Raises AnswerError if it does not follow the protocol, or is inconsistent."""
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
            if size is None:
                values = _parse_values(item["data"], tensor.datatype)
            else:
                values = np.frombuffer(rest[:size], tensor.dtype)
                rest = rest[size:]
            found[tensor.name] = values.reshape([int(side or 0) for side in tensor.shape])
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            shape = item.get("shape") if isinstance(item, dict) else None
            raise AnswerError(f"{url} sent an output whose values do not fit its shape {shape}") from None
    if not found:
        types = ", ".join(str(item.get("datatype")) for item in items)
        raise AnswerError(f"{url} sent no numeric output, only {types}")
    version = content.get("model_version")
    return InferenceResult(found, str(version) if version not in (None, "") else None)


def _read_tensor(item: Mapping[str, Any]) -> TensorInfo:
    shape = tuple(None if int(side) < 0 else int(side) for side in item["shape"])
    return TensorInfo(str(item["name"]), str(item["datatype"]).upper(), shape)


def _format_values(batch: NDArray[Any]) -> str:
    """The values of an array as JSON, row by row; images have few distinct values, each is formatted once."""
    distinct, indices = np.unique(batch, return_inverse=True)
    texts = np.array([repr(value) for value in distinct.tolist()], object)
    return ",".join(texts[indices.reshape(-1)])


def _parse_values(data: Sequence[Any], datatype: str) -> NDArray[Any]:
    """The values of JSON data, flat or nested; null, which some servers write for NaN, becomes NaN."""
    values = np.array(data, np.float64 if datatype.startswith("FP") else None).reshape(-1)
    if not datatype.startswith("FP") and values.dtype.kind not in "iub":
        raise ValueError("integers expected")
    with np.errstate(over="ignore"):  # values too large for the type become infinite, which is rejected later
        return values.astype(DTYPES[datatype])
