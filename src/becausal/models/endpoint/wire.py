"""The Open Inference Protocol's words: a model's metadata, the question of a batch, the answer; as JSON or binary.

In JSON a number is written as Python writes the double it becomes, so a float32 arrives as the float32 it was. In the
binary form (the extension `binary_tensor_data`) a JSON head is followed by the tensors' bytes, little-endian.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.core.errors import AnswerError, ModelError
from becausal.models.endpoint.transport import Reply

DTYPES = {
    "BOOL": "?", "UINT8": "<u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8", "INT8": "<i1", "INT16": "<i2",
    "INT32": "<i4", "INT64": "<i8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8",
}  # fmt: skip
PICTURES = tuple(name for name in DTYPES if name not in ("BOOL", "UINT64", "UINT32"))  # what pixels may become
_HEAD_LENGTH = "Inference-Header-Content-Length"


@dataclass(frozen=True)
class Tensor:
    """An input or output as metadata describes it; None in the shape stands for any number."""

    name: str
    datatype: str
    shape: tuple[int | None, ...]

    def __str__(self) -> str:
        sides = ",".join("N" if side is None else str(side) for side in self.shape)
        return f"{self.name} {self.datatype} [{sides}]"


@dataclass(frozen=True)
class Served:
    """A served model's metadata. document: the same as it came, for telling one state of the model from another."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    document: str


@dataclass(frozen=True)
class Answered:
    """The outputs of one inference by name, and the version that gave them, where it is said."""

    outputs: dict[str, NDArray[Any]]
    version: str | None


def read_json(reply: Reply, url: str) -> dict[str, Any]:
    """The JSON object in a reply. Raises AnswerError for anything else."""
    return _object(reply.body, url)


def read_metadata(reply: Reply, url: str) -> Served:
    """A model's metadata. Raises ModelError for a document that is none."""
    try:
        said = read_json(reply, url)
        inputs, outputs = (tuple(_tensor(item) for item in said.get(key) or ()) for key in ("inputs", "outputs"))
    except (AnswerError, KeyError, TypeError, ValueError, AttributeError):
        raise ModelError(f"{url} gives no metadata of the Open Inference Protocol: is it the address of a model?") from None
    return Served(inputs, outputs, json.dumps(said, sort_keys=True))


def encode(entry: Tensor, batch: NDArray[Any], output: str | None, *, binary: bool) -> tuple[bytes, dict[str, str]]:
    """The body and the headers that ask about a batch, which is of the entry's type and sent in its own shape."""
    put: dict[str, Any] = {"name": entry.name, "shape": list(batch.shape), "datatype": entry.datatype}
    wanted: dict[str, Any] = {} if output is None else {"outputs": [{"name": output}]}
    if binary:
        data = np.ascontiguousarray(batch, np.dtype(DTYPES[entry.datatype])).tobytes()
        put["parameters"] = {"binary_data_size": len(data)}
        if output is None:
            wanted = {"parameters": {"binary_data_output": True}}
        else:
            wanted["outputs"][0]["parameters"] = {"binary_data": True}
        head = json.dumps({"inputs": [put], **wanted}).encode()
        return head + data, {"Content-Type": "application/octet-stream", _HEAD_LENGTH: str(len(head))}
    text = json.dumps({**wanted, "inputs": [{**put, "data": []}]})
    return (text[: -len("]}]}")] + _numbers(batch) + "]}]}").encode("ascii"), {"Content-Type": "application/json"}


def decode(reply: Reply, url: str) -> Answered:
    """The outputs in a reply. Raises AnswerError for what is not of the protocol, or contradicts itself."""
    head, rest = reply.body, memoryview(b"")
    length = reply.headers.get(_HEAD_LENGTH.lower())
    if length is not None:
        if not length.strip().isdecimal() or int(length) > len(reply.body):
            raise AnswerError(f"{url} gave a binary answer whose head is said to have {length!r} bytes")
        head, rest = reply.body[: int(length)], memoryview(reply.body)[int(length) :]
    said = _object(head, url)
    items = said.get("outputs")
    if not isinstance(items, list) or not items:
        why = f": {' '.join(error.split())[:200]}" if isinstance(error := said.get("error"), str) else ""
        raise AnswerError(f"{url} gave an answer without outputs{why}")
    found: dict[str, NDArray[Any]] = {}
    for item in items:
        try:
            tensor = _tensor(item)
            size = (item.get("parameters") or {}).get("binary_data_size")
            if tensor.datatype not in DTYPES:
                rest = rest[size or 0 :]
                continue
            if size is None:
                values = _flat(item["data"], tensor.datatype)
            else:
                values = np.frombuffer(rest[:size], DTYPES[tensor.datatype])
                rest = rest[size:]
            found[tensor.name] = values.reshape([int(side or 0) for side in tensor.shape])
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            shape = item.get("shape") if isinstance(item, dict) else None
            raise AnswerError(f"{url} gave an output that is said to have the shape {shape}, and has not") from None
    if not found:
        raise AnswerError(f"{url} gave no output of numbers, but {', '.join(str(item.get('datatype')) for item in items)}")
    version = said.get("model_version")
    return Answered(found, str(version) if version not in (None, "") else None)


def _object(body: bytes, url: str) -> dict[str, Any]:
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        start = "".join(c if c.isprintable() else " " for c in body[:40].decode("utf-8", "replace")).strip()
        raise AnswerError(f"{url} gave an answer that is no JSON: {start!r}") from None
    if not isinstance(said, dict):
        raise AnswerError(f"{url} gave a JSON {type(said).__name__}; expected an object")
    return said


def _tensor(item: Mapping[str, Any]) -> Tensor:
    shape = tuple(None if int(side) < 0 else int(side) for side in item["shape"])
    return Tensor(str(item["name"]), str(item["datatype"]).upper(), shape)


def _numbers(batch: NDArray[Any]) -> str:
    """The numbers of an array, row by row, as JSON has them; images have few different ones, each is written once."""
    different, where = np.unique(batch, return_inverse=True)
    texts = np.array([repr(value) for value in different.tolist()], object)
    return ",".join(texts[where.reshape(-1)])


def _flat(data: Sequence[Any], datatype: str) -> NDArray[Any]:
    """The numbers of JSON data, flat or nested; null, which some servers write for NaN, is NaN."""
    values = np.array(data, np.float64 if datatype.startswith("FP") else None).reshape(-1)
    if not datatype.startswith("FP") and values.dtype.kind not in "iub":
        raise ValueError("whole numbers expected")
    with np.errstate(over="ignore"):  # too large for its type: infinite, which is refused later
        return values.astype(DTYPES[datatype])
