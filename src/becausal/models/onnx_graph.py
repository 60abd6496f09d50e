"""The last operation of an ONNX graph, and its weights, read from the file without the library onnx.

An ONNX file is a protocol buffer: fields with a number, each a varint, 4 or 8 bytes, or a length and that many bytes.
For the last operation only the nodes of the graph are read; everything else, weights included, is skipped.
"""

import mmap
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from becausal.core.files import open_regular

_GRAPH, _NODE, _INPUT, _OUTPUT, _OPERATION = 7, 1, 1, 2, 4  # numbers of fields in ModelProto, GraphProto and NodeProto
_TENSOR, _NAME, _RAW = 5, 8, 9  # in GraphProto and TensorProto
_TRANSPARENT = ("Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Flatten")  # do not change the values
_MAX_NODES = 1_000_000
_Buffer = mmap.mmap | memoryview


def find_last_operation(path: Path, output: str) -> str | None:
    """The operation whose values an output holds, e.g. "Sigmoid"; None if the file does not show it."""
    nodes: dict[str, tuple[str, list[str]]] = {}  # operation and inputs of each node, by the names of its outputs
    try:
        with open_regular(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for start, end in islice(_parts(data, _NODE), _MAX_NODES):
                texts: dict[int, list[str]] = {_INPUT: [], _OUTPUT: [], _OPERATION: []}
                for field, at, until in _fields(data, start, end):
                    if field in texts:
                        texts[field].append(bytes(data[at:until]).decode("utf-8", "replace"))
                nodes |= dict.fromkeys(texts[_OUTPUT], ("".join(texts[_OPERATION]), texts[_INPUT]))
    except (OSError, ValueError, IndexError):
        return None
    name, steps = output, 0
    while name in nodes and steps <= len(nodes):
        operation, inputs = nodes[name]
        if operation not in _TRANSPARENT or not inputs:
            return operation
        name, steps = inputs[0], steps + 1
    return None


def read_weights(path: Path) -> dict[str, bytes]:
    """The values of each weight of a graph, by name, as little-endian bytes in the type that the file has them in."""
    data = memoryview(path.read_bytes())
    found: dict[str, bytes] = {}
    for start, end in _parts(data, _TENSOR):
        fields = {field: bytes(data[at:until]) for field, at, until in _fields(data, start, end)}
        found[fields[_NAME].decode()] = fields.get(_RAW, b"")
    return found


def _parts(data: _Buffer, wanted: int) -> Iterator[tuple[int, int]]:
    """Start and end of each part of the graph of one kind."""
    for number, start, end in _fields(data, 0, len(data)):
        if number == _GRAPH:
            yield from ((first, last) for kind, first, last in _fields(data, start, end) if kind == wanted)


def _fields(data: _Buffer, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Number, start and end of each field with a length. Raises ValueError or IndexError for damaged data."""
    while start < end:
        key, start = read_varint(data, start)
        match key & 7:
            case 0:
                _, start = read_varint(data, start)
            case 1:
                start += 8
            case 2:
                length, start = read_varint(data, start)
                if start + length > end:
                    raise ValueError("a field is longer than its message")
                yield key >> 3, start, start + length
                start += length
            case 5:
                start += 4
            case _:
                raise ValueError("unknown kind of field")


def read_varint(data: _Buffer, at: int) -> tuple[int, int]:
    """A number in seven bits per byte, and where it ends."""
    value = shift = 0
    while shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise ValueError("a number has too many bytes")
