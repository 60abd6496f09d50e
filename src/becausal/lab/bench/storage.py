"""Rows of a run on disk, written one by one, so that a run that was killed can be resumed."""

import csv
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from io import StringIO
from pathlib import Path
from types import TracebackType
from typing import Any

from becausal.core.errors import OptionError, OutputError
from becausal.core.files import open_inside, path_inside, write_file
from becausal.core.text import from_cell, reason_of, to_cell
from becausal.lab.bench.rows import Row

ROWS, SETTINGS = "rows.jsonl", "settings.json"
_MACHINE_ONLY = ("loading.batch_size", "loading.threads")  # settings that do not affect the rows


class RowStore:
    """The rows of a run, one JSON line each, flushed to the disk before the next row is computed.

    When a run is resumed, an incomplete last line is dropped. Keys that begin with "_" are stored here, but are not part
    of the table.
    """

    def __init__(self, folder: Path, rows: list[Row], *, is_new: bool) -> None:
        self.folder = folder
        self.rows = rows
        self._is_new = is_new
        descriptor = open_inside(folder, ROWS, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._file = os.fdopen(descriptor, "a", encoding="utf-8")

    @staticmethod
    def open(folder: Path, settings: Mapping[str, Any], *, resume: bool) -> "RowStore":
        """Start a run in a new or empty folder, or resume one.

        Raises:
            OptionError: The folder is in use and `resume` was not given, or the run was started with other settings.
            OutputError: The folder cannot be written to, or the run in it cannot be read.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            has_run = (folder / SETTINGS).exists()
            if any(folder.iterdir()) and not (resume and has_run):
                problem = "already contains a run: use --resume to continue it" if has_run else "is not empty: empty it"
                raise OptionError(f"{folder} {problem}, or choose another --out")
            if not has_run:
                write_file(folder / SETTINGS, (_as_json(settings, indent=2) + "\n").encode())
                return RowStore(folder, [], is_new=True)
            _refuse_changes(json.loads((folder / SETTINGS).read_text(encoding="utf-8")), settings, folder)
            return RowStore(folder, _read_rows(path_inside(folder, ROWS)), is_new=False)
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


def table_text(rows: Sequence[Row]) -> str:
    """The rows as the text of a CSV file."""
    columns = list(dict.fromkeys(key for row in rows for key in row if not key.startswith("_")))
    buffer = StringIO()
    writer = csv.DictWriter(buffer, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _cell(row.get(key)) for key in columns} for row in rows)
    return buffer.getvalue()


def read_table(path: Path) -> list[Row]:
    """The rows of a CSV file written with `table_text`; empty cells are None."""
    with path.open(encoding="utf-8", newline="") as file:
        return [{key: _value(text) for key, text in line.items()} for line in csv.DictReader(file)]


def _as_json(record: Mapping[str, Any], indent: int | None = None) -> str:
    return json.dumps(record, indent=indent, allow_nan=False, default=str)


def _read_rows(path: Path) -> list[Row]:
    """The complete lines; an incomplete last line is removed from the file."""
    if not path.exists():
        return []
    data = path.read_bytes()
    end = data.rfind(b"\n") + 1
    if end < len(data):
        os.truncate(path, end)
    return [json.loads(line) for line in data[:end].decode("utf-8").splitlines()]


def _refuse_changes(before: Mapping[str, Any], now: Mapping[str, Any], folder: Path) -> None:
    old, new = dict(_flat(before)), dict(_flat(json.loads(_as_json(now))))
    compared = (key for key in dict.fromkeys([*old, *new]) if key not in _MACHINE_ONLY)
    changed = [key for key in compared if old.get(key) != new.get(key)]
    if changed:
        listed = "; ".join(f"{key}: {old.get(key)!r} then, {new.get(key)!r} now" for key in changed)
        raise OptionError(
            f"the run in {folder} was started with other settings ({listed}): use the same ones, or another --out"
        )


def _flat(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The entries of nested records, with names such as request.seed."""
    for key, value in record.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    return "" if value is None else to_cell(value)


def _value(text: str | None) -> Any:
    if not text:
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return from_cell(text)
