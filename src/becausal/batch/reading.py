"""Reads a run, complete or in progress: its settings, its rows, and the explanations they refer to."""

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from becausal.api.explanation import Explanation
from becausal.batch.records import Box
from becausal.batch.settings import DIRECTORY, by_option, list_changes
from becausal.batch.store import COLUMNS, INDEX, folder_of, read_header
from becausal.batch.truth import boxes_for_label
from becausal.core.contracts import Visible
from becausal.core.errors import OutputError
from becausal.core.frames import Frame

IndexRow = dict[str, Any]


class BatchRun:
    """A run folder, opened read-only; a driver may be writing to it. Raises OutputError for any other folder.

    settings: the records of the run (see `settings_of`). options: the same by option name. facts: the model's hashes and
    preprocessing. started: time of the first start, UTC. categories: ground-truth categories, in lower case.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        path = self.folder / INDEX
        if not path.is_file():
            raise OutputError(f"{self.folder} is not a run folder: it has no {INDEX}")
        try:
            self._index = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
            self._index.row_factory = sqlite3.Row
            header = read_header(self._index, self.folder)
        except sqlite3.DatabaseError as error:
            raise OutputError(f"the index of {self.folder} cannot be read: {error}") from None
        self.settings: dict[str, Any] = header["settings"]
        self.options = by_option(self.settings)
        self.facts: dict[str, Any] = header.get("model_facts", {})
        self.started: str = header["started"]
        self.categories = frozenset(header["categories"])

    def __enter__(self) -> "BatchRun":
        return self

    def __exit__(self, *_: object) -> None:
        self._index.close()

    def rows(self, where: str = "1", *values: Any, order: str = "id", limit: int = -1) -> Iterator[IndexRow]:
        """Rows of the index as dictionaries; `where` and `order` are trusted SQL."""
        names = ", ".join(COLUMNS)
        query = f"SELECT {names} FROM images WHERE {where} ORDER BY {order} LIMIT ?"
        for row in self._index.execute(query, (*values, limit)):
            yield dict(row)

    def count(self) -> dict[str, int]:
        """How many images are waiting, done and failed."""
        found = self._index.execute("SELECT state, count(*) FROM images GROUP BY state").fetchall()
        return {"waiting": 0, "done": 0, "failed": 0} | {row[0]: row[1] for row in found}

    def find(self, name: str) -> IndexRow:
        """The row of an image, by number, path or file name. Raises OutputError for none or several."""
        pattern = "%/" + name.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        found = list(self.rows("image = ? OR image LIKE ? ESCAPE '\\' OR CAST(id AS TEXT) = ?", name, pattern, name))
        if not found:
            raise OutputError(f"{self.folder} has no image {name!r}")
        if len(found) > 1:
            raise OutputError(f"{self.folder} has {len(found)} images named {name!r}: give the number of one")
        return found[0]

    def folder_of(self, number: int) -> Path:
        """The folder with the files of one explanation."""
        return folder_of(self.folder, number)

    def load(self, number: int) -> Explanation:
        """One complete explanation."""
        return Explanation.load(self.folder_of(number))

    def boxes_of(self, row: IndexRow) -> list[Box]:
        """The ground-truth boxes of the labelled object; empty where there are none."""
        return boxes_for_label(json.loads(row["boxes"]), row["label"], self.categories) if row["boxes"] else []

    def load_visible(self, number: int) -> tuple[Visible, Frame]:
        """The explanation's pixel set, (*grid,), and the frame of its view, without loading the rest."""
        folder = self.folder_of(number)
        try:
            with np.load(folder / "arrays.npz", allow_pickle=False) as arrays:
                visible: Visible = arrays["visible"]
            record = json.loads((folder / "explanation.json").read_text(encoding="utf-8"))
            return visible, Frame.from_record(record["frame"])
        except (OSError, ValueError, KeyError, BadZipFile) as error:
            raise OutputError(f"{folder} holds no readable explanation: {type(error).__name__}: {error}") from None

    def changes(self, other: "BatchRun") -> list[str]:
        """How the options and the model of another run differ from those of this one, e.g. "seed was 0, now 4"."""
        left, right = ({**run.options, **run.facts, DIRECTORY: None} for run in (self, other))
        return list_changes(left, right)
