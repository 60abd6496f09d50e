"""Python files written by the user: loading a function from one, and reading the constants that describe the model.

Constants a file may define: `SIZE` (224, or (h, w)), `RESIZE` (as `--resize`), `PREPROCESS` (as `--preprocess`),
`LABELS` (a list, or a file next to it), `RETURNS` (as `--returns`; also under its former name `OUTPUT`), `THRESHOLD`
(as `--threshold`), `CHANNEL_AXIS` (True if a `python:` function expects the channel axis of an array with one channel; it
is dropped otherwise). A function in memory may have the attributes `labels`, `returns`, `channel_axis` and `geometry`.
"""

import hashlib
import importlib.util
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

from becausal.core.contracts import Geometry
from becausal.core.errors import BecausalError, InputError, ModelError
from becausal.core.files import open_regular
from becausal.core.text import one_line, reason_of
from becausal.models.loading import check_threshold
from becausal.models.outputs import parse_returns
from becausal.models.preprocess import parse_normalisation, parse_resize
from becausal.models.settings import ModelSettings, as_labels, as_size

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


def read_constants(module: ModuleType | None, function: Any, folder: Path) -> ModelSettings:
    """What the file's constants and the function's attributes state. Raises ModelError for invalid values."""

    def read(*names: str, is_attribute: bool = False) -> Any:
        attributes = [getattr(function, name.lower(), None) for name in names] if is_attribute else []
        found = [*attributes, *(getattr(module, name, None) for name in names)]
        return next((value for value in found if value is not None), None)

    labels, returns = read("LABELS", is_attribute=True), read("RETURNS", "OUTPUT", is_attribute=True)
    resize, preprocess, size, threshold = read("RESIZE"), read("PREPROCESS"), read("SIZE"), read("THRESHOLD")
    try:
        resized, crop = parse_resize(resize) if resize is not None else (None, None)
        settings = ModelSettings(
            normalisation=parse_normalisation(str(preprocess)) if preprocess is not None else None,
            crop=as_size(size) if size is not None else crop,
            resize=resized,
            labels=as_labels(folder / labels if isinstance(labels, str) else labels),
            returns=parse_returns(returns) if returns is not None else None,
            threshold=check_threshold(threshold) if threshold is not None else None,
        )
    except (BecausalError, TypeError) as error:
        raise ModelError(f"a constant in the model's code is invalid: {error}") from None
    geometry = getattr(function, "geometry", None)
    if isinstance(geometry, Geometry):
        return replace(settings, crop=geometry.grid, resize=geometry.resize, interpolation=geometry.interpolation)
    return settings


def check_file(path: Path) -> None:
    """Raise ModelError unless it is a regular file that can be read."""
    try:
        open_regular(path).close()
    except FileNotFoundError:
        raise ModelError(f"there is no file {path}") from None
    except (OSError, InputError) as error:
        raise ModelError(
            str(error) if isinstance(error, InputError) else f"{path} cannot be read: {reason_of(error)}"
        ) from None


def file_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while piece := file.read(2**20):
            digest.update(piece)
    return digest.hexdigest()


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
