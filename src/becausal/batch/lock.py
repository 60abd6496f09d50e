"""One driver per run folder: a lock that the operating system releases when the process ends."""

import os
import sys
from pathlib import Path

from becausal.core.errors import OutputError
from becausal.core.files import open_inside


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
