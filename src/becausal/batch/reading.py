"""Reading a run, finished or under way: its settings, its rows, and the explanations behind them."""

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from becausal.api.explanation import Explanation
from becausal.batch.records import Box
from becausal.batch.store import COLUMNS, INDEX, folder_of, list_changes, read_about
from becausal.batch.truth import choose_boxes
from becausal.core.contracts import Visible
from becausal.core.errors import OutputError
from becausal.core.frames import Frame

Row = dict[str, Any]


class Run:
    """A run folder, opened for reading only; a driver may be at work on it. Raises OutputError for what is no run."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        path = self.folder / INDEX
        if not path.is_file():
            raise OutputError(f"{self.folder} is no run folder: there is no {INDEX} in it")
        try:
            self._index = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
            self._index.row_factory = sqlite3.Row
            about = read_about(self._index, self.folder)
        except sqlite3.DatabaseError as error:
            raise OutputError(f"the index of {self.folder} cannot be read: {error}") from None
        self.settings: dict[str, Any] = about["settings"]
        self.facts: dict[str, Any] = about.get("model_facts", {})
        self.begun: str = about["begun"]
        self.categories = frozenset(about["categories"])

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: object) -> None:
        self._index.close()

    def rows(self, where: str = "1", *values: Any, order: str = "id", limit: int = -1) -> Iterator[Row]:
        """Rows of the index as dictionaries, in an order; `where` and `order` are SQL of our own."""
        names = ", ".join(COLUMNS)
        query = f"SELECT {names} FROM images WHERE {where} ORDER BY {order} LIMIT ?"
        for row in self._index.execute(query, (*values, limit)):
            yield dict(row)

    def count(self) -> dict[str, int]:
        """How many images are waiting, done and failed."""
        found = self._index.execute("SELECT state, count(*) FROM images GROUP BY state").fetchall()
        return {"waiting": 0, "done": 0, "failed": 0} | {row[0]: row[1] for row in found}

    def find(self, name: str) -> Row:
        """The row of an image, by its number, its path or its file's name. Raises OutputError for none or several."""
        found = list(self.rows("image = ? OR image LIKE ? ESCAPE '\\' OR CAST(id AS TEXT) = ?", name, _ending(name), name))
        if len(found) != 1:
            said = f"{len(found)} images are named so: give the number of one" if found else "there is no such image"
            raise OutputError(f"{self.folder}, {name!r}: {said}")
        return found[0]

    def folder_of(self, number: int) -> Path:
        """Where the files of one explanation lie."""
        return folder_of(self.folder, number)

    def load(self, number: int) -> Explanation:
        """One explanation, whole."""
        return Explanation.load(self.folder_of(number))

    def boxes_of(self, row: Row) -> list[Box]:
        """The truth boxes of the labelled object, where there are any."""
        return choose_boxes(json.loads(row["boxes"]), row["label"], self.categories) if row["boxes"] else []

    def load_visible(self, number: int) -> tuple[Visible, Frame]:
        """The explained set of one image and the way back to its original, without reading the rest."""
        folder = self.folder_of(number)
        try:
            with np.load(folder / "arrays.npz", allow_pickle=False) as arrays:
                visible: Visible = arrays["visible"]
            record = json.loads((folder / "explanation.json").read_text(encoding="utf-8"))
            return visible, Frame.from_record(record["frame"])
        except (OSError, ValueError, KeyError, BadZipFile) as error:
            raise OutputError(f"{folder} holds no readable explanation: {type(error).__name__}: {error}") from None

    def changes(self, other: "Run") -> list[str]:
        """What differs between this run's settings and model and another's, in words."""
        left, right = self.settings | self.facts, other.settings | other.facts
        return [change for change in list_changes(left, right) if not change.startswith("started in")]


def _ending(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"%/{escaped}"
