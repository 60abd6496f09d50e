"""How a run folder is opened: by one driver at a time; its index for writing, or for reading on any disk; never by links."""

import os
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from becausal.batch.index import INDEX
from becausal.core.errors import OutputError
from becausal.core.files import open_inside, path_inside

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


class FolderLock:
    """Holds a folder's lock file until `release` or the end of the process. Raises OutputError if it is already held."""

    def __init__(self, folder: Path) -> None:
        try:
            self._descriptor = open_inside(folder, "lock", os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise OutputError(f"cannot write to {folder}: {error.strerror or error}") from None
        try:
            _lock(self._descriptor)
        except OSError:
            holder = os.read(self._descriptor, 32).decode("ascii", "replace").strip()
            os.close(self._descriptor)
            owner = f"process {holder}" if holder else "another process"
            raise OutputError(f"{folder} is in use by {owner}: wait until it ends, or choose another folder") from None
        try:
            os.ftruncate(self._descriptor, 0)
            os.write(self._descriptor, str(os.getpid()).encode("ascii"))
        except OSError:  # on a full disk the process id is missing; the lock is held all the same
            pass

    def release(self) -> None:
        """Release the lock. The file stays: removing it could let two processes hold a lock at once."""
        os.close(self._descriptor)


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
