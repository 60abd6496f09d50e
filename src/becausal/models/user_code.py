"""Files of the user: a function of a Python file, what it prints, its errors in one line, and hashes of files."""

import hashlib
import importlib.util
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

from becausal.core.errors import BecausalError, InputError, ModelError
from becausal.core.files import open_regular
from becausal.core.text import one_line, reason_of

_TARGET = re.compile(r"(?P<file>.+?\.py):(?P<name>\w+)(?::(?P<argument>.+))?")


def split_target(target: str, kind: str) -> tuple[Path, str, str | None]:
    """File, function and argument of `file.py:function` or `file.py:function:argument`."""
    match = _TARGET.fullmatch(target)
    if match is None:
        raise ModelError(f"{kind}:{target} does not name a function; expected {kind}:FILE.py:FUNCTION")
    return Path(match["file"]), match["name"], match["argument"]


def load_function(path: Path, name: str) -> tuple[Callable[..., Any], ModuleType]:
    """A function of a Python file, and the file as a module. Raises ModelError for any error in the file."""
    check_file(path)
    unique = f"becausal_user_{path.stem}_{file_sha256(path)[:12]}"
    spec = importlib.util.spec_from_file_location(unique, path.resolve())
    if spec is None or spec.loader is None:
        raise ModelError(f"{path} cannot be loaded as Python code")
    module = importlib.util.module_from_spec(spec)
    sys.modules[unique] = module  # dataclasses and pickles in the file look up their module
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)  # so that the file can import its neighbours, as when it is run
    try:
        with stdout_to_stderr():
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[unique]
        raise ModelError(f"{path} cannot be loaded: {describe_error(error, path)}") from error
    finally:
        sys.path.remove(folder)
    function = getattr(module, name, None)
    if not callable(function):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise ModelError(f"{path} has no function {name!r}" + (f"; it has {', '.join(known[:8])}" if known else ""))
    return function, module


def call(function: Callable[..., Any], path: Path, *arguments: Any) -> Any:
    """Call a function of the user's file while loading. Raises ModelError for any error in it."""
    try:
        with stdout_to_stderr():
            return function(*arguments)
    except BecausalError as error:
        raise ModelError(f"{path}: {error}") from None
    except (Exception, SystemExit) as error:
        raise ModelError(f"{path} failed: {describe_error(error, path)}") from error


def describe_error(error: BaseException, path: Path) -> str:
    """Type, message and line of an error in one line; the line is the last one in the user's file."""
    line = error.lineno if isinstance(error, SyntaxError) else None
    for frame in traceback.extract_tb(error.__traceback__):
        if Path(frame.filename) == path.resolve():
            line = frame.lineno
    place = f", line {line}" if line is not None else ""
    return f"{type(error).__name__}: {one_line(error, 200)} ({path.name}{place})"


def check_file(path: Path) -> None:
    """Raise ModelError unless it is a regular file that can be read."""
    try:
        open_regular(path).close()
    except FileNotFoundError:
        raise ModelError(f"there is no file {path}") from None
    except InputError as error:
        raise ModelError(str(error)) from None
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {reason_of(error)}") from None


def file_sha256(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _Redirection:
    """Where sys.stdout was before it was redirected, and how many threads want it redirected."""

    lock = threading.Lock()
    count = 0
    before: TextIO | None = None


@contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """What the user's code prints goes to stderr: stdout may carry JSON. Unlike redirect_stdout, threads may overlap."""
    with _Redirection.lock:
        if _Redirection.count == 0:
            _Redirection.before, sys.stdout = sys.stdout, sys.stderr
        _Redirection.count += 1
    try:
        yield
    finally:
        with _Redirection.lock:
            _Redirection.count -= 1
            if _Redirection.count == 0 and _Redirection.before is not None:
                sys.stdout, _Redirection.before = _Redirection.before, None
