"""Where an answer came from: what a record holds so that it can be verified and repeated from any folder."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from becausal.core.contracts import Grid, ModelInfo
from becausal.core.errors import InputError
from becausal.core.explanation import Origin
from becausal.core.files import open_regular
from becausal.core.problem import Explainer
from becausal.core.request import Request
from becausal.images.loading import InputImage
from becausal.methods import options_of

_FILL = "image:"  # a fill that is a file


def make_origin(
    image: InputImage, info: ModelInfo, request: Request, explainer: Explainer, grid: Grid, versions: Mapping[str, str]
) -> Origin:
    """The origin of an explanation.

    Paths are recorded as absolute ones where the image is a file. Otherwise (an array, or an upload to the page) they are
    recorded as they were given: the command cannot be repeated anyway, and the path of a server's files is private.
    """
    files = _Files(is_absolute=image.path is not None)
    if image.path is not None:
        files.found["image"] = {"path": image.path, "sha256": image.sha256}
    return Origin(
        image=image.name,
        image_sha256=image.sha256,
        model=files.place_spec(info.spec),
        model_sha256=info.sha256,
        preprocess=f"{info.geometry or 'as it is'}; {info.normalisation}",
        loading=files.place_loading(info),
        request=replace(request, fills=tuple(files.place_fill(fill) for fill in request.fills)),
        method=explainer.name,
        options=options_of(explainer),
        grain=request.grain_for(explainer, grid),
        versions=versions,
        files=files.found,
    )


def model_file(spec: str) -> Path | None:
    """The file a model specification names; None if it names none."""
    spec = spec.removeprefix("detect:")
    kind, _, target = spec.partition(":")
    if spec.lower().endswith(".onnx") and kind not in ("keras", "torch", "python", "onnx"):
        return Path(spec)
    if kind in ("onnx", "keras") and target:
        return Path(target)
    if kind in ("torch", "python") and ".py" in target:
        return Path(target[: target.index(".py") + 3])
    return None


def toml_file(spec: str, preprocess: Any) -> Path | None:
    """The TOML file that a model is loaded with: the one named as its preprocessing, else the one next to the model."""
    if isinstance(preprocess, (str, Path)) and str(preprocess).endswith(".toml"):
        return Path(preprocess)
    file = model_file(spec)
    return file.with_suffix(".toml") if file is not None and file.name else None


def hash_file(path: str | Path) -> str | None:
    """The sha256 of a regular file; None if there is none, or it cannot be read."""
    try:
        state = os.stat(path)
        return _hash(str(path), state.st_mtime_ns, state.st_size, state.st_ino)
    except (OSError, ValueError, InputError):
        return None


def is_remote(path: str | Path) -> bool:
    """Whether opening a path would call another machine, on Windows."""
    return str(path).startswith(("//", "\\\\"))


@lru_cache(maxsize=64)
def _hash(path: str, *_state: int) -> str:
    with open_regular(Path(path)) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _Files:
    """Replaces paths in records and collects the files that were read, by their role."""

    def __init__(self, *, is_absolute: bool) -> None:
        self._is_absolute = is_absolute
        self.found: dict[str, dict[str, str]] = {}

    def place(self, path: str | Path) -> str:
        """The path as it is recorded."""
        return os.path.abspath(path) if self._is_absolute else str(path)

    def place_spec(self, spec: str) -> str:
        """The specification with the path as it is recorded."""
        file = model_file(spec)
        if file is not None and file.exists():
            return spec.replace(str(file), self.place(file), 1)
        prefix = "detect:" if spec.startswith("detect:") else ""
        kind, _, target = spec.removeprefix(prefix).partition(":")
        return f"{prefix}hf:{self.place(target)}" if kind == "hf" and Path(target).is_dir() else spec

    def place_loading(self, info: ModelInfo) -> dict[str, Any]:
        """The loading options, with class names in the place of their file."""
        loading = dict(info.loading)
        labels, preprocess = loading.get("labels"), loading.get("preprocess")
        if isinstance(labels, str):
            self._add("labels", labels)
            loading["labels"] = list(info.labels) if info.labels is not None else self.place(labels)
        if isinstance(preprocess, str) and preprocess.endswith(".toml"):
            loading["preprocess"] = self.place(preprocess)
        if (toml := toml_file(info.spec, preprocess)) is not None and toml.is_file():
            self._add("toml", toml)
        return loading

    def place_fill(self, fill: str) -> str:
        """The fill with the path as it is recorded."""
        if not fill.startswith(_FILL):
            return fill
        placed = _FILL + self.place(fill.removeprefix(_FILL))
        self._add(placed, fill.removeprefix(_FILL))
        return placed

    def _add(self, role: str, path: str | Path) -> None:
        if (digest := hash_file(path)) is not None:
            self.found[role] = {"path": self.place(path), "sha256": digest}
