"""How the index of a run folder is opened: for writing, or for reading on any disk; never through links."""

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path

from becausal.batch.index import INDEX
from becausal.core.files import path_inside

MAX_LENGTH = 1 << 26  # bytes of a value


def check_links(run: Path, *names: str) -> None:
    """Refuse links in the place of the index and its journals, which SQLite would follow, and in that of other files.

    names: of these files, or patterns. Raises OutputError.
    """
    for name in (f"{INDEX}*", *names):
        for found in run.glob(name) if "*" in name else [run / name]:  # glob leaves out a link to nothing without a *
            path_inside(run, found.relative_to(run))


def connect(path: Path) -> sqlite3.Connection:
    """Open an index for writing; it is made if it does not exist. Raises OutputError for links, see `check_links`."""
    check_links(path.parent)
    return _restrict(sqlite3.connect(path, isolation_level=None))


def connect_reader(folder: Path) -> tuple[sqlite3.Connection, Callable[[], None]]:
    """Open the index of a run folder for reading; also returns a function that closes it.

    Where the folder cannot be written, SQLite cannot make the files that readers share with a writer. Nobody writes
    there, so the index is opened as immutable; if a crash left a write-ahead log, a copy is read.
    """
    path = folder / INDEX
    log = folder / f"{INDEX}-wal"
    if _is_writable(folder):  # not mode=ro, which would leave its files behind
        check_links(folder)
        index = _restrict(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True))
        index.execute("PRAGMA query_only = ON")
        return index, index.close
    if not log.is_file() or not log.stat().st_size:
        index = _restrict(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True))
        return index, index.close
    place = tempfile.TemporaryDirectory(prefix="becausal-")
    for source in (path, log):
        shutil.copyfile(source, Path(place.name) / source.name)
    index = _restrict(sqlite3.connect(Path(place.name) / INDEX))

    def close() -> None:
        index.close()
        place.cleanup()

    return index, close


def _is_writable(folder: Path) -> bool:
    return os.access(folder, os.W_OK)


def _restrict(index: sqlite3.Connection) -> sqlite3.Connection:
    index.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_LENGTH)
    index.execute("PRAGMA trusted_schema = OFF")
    return index
