"""The index of a run, an SQLite database: its tables, how it is opened, and what is accepted as a valid row or header.

An index may come from someone else, or be damaged. Everything that is read from it is checked here, once.
"""

import json
import math
import os
import sqlite3
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from becausal.batch.inputs import Box, InputItem, compare_with_boxes
from becausal.batch.settings import rows_per_image, to_json
from becausal.core import boxes as core_boxes
from becausal.core.checks import Checks
from becausal.core.contracts import name_id
from becausal.core.errors import DamagedIndexError, OptionError, OutputError
from becausal.core.explanation import ExplanationRecord
from becausal.core.files import path_inside
from becausal.core.schema import check_depth, read_value
from becausal.core.text import one_line, replace_surrogates

INDEX = "index.sqlite"
VERSION = 6
NO_LIMIT = 1 << 62
NO_SIGN = 2**63 - 1  # SQLite has no larger numbers
MAX_LENGTH = 1 << 26  # bytes of a value
SHARD = 1000  # explanations per folder: keeps folders small enough for file systems and people
BOX_FOLDER = "box-"  # and its number: one box of an image
ERROR_FILE = "error.txt"  # in the folder of a box: why it could not be explained
CORNERS = ("box_left", "box_top", "box_right", "box_bottom")

IndexRow = dict[str, Any]
Stamp = tuple[int, int, int, int]  # of an image file when it was read: bytes, times of modification and change in ns, inode

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
    "level": "TEXT",  # which set the explanation is: enough, core, label, or a percentage
    "size": "REAL",  # share of the view's pixels in the explanation
    "core_size": "REAL",  # the same for the set inside it; NULL where there is none
    "backgrounds": "REAL",  # share of fresh random backgrounds on which the explanation keeps the label, and its interval
    "backgrounds_low": "REAL",
    "backgrounds_high": "REAL",
    "core_backgrounds": "REAL",  # the same for the set inside it
    "core_backgrounds_low": "REAL",
    "core_backgrounds_high": "REAL",
    "pixels": "INTEGER",
    "pieces": "INTEGER",
    "alone": "REAL",  # confidence when only the explanation is visible
    "against_size": "REAL",  # share of the view that speaks against the label; NULL where nothing was found, or nobody asked
    "against_gain": "REAL",  # by how much the confidence rises with it masked
    "sufficient": "INTEGER",
    "necessary": "INTEGER",
    "minimal_grain": "INTEGER",
    "stopped_by": "TEXT",
    "calls": "INTEGER",
    "seconds": "REAL",
    "inside": "REAL",  # share of the explanation in the object's boxes
    "by_chance": "REAL",  # share of the view in the object's boxes
    "note_code": "TEXT",  # why there is no comparison with boxes, see `inputs.NoteCode`
    "note": "TEXT",  # the same for people
}
COLUMNS = ("id", "image", "state", *RESULTS, "error", "tries", "truth", "boxes", "box_size", "finished")
KINDS = dict.fromkeys(COLUMNS, "TEXT") | RESULTS | {"id": "INTEGER", "tries": "INTEGER"}
_NEEDED = {"done": ("label", "size", "calls", "seconds", "stopped_by"), "failed": ("error",), "waiting": ()}
_SHARES = {"size", "core_size", "against_size", "inside", "by_chance", *(name for name in RESULTS if "backgrounds" in name)}
_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "TEXT": ((str,), "text"),
    "INTEGER": ((int,), "a whole number"),
    "REAL": ((int, float), "a finite number"),
}
#: What the table `run` must hold, and the settings and the request in it; values where an older becausal wrote none.
_HEADER = {
    "settings": Mapping[str, Any],
    "images_sha256": str,
    "categories": tuple[str, ...],
    "started": str,
    "model_facts": Mapping[str, str | None],
    "expected_facts": Mapping[str, str | None],
    "notes": tuple[str, ...],
    "limit": int | None,
}
_DEFAULTS: dict[str, Any] = {"model_facts": {}, "expected_facts": {}, "notes": (), "limit": None}
_SETTINGS = {"model": str, "request": Mapping[str, Any], "loading": Mapping[str, Any], "becausal": str}
_REQUEST = {"method": str, "seed": int}
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
#: Tables that an index of an older becausal may not have. image_stamps: see `Stamp`; an older becausal had a table stamps,
#: which is not used. in_progress: images that were started in the driver itself; what is left there after a crash may have
#: caused it.
FURTHER_TABLES = (
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

    def list_numbered(folder: Path) -> list[Path]:
        if not folder.is_dir():
            return []
        with os.scandir(folder) as entries:  # links are not followed
            return sorted(folder / e.name for e in entries if e.name.isdecimal() and e.is_dir(follow_symlinks=False))

    for shard in list_numbered(run / "explanations"):
        for path in list_numbered(shard):
            if path == folder_of(run, int(path.name)):
                yield int(path.name), path


def check_links(run: Path, *names: str) -> None:
    """Refuse links in the place of the index and its journals, which SQLite would follow, and in that of other files.

    names: of these files, or patterns. Raises OutputError.
    """
    for name in (f"{INDEX}*", *names):
        for found in run.glob(name) if "*" in name else [run / name]:  # glob leaves out a link to nothing without a *
            path_inside(run, found.relative_to(run))


class Index:
    """An open index, which is made if it does not exist; errors of SQLite become OutputErrors.

    per_image: how many rows an image may have, known from the header. See `settings.rows_per_image`.
    """

    def __init__(self, run: Path, target: Path | str | None = None) -> None:
        """target: a path, or a URI of SQLite; by default that of the run."""
        self.run, self.per_image = run, 1
        with as_output_error(run):
            self.connection = sqlite3.connect(target or run / INDEX, isolation_level=None, uri=isinstance(target, str))
            self.connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_LENGTH)
            self.connection.execute("PRAGMA trusted_schema = OFF")  # an index from someone else must not run functions
        self.close = self.connection.close

    def execute(self, query: str, *values: Any) -> sqlite3.Cursor:
        with as_output_error(self.run):
            return self.connection.execute(query, values)

    def fetch(self, query: str, *values: Any) -> list[Any]:
        with as_output_error(self.run):
            return self.connection.execute(query, values).fetchall()

    def ids(self, number: int) -> tuple[int, int]:
        """The ids of an image's rows: the first, and the one behind the last."""
        return number * self.per_image, (number + 1) * self.per_image

    def end(self, limit: int | None) -> int:
        """The id behind the rows of the first `limit` images."""
        return NO_LIMIT if limit is None else limit * self.per_image

    def create(self, header: Mapping[str, Any], items: Iterable[InputItem]) -> None:
        """Write tables, header and images in one transaction: the index is complete or absent."""
        self.per_image = rows_per_image(header["settings"])
        rows = (
            (
                number * self.per_image,
                item.image,
                None if item.boxes is None else ", ".join(sorted({box[4] for box in item.boxes})),
                None if item.boxes is None else to_json(item.boxes),
                None if item.size is None else to_json(item.size),
            )
            for number, item in enumerate(items)
        )
        with as_output_error(self.run):
            self.connection.execute("BEGIN IMMEDIATE")
            for statement in (*_TABLES, *FURTHER_TABLES):
                self.connection.execute(statement)
            values = [(name, to_json(value)) for name, value in header.items()]
            self.connection.executemany("INSERT INTO run VALUES (?, ?)", values)
            self.connection.executemany(
                "INSERT INTO images (id, image, truth, boxes, box_size) VALUES (?, ?, ?, ?, ?)", rows
            )
            self.connection.execute(f"PRAGMA user_version = {VERSION}")
            self.connection.execute("COMMIT")

    def write_stamps(self, stamps: Iterable[tuple[int, Stamp]]) -> None:
        """Store the stamps of images, by their numbers."""
        for number, stamp in stamps:
            self.execute("INSERT OR REPLACE INTO image_stamps VALUES (?, ?, ?, ?, ?)", number, *stamp)

    def write_rows(self, image: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Put rows in the place of those of an image, in one transaction. Columns that a row does not have become NULL.

        rows: each with its `state`, and its `box` where an image has several rows. What the input says of the image is kept.
        """
        ids = self.ids(image)
        given = ("image", "truth", "boxes", "box_size", "tries")
        where = "WHERE id >= ? AND id < ?"
        self.execute("SAVEPOINT rows")  # a transaction, or a part of the one that is open
        try:
            query = f"SELECT {', '.join(given)} FROM images {where} ORDER BY tries DESC LIMIT 1"
            known = dict(zip(given, self.fetch(query, *ids)[0], strict=True))
            self.execute(f"DELETE FROM images {where}", *ids)
            for row in rows:
                number = ids[0] + (row["box"] - 1 if self.per_image > 1 and row.get("box") else 0)
                full = known | dict(row) | {"id": number}
                marks = ", ".join("?" for _ in COLUMNS)
                values = [full.get(name) for name in COLUMNS]
                self.execute(f"INSERT INTO images ({', '.join(COLUMNS)}) VALUES ({marks})", *values)
            self.execute("RELEASE rows")
        except BaseException:
            self.execute("ROLLBACK TO rows")
            self.execute("RELEASE rows")
            raise

    def count(self, limit: int | None = None) -> dict[str, int]:
        """How many of the first `limit` images are waiting, done and failed; one has failed if one of its boxes has."""
        states = "SELECT max(state) AS state FROM images WHERE id < ? GROUP BY id / ?"  # done < failed < waiting
        found = self.fetch(f"SELECT state, count(*) FROM ({states}) GROUP BY state", self.end(limit), self.per_image)
        return {"waiting": 0, "done": 0, "failed": 0} | {str(state): count for state, count in found}

    def read_header(self) -> dict[str, Any]:
        """The table `run`: what the run was started with. Raises OutputError if it is damaged or of another version."""
        version = self.fetch("PRAGMA user_version")[0][0]
        if version != VERSION:
            raise OutputError(
                f"the index of {self.run} has version {version}, this becausal reads version {VERSION}: use the becausal "
                "that wrote it, or start a new run"
            )
        for name in ("run", "images"):  # a view or a virtual table could do anything, or never end
            found = self.fetch("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ?", name)
            if not found or not str(found[0][0]).startswith("CREATE TABLE "):
                raise _damaged(self.run, f"it has no table {name}")
        header = check_header(dict(self.fetch("SELECT name, value FROM run")), self.run)
        self.per_image = rows_per_image(header["settings"])
        return header


@dataclass(frozen=True)
class FailureReason:
    """Why images failed, image names left out; how many did, and the file name of the first one."""

    text: str
    count: int
    example: str

    def __str__(self) -> str:
        return f"{self.example}: {self.text}" if self.count == 1 else f"e.g. {self.example}: {self.text}"


def count_reasons(failed: Iterable[tuple[str, str]]) -> list[FailureReason]:
    """Count (error, image) pairs by error; the most frequent first."""
    names: dict[str, list[str]] = {}
    for error, image in failed:
        name = os.path.basename(image)
        text = error.replace(f"there is no file {name}", "the file does not exist").replace(name, "the file")
        names.setdefault(text, []).append(name)
    reasons = [FailureReason(text, len(images), images[0]) for text, images in names.items()]
    return sorted(reasons, key=lambda reason: (-reason.count, reason.text))


def make_row(
    explanation: ExplanationRecord, item: InputItem, categories: frozenset[str], box: int | None = None
) -> IndexRow:
    """The columns that a result fills in, see `RESULTS`.

    categories: of the ground truth, in lower case. box: number of the explained box, in runs of all boxes.
    """
    checks, summary, levels = explanation.checks, explanation.summary(), explanation.levels
    label = replace_surrogates(explanation.label)  # a record from elsewhere may hold anything
    boxes = compare_with_boxes(explanation.visible, explanation.frame, label, item, categories)
    return {
        "sha256": explanation.origin.image_sha256,
        "label": label,
        "label_id": label_id_of(explanation),
        "confidence": summary["confidence"],
        "box": box,
        **dict(zip(CORNERS, summary.get("box", [None] * 4), strict=True)),
        "level": explanation.level.name,
        "size": explanation.size,
        "core_size": levels[0].size if len(levels) > 1 else None,
        **_show_held("backgrounds", checks),
        **(_show_held("core_backgrounds", levels[0].checks) if len(levels) > 1 else {}),
        "alone": summary["explanation"]["confidence"],
        **{f"against_{name}": (summary["against"] or {}).get(name) for name in ("size", "gain")},
        **{name: getattr(checks, name) for name in ("sufficient", "necessary", "minimal_grain")},
        **{name: getattr(explanation, name) for name in ("pixels", "pieces", "stopped_by", "calls", "seconds")},
        **vars(boxes),
    }


def _show_held(name: str, checks: Checks) -> IndexRow:
    """The columns about how far a set holds: its share of backgrounds, with the interval; none if that was not measured."""
    held = checks.transfer
    return {name: held.share, f"{name}_low": held.low, f"{name}_high": held.high} if held is not None and held.asked else {}


def label_id_of(explanation: ExplanationRecord) -> int | None:
    """The id of the label; None where the model returns names, and only the name identifies the label."""
    ids = name_id(explanation.label), name_id(explanation.label, size=3)
    return None if explanation.label_id in ids else explanation.label_id


def corners_of(row: Mapping[str, Any]) -> core_boxes.Box | None:
    """The explained box of a row, (left, top, right, bottom) on the original image; None for a classifier."""
    left, top, right, bottom = corners = tuple(row[name] for name in CORNERS)
    return None if None in corners else (left, top, right, bottom)  # a damaged index may have some of them


def stamp_of(path: str) -> Stamp | None:
    """What tells a file from one that has taken its place; None if there is no regular file.

    Whoever writes a file can set its modification time, but not the time of its last change.
    """
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino & NO_SIGN


def check_header(texts: Mapping[str, Any], run: Path) -> dict[str, Any]:
    """The values of a header, parsed from JSON and checked. Raises OutputError that names the field."""

    def read(record: Mapping[str, Any], kinds: Mapping[str, Any], where: str) -> dict[str, Any]:
        """The values of a record that have a type, checked; others are left out."""
        if missing := [name for name in kinds if name not in record]:
            raise OptionError(f"{where}{missing[0]} is missing")
        return {name: read_value(record[name], kind, f"{where}{name}") for name, kind in kinds.items()}

    header = dict(_DEFAULTS) | {str(name): parse_json(value, run, str(name)) for name, value in texts.items()}
    try:
        header = read(header, _HEADER, "")
        settings = read(header["settings"], _SETTINGS, "settings.")
        read(settings["request"], _REQUEST, "settings.request.")
    except OptionError as error:
        raise _damaged(run, str(error)) from None
    return header


def check_row(row: IndexRow, run: Path) -> IndexRow:
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
    try:
        boxes = [] if text is None else parse_json(text, run, "boxes")
        parsed = tuple((float(x), float(y), float(w), float(h), str(name)) for x, y, w, h, name in boxes)
    except (TypeError, ValueError, OverflowError):
        raise _damaged(run, "boxes are not [left, top, width, height, category]") from None
    return None if text is None else parsed


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


def _damaged(run: Path, what: str) -> DamagedIndexError:
    return DamagedIndexError(f"the index of {run} is damaged: {what}")


@contextmanager
def as_output_error(run: Path) -> Iterator[None]:
    """Turn errors of the disk and of the index into an OutputError of one line."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter where SQLite quotes a damaged name
        message = f"the index of {run} cannot be used: {one_line(error, 200)}"
        if getattr(error, "sqlite_errorcode", None) not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, None):
            raise OutputError(message) from error  # a full disk, a lock of another program: it is no reason to replace it
        raise DamagedIndexError(
            f"{message}; becausal batch makes it again from the explanations of the run; if there are none, remove {INDEX}"
        ) from error
    except OSError as error:
        raise OutputError(f"cannot write to {run}: {error.strerror or error}") from error
