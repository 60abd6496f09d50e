"""Reads a run, complete or in progress, on any disk: its settings, its rows, and the explanations they refer to."""

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from becausal.api.explanation import Explanation
from becausal.api.saved import read_visible
from becausal.batch.index import (
    COLUMNS,
    INDEX,
    Index,
    IndexRow,
    as_output_error,
    check_links,
    check_row,
    folder_of,
    parse_boxes,
)
from becausal.batch.inputs import Box, boxes_for_label
from becausal.batch.settings import DIRECTORY, by_option, list_changes
from becausal.core.contracts import Visible
from becausal.core.errors import OutputError
from becausal.core.files import path_inside
from becausal.core.frames import Frame
from becausal.core.text import one_line


class BatchRun:
    """A run folder, opened for reading; a driver may be writing to it. Raises OutputError for any other folder."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not (self.folder / INDEX).is_file():
            raise OutputError(f"{self.folder} is not a run folder: it has no {INDEX}")
        with ExitStack() as stack:
            with as_output_error(self.folder):
                self._index = _open_index(self.folder, stack)
            self._index.connection.row_factory = sqlite3.Row
            header = self._index.read_header()
            self._close = stack.pop_all().close  # nothing was wrong: it stays open
        self.settings: dict[str, Any] = header["settings"]  # see `settings_of`
        self.options = by_option(self.settings)
        self.per_image = self._index.per_image  # rows, see `rows_per_image`
        self.facts: dict[str, Any] = header["model_facts"]  # hashes and preprocessing
        self.notes = tuple(header["notes"])  # what the model had to assume
        self.started: str = header["started"]  # for the first time, UTC
        self.limit: int | None = header["limit"]  # number of images of the last start, None for all
        self.categories = frozenset(header["categories"])  # of the ground truth, in lower case
        self.unreadable: dict[int, str] = {}  # explanations that could not be read so far, with the reasons

    def __enter__(self) -> "BatchRun":
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def rows(self, where: str = "1", *values: Any, limit: int = -1) -> Iterator[IndexRow]:
        """Rows of the index as dictionaries, checked, in their order; `where` is trusted SQL."""
        query = f"SELECT {', '.join(COLUMNS)} FROM images WHERE {where} ORDER BY id LIMIT ?"
        found = self._index.execute(query, *values, limit)
        while True:
            with as_output_error(self.folder):
                row = found.fetchone()
            if row is None:
                return
            yield check_row(dict(row), self.folder)

    def count(self, limit: int | None = None) -> dict[str, int]:
        """How many images, of the first `limit`, are waiting, done and failed."""
        return self._index.count(limit)

    @property
    def unit(self) -> str:
        """What a row is about: an image or, if all boxes were explained, a box."""
        return "image" if self.per_image == 1 else "box"

    def count_rows(self) -> int:
        """How many rows there are."""
        return int(self._index.fetch("SELECT count(*) FROM images")[0][0])

    def find(self, name: str) -> IndexRow:
        """The row of an image, by its id, path or file name. Raises OutputError for none or several."""
        pattern = "%/" + name.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        found = list(self.rows("image = ? OR image LIKE ? ESCAPE '\\' OR CAST(id AS TEXT) = ?", name, pattern, name))
        if not found:
            raise OutputError(f"{self.folder} has no image {name!r}")
        if len(found) > 1:
            what = "images named" if self.per_image == 1 else "boxes of"
            raise OutputError(f"{self.folder} has {len(found)} {what} {name!r}: give the number of one")
        return found[0]

    def folder_of(self, number: int) -> Path:
        """The folder with the files of one explanation."""
        return folder_of(self.folder, number, self.per_image)

    def own_folder_of(self, number: int) -> Path:
        """The same, to be written. Raises OutputError if a link is on the way."""
        return path_inside(self.folder, folder_of(Path(), number, self.per_image))

    def load(self, number: int) -> Explanation:
        """One complete explanation. Raises OutputError if it cannot be read."""
        return Explanation.load(self.folder_of(number))

    def boxes_of(self, row: IndexRow) -> list[Box]:
        """The ground-truth boxes of the labelled object; empty where there are none."""
        boxes = parse_boxes(row["boxes"], self.folder)
        return boxes_for_label(boxes, row["label"], self.categories) if boxes else []

    def load_visible(self, number: int) -> tuple[Visible, Frame]:
        """The explanation's pixel set, (*grid,), and the frame of its view, without loading the rest."""
        return read_visible(self.folder_of(number))

    def skip(self, number: int, error: Exception) -> None:
        """Note that an explanation could not be read, and is left out."""
        self.unreadable.setdefault(number, one_line(error, 200))

    def changes(self, other: "BatchRun") -> list[str]:
        """How the options and the model of another run differ from those of this one, e.g. "seed was 0, now 4"."""
        left, right = ({**run.options, **run.facts, DIRECTORY: None} for run in (self, other))
        return list_changes(left, right)


def _open_index(folder: Path, stack: ExitStack) -> Index:
    """Open the index of a run folder for reading, until the stack is closed.

    Where the folder cannot be written, SQLite cannot make the files that readers share with a writer. Nobody writes
    there, so the index is opened as immutable; if a crash left a write-ahead log, a copy is read.
    """
    path, log = folder / INDEX, folder / f"{INDEX}-wal"
    target: Path | str = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    is_shared = is_writable(folder)
    if is_shared:
        check_links(folder)
        target = f"{path.absolute().as_uri()}?mode=rw"  # not mode=ro, which would leave its files behind
    elif log.is_file() and log.stat().st_size:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="becausal-")))
        for source in (path, log):
            shutil.copyfile(source, place / source.name)
        target = place / INDEX
    index = Index(folder, target)
    stack.callback(index.close)
    if is_shared:
        index.execute("PRAGMA query_only = ON")
    return index


def is_writable(folder: Path) -> bool:
    """Whether files can be made in a folder."""
    return os.access(folder, os.W_OK)
