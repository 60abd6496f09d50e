"""The job of a run, and what decides its answers, as records that are stored in the index and compared on resume."""

import ast
import json
import mmap
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from becausal.api.origins import hash_file, model_file, toml_file
from becausal.batch.inputs import Inputs
from becausal.core.boxes import MAX_BOXES
from becausal.core.errors import InputError
from becausal.core.request import Request
from becausal.core.text import replace_surrogates
from becausal.core.version import __version__
from becausal.models import Loading
from becausal.models.loading import GONE
from becausal.models.onnx_graph import read_varint

DIRECTORY = "working_directory"
ALL = "all"  # every box of an image is explained
MAX_SHOWN = 60  # characters of a value in a message
WEIGHTS = (".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".npy", ".npz", ".onnx", ".h5", ".keras", ".pkl", ".joblib")
_LOCATION = b"\n\x08location\x12"  # the key of a file name in an ONNX file, as protobuf writes it


@dataclass(frozen=True, kw_only=True)
class BatchJob:
    """What all workers need to know: the model, how it is loaded, what is requested, what is stored."""

    model: str
    loading: Loading = field(default_factory=Loading)
    request: Request = field(default_factory=Request)
    categories: frozenset[str] = frozenset()  # names of all ground-truth categories, in lower case
    folder: str = "."  # working directory for relative paths in `model` and `loading`
    render: bool = False  # also draw PNGs and a page per image
    every_box: bool = False  # explain every box that a detector finds


def settings_of(job: BatchJob, inputs: Inputs) -> dict[str, Any]:
    """The records of a run. Batch size and threads are left out: answers do not depend on them."""
    return {
        "model": job.model,
        "request": job.request.record(),
        "loading": replace(job.loading, batch_size=None, threads=None).record(),
        "render": job.render,
        ALL: job.every_box or None,
        "becausal": __version__,
        DIRECTORY: None if all(os.path.isabs(item.image) for item in inputs.items) else job.folder,
    }


def make_header(inputs: Inputs, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The header of a new run."""
    return {
        "settings": settings,
        "images_sha256": _digest_of(inputs),
        "categories": sorted(inputs.categories),
        "started": format_time(datetime.now(UTC)),
    }


def check_same_run(
    run: Path, header: Mapping[str, Any], inputs: Inputs, settings: Mapping[str, Any], names: set[str] | None = None
) -> None:
    """Refuse other settings or images than those of the header; names: of its images. Raises InputError."""
    changes = list_changes(by_option(header["settings"]), by_option(json.loads(to_json(settings))))
    if header["images_sha256"] != _digest_of(inputs):
        current = {item.image for item in inputs.items}
        differences = [
            f"{len(found):,} {kind} (e.g. {min(found)})"
            for kind, found in (("added", current - (names or current)), ("missing", (names or current) - current))
            if found
        ]
        changes.append(f"the images differ: {' and '.join(differences) or 'their order, number or boxes'}")
    if changes:
        raise InputError(
            f"{run} was started with other options: {'; '.join(changes)}. Use the same options, or another --out"
        )


def _digest_of(inputs: Inputs) -> str:
    """A hash of the names and boxes of all images, in order."""
    digest = sha256()
    for item in inputs.items:
        digest.update(to_json([item.image, item.boxes, item.size]).encode())
    digest.update(to_json(sorted(inputs.categories)).encode())
    return digest.hexdigest()


def format_time(time: datetime) -> str:
    """A time in UTC, to the second."""
    return time.isoformat(timespec="seconds")


def rows_per_image(settings: Mapping[str, Any]) -> int:
    """How many rows of the index belong to an image: 1, or as many as it may have boxes.

    The row of box b of image i then has the id i * rows_per_image + b - 1. Until the boxes are known there is one row, for
    b = 1.
    """
    return MAX_BOXES if settings.get(ALL) else 1


def by_option(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings by option name: `request` and `loading` merged into the rest, without options that are gone."""
    rest = {name: value for name, value in settings.items() if name not in ("request", "loading")}
    merged = {**rest, **settings.get("request", {}), **settings.get("loading", {})}
    return {name: value for name, value in merged.items() if name not in GONE}


def list_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The values that differ, e.g. "seed was 0, now 4"; an absent value counts as None."""

    def show(value: Any) -> str:
        text = "not given" if value is None else value if isinstance(value, str) else to_json(value)
        return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 1]}…"

    names = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    return [f"{name} was {show(before.get(name))}, now {show(now.get(name))}" for name in names]


def to_json(value: Any) -> str:
    """The value as JSON with sorted keys, so that equal records give equal text, which UTF-8 can hold."""
    return replace_surrogates(json.dumps(value, ensure_ascii=False, sort_keys=True, default=str))


def hash_files(job: BatchJob) -> dict[str, str | None]:
    """Hashes of all files besides the model's own that decide the answers, by `file NAME`.

    These are the TOML file of the model, the external data of an ONNX file, the modules and weights next to a Python file
    that it names, the images used as fills, and the one that others are compared with. Names are relative to the model's
    folder for files in it.
    """
    model, toml = model_file(job.model), toml_file(job.model, job.loading.preprocess)
    found = [Path(fill.removeprefix("image:")) for fill in job.request.fills if fill.startswith("image:")]
    found += [Path(path) for path in (toml, job.loading.like) if path is not None]
    if model is not None and model.suffix == ".py":
        found += _find_code(model)
        argument = Path(job.model.partition(".py:")[2].partition(":")[2])
        found += [argument, model.parent / argument]
    elif model is not None and model.suffix == ".onnx":
        found += _find_external_data(model)
    home = os.path.abspath(model.parent if model is not None else Path())
    hashes = {}
    for path in found:
        if path.is_file():
            absolute = os.path.abspath(path)
            name = os.path.relpath(absolute, home) if absolute.startswith(home + os.sep) else path
            hashes[f"file {name}"] = hash_file(path)
    return hashes


def _find_external_data(model: Path) -> list[Path]:
    """The files that an ONNX file names as places of its tensors.

    They are found by the key in front of each name, not by parsing the file, which takes a library and, for large models,
    all of their size in memory.
    """
    names = set()
    try:
        with model.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            at = content.find(_LOCATION)
            while at >= 0:
                length, at = read_varint(content, at + len(_LOCATION))
                names.add(content[at : at + min(length, 4096)])
                at = content.find(_LOCATION, at)
    except (OSError, ValueError, IndexError):  # no such file, an empty one, one that is cut off
        return []
    return [model.parent / os.fsdecode(name) for name in sorted(names) if name and b"\0" not in name]


def _find_code(model: Path) -> Iterator[Path]:
    """The modules that a Python file imports from its own folder, directly or not, and the weights named in its strings."""
    seen, todo = {model}, [model]
    while todo:
        try:
            tree = ast.parse(todo.pop().read_bytes())
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        modules, weights = set(), set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                modules |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules.add(node.module.partition(".")[0])
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.lower().endswith(WEIGHTS):
                weights.add(node.value)
        for name in weights:
            if "\0" not in name:
                yield from (model.parent / name, Path(name))
        for name in modules:
            package = model.parent / name
            for file in (package.with_name(f"{name}.py"), *(sorted(package.rglob("*.py")) if package.is_dir() else ())):
                if file not in seen and file.is_file():
                    seen.add(file)
                    todo.append(file)
                    yield file
