"""Rows on disk as they come: a run that was killed goes on where it stopped, and ends with the same table."""

import csv
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from io import StringIO
from pathlib import Path
from types import TracebackType
from typing import Any

from becausal.bench.findings import Row
from becausal.core.errors import OptionError, OutputError

ROWS, SETTINGS = "rows.jsonl", "settings.json"


class Store:
    """The rows of a run, one JSON line each, written through to the disk before the next is begun.

    A last line that was torn by a kill is dropped when the run is resumed. Keys that begin with "_" are kept here and
    left out of the table.
    """

    def __init__(self, folder: Path, rows: list[Row], *, is_new: bool) -> None:
        self.folder = folder
        self.rows = rows
        self._is_new = is_new
        self._file = (folder / ROWS).open("a", encoding="utf-8")

    @staticmethod
    def begin(folder: Path, settings: Mapping[str, Any], *, resume: bool) -> "Store":
        """Start a run in an empty or new folder, or take one up again.

        Raises OptionError where the folder is in use and `resume` was not said, or the settings differ from those the
        run was begun with.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            has_run = (folder / SETTINGS).exists()
            if any(folder.iterdir()) and not (resume and has_run):
                what = "holds a run already: say --resume to go on with it" if has_run else "is not empty"
                raise OptionError(f"{folder} {what}, or give another --out")
            if not has_run:
                _write(folder / SETTINGS, json.dumps(settings, indent=2, allow_nan=False) + "\n")
                return Store(folder, [], is_new=True)
            _refuse_changes(json.loads((folder / SETTINGS).read_text(encoding="utf-8")), settings, folder)
            return Store(folder, _read_rows(folder / ROWS), is_new=False)
        except ValueError as error:
            raise OutputError(f"{folder} holds a run that cannot be read: {error}") from None
        except OSError as error:
            raise OutputError(f"cannot write to {folder}: {error.strerror or error}") from None

    def append(self, row: Row) -> None:
        """Add a row; on return it is on the disk."""
        line = json.dumps(row, allow_nan=False)
        try:
            self._file.write(line + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise OutputError(f"cannot write to {self.folder / ROWS}: {error.strerror or error}") from None
        self.rows.append(json.loads(line))

    def discard_if_new(self) -> None:
        """Leave nothing behind of a run that could not begin."""
        if self._is_new and not self.rows:
            self._file.close()
            for name in (ROWS, SETTINGS):
                (self.folder / name).unlink(missing_ok=True)
            with suppress(OSError):
                self.folder.rmdir()

    def __enter__(self) -> "Store":
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
    """The rows of a CSV file as `table_text` gives it; numbers as numbers, empty cells as None."""
    with path.open(encoding="utf-8", newline="") as file:
        return [{key: _value(text) for key, text in line.items()} for line in csv.DictReader(file)]


def write_whole(path: Path, data: bytes | str) -> None:
    """A file that appears whole or not at all. Raises OutputError."""
    try:
        _write(path, data)
    except OSError as error:
        raise OutputError(f"cannot write to {path}: {error.strerror or error}") from None


def _write(path: Path, data: bytes | str) -> None:
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(data.encode("utf-8") if isinstance(data, str) else data)
    os.replace(part, path)


def _read_rows(path: Path) -> list[Row]:
    """The whole lines; what follows the last of them is cut off the file."""
    if not path.exists():
        return []
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        os.truncate(path, whole)
    return [json.loads(line) for line in data[:whole].decode("utf-8").splitlines()]


def _refuse_changes(before: Mapping[str, Any], now: Mapping[str, Any], folder: Path) -> None:
    now = json.loads(json.dumps(now))
    changed = [key for key in dict.fromkeys([*before, *now]) if before.get(key) != now.get(key)]
    if changed:
        told = "; ".join(f"{key}: {before.get(key)!r} then, {now.get(key)!r} now" for key in changed)
        raise OptionError(f"the run in {folder} was begun with other settings ({told}): give the same, or another --out")


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    return "" if value is None else value


def _value(text: str | None) -> Any:
    if not text:
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
