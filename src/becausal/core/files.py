"""Files: written complete or not at all, opened only where they are regular files, never through links, named safely."""

import errno
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Mapping
from io import BufferedReader
from pathlib import Path, PurePath

from becausal.core.errors import InputError, OutputError

_UNSAFE = frozenset('/\\:*?"<>|')
_RESERVED = re.compile(r"CON|PRN|AUX|NUL|CONIN\$|CONOUT\$|(COM|LPT)[0-9¹²³]", re.IGNORECASE)
_NO_WAITING = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)  # Windows has the second one only
_STAGE = ".becausal-"  # new folders in which files are written
_MOST_BYTES = 200  # of a name: most file systems allow 255, and numbers and suffixes are added
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading, without ever waiting for a pipe or a device.

    Raises InputError for a folder, pipe, socket or device, and for a path with a null character; OSError where it cannot be
    opened.
    """
    try:
        _check_regular(path, os.stat(path).st_mode)
        file = os.fdopen(os.open(path, os.O_RDONLY | _NO_WAITING), "rb")
    except ValueError as error:  # a null character
        raise InputError(f"{str(path)!r} is not the name of a file: {error}") from None
    try:
        _check_regular(path, os.fstat(file.fileno()).st_mode)  # it may have been replaced in between
    except BaseException:
        file.close()
        raise
    return file


def _check_regular(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise InputError(f"{path} is {_KINDS.get(stat.S_IFMT(mode), 'something else')}, not a regular file")


def path_inside(folder: Path, *names: str | PurePath) -> Path:
    """The path of something in a folder, which is to be written or removed. Raises OutputError where a link is on the way.

    The folder was named by the user, and may be a link. What lies in it may come from somebody else, and lead out of it.
    """
    path = folder
    for name in PurePath(*names).parts:
        path = path / name
        if path.is_symlink():
            raise _linked(path)
    return path


def open_inside(folder: Path, name: str | PurePath, flags: int) -> int:
    """Open a regular file in a folder for writing, see `path_inside`; returns its descriptor.

    Raises OutputError where it, or a folder on the way, is a symbolic link, or it is not a regular file; OSError where it
    cannot be opened.
    """
    path = path_inside(folder, name)
    try:
        descriptor = os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | _NO_WAITING, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:  # it became a link after it was checked
            raise _linked(path) from None
        raise
    try:
        _check_regular(path, os.fstat(descriptor).st_mode)
    except InputError as error:
        os.close(descriptor)
        raise OutputError(f"cannot write {path}: {error}") from None
    return descriptor


def _linked(path: Path) -> OutputError:
    return OutputError(f"cannot write {path}: it is a link, which may lead out of the folder; remove it, or write elsewhere")


def write_file(path: Path, content: bytes | Callable[[Path], None]) -> None:
    """Write a file in a new folder next to its place, then move it there; a link in its place is replaced, not followed.

    content: the bytes, or a function that writes them to the path it is given (same name as `path`). Raises OutputError if
    the file cannot be written, or a folder, pipe or device is in its place; nothing is left behind.
    """
    _check_replaceable(path)
    try:
        with tempfile.TemporaryDirectory(prefix=_STAGE, dir=path.parent) as made:  # nobody else can have put links there
            part = Path(made) / path.name
            if callable(content):
                content(part)
            else:
                part.write_bytes(content)
            os.replace(part, path)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error


def _check_replaceable(path: Path) -> None:
    """Raise OutputError for a name that a file cannot take; root could replace even /dev/null."""
    try:
        _check_regular(path, os.stat(path).st_mode)
    except InputError as error:
        raise OutputError(f"cannot write {path}: {error}") from None
    except (OSError, ValueError):  # it does not exist; anything else fails when it is written
        return


def write_files(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write files that belong together into a folder, which is made if it does not exist.

    All of them are first written elsewhere, then moved. Files of the same names are replaced together: the first one,
    without which the others are not read, is taken away first and put back last. Other files stay as they are. Raises
    OutputError where a file cannot be written, or has the name of a link; the folder is then as it was before.
    """
    there = folder.is_dir()
    try:
        (folder if there else folder.parent).mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=_STAGE, dir=folder if there else folder.parent))
    except (OSError, ValueError) as error:
        raise OutputError(f"cannot write to {folder}: {getattr(error, 'strerror', None) or error}") from error
    try:
        new = made / "new"
        new.mkdir()
        for name, content in files.items():
            (new / name).write_bytes(content)
        if there:
            _replace_together(folder, new, made / "old", tuple(files))
        else:
            os.replace(new, folder)
    except OSError as error:
        raise OutputError(f"cannot write to {folder}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder


def _replace_together(folder: Path, new: Path, old: Path, names: tuple[str, ...]) -> None:
    """Move the files out of `folder` into `old` and those in `new` into `folder`; all of it, or nothing."""
    for name in names:
        _check_replaceable(path_inside(folder, name))
    old.mkdir()
    try:
        for name in names:
            if os.path.lexists(folder / name):
                os.replace(folder / name, old / name)
        for name in reversed(names):
            os.replace(new / name, folder / name)
    except BaseException:  # an interrupt too
        for name in reversed(names):
            if os.path.lexists(old / name):
                os.replace(old / name, folder / name)
            elif not (new / name).exists():
                (folder / name).unlink(missing_ok=True)
        raise


def safe_name(name: str) -> str:
    """A name for a file or folder that is safe on every platform: one component, never `.` or `..`; "image" for none.

    Characters that a path cannot contain somewhere become `_`, and so do undecodable bytes. Names that Windows reserves
    get a `_`, long names are cut. A name that is safe already stays as it is.
    """
    safe = "".join("_" if c in _UNSAFE or not (c.isprintable() or c == "\u3000") else c for c in name)
    safe = safe.encode()[:_MOST_BYTES].decode(errors="ignore").rstrip(". ")  # Windows drops dots and spaces at the end
    if _RESERVED.fullmatch(safe.partition(".")[0].rstrip()):
        safe = f"_{safe}"
    return safe or "image"
