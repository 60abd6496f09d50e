"""The user's own Python files: loading one, and reading what its constants say about the model.

Constants a file may have: `SIZE` (224, or (h, w)), `RESIZE` (as `--resize`), `PREPROCESS` (as `--preprocess`), `LABELS`
(a list, or a file next to it), `OUTPUT` (as `--output`), `CHANNEL_AXIS` (True: a channel axis of size one is shown to
a `python:` function; otherwise it is dropped). A function in memory may have `labels`, `output`, `channel_axis` and
`geometry` as attributes.
"""

import hashlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from becausal.core.contracts import Geometry
from becausal.core.errors import BecausalError, ModelError
from becausal.models.outputs import parse_output
from becausal.models.preprocess import parse_numbers, parse_resize, parse_size
from becausal.models.settings import Metadata, as_labels

_TARGET = re.compile(r"(?P<file>.+?\.py):(?P<name>\w+)(?::(?P<argument>.+))?")


def split_target(target: str, kind: str) -> tuple[Path, str, str | None]:
    """File, function and argument of `file.py:function` or `file.py:function:argument`."""
    match = _TARGET.fullmatch(target)
    if match is None:
        raise ModelError(f"{kind}:{target} names no function: write {kind}:FILE.py:FUNCTION")
    return Path(match["file"]), match["name"], match["argument"]


def load_function(path: Path, name: str) -> tuple[Callable[..., Any], ModuleType]:
    """A function of a Python file, and the file as a module. Raises ModelError for whatever goes wrong in it."""
    if not path.is_file():
        raise ModelError(f"there is no file {path}")
    unique = f"becausal_user_{path.stem}_{file_sha256(path)[:12]}"
    spec = importlib.util.spec_from_file_location(unique, path.resolve())
    if spec is None or spec.loader is None:
        raise ModelError(f"{path} cannot be loaded as Python code")
    module = importlib.util.module_from_spec(spec)
    sys.modules[unique] = module  # dataclasses and pickles in the file look for their own module
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)  # so that it may import its neighbours, as when it is run
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[unique]
        raise ModelError(f"{path} cannot be loaded: {where(error, path)}") from error
    finally:
        sys.path.remove(folder)
    function = getattr(module, name, None)
    if not callable(function):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise ModelError(f"{path} has no function {name!r}" + (f"; it has {', '.join(known[:8])}" if known else ""))
    return function, module


def call(function: Callable[..., Any], path: Path, *arguments: Any) -> Any:
    """Call the user's function while loading. Raises ModelError for whatever goes wrong in it."""
    try:
        return function(*arguments)
    except BecausalError as error:
        raise ModelError(f"{path}: {error}") from None
    except (Exception, SystemExit) as error:
        raise ModelError(f"{path} failed: {where(error, path)}") from error


def where(error: BaseException, path: Path) -> str:
    """Type, message and place of an error, in one line; the place is the last one in the user's own file."""
    message = " ".join(str(error).split())[:200]
    line = error.lineno if isinstance(error, SyntaxError) else None
    for frame in traceback.extract_tb(error.__traceback__):
        if Path(frame.filename) == path.resolve():
            line = frame.lineno
    place = f", line {line}" if line is not None else ""
    return f"{type(error).__name__}: {message} ({path.name}{place})"


def read_constants(module: ModuleType | None, function: Any, folder: Path) -> Metadata:
    """What the file's constants and the function's attributes say about the model. Raises ModelError for nonsense."""

    def said(constant: str) -> Any:
        own = getattr(function, constant.lower(), None) if constant in ("LABELS", "OUTPUT") else None
        return own if own is not None else getattr(module, constant, None)

    labels, resize, numbers = said("LABELS"), said("RESIZE"), said("PREPROCESS")
    size, output = said("SIZE"), said("OUTPUT")
    try:
        how, crop = parse_resize(resize) if resize is not None else (None, None)
        found = Metadata(
            numbers=parse_numbers(str(numbers)) if numbers is not None else None,
            grid=_as_size(size) if size is not None else crop,
            resize=how,
            labels=as_labels(folder / labels if isinstance(labels, str) else labels) if labels is not None else None,
            output=parse_output(output) if output is not None else None,
        )
    except (BecausalError, TypeError) as error:
        raise ModelError(f"a constant of the model's code cannot be used: {error}") from None
    geometry = getattr(function, "geometry", None)
    if isinstance(geometry, Geometry):
        return replace(found, grid=geometry.grid, resize=geometry.resize, interpolation=geometry.interpolation)
    return found


def file_sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _as_size(value: Any) -> tuple[int, int]:
    return parse_size(value) if isinstance(value, (int, str)) else parse_size("x".join(str(side) for side in value))
