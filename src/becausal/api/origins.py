"""Where an answer came from: what a record holds so that it can be verified and repeated from any folder."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from becausal.core.contracts import Grid, ModelInfo
from becausal.core.errors import InputError
from becausal.core.explanation import Origin
from becausal.core.problem import Explainer
from becausal.core.request import Request
from becausal.images.loading import InputImage, digest_file
from becausal.methods import options_of

_FILL = "image:"  # a fill that is a file


def make_origin(
    image: InputImage, info: ModelInfo, request: Request, explainer: Explainer, grid: Grid, versions: Mapping[str, str]
) -> Origin:
    """The origin of an explanation, with the hashes of the files that were read.

    Paths are recorded as absolute ones where the image is a file. Otherwise (an array, or an upload to the page) they are
    recorded as they were given: the command cannot be repeated anyway, and the path of a server's files is private.
    """
    files: dict[str, dict[str, str]] = {}
    if image.path is not None:
        files["image"] = {"path": image.path, "sha256": image.sha256}

    def place(path: str | Path) -> str:
        return os.path.abspath(path) if image.path is not None else str(path)

    def add(role: str, path: str | Path) -> None:
        if (digest := hash_file(path)) is not None:
            files[role] = {"path": place(path), "sha256": digest}

    spec, file = info.spec, model_file(info.spec)
    prefix, plain = split_spec(spec)
    kind, _, target = plain.partition(":")
    if file is not None and file.exists():
        spec = spec.replace(str(file), place(file), 1)
    elif kind in ("hf", "clip") and Path(target).is_dir():
        spec = f"{prefix}{kind}:{place(target)}"
    loading = dict(info.loading)
    labels, preprocess = loading.get("labels"), loading.get("preprocess")
    if isinstance(labels, str):  # class names in the place of their file
        add("labels", labels)
        loading["labels"] = list(info.labels) if info.labels is not None else place(labels)
    if isinstance(preprocess, str) and preprocess.endswith(".toml"):
        loading["preprocess"] = place(preprocess)
    if isinstance(like := loading.get("like"), str) and os.path.isfile(like):
        add("like", like)
        loading["like"] = place(like)
    if (toml := toml_file(info.spec, preprocess)) is not None and toml.is_file():
        add("toml", toml)
    fills = []
    for fill in request.fills:
        path = fill.removeprefix(_FILL)
        fills.append(_FILL + place(path) if fill.startswith(_FILL) else fill)
        if fill.startswith(_FILL):
            add(fills[-1], path)
    return Origin(
        image=image.name, image_sha256=image.sha256, model=spec, model_sha256=info.sha256,
        preprocess=describe_preprocessing(info), loading=loading, request=replace(request, fills=tuple(fills)),
        method=explainer.name, options=options_of(explainer), grain=request.grain_for(explainer, grid),
        versions=versions, files=files,
    )  # fmt: skip


def describe_preprocessing(info: ModelInfo) -> str:
    """How images become the model's input, as records say it."""
    return f"{info.geometry or 'as it is'}; {info.normalisation}"


def split_spec(spec: str) -> tuple[str, str]:
    """The prefix of a model specification that says what the model is asked, "" for classifiers, and the rest."""
    prefix = next((prefix for prefix in ("detect:", "embed:", "segment:") if spec.startswith(prefix)), "")
    return prefix, spec.removeprefix(prefix)


def model_file(spec: str) -> Path | None:
    """The file a model specification names; None if it names none."""
    _, spec = split_spec(spec)
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
        return digest_file(path)
    except (OSError, ValueError, InputError):
        return None


def is_remote(path: str | Path) -> bool:
    """Whether opening a path would call another machine, on Windows."""
    return str(path).startswith(("//", "\\\\"))
