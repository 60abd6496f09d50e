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
index is not the one of the folder: like an index that is lost or damaged, it is made again from the explanations.
"""

import os
import re
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from becausal.api.origins import hash_file
from becausal.batch.index import (
    BOX_FOLDER,
    FURTHER_TABLES,
    INDEX,
    FailureReason,
    Index,
    as_output_error,
    check_links,
    count_reasons,
    find_result_folders,
    folder_of,
    parse_boxes,
    parse_size,
    stamp_of,
)
from becausal.batch.inputs import InputItem, Inputs
from becausal.batch.rebuild import COPY, REJECTED, rebuild_index, write_copy
from becausal.batch.settings import DIRECTORY, check_same_run, format_time, list_changes, make_header, to_json
from becausal.batch.work import BatchTask, TaskDone, TaskFailed, WorkerReady
from becausal.core.errors import DamagedIndexError, InputError, OutputError
from becausal.core.files import open_inside, path_inside

PAGE = 512  # rows per query
MAX_ORPHANS = 20  # folders without a row that are removed; a crash leaves one, a power failure a few


class BatchStore:
    """The only writer of a run folder.

    messages: what the user should know about the start, one line each. notes: what the model had to assume.
    """

    def __init__(self, run: Path, inputs: Inputs, settings: Mapping[str, Any]) -> None:
        """Start a run, or resume one that was started with the same settings (see `settings_of`) and images.

        Raises OutputError if the folder cannot be written, holds other files, or is in use; InputError if settings or
        images differ from those of the first start.
        """
        self.run = run
        self.messages: list[str] = []
        self.notes: list[str] = []
        self._folder = str(settings[DIRECTORY] or Path.cwd())
        self._started: set[int] = set()
        with as_output_error(run):
            run.mkdir(parents=True, exist_ok=True)
            is_run = any((run / name).exists() for name in ("lock", INDEX, "run.json", "explanations"))
            if not is_run and any(not path.name.startswith(".") for path in run.iterdir()):
                raise OutputError(f"{run} holds other files and is not a run folder: choose a new one")
            check_links(run, "lock", COPY, REJECTED, "unfinished", "explanations", "explanations/*")
        with ExitStack() as stack:
            # The lock's file stays: removing it could let two processes hold a lock at once.
            stack.callback(os.close, lock_folder(run))
            self._index = Index(run)
            stack.callback(lambda: self._index.close())  # the one that is open then
            with as_output_error(run):
                try:
                    self._resume(inputs, settings)
                except DamagedIndexError:
                    if next(find_result_folders(run), None) is None:
                        raise  # there is nothing to make a new one from
                    self._index.close()
                    self.messages.append(rebuild_index(run, inputs, settings, self._folder))
                    self._index = Index(run)
                    self._resume(inputs, settings)
            self._close = stack.pop_all().close  # nothing was wrong: it stays open

    def _resume(self, inputs: Inputs, settings: Mapping[str, Any]) -> None:
        """Make the index, or compare it with this start; then clean up what a killed run left behind."""
        index = self._index
        is_new = index.fetch("PRAGMA user_version")[0][0] == 0
        if is_new and next(find_result_folders(self.run), None) is not None:
            raise DamagedIndexError(f"{self.run} has explanations, but its {INDEX} is missing or empty")
        index.execute("PRAGMA journal_mode = WAL")  # so that reports can be read while the run goes on
        index.execute("PRAGMA synchronous = NORMAL")  # a power failure may lose the last rows, and nothing is damaged
        if is_new:
            index.create(make_header(inputs, settings), inputs.items)
            write_copy(self.run, index.read_header())
        else:
            header = index.read_header()
            names = {str(row[0]) for row in index.execute("SELECT image FROM images")}
            check_same_run(self.run, header, inputs, settings, names)
            self.notes = list(header["notes"])
            for statement in FURTHER_TABLES:
                index.execute(statement)
        shutil.rmtree(path_inside(self.run, "unfinished"), ignore_errors=True)
        done = {row[0] for row in index.execute("SELECT DISTINCT id / ? FROM images WHERE state = 'done'", index.per_image)}
        present = {number for number, _ in find_result_folders(self.run)}
        orphans = present - done
        if len(orphans) > MAX_ORPHANS:
            raise DamagedIndexError(f"{self.run} has {len(orphans):,} explanations that its {INDEX} does not know")
        for number in orphans:
            shutil.rmtree(self._folder_of(number))
        for number in done - present:  # its files are missing
            index.write_rows(number, [{"state": "waiting"}])
        self._find_changed_images()

    def _find_changed_images(self) -> None:
        """Compare the images that are done with their files; those that have been replaced are waiting again.

        A file with the stamp it had is taken as the same, any other is hashed. A missing file changes nothing.
        """
        query = (
            "SELECT images.id / ? AS number, image, sha256, bytes, mtime, ctime, inode FROM images "
            "LEFT JOIN image_stamps ON image_stamps.id = number WHERE state = 'done' GROUP BY number"
        )
        changed, stamps = [], []
        for number, image, digest, *known in self._index.execute(query, self._index.per_image):
            path = os.path.join(self._folder, str(image))
            stamp = stamp_of(path)
            if stamp is None or stamp == tuple(known):
                continue
            found = hash_file(path)
            if found == digest:
                stamps.append((number, stamp))
            elif found is not None:
                changed.append((number, image))
        self._index.write_stamps(stamps)
        for number, _ in changed:
            self._index.write_rows(number, [{"state": "waiting"}])
            shutil.rmtree(self._folder_of(number))
        if changed:
            what = "image has" if len(changed) == 1 else "images have"
            self.messages.append(
                f"{len(changed):,} {what} changed since the last start (e.g. {changed[0][1]}): explained again"
            )

    def check_model(self, ready: WorkerReady) -> None:
        """Store the facts of the first model that is loaded, and refuse a model with other facts. Raises InputError."""
        header = self._index.read_header()
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
        last, end, per_image = -1, self._index.end(limit), self._index.per_image
        query = (
            "SELECT id / ?, image, boxes, box_size FROM images WHERE state = ? AND id > ? AND id < ? GROUP BY id / ? "
            "ORDER BY id LIMIT ?"
        )
        # Not one long query: it would keep SQLite from moving the log into the index until the run ends.
        while page := self._index.fetch(query, per_image, state, last, end, per_image, PAGE):
            for number, image, boxes, size in page:
                if number not in without:
                    yield self._task(number, image, boxes, size)
            last = (page[-1][0] + 1) * per_image - 1

    def task(self, number: int) -> BatchTask:
        """One image by its number."""
        query = "SELECT image, boxes, box_size FROM images WHERE id >= ? AND id < ? LIMIT 1"
        return self._task(number, *self._index.fetch(query, *self._index.ids(number))[0])

    def _task(self, number: int, image: str, boxes: str | None, size: str | None) -> BatchTask:
        item = InputItem(image, parse_boxes(boxes, self.run), parse_size(size, self.run))
        return BatchTask(number, os.path.join(self._folder, image), item)

    def start(self, number: int) -> None:
        """Note that an image is being explained in this process. If the process dies, it is a suspect from then on."""
        if self._index.execute("INSERT OR IGNORE INTO in_progress VALUES (?)", number).rowcount:
            self._started.add(number)

    def suspects(self, state: str, *, limit: int | None = None) -> list[int]:
        """The images in a state that were in progress when a process died, and have not been explained since."""
        query = (
            "SELECT DISTINCT id / ? AS number FROM images WHERE state = ? AND id < ? "
            "AND number IN (SELECT id FROM in_progress) ORDER BY number"
        )
        found = self._index.fetch(query, self._index.per_image, state, self._index.end(limit))
        return [row[0] for row in found if row[0] not in self._started]

    def write(self, done: TaskDone) -> None:
        """Write the files of an explanation, for `save`; another thread may do it. Raises OutputError."""
        unfinished = path_inside(self.run, "unfinished", f"{done.id:06d}")
        with as_output_error(self.run):
            try:
                for row, files in done.results:
                    place = unfinished if self._index.per_image == 1 else unfinished / f"{BOX_FOLDER}{row['box']}"
                    place.mkdir(parents=True)
                    for name, content in files.items():
                        _write_synced(place / name, content)
            except OSError:
                shutil.rmtree(unfinished, ignore_errors=True)
                raise

    def save(self, done: TaskDone) -> None:
        """Store an explanation whose files are written. Raises OutputError; then nothing of it is stored."""
        unfinished = path_inside(self.run, "unfinished", f"{done.id:06d}")
        query = "SELECT max(state), max(tries) FROM images WHERE id >= ? AND id < ?"
        with as_output_error(self.run):
            state, tries = self._index.fetch(query, *self._index.ids(done.id))[0]
            if state == "done":
                shutil.rmtree(unfinished, ignore_errors=True)
                return
            tried = {"tries": tries + 1, "finished": format_time(datetime.now(UTC))}
            rows = [row | tried | {"state": "done" if row.get("error") is None else "failed"} for row, _ in done.results]
            folder = self._folder_of(done.id)
            try:
                folder.parent.mkdir(parents=True, exist_ok=True)
                shutil.rmtree(folder, ignore_errors=True)  # of an earlier try, in which some boxes failed
                unfinished.rename(folder)
                if done.stamp is not None:  # before the row: a stamp without a row decides nothing
                    self._index.write_stamps([(done.id, done.stamp)])
                self._index.write_rows(done.id, rows)
            except (OSError, OutputError):  # a full disk: no folder is left without its row
                shutil.rmtree(unfinished, ignore_errors=True)
                shutil.rmtree(folder, ignore_errors=True)
                raise
            self._index.execute("DELETE FROM in_progress WHERE id = ?", done.id)
            self._started.discard(done.id)
        self._add_notes(done.notes)

    def fail(self, failed: TaskFailed) -> None:
        """Store the reason why an image could not be explained."""
        self._index.execute(
            "UPDATE images SET state = 'failed', error = ?, sha256 = ?, tries = tries + 1, finished = ? "
            "WHERE id >= ? AND id < ? AND state != 'done'",
            *(failed.reason, failed.sha256, format_time(datetime.now(UTC)), *self._index.ids(failed.id)),
        )
        if failed.id in self._started:  # others were in progress when a process died, and stay suspects
            self._index.execute("DELETE FROM in_progress WHERE id = ?", failed.id)
            self._started.discard(failed.id)

    def set_limit(self, limit: int | None) -> None:
        """Store the limit of this start, for reports."""
        self._set("limit", limit)

    def count(self, limit: int | None = None) -> dict[str, int]:
        """How many of the first `limit` images are waiting, done and failed."""
        return self._index.count(limit)

    def count_boxes(self) -> int | None:
        """The number of boxes that are explained; None where only one of each image is."""
        query = "SELECT count(*) FROM images WHERE state = 'done'"
        return None if self._index.per_image == 1 else int(self._index.fetch(query)[0][0])

    def reasons(self, limit: int | None = None) -> list[FailureReason]:
        """Why images failed, with counts, the most frequent first."""
        query = "SELECT error, image FROM images WHERE state = 'failed' AND id < ?"
        return count_reasons(self._index.fetch(query, self._index.end(limit)))

    def close(self) -> None:
        """Close the index and release the lock. Images that were started are no suspects: this process has not died."""
        with suppress(OutputError):  # they would only be explained in a process of their own at the next start
            for number in self._started:
                self._index.execute("DELETE FROM in_progress WHERE id = ?", number)
        self._close()

    def _folder_of(self, number: int) -> Path:
        return path_inside(self.run, folder_of(Path(), number))

    def _set(self, name: str, value: Any) -> None:
        """Store a value in the table `run`, and in its copy."""
        text = to_json(value)
        if self._index.fetch("SELECT value FROM run WHERE name = ?", name) != [(text,)]:
            self._index.execute("INSERT OR REPLACE INTO run VALUES (?, ?)", name, text)
            write_copy(self.run, self._index.read_header())

    def _add_notes(self, notes: Collection[str]) -> None:
        """Add notes; one that differs from an earlier one in numbers only, such as what was spent so far, replaces it."""
        kept = {re.sub(r"[\d.,]+", "", note): note for note in (*self.notes, *notes)}
        if list(kept.values()) != self.notes:
            self.notes = list(kept.values())
            self._set("notes", self.notes)


def _write_synced(path: Path, content: bytes) -> None:
    """Write a file and sync it to disk, so that a power failure cannot leave an empty file behind a row that is done."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def lock_folder(folder: Path) -> int:
    """Hold a folder's lock file until the descriptor is closed, or the process ends. Raises OutputError if it is held."""
    try:
        descriptor = open_inside(folder, "lock", os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise OutputError(f"cannot write to {folder}: {error.strerror or error}") from None
    try:
        _lock(descriptor)
    except OSError:
        holder = os.read(descriptor, 32).decode("ascii", "replace").strip()
        os.close(descriptor)
        owner = f"process {holder}" if holder else "another process"
        raise OutputError(f"{folder} is in use by {owner}: wait until it ends, or choose another folder") from None
    with suppress(OSError):  # on a full disk the process id is missing; the lock is held all the same
        os.ftruncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode("ascii"))
    return descriptor


if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        os.lseek(descriptor, 1 << 20, os.SEEK_SET)  # far behind the process id, which others may read
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        os.lseek(descriptor, 0, os.SEEK_SET)

else:
    import fcntl

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
