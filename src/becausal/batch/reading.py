"""Reads a run, complete or in progress: its settings, its rows, and the explanations they refer to."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from becausal.api.explanation import Explanation
from becausal.api.saved import read_visible
from becausal.batch.index import (
    COLUMNS,
    INDEX,
    as_output_error,
    check_row,
    count_images,
    folder_of,
    parse_boxes,
    read_header,
)
from becausal.batch.opening import connect_reader
from becausal.batch.records import Box
from becausal.batch.rows import boxes_for_label
from becausal.batch.settings import DIRECTORY, by_option, list_changes, rows_per_image
from becausal.core.contracts import Visible
from becausal.core.errors import OutputError
from becausal.core.files import path_inside
from becausal.core.frames import Frame
from becausal.core.text import one_line

IndexRow = dict[str, Any]


class BatchRun:
    """A run folder, opened for reading; a driver may be writing to it. Raises OutputError for any other folder.

    settings: the records of the run (see `settings_of`). options: the same by option name. per_image: 1, or as many rows
    as an image may have boxes, if all boxes were explained (see `rows_per_image`). facts: the model's hashes and
    preprocessing. notes: what the model had to assume. started: time of the first start, UTC. limit: number of images of
    the last start, None for all. categories: ground-truth categories, in lower case. unreadable: explanations that could
    not be read so far, with the reasons.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not (self.folder / INDEX).is_file():
            raise OutputError(f"{self.folder} is not a run folder: it has no {INDEX}")
        with as_output_error(self.folder):
            self._index, self._close = connect_reader(self.folder)
        try:
            with as_output_error(self.folder):
                self._index.row_factory = sqlite3.Row
                header = read_header(self._index, self.folder)
        except OutputError:
            self._close()
            raise
        self.settings: dict[str, Any] = header["settings"]
        self.options = by_option(self.settings)
        self.per_image = rows_per_image(self.settings)
        self.facts: dict[str, Any] = header["model_facts"]
        self.notes = tuple(header["notes"])
        self.started: str = header["started"]
        self.limit: int | None = header["limit"]
        self.categories = frozenset(header["categories"])
        self.unreadable: dict[int, str] = {}

    def __enter__(self) -> "BatchRun":
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def rows(self, where: str = "1", *values: Any, order: str = "id", limit: int = -1) -> Iterator[IndexRow]:
        """Rows of the index as dictionaries, checked; `where` and `order` are trusted SQL."""
        names = ", ".join(COLUMNS)
        query = f"SELECT {names} FROM images WHERE {where} ORDER BY {order} LIMIT ?"
        with as_output_error(self.folder):
            found = self._index.execute(query, (*values, limit))
        while True:
            with as_output_error(self.folder):
                row = found.fetchone()
            if row is None:
                return
            yield check_row(dict(row), self.folder)

    def count(self, limit: int | None = None) -> dict[str, int]:
        """How many images, of the first `limit`, are waiting, done and failed."""
        with as_output_error(self.folder):
            return count_images(self._index, self.per_image, limit)

    @property
    def unit(self) -> str:
        """What a row is about: an image or, if all boxes were explained, a box."""
        return "image" if self.per_image == 1 else "box"

    def count_rows(self) -> int:
        """How many rows there are."""
        with as_output_error(self.folder):
            return int(self._index.execute("SELECT count(*) FROM images").fetchone()[0])

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
