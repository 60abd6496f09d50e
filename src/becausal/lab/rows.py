"""Rows of a bench: what was measured on an image with a method, in memory and on disk, sets and maps as short texts."""

import csv
import json
import os
import zlib
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from io import StringIO
from math import isfinite
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Saliency, Visible
from becausal.core.errors import BecausalError, OptionError, OutputError
from becausal.core.files import open_inside, path_inside, write_file
from becausal.core.text import from_cell, one_line, reason_of, to_cell

#: The measured values by the names of their columns; keys that begin with "_" are stored, but not part of the table.
Row = dict[str, Any]

ROWS, SETTINGS = "rows.jsonl", "settings.json"
_MACHINE_ONLY = ("loading.batch_size", "loading.threads")  # settings that do not affect the rows


#: The reason behind an error, by its kind; the text of other errors says it.
REASONS = {
    "FillError": "the fully masked image already has the label",
    "UnstableModelError": "the model gave different answers for the same input",
    "TargetError": "the label does not hold for the view",
    "ImageError": "the image cannot be read",
}


def finite_values(rows: Iterable[Row], key: str) -> list[float]:
    """The finite numbers under a key."""
    found = (row.get(key) for row in rows)
    return [float(value) for value in found if value is not None and value != "" and isfinite(float(value))]


def successful(rows: Iterable[Row]) -> list[Row]:
    """The rows without an error."""
    return [row for row in rows if not row.get("error")]


def group_rows(rows: Sequence[Row], *keys: str) -> dict[tuple[Any, ...], list[Row]]:
    """The rows grouped by the values of some keys, in the order of their first rows."""
    out: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        out.setdefault(tuple(row.get(key) for key in keys), []).append(row)
    return out


def by_method(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Each method and its rows."""
    return [(str(method), group) for (method,), group in group_rows(rows, "method").items()]


def rounded(row: Row) -> Row:
    """The row with floats rounded to six digits, and None for NaN."""
    return {key: round_number(value) if isinstance(value, float) else value for key, value in row.items()}


def round_number(value: float) -> float | None:
    """Six digits of a number, None for NaN."""
    return None if value != value else round(float(value), 6)


def error_row(error: BecausalError) -> Row:
    """The row of an image without an explanation."""
    return {"error": f"{type(error).__name__}: {one_line(error)}"}


def count_failures(rows: Sequence[Row]) -> dict[str, dict[str, int]]:
    """For each method the number of images without an explanation, by reason."""
    found: dict[str, Counter[str]] = {}
    for row in rows:
        if row.get("error"):
            kind, _, text = str(row["error"]).partition(": ")
            found.setdefault(str(row["method"]), Counter())[REASONS.get(kind, text or kind)] += 1
    return {method: dict(counts) for method, counts in found.items()}


def compare_rows(
    rows: Sequence[Row], references: Iterable[Row], compare: Callable[[Row, Row], Row], *, with_itself: bool = False
) -> list[Row]:
    """All rows, with what `compare` adds where the image was explained and has a reference of the same method."""
    found = {(row["name"], row["method"]): row for row in references}
    out = []
    for row in rows:
        reference = found.get((row["name"], row["method"]))
        skip = row.get("error") or reference is None or (row is reference and not with_itself)
        out.append(row if skip or reference is None else row | rounded(compare(row, reference)))
    return out


class RowStore:
    """The rows of a run, one JSON line each, flushed to the disk before the next row is computed."""

    def __init__(self, folder: Path, rows: list[Row], *, is_new: bool) -> None:
        self.folder = folder
        self.rows = rows
        self._is_new = is_new
        descriptor = open_inside(folder, ROWS, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._file = os.fdopen(descriptor, "a", encoding="utf-8")

    @staticmethod
    def open(folder: Path, settings: Mapping[str, Any], *, resume: bool) -> "RowStore":
        """Start a run in a new or empty folder, or resume one.

        Raises OptionError where the folder is in use and `resume` was not given, or the run was started with other settings.
        Raises OutputError where the folder cannot be written to, or the run in it cannot be read.
        """
        text = json.dumps(settings, indent=2, allow_nan=False, default=str)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            has_run = (folder / SETTINGS).exists()
            if any(folder.iterdir()) and not (resume and has_run):
                problem = "already contains a run: use --resume to continue it" if has_run else "is not empty: empty it"
                raise OptionError(f"{folder} {problem}, or choose another --out")
            if not has_run:
                write_file(folder / SETTINGS, f"{text}\n".encode())
                return RowStore(folder, [], is_new=True)
            old, new = (dict(_flat(json.loads(found))) for found in ((folder / SETTINGS).read_text(encoding="utf-8"), text))
            keys = (key for key in dict.fromkeys([*old, *new]) if key not in _MACHINE_ONLY)
            changed = [f"{key}: {old.get(key)!r} then, {new.get(key)!r} now" for key in keys if old.get(key) != new.get(key)]
            if changed:
                raise OptionError(
                    f"the run in {folder} was started with other settings ({'; '.join(changed)}): use the same ones, or "
                    "another --out"
                )
            return RowStore(folder, _read_complete(path_inside(folder, ROWS)), is_new=False)
        except ValueError as error:
            raise OutputError(f"the run in {folder} cannot be read: {reason_of(error)}") from None
        except OSError as error:
            raise OutputError(f"cannot write to {folder}: {error.strerror or error}") from None

    def append(self, row: Row) -> None:
        """Add a row and flush it to the disk."""
        line = json.dumps(row, allow_nan=False)
        try:
            self._file.write(line + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise OutputError(f"cannot write to {self.folder / ROWS}: {error.strerror or error}") from None
        # As it will be read again: a resumed run must not differ from one that was never stopped.
        self.rows.append(json.loads(line))

    def discard_if_new(self) -> None:
        """Delete the files of a new run without rows."""
        if self._is_new and not self.rows:
            self._file.close()
            for name in (ROWS, SETTINGS):
                (self.folder / name).unlink(missing_ok=True)
            with suppress(OSError):
                self.folder.rmdir()

    def __enter__(self) -> "RowStore":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()


def _read_complete(path: Path) -> list[Row]:
    """The rows of a run that may have been killed while it wrote one: an incomplete last line is removed from the file."""
    if not path.exists():
        return []
    data = path.read_bytes()
    end = data.rfind(b"\n") + 1
    if end < len(data):
        os.truncate(path, end)
    return [json.loads(line) for line in data[:end].decode("utf-8").splitlines()]


def _flat(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The entries of nested records, with names such as request.seed."""
    for key, value in record.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def table_text(rows: Sequence[Row]) -> str:
    """The rows as the text of a CSV file."""
    columns = list(dict.fromkeys(key for row in rows for key in row if not key.startswith("_")))
    buffer = StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        values = (row.get(key) for key in columns)
        writer.writerow(["" if v is None else int(v) if isinstance(v, bool) else to_cell(v) for v in values])
    return buffer.getvalue()


def read_table(path: Path) -> list[Row]:
    """The rows of a CSV file written with `table_text`; empty cells are None."""
    with path.open(encoding="utf-8", newline="") as file:
        return [{key: _value(text) for key, text in line.items()} for line in csv.DictReader(file)]


def _value(text: str | None) -> Any:
    if not text:
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return from_cell(text)


def pack_set(visible: Visible) -> str:
    """A set, (*grid,), as text that begins with its shape."""
    return _pack(visible.shape, np.packbits(visible.ravel()))


def unpack_set(text: str) -> Visible:
    """The set that was packed into the text."""
    shape, data = _unpack(text)
    return np.unpackbits(data, count=int(np.prod(shape))).astype(bool).reshape(shape)


def pack_map(saliency: Saliency) -> str:
    """A map as text, quantised to 256 levels between its minimum and maximum."""
    low, high = float(saliency.min()), float(saliency.max())
    level = (saliency - low) / (high - low) if high > low else np.zeros(saliency.shape)
    return _pack(saliency.shape, np.rint(level * 255).astype(np.uint8).ravel())


def unpack_map(text: str) -> Saliency:
    """The map that was packed into the text, scaled to 0..1."""
    shape, data = _unpack(text)
    return data.reshape(shape) / 255.0


def _pack(shape: tuple[int, ...], data: NDArray[np.uint8]) -> str:
    return f"{'x'.join(map(str, shape))}:{b64encode(zlib.compress(data.tobytes(), 9)).decode('ascii')}"


def _unpack(text: str) -> tuple[tuple[int, ...], NDArray[np.uint8]]:
    head, _, body = text.partition(":")
    return tuple(map(int, head.split("x"))), np.frombuffer(zlib.decompress(b64decode(body)), np.uint8)
