"""The run folder: a SQLite index with one row per picture, and a folder of files per explanation.

    RUN/index.sqlite                     the tables `run` (name, value) and `images`; write-ahead log
    RUN/explanations/012/012345/         explanation.json and arrays.npz of picture 12,345
    RUN/unfinished/                      what is being written just now
    RUN/lock                             held by the driver at work

A result is written to `unfinished`, brought to disk, renamed into place, and only then is its row set to done. Whenever
the process dies, a row that says done has its files; what lies in place without such a row is removed at the next start
and made again.
"""

import json
import os
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from becausal.batch.inputs import Inputs
from becausal.batch.lock import FolderLock
from becausal.batch.records import Done, Failed, Hello, Item, Task
from becausal.core.errors import InputError, OutputError

INDEX = "index.sqlite"
VERSION = 1
SHARD = 1000  # explanations per folder: no folder grows beyond what file systems and people like
PAGE = 512

#: What a result fills in, in the order of the table.
RESULTS = {
    "sha256": "TEXT",  # of the picture's file
    "label": "TEXT",
    "label_id": "INTEGER",
    "confidence": "REAL",  # of the whole view; NULL for models that give labels only
    "size": "REAL",  # share of the view's pixels in the explanation
    "pixels": "INTEGER",
    "pieces": "INTEGER",
    "alone": "REAL",  # confidence when the explanation alone is shown
    "sufficient": "INTEGER",
    "necessary": "INTEGER",
    "minimal_grain": "INTEGER",
    "stopped_by": "TEXT",
    "calls": "INTEGER",
    "seconds": "REAL",
    "inside": "REAL",  # share of the explanation in the object's boxes
    "by_chance": "REAL",  # share of the view in the object's boxes
    "note": "TEXT",
}
COLUMNS = ("id", "image", "state", *RESULTS, "error", "tries", "truth", "boxes", "box_size", "finished")
_TABLES = f"""
CREATE TABLE run (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE images (
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
);
CREATE INDEX images_state ON images (state, id);
CREATE INDEX images_label ON images (label);
"""


def folder_of(run: Path, number: int) -> Path:
    """Where the files of one explanation lie."""
    return run / "explanations" / f"{number // SHARD:03d}" / f"{number:06d}"


class Store:
    """The one writer of a run folder."""

    def __init__(self, run: Path, inputs: Inputs, settings: Mapping[str, Any]) -> None:
        """Begin a run, or go on with one that was begun with the same settings and pictures.

        Raises OutputError if the folder cannot be written to, is someone else's or is in use; InputError if settings or
        pictures are not those the run was begun with.
        """
        self.run = run
        self._unfinished = run / "unfinished"
        with _explained(run):
            run.mkdir(parents=True, exist_ok=True)
            if not (run / "lock").exists() and not (run / INDEX).exists() and any(run.iterdir()):
                raise OutputError(f"{run} holds other files and is no run folder: choose a new one")
        self._lock = FolderLock(run)
        try:
            with _explained(run):
                self._index = sqlite3.connect(run / INDEX, isolation_level=None)
        except OutputError:
            self._lock.release()
            raise
        try:
            with _explained(run):
                self._open(inputs, settings)
        except BaseException:
            self.close()
            raise
        self._folder = str(settings["started in"] or Path.cwd())

    def agree(self, hello: Hello) -> None:
        """Note what the model says of itself, or refuse it where it is not the one the run was begun with."""
        with _explained(self.run):
            known = self._index.execute("SELECT value FROM run WHERE name = 'model_facts'").fetchone()
            if known is None:
                self._index.execute("INSERT INTO run VALUES ('model_facts', ?)", (_dump(hello.facts),))
                return
        changed = list_changes(json.loads(known[0]), hello.facts)
        if changed:
            raise InputError(f"this is not the model that {self.run} was begun with: {'; '.join(changed)}")

    def tasks(self, state: str, *, limit: int | None = None) -> Iterator[Task]:
        """The pictures in a state, by number, read page by page: each at most once, whatever changes meanwhile.

        limit: only the first so many pictures of the run.
        """
        last, end = -1, limit if limit is not None else 1 << 62
        query = "SELECT id, image, boxes, box_size FROM images WHERE state = ? AND id > ? AND id < ? ORDER BY id LIMIT ?"
        while page := self._index.execute(query, (state, last, end, PAGE)).fetchall():
            for number, image, boxes, size in page:
                yield self._task(number, image, boxes, size)
            last = page[-1][0]

    def task(self, number: int) -> Task:
        """One picture by its number."""
        query = "SELECT id, image, boxes, box_size FROM images WHERE id = ?"
        return self._task(*self._index.execute(query, (number,)).fetchone())

    def save(self, done: Done) -> None:
        """Keep an explanation: files first, then the row. Raises OutputError, with nothing half-kept."""
        place, made = folder_of(self.run, done.id), self._unfinished / f"{done.id:06d}"
        names = ", ".join(f"{name} = ?" for name in RESULTS)
        with _explained(self.run):
            if self._index.execute("SELECT state FROM images WHERE id = ?", (done.id,)).fetchone()[0] == "done":
                return
            try:
                made.mkdir(parents=True)
                for name, content in done.files.items():
                    _write(made / name, content)
                place.parent.mkdir(parents=True, exist_ok=True)
                made.rename(place)
                self._index.execute(
                    f"UPDATE images SET state = 'done', error = NULL, tries = tries + 1, finished = ?, {names} WHERE id = ?",
                    (_now(), *(done.row[name] for name in RESULTS), done.id),
                )
            except (OSError, sqlite3.DatabaseError):
                shutil.rmtree(made, ignore_errors=True)
                shutil.rmtree(place, ignore_errors=True)
                raise

    def fail(self, failed: Failed) -> None:
        """Note why a picture could not be explained."""
        with _explained(self.run):
            self._index.execute(
                "UPDATE images SET state = 'failed', error = ?, sha256 = ?, tries = tries + 1, finished = ? "
                "WHERE id = ? AND state != 'done'",
                (failed.reason, failed.sha256, _now(), failed.id),
            )

    def count(self, limit: int | None = None) -> dict[str, int]:
        """How many of the first `limit` pictures are waiting, done and failed."""
        counts = {"waiting": 0, "done": 0, "failed": 0}
        end = limit if limit is not None else 1 << 62
        query = "SELECT state, count(*) FROM images WHERE id < ? GROUP BY state"
        return counts | dict(self._index.execute(query, (end,)).fetchall())

    def reasons(self, limit: int | None = None) -> list[tuple[str, int]]:
        """Why pictures failed, and how many, the most frequent first."""
        end = limit if limit is not None else 1 << 62
        return count_reasons(
            self._index.execute("SELECT error, image FROM images WHERE state = 'failed' AND id < ?", (end,))
        )

    def close(self) -> None:
        """Fold the log into the index and let others in."""
        try:
            self._index.close()
        finally:
            self._lock.release()

    def _open(self, inputs: Inputs, settings: Mapping[str, Any]) -> None:
        self._index.execute("PRAGMA journal_mode = WAL")
        self._index.execute("PRAGMA synchronous = NORMAL")
        if self._index.execute("PRAGMA user_version").fetchone()[0] == 0:
            self._begin(inputs, settings)
        else:
            self._compare(inputs, settings)
        self._tidy()

    def _task(self, number: int, image: str, boxes: str | None, size: str | None) -> Task:
        item = Item(
            image,
            None if boxes is None else tuple((x, y, w, h, name) for x, y, w, h, name in json.loads(boxes)),
            None if size is None else (json.loads(size)[0], json.loads(size)[1]),
        )
        return Task(number, os.path.join(self._folder, image), item)

    def _begin(self, inputs: Inputs, settings: Mapping[str, Any]) -> None:
        """Tables, settings and pictures in one transaction: a run exists whole or not at all."""
        rows = (_as_row(number, item) for number, item in enumerate(inputs.items))
        self._index.execute("BEGIN IMMEDIATE")
        for statement in _TABLES.split(";"):
            self._index.execute(statement)
        about = {
            "settings": settings,
            "pictures": digest_of(inputs),
            "categories": sorted(inputs.categories),
            "begun": _now(),
        }
        self._index.executemany("INSERT INTO run VALUES (?, ?)", [(name, _dump(value)) for name, value in about.items()])
        self._index.executemany("INSERT INTO images (id, image, truth, boxes, box_size) VALUES (?, ?, ?, ?, ?)", rows)
        self._index.execute(f"PRAGMA user_version = {VERSION}")
        self._index.execute("COMMIT")

    def _compare(self, inputs: Inputs, settings: Mapping[str, Any]) -> None:
        about = read_about(self._index, self.run)
        changed = list_changes(about["settings"], json.loads(_dump(settings)))
        if about["pictures"] != digest_of(inputs):
            changed.append(self._say_other_pictures(inputs))
        if changed:
            raise InputError(
                f"{self.run} was begun with other options: {'; '.join(changed)}. Give the same, or another --out"
            )

    def _say_other_pictures(self, inputs: Inputs) -> str:
        before = {row[0] for row in self._index.execute("SELECT image FROM images")}
        now = {item.image for item in inputs.items}
        said = [
            f"{len(names):,} {word} (as {min(names)})"
            for word, names in (("new", now - before), ("gone", before - now))
            if names
        ]
        return f"the pictures: {' and '.join(said) or 'their order, their number or their boxes changed'}"

    def _tidy(self) -> None:
        """Remove what a killed run left half-made, and have rows whose files are gone done again."""
        shutil.rmtree(self._unfinished, ignore_errors=True)
        total = self._index.execute("SELECT count(*) FROM images").fetchone()[0]
        for start in range(0, total, SHARD):
            found = self._index.execute(
                "SELECT id FROM images WHERE state = 'done' AND id >= ? AND id < ?", (start, start + SHARD)
            )
            kept = {f"{row[0]:06d}": row[0] for row in found}
            place = folder_of(self.run, start).parent
            present = {entry.name for entry in os.scandir(place)} if place.is_dir() else set()
            for name in present - kept.keys():
                shutil.rmtree(place / name)
            gone = [(kept[name],) for name in kept.keys() - present]
            self._index.executemany("UPDATE images SET state = 'waiting' WHERE id = ?", gone)


def count_reasons(failed: Iterable[tuple[str, str]]) -> list[tuple[str, int]]:
    """Errors, each with its picture, counted without the pictures' names; the most frequent first."""
    counts = Counter(error.replace(os.path.basename(image), "the picture") for error, image in failed)
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))


def _as_row(number: int, item: Item) -> tuple[Any, ...]:
    names = None if item.boxes is None else ", ".join(sorted({box[4] for box in item.boxes}))
    boxes = None if item.boxes is None else _dump(item.boxes)
    return number, item.image, names, boxes, None if item.size is None else _dump(item.size)


def read_about(index: sqlite3.Connection, run: Path) -> dict[str, Any]:
    """What the run was begun with. Raises OutputError for an index of another version."""
    version = index.execute("PRAGMA user_version").fetchone()[0]
    if version != VERSION:
        raise OutputError(f"{run} has an index of version {version}; this version of becausal reads {VERSION}")
    return {name: json.loads(value) for name, value in index.execute("SELECT name, value FROM run")}


def digest_of(inputs: Inputs) -> str:
    """A hash of all pictures' names and boxes, in their order."""
    made = sha256()
    for item in inputs.items:
        made.update(_dump([item.image, item.boxes, item.size]).encode())
    made.update(_dump(sorted(inputs.categories)).encode())
    return made.hexdigest()


def list_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs between two sets of options, in words."""
    names = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    return [f"{name} was {_say(before.get(name))}, now {_say(now.get(name))}" for name in names]


def _say(value: Any) -> str:
    text = "not given" if value is None else value if isinstance(value, str) else _dump(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _write(path: Path, content: bytes) -> None:
    """Write a file and wait until it is on the disk, so that no power cut leaves an empty one behind a done row."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@contextmanager
def _explained(run: Path) -> Iterator[None]:
    """Whatever goes wrong on the disk becomes an OutputError of one line."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise OutputError(f"the index of {run} cannot be used: {error}") from error
    except OSError as error:
        raise OutputError(f"cannot write to {run}: {error.strerror or error}") from error
