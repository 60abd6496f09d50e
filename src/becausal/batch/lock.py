"""One driver per run folder: a lock that goes with the process, however that ends."""

import os
import sys
from pathlib import Path

from becausal.core.errors import OutputError


class FolderLock:
    """Holds a folder's lock file until `release`, or until the process is gone. Raises OutputError if another holds it."""

    def __init__(self, folder: Path) -> None:
        path = folder / "lock"
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise OutputError(f"cannot write to {folder}: {error.strerror or error}") from None
        try:
            _take(self._descriptor)
        except OSError:
            holder = os.read(self._descriptor, 32).decode("ascii", "replace").strip()
            os.close(self._descriptor)
            who = f"process {holder}" if holder else "another process"
            raise OutputError(f"{who} is at work on {folder}: wait for it, or choose another folder") from None
        try:
            os.ftruncate(self._descriptor, 0)
            os.write(self._descriptor, str(os.getpid()).encode("ascii"))
        except OSError:  # on a full disk the holder is not named; the lock holds all the same
            pass

    def release(self) -> None:
        """Let others in; the file stays, empty or not, since removing it would let two in."""
        os.close(self._descriptor)


if sys.platform == "win32":
    import msvcrt

    def _take(descriptor: int) -> None:
        os.lseek(descriptor, 1 << 20, os.SEEK_SET)  # far behind the number, which others may read
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        os.lseek(descriptor, 0, os.SEEK_SET)

else:
    import fcntl

    def _take(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
