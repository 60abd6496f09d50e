"""Everything that decides the answers of a run, as records that are stored in the index and compared on resume."""

import ast
import json
import mmap
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from becausal.api.origins import hash_file, model_file, toml_file
from becausal.batch.inputs import Inputs
from becausal.batch.records import BatchJob
from becausal.core.boxes import MAX_BOXES
from becausal.core.text import replace_surrogates
from becausal.core.version import __version__

DIRECTORY = "working_directory"
ALL = "all"  # every box of an image is explained
MAX_SHOWN = 60  # characters of a value in a message
WEIGHTS = (".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".npy", ".npz", ".onnx", ".h5", ".keras", ".pkl", ".joblib")
_LOCATION = b"\n\x08location\x12"  # the key of a file name in an ONNX file, as protobuf writes it


def settings_of(job: BatchJob, inputs: Inputs) -> dict[str, Any]:
    """The records of a run. Batch size and threads are left out: answers do not depend on them."""
    return {
        "model": job.model,
        "request": job.request.record(),
        "loading": replace(job.loading, batch_size=None, threads=None).record(),
        "render": job.render,
        ALL: job.every_box or None,
        "becausal": __version__,
        DIRECTORY: job.folder if inputs.has_relative_paths else None,
    }


def rows_per_image(settings: Mapping[str, Any]) -> int:
    """How many rows of the index belong to an image: 1, or as many as it may have boxes.

    The row of box b of image i then has the id i * rows_per_image + b - 1. Until the boxes are known there is one row, for
    b = 1.
    """
    return MAX_BOXES if settings.get(ALL) else 1


def by_option(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings by option name: the records `request` and `loading` merged into the rest."""
    rest = {name: value for name, value in settings.items() if name not in ("request", "loading")}
    return {**rest, **settings.get("request", {}), **settings.get("loading", {})}


def list_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The values that differ, e.g. "seed was 0, now 4"; an absent value counts as None."""
    names = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    return [f"{name} was {_format_value(before.get(name))}, now {_format_value(now.get(name))}" for name in names]


def to_json(value: Any) -> str:
    """The value as JSON with sorted keys, so that equal records give equal text, which UTF-8 can hold."""
    return replace_surrogates(json.dumps(value, ensure_ascii=False, sort_keys=True, default=str))


def _format_value(value: Any) -> str:
    text = "not given" if value is None else value if isinstance(value, str) else to_json(value)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 1]}…"


def hash_files(job: BatchJob) -> dict[str, str | None]:
    """Hashes of all files besides the model's own that decide the answers, by `file NAME`.

    These are the TOML file of the model, the external data of an ONNX file, the modules and weights next to a Python file
    that it names, and the images used as fills.
    """
    model, toml = model_file(job.model), toml_file(job.model, job.loading.preprocess)
    found = [Path(fill.removeprefix("image:")) for fill in job.request.fills if fill.startswith("image:")]
    found += [toml] if toml is not None else []
    if model is not None and model.suffix == ".py":
        found += _find_code(model)
        argument = Path(job.model.partition(".py:")[2].partition(":")[2])
        found += [argument, model.parent / argument]
    elif model is not None and model.suffix == ".onnx":
        found += _find_external_data(model)
    home = model.parent if model is not None else Path()
    return {f"file {_name(path, home)}": hash_file(path) for path in found if path.is_file()}


def _name(path: Path, home: Path) -> str:
    """The path relative to the model's folder if it is in it."""
    absolute, folder = os.path.abspath(path), os.path.abspath(home)
    return os.path.relpath(absolute, folder) if absolute.startswith(folder + os.sep) else str(path)


def _find_external_data(model: Path) -> Iterator[Path]:
    """The files that an ONNX file names as places of its tensors."""
    try:
        with model.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            at, names = content.find(_LOCATION), set()
            while at >= 0:
                at += len(_LOCATION)
                length, at = _read_varint(content, at)
                names.add(content[at : at + min(length, 4096)])
                at = content.find(_LOCATION, at)
    except (OSError, ValueError, IndexError):  # no such file, an empty one, one that is cut off
        return
    for name in sorted(names):
        if name and b"\0" not in name:
            yield model.parent / os.fsdecode(name)


def _read_varint(content: mmap.mmap, at: int) -> tuple[int, int]:
    """A number as protobuf writes it, seven bits a byte, and the position behind it."""
    value = shift = 0
    while content[at] & 0x80 and shift < 64:
        value |= (content[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return value | content[at] << shift, at + 1


def _find_code(model: Path) -> Iterator[Path]:
    """The modules that a Python file imports from its own folder, directly or not, and the weights that they name."""
    seen, todo = {model}, [model]
    while todo:
        names, weights = _read_code(todo.pop())
        yield from (model.parent / name for name in weights)
        yield from (Path(name) for name in weights)
        for name in names:
            package = model.parent / name
            files = [package.with_name(f"{name}.py"), *(sorted(package.rglob("*.py")) if package.is_dir() else [])]
            for file in files:
                if file not in seen and file.is_file():
                    seen.add(file)
                    todo.append(file)
                    yield file


def _read_code(path: Path) -> tuple[set[str], set[str]]:
    """The top-level modules that a Python file imports, and the names of weights in its strings."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return set(), set()
    modules, weights = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.add(node.module.partition(".")[0])
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.lower().endswith(WEIGHTS):
            weights.add(node.value)
    return modules, {name for name in weights if "\0" not in name}
