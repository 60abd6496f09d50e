"""The index of a run: its tables, and what is accepted as a valid row or header.

An index may come from someone else, or be damaged. Everything that is read from it is checked here, once.
"""

import json
import math
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from becausal.batch.records import Box, InputItem, Stamp
from becausal.batch.settings import rows_per_image, to_json
from becausal.core.errors import OptionError, OutputError
from becausal.core.schema import check_depth, read_fields
from becausal.core.text import one_line

INDEX = "index.sqlite"
VERSION = 4
NO_LIMIT = 1 << 62
SHARD = 1000  # explanations per folder: keeps folders small enough for file systems and people
BOX_FOLDER = "box-"  # and its number: one box of an image
ERROR_FILE = "error.txt"  # in the folder of a box: why it could not be explained

#: The columns that a result fills in, in the order of the table.
RESULTS = {
    "sha256": "TEXT",  # of the image file
    "label": "TEXT",
    "label_id": "INTEGER",  # NULL where the model returns names
    "confidence": "REAL",  # on the whole view, of a detector the box's score; NULL for models that return labels only
    "box": "INTEGER",  # number of the explained box in its image, in runs of all boxes
    "box_left": "REAL",  # the explained box of a detector, in pixels of the original image
    "box_top": "REAL",
    "box_right": "REAL",
    "box_bottom": "REAL",
    "level": "TEXT",  # which level the explanation is: label, half, most, or a percentage
    "size": "REAL",  # share of the view's pixels in the explanation
    "label_size": "REAL",  # the same for the level that keeps the label alone; NULL where there is none
    "pixels": "INTEGER",
    "pieces": "INTEGER",
    "alone": "REAL",  # confidence when only the explanation is visible
    "sufficient": "INTEGER",
    "necessary": "INTEGER",
    "minimal_grain": "INTEGER",
    "stopped_by": "TEXT",
    "calls": "INTEGER",
    "seconds": "REAL",
    "inside": "REAL",  # share of the explanation in the object's boxes
    "by_chance": "REAL",  # share of the view in the object's boxes
    "note_code": "TEXT",  # why there is no comparison with boxes, see `rows.NoteCode`
    "note": "TEXT",  # the same for people
}
COLUMNS = ("id", "image", "state", *RESULTS, "error", "tries", "truth", "boxes", "box_size", "finished")
KINDS = dict.fromkeys(COLUMNS, "TEXT") | RESULTS | {"id": "INTEGER", "tries": "INTEGER"}
_NEEDED = {"done": ("label", "size", "calls", "seconds", "stopped_by"), "failed": ("error",), "waiting": ()}
_SHARES = ("size", "label_size", "inside", "by_chance")
_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "TEXT": ((str,), "text"),
    "INTEGER": ((int,), "a whole number"),
    "REAL": ((int, float), "a finite number"),
}
_TABLES = (
    "CREATE TABLE run (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    f"""CREATE TABLE images (
    id INTEGER PRIMARY KEY,
    image TEXT NOT NULL,
    state TEXT NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'done', 'failed')),
    {", ".join(f"{name} {kind}" for name, kind in RESULTS.items())},
    error TEXT,
    tries INTEGER NOT NULL DEFAULT 0,
    truth TEXT,
    boxes TEXT,
    box_size TEXT,
    finished TEXT
)""",
    "CREATE INDEX images_state ON images (state, id)",
    "CREATE INDEX images_label ON images (label)",
)
#: image_stamps: see `records.Stamp`; an older becausal had a table stamps, which is not used. in_progress: images that were
#: started in the driver itself; what is left there after a crash may have caused it.
_FURTHER_TABLES = (
    "CREATE TABLE IF NOT EXISTS image_stamps (id INTEGER PRIMARY KEY, bytes, mtime, ctime, inode)",
    "CREATE TABLE IF NOT EXISTS in_progress (id INTEGER PRIMARY KEY)",
)


def folder_of(run: Path, number: int, per_image: int = 1) -> Path:
    """The folder with the files of one explanation, by the id of its row. per_image: see `settings.rows_per_image`."""
    image, box = divmod(number, per_image)
    folder = run / "explanations" / f"{image // SHARD:03d}" / f"{image:06d}"
    return folder if per_image == 1 else folder / f"{BOX_FOLDER}{box + 1}"


def find_result_folders(run: Path) -> Iterator[tuple[int, Path]]:
    """The folders of all images that have explanations, with the images' numbers; other files and folders are skipped."""
    for shard in _list_numbered(run / "explanations"):
        for path in _list_numbered(shard):
            number = int(path.name)
            if path == folder_of(run, number):
                yield number, path


def _list_numbered(folder: Path) -> list[Path]:
    """The subfolders whose names are numbers, sorted; links are not followed."""
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        names = sorted(e.name for e in entries if e.name.isdecimal() and e.is_dir(follow_symlinks=False))
    return [folder / name for name in names]


def create_tables(index: sqlite3.Connection, header: Mapping[str, Any], items: Iterable[InputItem]) -> None:
    """Write tables, header and images in one transaction: the index is complete or absent."""
    per_image = rows_per_image(header["settings"])
    rows = (_as_row(number * per_image, item) for number, item in enumerate(items))
    index.execute("BEGIN IMMEDIATE")
    for statement in (*_TABLES, *_FURTHER_TABLES):
        index.execute(statement)
    index.executemany("INSERT INTO run VALUES (?, ?)", [(name, to_json(value)) for name, value in header.items()])
    index.executemany("INSERT INTO images (id, image, truth, boxes, box_size) VALUES (?, ?, ?, ?, ?)", rows)
    index.execute(f"PRAGMA user_version = {VERSION}")
    index.execute("COMMIT")


def write_stamps(index: sqlite3.Connection, stamps: Iterable[tuple[int, Stamp]]) -> None:
    """Store the stamps of images, by their numbers."""
    index.executemany("INSERT OR REPLACE INTO image_stamps VALUES (?, ?, ?, ?, ?)", ((n, *stamp) for n, stamp in stamps))


def add_tables(index: sqlite3.Connection) -> None:
    """Add the tables that an index of an older becausal does not have."""
    for statement in _FURTHER_TABLES:
        index.execute(statement)


def _as_row(number: int, item: InputItem) -> tuple[Any, ...]:
    names = None if item.boxes is None else ", ".join(sorted({box[4] for box in item.boxes}))
    boxes = None if item.boxes is None else to_json(item.boxes)
    return number, item.image, names, boxes, None if item.size is None else to_json(item.size)


def write_rows(index: sqlite3.Connection, image: int, per_image: int, rows: Sequence[Mapping[str, Any]]) -> None:
    """Put rows in the place of those of an image, in one transaction. Columns that a row does not have become NULL.

    rows: each with its `state`, and its `box` where an image has several rows. What the input says of the image is kept.
    """
    first = image * per_image
    given = ("image", "truth", "boxes", "box_size", "tries")
    where = "WHERE id >= ? AND id < ?"
    index.execute("SAVEPOINT rows")  # a transaction, or a part of the one that is open
    try:
        query = f"SELECT {', '.join(given)} FROM images {where} ORDER BY tries DESC LIMIT 1"
        known = dict(zip(given, index.execute(query, (first, first + per_image)).fetchone(), strict=True))
        index.execute(f"DELETE FROM images {where}", (first, first + per_image))
        for row in rows:
            number = first + (row["box"] - 1 if per_image > 1 and row.get("box") else 0)
            full = known | dict(row) | {"id": number}
            marks = ", ".join("?" for _ in COLUMNS)
            values = [full.get(name) for name in COLUMNS]
            index.execute(f"INSERT INTO images ({', '.join(COLUMNS)}) VALUES ({marks})", values)
        index.execute("RELEASE rows")
    except BaseException:
        index.execute("ROLLBACK TO rows")
        index.execute("RELEASE rows")
        raise


def count_images(index: sqlite3.Connection, per_image: int, limit: int | None = None) -> dict[str, int]:
    """How many of the first `limit` images are waiting, done and failed; one has failed if one of its boxes has."""
    end = NO_LIMIT if limit is None else limit * per_image
    states = "SELECT max(state) AS state FROM images WHERE id < ? GROUP BY id / ?"  # done < failed < waiting
    found = index.execute(f"SELECT state, count(*) FROM ({states}) GROUP BY state", (end, per_image)).fetchall()
    return {"waiting": 0, "done": 0, "failed": 0} | {str(state): count for state, count in found}


def read_header(index: sqlite3.Connection, run: Path) -> dict[str, Any]:
    """The table `run`: what the run was started with. Raises OutputError for a damaged index or one of another version."""
    version = index.execute("PRAGMA user_version").fetchone()[0]
    if version != VERSION:
        raise OutputError(
            f"the index of {run} has version {version}, this becausal reads version {VERSION}: use the becausal that wrote "
            "it, or start a new run"
        )
    for name in ("run", "images"):  # a view or a virtual table could do anything, or never end
        found = index.execute("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ?", (name,)).fetchone()
        if found is None or not str(found[0]).startswith("CREATE TABLE "):
            raise _damaged(run, f"it has no table {name}")
    return check_header(dict(index.execute("SELECT name, value FROM run").fetchall()), run)


@dataclass(frozen=True, kw_only=True)
class _Header:
    """What the table `run` must hold, for `read_fields`."""

    settings: Mapping[str, Any]
    images_sha256: str
    categories: tuple[str, ...]
    started: str
    model_facts: Mapping[str, str | None] = field(default_factory=dict)
    expected_facts: Mapping[str, str | None] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    limit: int | None = None


@dataclass(frozen=True, kw_only=True)
class _Settings:
    model: str
    request: Mapping[str, Any]
    loading: Mapping[str, Any]
    becausal: str


@dataclass(frozen=True, kw_only=True)
class _Request:
    method: str
    seed: int


def check_header(texts: Mapping[str, Any], run: Path) -> dict[str, Any]:
    """The values of a header, parsed from JSON and checked. Raises OutputError that names the field."""
    values = {str(name): parse_json(value, run, str(name)) for name, value in texts.items()}
    try:
        header = dict(vars(_Header(**read_fields(_Header, values, ignore_others=True))))
        settings = read_fields(_Settings, header["settings"], "settings", ignore_others=True)
        read_fields(_Request, settings["request"], "settings.request", ignore_others=True)
    except OptionError as error:
        raise _damaged(run, str(error)) from None
    return header


def check_row(row: dict[str, Any], run: Path) -> dict[str, Any]:
    """The row, if the types and values of all its columns are valid. Raises OutputError that names the column."""
    number, state = row["id"], row["state"]
    for name, kind in KINDS.items():
        value = row[name]
        types, expected = _TYPES[kind]
        if value is None and name not in ("id", "image", "state", "tries", *_NEEDED.get(str(state), ())):
            continue
        is_valid = isinstance(value, types) and (not isinstance(value, float) or math.isfinite(value))
        if not is_valid or (name in _SHARES and not 0 <= value <= 1):
            expected = "a share from 0 to 1" if name in _SHARES else expected
            raise _damaged(run, f"{name} of image {number} is {one_line(repr(value), 40)}; expected {expected}")
    if state not in _NEEDED or number < 0:
        raise _damaged(run, f"image {number} has the state {one_line(repr(state), 40)}")
    return row


def parse_boxes(text: str | None, run: Path) -> tuple[Box, ...] | None:
    """The boxes of a row. Raises OutputError if they are not [left, top, width, height, category] with finite numbers."""
    if text is None:
        return None
    boxes = parse_json(text, run, "boxes")
    try:
        parsed = tuple((float(x), float(y), float(w), float(h), str(name)) for x, y, w, h, name in boxes)
    except (TypeError, ValueError, OverflowError):
        raise _damaged(run, "boxes are not [left, top, width, height, category]") from None
    return parsed


def parse_size(text: str | None, run: Path) -> tuple[int, int] | None:
    """(width, height) of a row's boxes. Raises OutputError if it is not two whole numbers."""
    if text is None:
        return None
    size = parse_json(text, run, "box_size")
    if not isinstance(size, list) or len(size) != 2 or not all(type(side) is int for side in size):
        raise _damaged(run, "box_size is not [width, height]")
    return size[0], size[1]


def parse_json(text: Any, run: Path, name: str) -> Any:
    """A value that the index holds as JSON. Raises OutputError for anything but JSON with finite numbers."""

    def finite(number: str) -> float:
        value = float(number)
        if not math.isfinite(value):
            raise ValueError(f"{number} is not a finite number")
        return value

    try:
        value = json.loads(text, parse_constant=finite, parse_float=finite)
        check_depth({name: value})
    except (ValueError, TypeError, RecursionError, OptionError) as error:
        raise _damaged(run, f"{name} is not valid JSON: {one_line(error, 100)}") from None
    return value


def _damaged(run: Path, what: str) -> OutputError:
    return OutputError(f"the index of {run} is damaged: {what}")


@contextmanager
def as_output_error(run: Path) -> Iterator[None]:
    """Turn errors of the disk and of the index into an OutputError of one line."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter where SQLite quotes a damaged name
        is_broken = getattr(error, "sqlite_errorcode", None) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, None)
        hint = "; becausal batch --rebuild makes a new one from the explanations" if is_broken else ""
        raise OutputError(f"the index of {run} cannot be used: {one_line(error, 200)}{hint}") from error
    except OSError as error:
        raise OutputError(f"cannot write to {run}: {error.strerror or error}") from error
