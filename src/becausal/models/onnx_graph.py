"""The last operation of an ONNX graph, and its weights, read from the file without the library onnx.

An ONNX file is a protocol buffer: fields with a number, each a varint, 4 or 8 bytes, or a length and that many bytes.
For the last operation only the nodes of the graph are read; everything else, weights included, is skipped.
"""

import mmap
from collections.abc import Iterator
from pathlib import Path

from becausal.core.files import open_regular

_GRAPH, _NODE, _INPUT, _OUTPUT, _OPERATION = 7, 1, 1, 2, 4  # numbers of fields in ModelProto, GraphProto and NodeProto
_TENSOR, _NAME, _RAW = 5, 8, 9  # in GraphProto and TensorProto
_TRANSPARENT = ("Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Flatten")  # do not change the values
_MAX_NODES = 1_000_000
_Buffer = mmap.mmap | memoryview


def find_last_operation(path: Path, output: str) -> str | None:
    """The operation whose values an output holds, e.g. "Sigmoid"; None if the file does not show it."""
    try:
        with open_regular(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            nodes = _read_nodes(data)
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
    for number, start, end in _fields(data, 0, len(data)):
        tensors = _fields(data, start, end) if number == _GRAPH else iter(())
        for _, first, last in (field for field in tensors if field[0] == _TENSOR):
            parts = {field: bytes(data[at:until]) for field, at, until in _fields(data, first, last)}
            found[parts[_NAME].decode()] = parts.get(_RAW, b"")
    return found


def _read_nodes(data: _Buffer) -> dict[str, tuple[str, list[str]]]:
    """Operation and inputs of each node, by the names of its outputs."""
    found: dict[str, tuple[str, list[str]]] = {}
    for number, start, end in _fields(data, 0, len(data)):
        if number != _GRAPH:
            continue
        for inner, first, last in _fields(data, start, end):
            if inner != _NODE or len(found) > _MAX_NODES:
                continue
            texts: dict[int, list[str]] = {_INPUT: [], _OUTPUT: [], _OPERATION: []}
            for field, at, until in _fields(data, first, last):
                if field in texts:
                    texts[field].append(bytes(data[at:until]).decode("utf-8", "replace"))
            for name in texts[_OUTPUT]:
                found[name] = ("".join(texts[_OPERATION]), texts[_INPUT])
    return found


def _fields(data: _Buffer, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Number, start and end of each field with a length. Raises ValueError or IndexError for damaged data."""
    while start < end:
        key, start = _varint(data, start)
        match key & 7:
            case 0:
                _, start = _varint(data, start)
            case 1:
                start += 8
            case 2:
                length, start = _varint(data, start)
                if start + length > end:
                    raise ValueError("a field is longer than its message")
                yield key >> 3, start, start + length
                start += length
            case 5:
                start += 4
            case _:
                raise ValueError("unknown kind of field")


def _varint(data: _Buffer, at: int) -> tuple[int, int]:
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
