"""The run folder: a SQLite index with one row per image, and a folder of files per explanation.

    RUN/index.sqlite                     the tables `run` (name, value) and `images`; write-ahead log
    RUN/explanations/012/012345/         explanation.json and arrays.npz of image 12,345
    RUN/unfinished/                      files that are being written
    RUN/lock                             held by the driver

A result is written to `unfinished`, synced to disk and renamed; only then is its row set to done. Whenever the process
dies, a row that is done has its files. A folder without such a row is removed at the next start, and its image is
explained again.
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
from becausal.batch.records import BatchTask, InputItem, TaskDone, TaskFailed, WorkerReady
from becausal.batch.settings import DIRECTORY, by_option, list_changes, to_json
from becausal.core.errors import InputError, OutputError

INDEX = "index.sqlite"
VERSION = 2
SHARD = 1000  # explanations per folder: keeps folders small enough for file systems and people
PAGE = 512  # rows per query
NO_LIMIT = 1 << 62

#: The columns that a result fills in, in the order of the table.
RESULTS = {
    "sha256": "TEXT",  # of the image file
    "label": "TEXT",
    "label_id": "INTEGER",
    "confidence": "REAL",  # of the whole view; NULL for models that return labels only
    "size": "REAL",  # share of the view's pixels in the explanation
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
    "note_code": "TEXT",  # why there is no comparison with boxes, see `truth.NoteCode`
    "note": "TEXT",  # the same for people
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
    """The folder with the files of one explanation."""
    return run / "explanations" / f"{number // SHARD:03d}" / f"{number:06d}"


class BatchStore:
    """The only writer of a run folder."""

    def __init__(self, run: Path, inputs: Inputs, settings: Mapping[str, Any]) -> None:
        """Start a run, or resume one that was started with the same settings (see `settings_of`) and images.

        Raises OutputError if the folder cannot be written, holds other files or is in use; InputError if settings or
        images differ from those of the first start.
        """
        self.run = run
        self._unfinished = run / "unfinished"
        with _as_output_error(run):
            run.mkdir(parents=True, exist_ok=True)
            if not (run / "lock").exists() and not (run / INDEX).exists() and any(run.iterdir()):
                raise OutputError(f"{run} holds other files and is not a run folder: choose a new one")
        self._lock = FolderLock(run)
        try:
            with _as_output_error(run):
                self._index = sqlite3.connect(run / INDEX, isolation_level=None)
        except OutputError:
            self._lock.release()
            raise
        try:
            with _as_output_error(run):
                self._open(inputs, settings)
        except BaseException:
            self.close()
            raise
        self._folder = str(settings[DIRECTORY] or Path.cwd())

    def check_model(self, ready: WorkerReady) -> None:
        """Store the facts of the first model that is loaded, and refuse a model with other facts. Raises InputError."""
        with _as_output_error(self.run):
            known = self._index.execute("SELECT value FROM run WHERE name = 'model_facts'").fetchone()
            if known is None:
                self._index.execute("INSERT INTO run VALUES ('model_facts', ?)", (to_json(ready.facts),))
                return
        if changes := list_changes(json.loads(known[0]), ready.facts):
            raise InputError(f"this is not the model that {self.run} was started with: {'; '.join(changes)}")

    def tasks(self, state: str, *, limit: int | None = None) -> Iterator[BatchTask]:
        """The images in a state, by number, read page by page; each at most once, even if states change meanwhile.

        limit: only among the first `limit` images of the run.
        """
        last, end = -1, NO_LIMIT if limit is None else limit
        query = "SELECT id, image, boxes, box_size FROM images WHERE state = ? AND id > ? AND id < ? ORDER BY id LIMIT ?"
        while page := self._index.execute(query, (state, last, end, PAGE)).fetchall():
            for number, image, boxes, size in page:
                yield self._task(number, image, boxes, size)
            last = page[-1][0]

    def task(self, number: int) -> BatchTask:
        """One image by its number."""
        query = "SELECT id, image, boxes, box_size FROM images WHERE id = ?"
        return self._task(*self._index.execute(query, (number,)).fetchone())

    def save(self, done: TaskDone) -> None:
        """Store an explanation: files first, then the row. Raises OutputError; then nothing of it is stored."""
        folder, unfinished = folder_of(self.run, done.id), self._unfinished / f"{done.id:06d}"
        names = ", ".join(f"{name} = ?" for name in RESULTS)
        with _as_output_error(self.run):
            if self._index.execute("SELECT state FROM images WHERE id = ?", (done.id,)).fetchone()[0] == "done":
                return
            try:
                unfinished.mkdir(parents=True)
                for name, content in done.files.items():
                    _write_synced(unfinished / name, content)
                folder.parent.mkdir(parents=True, exist_ok=True)
                unfinished.rename(folder)
                self._index.execute(
                    f"UPDATE images SET state = 'done', error = NULL, tries = tries + 1, finished = ?, {names} WHERE id = ?",
                    (_now(), *(done.row[name] for name in RESULTS), done.id),
                )
            except (OSError, sqlite3.DatabaseError):
                shutil.rmtree(unfinished, ignore_errors=True)
                shutil.rmtree(folder, ignore_errors=True)
                raise

    def fail(self, failed: TaskFailed) -> None:
        """Store the reason why an image could not be explained."""
        with _as_output_error(self.run):
            self._index.execute(
                "UPDATE images SET state = 'failed', error = ?, sha256 = ?, tries = tries + 1, finished = ? "
                "WHERE id = ? AND state != 'done'",
                (failed.reason, failed.sha256, _now(), failed.id),
            )

    def count(self, limit: int | None = None) -> dict[str, int]:
        """How many of the first `limit` images are waiting, done and failed."""
        end = NO_LIMIT if limit is None else limit
        query = "SELECT state, count(*) FROM images WHERE id < ? GROUP BY state"
        return {"waiting": 0, "done": 0, "failed": 0} | dict(self._index.execute(query, (end,)).fetchall())

    def reasons(self, limit: int | None = None) -> list[tuple[str, int]]:
        """Why images failed, with counts, the most frequent first."""
        end = NO_LIMIT if limit is None else limit
        query = "SELECT error, image FROM images WHERE state = 'failed' AND id < ?"
        return count_reasons(self._index.execute(query, (end,)))

    def close(self) -> None:
        """Close the index and release the lock."""
        try:
            self._index.close()
        finally:
            self._lock.release()

    def _open(self, inputs: Inputs, settings: Mapping[str, Any]) -> None:
        self._index.execute("PRAGMA journal_mode = WAL")
        self._index.execute("PRAGMA synchronous = NORMAL")
        if self._index.execute("PRAGMA user_version").fetchone()[0] == 0:
            self._create(inputs, settings)
        else:
            self._compare(inputs, settings)
        self._clean_up()

    def _task(self, number: int, image: str, boxes: str | None, size: str | None) -> BatchTask:
        item = InputItem(
            image,
            None if boxes is None else tuple((x, y, w, h, name) for x, y, w, h, name in json.loads(boxes)),
            None if size is None else (json.loads(size)[0], json.loads(size)[1]),
        )
        return BatchTask(number, os.path.join(self._folder, image), item)

    def _create(self, inputs: Inputs, settings: Mapping[str, Any]) -> None:
        """Write tables, settings and images in one transaction: the index is complete or absent."""
        header = {
            "settings": settings,
            "images_sha256": digest_of(inputs),
            "categories": sorted(inputs.categories),
            "started": _now(),
        }
        rows = (_as_row(number, item) for number, item in enumerate(inputs.items))
        self._index.execute("BEGIN IMMEDIATE")
        for statement in _TABLES.split(";"):
            self._index.execute(statement)
        self._index.executemany("INSERT INTO run VALUES (?, ?)", [(name, to_json(value)) for name, value in header.items()])
        self._index.executemany("INSERT INTO images (id, image, truth, boxes, box_size) VALUES (?, ?, ?, ?, ?)", rows)
        self._index.execute(f"PRAGMA user_version = {VERSION}")
        self._index.execute("COMMIT")

    def _compare(self, inputs: Inputs, settings: Mapping[str, Any]) -> None:
        """Refuse to resume with other settings or images. Raises InputError."""
        header = read_header(self._index, self.run)
        changes = list_changes(by_option(header["settings"]), by_option(json.loads(to_json(settings))))
        if header["images_sha256"] != digest_of(inputs):
            changes.append(self._describe_other_images(inputs))
        if changes:
            raise InputError(
                f"{self.run} was started with other options: {'; '.join(changes)}. Use the same options, or another --out"
            )

    def _describe_other_images(self, inputs: Inputs) -> str:
        before = {row[0] for row in self._index.execute("SELECT image FROM images")}
        now = {item.image for item in inputs.items}
        differences = [
            f"{len(names):,} {kind} (e.g. {min(names)})"
            for kind, names in (("added", now - before), ("missing", before - now))
            if names
        ]
        return f"the images differ: {' and '.join(differences) or 'their order, number or boxes'}"

    def _clean_up(self) -> None:
        """Remove what a killed run left behind; images whose files are missing are waiting again."""
        shutil.rmtree(self._unfinished, ignore_errors=True)
        total = self._index.execute("SELECT count(*) FROM images").fetchone()[0]
        for start in range(0, total, SHARD):
            found = self._index.execute(
                "SELECT id FROM images WHERE state = 'done' AND id >= ? AND id < ?", (start, start + SHARD)
            )
            done = {f"{row[0]:06d}": row[0] for row in found}
            shard = folder_of(self.run, start).parent
            present = {entry.name for entry in os.scandir(shard)} if shard.is_dir() else set()
            for name in present - done.keys():
                shutil.rmtree(shard / name)
            missing = [(done[name],) for name in done.keys() - present]
            self._index.executemany("UPDATE images SET state = 'waiting' WHERE id = ?", missing)


def count_reasons(failed: Iterable[tuple[str, str]]) -> list[tuple[str, int]]:
    """Count (error, image) pairs by error, image names left out; the most frequent first."""
    counts = Counter(error.replace(os.path.basename(image), "the image") for error, image in failed)
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))


def read_header(index: sqlite3.Connection, run: Path) -> dict[str, Any]:
    """The table `run`: what the run was started with. Raises OutputError for an index of another version."""
    version = index.execute("PRAGMA user_version").fetchone()[0]
    if version != VERSION:
        raise OutputError(
            f"the index of {run} has version {version}, this becausal reads version {VERSION}: use the becausal that wrote "
            "it, or start a new run"
        )
    return {name: json.loads(value) for name, value in index.execute("SELECT name, value FROM run")}


def digest_of(inputs: Inputs) -> str:
    """A hash of the names and boxes of all images, in order."""
    digest = sha256()
    for item in inputs.items:
        digest.update(to_json([item.image, item.boxes, item.size]).encode())
    digest.update(to_json(sorted(inputs.categories)).encode())
    return digest.hexdigest()


def _as_row(number: int, item: InputItem) -> tuple[Any, ...]:
    names = None if item.boxes is None else ", ".join(sorted({box[4] for box in item.boxes}))
    boxes = None if item.boxes is None else to_json(item.boxes)
    return number, item.image, names, boxes, None if item.size is None else to_json(item.size)


def _write_synced(path: Path, content: bytes) -> None:
    """Write a file and sync it to disk, so that a power failure cannot leave an empty file behind a row that is done."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@contextmanager
def _as_output_error(run: Path) -> Iterator[None]:
    """Turn errors of the disk and of the index into an OutputError of one line."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise OutputError(f"the index of {run} cannot be used: {error}") from error
    except OSError as error:
        raise OutputError(f"cannot write to {run}: {error.strerror or error}") from error
