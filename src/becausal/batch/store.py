"""The run folder: a SQLite index with one row per image, and a folder of files per explanation.

    RUN/index.sqlite                     the tables `run` (name, value) and `images`; write-ahead log
    RUN/run.json                         a copy of the table `run`, from which a lost index can be rebuilt
    RUN/explanations/012/012345/         explanation.json and arrays.npz of image 12,345; in runs of all boxes
                                         a folder for each box, box-1, box-2, …
    RUN/unfinished/                      files that are being written
    RUN/lock                             held by the driver

A result is written to `unfinished`, synced to disk and renamed; only then is its row set to done. All boxes of an image
are written, and renamed, together. Whenever the process dies, a row that is done has its files. A folder without such a row
is removed at the next start, and its image is explained again. Where there are more of these than a crash can leave, the
index is not the one of the folder, and nothing is removed.
"""

import os
import shutil
import sqlite3
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from becausal.api.origins import hash_file
from becausal.batch.index import (
    BOX_FOLDER,
    INDEX,
    NO_LIMIT,
    add_tables,
    as_output_error,
    count_images,
    create_tables,
    find_result_folders,
    folder_of,
    parse_boxes,
    parse_size,
    read_header,
    write_rows,
    write_stamps,
)
from becausal.batch.inputs import Inputs
from becausal.batch.opening import FolderLock, check_links, connect
from becausal.batch.rebuild import COPY, REJECTED, check_same_run, make_header, now, rebuild_index, write_copy
from becausal.batch.records import BatchTask, InputItem, TaskDone, TaskFailed, WorkerReady
from becausal.batch.rows import count_reasons, stamp_of
from becausal.batch.settings import DIRECTORY, list_changes, rows_per_image, to_json
from becausal.core.errors import InputError, OutputError
from becausal.core.files import path_inside

PAGE = 512  # rows per query
MAX_ORPHANS = 20  # folders without a row that are removed; a crash leaves one, a power failure a few


class BatchStore:
    """The only writer of a run folder.

    messages: what the user should know about the start, one line each. notes: what the model had to assume.
    """

    def __init__(self, run: Path, inputs: Inputs, settings: Mapping[str, Any], *, rebuild: bool = False) -> None:
        """Start a run, or resume one that was started with the same settings (see `settings_of`) and images.

        rebuild: make a new index from the explanations in the folder. Raises OutputError if the folder cannot be written,
        holds other files, has lost its index or is in use; InputError if settings or images differ from those of the
        first start.
        """
        self.run = run
        self.messages: list[str] = []
        self.notes: list[str] = []
        self._folder = str(settings[DIRECTORY] or Path.cwd())
        self._per_image = rows_per_image(settings)
        self._started: set[int] = set()
        with as_output_error(run):
            run.mkdir(parents=True, exist_ok=True)
            is_run = any((run / name).exists() for name in ("lock", INDEX, "run.json", "explanations"))
            if not is_run and any(not path.name.startswith(".") for path in run.iterdir()):
                raise OutputError(f"{run} holds other files and is not a run folder: choose a new one")
            check_links(run, "lock", COPY, REJECTED, "unfinished", "explanations", "explanations/*")
        self._lock = FolderLock(run)
        try:
            with as_output_error(run):
                if rebuild:
                    self.messages.append(rebuild_index(run, inputs, settings, self._folder))
                self._index = connect(run / INDEX)
        except BaseException:
            self._lock.release()
            raise
        try:
            with as_output_error(run):
                self._open(inputs, settings)
        except BaseException:
            self.close()
            raise

    def check_model(self, ready: WorkerReady) -> None:
        """Store the facts of the first model that is loaded, and refuse a model with other facts. Raises InputError."""
        with as_output_error(self.run):
            header = read_header(self._index, self.run)
            known = header["model_facts"]
            before = known or header["expected_facts"]
            if changes := list_changes(before, ready.facts if known else {name: ready.facts.get(name) for name in before}):
                raise InputError(f"this is not the model that {self.run} was started with: {'; '.join(changes)}")
            if not known:
                self._set("model_facts", ready.facts)
        self._add_notes(ready.notes)

    def tasks(self, state: str, *, limit: int | None = None, without: Collection[int] = ()) -> Iterator[BatchTask]:
        """The images in a state, by number, read page by page; each at most once, even if states change meanwhile.

        limit: only among the first `limit` images of the run. without: numbers that are left out.
        """
        last, end, per_image = -1, self._end(limit), self._per_image
        query = (
            "SELECT id / ?, image, boxes, box_size FROM images WHERE state = ? AND id > ? AND id < ? GROUP BY id / ? "
            "ORDER BY id LIMIT ?"
        )
        while page := self._fetch(query, per_image, state, last, end, per_image, PAGE):
            for number, image, boxes, size in page:
                if number not in without:
                    yield self._task(number, image, boxes, size)
            last = (page[-1][0] + 1) * per_image - 1

    def task(self, number: int) -> BatchTask:
        """One image by its number."""
        query = "SELECT image, boxes, box_size FROM images WHERE id >= ? AND id < ? LIMIT 1"
        return self._task(number, *self._fetch(query, *self._ids(number))[0])

    def start(self, number: int) -> None:
        """Note that an image is being explained in this process. If the process dies, it is a suspect from then on."""
        with as_output_error(self.run):
            if self._index.execute("INSERT OR IGNORE INTO in_progress VALUES (?)", (number,)).rowcount:
                self._started.add(number)

    def suspects(self, state: str, *, limit: int | None = None) -> list[int]:
        """The images in a state that were in progress when a process died, and have not been explained since."""
        query = (
            "SELECT DISTINCT id / ? AS number FROM images WHERE state = ? AND id < ? "
            "AND number IN (SELECT id FROM in_progress) ORDER BY number"
        )
        found = self._fetch(query, self._per_image, state, self._end(limit))
        return [row[0] for row in found if row[0] not in self._started]

    def write(self, done: TaskDone) -> None:
        """Write the files of an explanation, for `save`; another thread may do it. Raises OutputError."""
        unfinished = self._unfinished_folder(done)
        with as_output_error(self.run):
            try:
                for result in done.results:
                    place = unfinished if self._per_image == 1 else unfinished / f"{BOX_FOLDER}{result.row['box']}"
                    place.mkdir(parents=True)
                    for name, content in result.files.items():
                        _write_synced(place / name, content)
            except OSError:
                shutil.rmtree(unfinished, ignore_errors=True)
                raise

    def save(self, done: TaskDone) -> None:
        """Store an explanation whose files are written. Raises OutputError; then nothing of it is stored."""
        unfinished = self._unfinished_folder(done)
        query = "SELECT max(state), max(tries) FROM images WHERE id >= ? AND id < ?"
        with as_output_error(self.run):
            state, tries = self._index.execute(query, self._ids(done.id)).fetchone()
            if state == "done":
                shutil.rmtree(unfinished, ignore_errors=True)
                return
            rows = [
                result.row
                | {"state": "done" if result.error is None else "failed", "error": result.error}
                | {"tries": tries + 1, "finished": now()}
                for result in done.results
            ]
            folder = self._folder_of(done.id)
            try:
                folder.parent.mkdir(parents=True, exist_ok=True)
                shutil.rmtree(folder, ignore_errors=True)  # of an earlier try, in which some boxes failed
                unfinished.rename(folder)
                if done.stamp is not None:  # before the row: a stamp without a row decides nothing
                    write_stamps(self._index, [(done.id, done.stamp)])
                write_rows(self._index, done.id, self._per_image, rows)
            except (OSError, sqlite3.Error):
                shutil.rmtree(unfinished, ignore_errors=True)
                shutil.rmtree(folder, ignore_errors=True)
                raise
            self._index.execute("DELETE FROM in_progress WHERE id = ?", (done.id,))
            self._started.discard(done.id)
        self._add_notes(done.notes)

    def _unfinished_folder(self, done: TaskDone) -> Path:
        return path_inside(self.run, "unfinished", f"{done.id:06d}")

    def _folder_of(self, number: int) -> Path:
        return path_inside(self.run, folder_of(Path(), number))

    def fail(self, failed: TaskFailed) -> None:
        """Store the reason why an image could not be explained."""
        with as_output_error(self.run):
            self._index.execute(
                "UPDATE images SET state = 'failed', error = ?, sha256 = ?, tries = tries + 1, finished = ? "
                "WHERE id >= ? AND id < ? AND state != 'done'",
                (failed.reason, failed.sha256, now(), *self._ids(failed.id)),
            )
            if failed.id in self._started:  # others were in progress when a process died, and stay suspects
                self._index.execute("DELETE FROM in_progress WHERE id = ?", (failed.id,))
                self._started.discard(failed.id)

    def set_limit(self, limit: int | None) -> None:
        """Store the limit of this start, for reports."""
        with as_output_error(self.run):
            self._set("limit", limit)

    def count(self, limit: int | None = None) -> dict[str, int]:
        """How many of the first `limit` images are waiting, done and failed."""
        with as_output_error(self.run):
            return count_images(self._index, self._per_image, limit)

    def count_boxes(self, limit: int | None = None) -> int | None:
        """The number of boxes explained in the first `limit` images; None where only one of each image is."""
        query = "SELECT count(*) FROM images WHERE state = 'done' AND id < ?"
        return None if self._per_image == 1 else int(self._fetch(query, self._end(limit))[0][0])

    def reasons(self, limit: int | None = None) -> list[tuple[str, int]]:
        """Why images failed, with counts, the most frequent first."""
        query = "SELECT error, image FROM images WHERE state = 'failed' AND id < ?"
        return count_reasons(self._fetch(query, self._end(limit)))

    def close(self) -> None:
        """Close the index and release the lock. Images that were started are no suspects: this process has not died."""
        with suppress(sqlite3.Error):  # they would only be explained in a process of their own at the next start
            self._index.executemany("DELETE FROM in_progress WHERE id = ?", [(number,) for number in self._started])
        try:
            self._index.close()
        finally:
            self._lock.release()

    def _open(self, inputs: Inputs, settings: Mapping[str, Any]) -> None:
        is_new = self._index.execute("PRAGMA user_version").fetchone()[0] == 0
        if is_new and next(find_result_folders(self.run), None) is not None:
            raise OutputError(
                f"{self.run} has explanations, but its {INDEX} is missing or empty: add --rebuild to make a new one from "
                "the explanations, or choose another folder"
            )
        self._index.execute("PRAGMA journal_mode = WAL")
        self._index.execute("PRAGMA synchronous = NORMAL")
        if is_new:
            create_tables(self._index, make_header(inputs, settings), inputs.items)
            write_copy(self.run, read_header(self._index, self.run))
        else:
            header = read_header(self._index, self.run)
            names = {str(row[0]) for row in self._index.execute("SELECT image FROM images")}
            check_same_run(self.run, header, inputs, settings, names)
            self.notes = list(header["notes"])
            add_tables(self._index)
        self._clean_up()
        self._find_changed_images()

    def _ids(self, number: int) -> tuple[int, int]:
        """The ids of an image's rows: the first, and the one behind the last."""
        return number * self._per_image, (number + 1) * self._per_image

    def _end(self, limit: int | None) -> int:
        """The id behind the rows of the first `limit` images."""
        return NO_LIMIT if limit is None else limit * self._per_image

    def _fetch(self, query: str, *values: Any) -> list[Any]:
        with as_output_error(self.run):
            return self._index.execute(query, values).fetchall()

    def _set(self, name: str, value: Any) -> None:
        """Store a value in the table `run`, and in its copy."""
        text = to_json(value)
        if self._index.execute("SELECT value FROM run WHERE name = ?", (name,)).fetchone() != (text,):
            self._index.execute("INSERT OR REPLACE INTO run VALUES (?, ?)", (name, text))
            write_copy(self.run, read_header(self._index, self.run))

    def _add_notes(self, notes: Collection[str]) -> None:
        if new := [note for note in notes if note not in self.notes]:
            self.notes += new
            with as_output_error(self.run):
                self._set("notes", self.notes)

    def _task(self, number: int, image: str, boxes: str | None, size: str | None) -> BatchTask:
        item = InputItem(image, parse_boxes(boxes, self.run), parse_size(size, self.run))
        return BatchTask(number, os.path.join(self._folder, image), item)

    def _clean_up(self) -> None:
        """Remove what a killed run left behind; images whose files are missing are waiting again."""
        shutil.rmtree(path_inside(self.run, "unfinished"), ignore_errors=True)
        query = "SELECT DISTINCT id / ? FROM images WHERE state = 'done'"
        done = {row[0] for row in self._index.execute(query, (self._per_image,))}
        present = {number for number, _ in find_result_folders(self.run)}
        orphans = present - done
        if len(orphans) > MAX_ORPHANS:
            raise OutputError(
                f"{self.run} has {len(orphans):,} explanations that its {INDEX} does not know; is it an old copy? Add "
                "--rebuild to make a new one from the explanations, or choose another folder"
            )
        for number in orphans:
            shutil.rmtree(self._folder_of(number))
        for number in done - present:
            self._reset(number)

    def _reset(self, number: int) -> None:
        """An image is waiting again."""
        write_rows(self._index, number, self._per_image, [{"state": "waiting"}])

    def _find_changed_images(self) -> None:
        """Compare the images that are done with their files; those that have been replaced are waiting again.

        A file with the stamp it had is taken as the same, any other is hashed. A missing file changes nothing.
        """
        query = (
            "SELECT images.id / ? AS number, image, sha256, bytes, mtime, ctime, inode FROM images "
            "LEFT JOIN image_stamps ON image_stamps.id = number WHERE state = 'done' GROUP BY number"
        )
        changed, stamps = [], []
        for number, image, digest, *known in self._index.execute(query, (self._per_image,)):
            path = os.path.join(self._folder, str(image))
            stamp = stamp_of(path)
            if stamp is None or stamp == tuple(known):
                continue
            found = hash_file(path)
            if found == digest:
                stamps.append((number, stamp))
            elif found is not None:
                changed.append((number, image))
        write_stamps(self._index, stamps)
        for number, _ in changed:
            self._reset(number)
            shutil.rmtree(self._folder_of(number))
        if changed:
            what = "image has" if len(changed) == 1 else "images have"
            self.messages.append(
                f"{len(changed):,} {what} changed since the last start (e.g. {changed[0][1]}): explained again"
            )


def _write_synced(path: Path, content: bytes) -> None:
    """Write a file and sync it to disk, so that a power failure cannot leave an empty file behind a row that is done."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
