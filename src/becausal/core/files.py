"""Files that appear complete or not at all."""

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from becausal.core.errors import OutputError


def write_file(path: Path, content: bytes | Callable[[Path], None]) -> None:
    """Write a file under a temporary name, then rename it.

    Args:
        path: Where the file is to be; its folder must exist.
        content: The bytes, or a function that writes them to the path it is given (same suffix as `path`).

    Raises:
        OutputError: The file could not be written. Nothing is left behind.
    """
    part = path.with_name(f".{path.stem}.{os.getpid()}.part{path.suffix}")
    try:
        if callable(content):
            content(part)
        else:
            part.write_bytes(content)
        os.replace(part, path)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)


def write_files(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write files into a folder, which is made if it does not exist: first all of them elsewhere, then moved.

    Raises:
        OutputError: A file could not be written; a new folder is then not made.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise OutputError(f"cannot write to {folder}: {error.strerror or error}") from error
    try:
        for name, content in files.items():
            (made / name).write_bytes(content)
        if folder.is_dir():
            for name in files:
                os.replace(made / name, folder / name)
        else:
            made.chmod(0o755)
            os.replace(made, folder)
    except OSError as error:
        raise OutputError(f"cannot write to {folder}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder
