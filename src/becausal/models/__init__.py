"""Classifiers and object detectors: one module per kind of model, imported when it is needed.

load_model("photo_net.onnx")                    an ONNX file
load_model("torch:net.py:build")                the nn.Module that build() returns; build:text calls build("text")
load_model("python:net.py:predict")             any function from a batch of images to scores, or to labels
load_model("hf:google/vit-base-patch16-224")    Hugging Face, by name or folder
load_model("timm:resnet50"), load_model("torchvision:resnet50"), load_model("net.keras")
load_model("oip:http://host:8000/v2/models/net") a model on a server, called through the Open Inference Protocol
load_model("bundled")                           the small classifier of the package's own scenes
load_model("detect:yolo.onnx")                  an object detector; also detect:hf:, detect:torch:, detect:python:, …
load_model("bundled:vit")                       the same as a vision transformer
"""

import importlib
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

from becausal.core.contracts import Classifier
from becausal.core.errors import ModelError, OptionError
from becausal.models import huggingface, keras_file, python_function, timm_hub, torch_module
from becausal.models.detect import python as python_detector
from becausal.models.detect import torch as torch_detector
from becausal.models.labels import find_label, read_labels
from becausal.models.loading import Loading, LoadingOptions
from becausal.models.settings import ModelSettings, resolve_settings

# onnxruntime reads this when it is imported, here or in a user's own file; disable_telemetry_events() comes too late.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

__all__ = [
    "KINDS",
    "Loading",
    "LoadingOptions",
    "ModelKind",
    "as_classifier",
    "as_detector",
    "find_label",
    "load_model",
    "open_model",
    "read_labels",
]


@dataclass(frozen=True)
class ModelKind:
    """One kind of model.

    Attributes:
        module: The module whose `load` loads it.
        extra: The extra it needs, None for none.
        form: How a specification is written.
        description: What it is.
    """

    module: str
    extra: str | None
    form: str
    description: str


KINDS: dict[str, ModelKind] = {
    "onnx": ModelKind("onnx_file", None, "FILE.onnx", "an ONNX file, run by onnxruntime"),
    "torch": ModelKind("torch_module", "torch", "torch:FILE.py:BUILD", "a function that returns a torch module"),
    "python": ModelKind("python_function", None, "python:FILE.py:PREDICT", "any function from images to scores or labels"),
    "hf": ModelKind("huggingface", "hf", "hf:NAME-OR-FOLDER", "a Hugging Face image classifier"),
    "timm": ModelKind("timm_hub", "timm", "timm:NAME", "a pretrained timm model"),
    "torchvision": ModelKind("torchvision_hub", "torchvision", "torchvision:NAME", "a pretrained torchvision model"),
    "keras": ModelKind("keras_file", "keras", "keras:FILE.keras", "a saved Keras model"),
    "oip": ModelKind(
        "endpoint.classifier", "endpoint", "oip:http://HOST/v2/models/NAME", "a server with the Open Inference Protocol"
    ),
    "detect:onnx": ModelKind("detect.onnx", None, "detect:FILE.onnx", "an object detector in an ONNX file, e.g. YOLO"),
    "detect:torch": ModelKind(
        "detect.torch", "torch", "detect:torch:FILE.py:BUILD", "a function that returns a torch detector"
    ),
    "detect:python": ModelKind("detect.python", None, "detect:python:FILE.py:DETECT", "any function from images to boxes"),
    "detect:hf": ModelKind("detect.huggingface", "hf", "detect:hf:NAME-OR-FOLDER", "a Hugging Face object detector"),
    "detect:torchvision": ModelKind(
        "detect.torchvision", "torchvision", "detect:torchvision:NAME", "a pretrained torchvision detector"
    ),
    "detect:oip": ModelKind(
        "detect.endpoint", "endpoint", "detect:oip:http://HOST/v2/models/NAME", "a detector on such a server"
    ),
    "bundled": ModelKind(
        "bundled", None, "bundled, bundled:vit, bundled:detector", "small models of the package's own scenes"
    ),
}
_TORCH_KINDS = ("torch", "hf", "timm", "torchvision")
_SUFFIXES = {".onnx": "onnx", ".keras": "keras", ".h5": "keras", ".hdf5": "keras"}  # files that need no prefix


def load_model(spec: str | Path, **options: Unpack[LoadingOptions]) -> Classifier:
    """Load a classifier or an object detector by its specification.

    What is not given is taken from a TOML file next to the model, from the model's metadata, or assumed and noted in
    `info.notes`.

    Args:
        spec: Which model, e.g. "net.onnx", "torch:net.py:build", "hf:google/vit-base-patch16-224" or "bundled"; an object
            detector is written e.g. "detect:yolo.onnx".
        **options: How it is loaded, see `LoadingOptions`: labels, preprocess, resize, returns, threshold, device,
            batch_size, threads, half, runtime, endpoint.

    Returns:
        The classifier, for `explain` and the other functions.

    Raises:
        ModelError: The specification is not valid, or the model cannot be loaded.
        OptionError: An option is unknown, or has an invalid value.
        MissingExtraError: A library that this kind of model needs is not installed.
    """
    return open_model(spec, Loading.from_options(**options))


def open_model(spec: str | Path, loading: Loading, *, uncached: bool = False) -> Classifier:
    """Load a classifier by its specification, with all options in one record.

    Args:
        spec: Which model, as in `load_model`.
        loading: The options.
        uncached: Whether every call must reach the model, without the cache of an endpoint.

    Returns:
        The classifier.

    Raises:
        ModelError: The specification is not valid, or the model cannot be loaded.
        OptionError: An option has an invalid value.
        MissingExtraError: A library that this kind of model needs is not installed.
    """
    kind, target = _split_spec(str(spec))
    if loading.endpoint and kind not in ("oip", "detect:oip"):
        raise OptionError(f"endpoint options are for oip: models, not for {kind}")
    if loading.runtime != "auto" and kind not in _TORCH_KINDS:
        raise OptionError(f"runtime is for torch classifiers, not for {kind} models: remove --runtime")
    if uncached and kind in ("oip", "detect:oip"):
        loading = replace(loading, endpoint=(*loading.endpoint, "cache=none"))
    settings = resolve_settings(_file_of(kind, target), loading)
    module = importlib.import_module(f"becausal.models.{KINDS[kind].module}")
    classifier: Classifier = module.load(target, settings)
    if settings.threshold is not None and classifier.info.output != "boxes":
        raise OptionError("threshold is for object detectors, and this model is a classifier: remove it")
    return classifier


def as_classifier(model: Any, **options: Unpack[LoadingOptions]) -> Classifier:
    """Make a classifier from a specification, a torch module, a Keras model or a function.

    Args:
        model: The model; a classifier is returned unchanged.
        **options: How it is loaded, as in `load_model`.

    Returns:
        The classifier.

    Raises:
        ModelError: It is none of these, or cannot be loaded.
        OptionError: Options were given for a classifier that is already loaded.
    """
    loading = Loading.from_options(**options)
    if isinstance(model, (str, Path)):
        return open_model(model, loading)
    if loading.endpoint:
        raise OptionError("endpoint options are for oip: models")
    if isinstance(model, Classifier):
        if loading != Loading():
            raise OptionError("this classifier is already loaded: give the options where it is loaded")
        return model
    return _wrap(model, resolve_settings(None, loading))


def as_detector(model: Any, **options: Unpack[LoadingOptions]) -> Classifier:
    """Make an object detector from a specification, a torch module that follows torchvision, or a function.

    Args:
        model: The model; a detector is returned unchanged.
        **options: How it is loaded, as in `load_model`.

    Returns:
        The detector.

    Raises:
        ModelError: It is none of these, or cannot be loaded.
        OptionError: Options were given for a detector that is already loaded.
    """
    if isinstance(model, (str, Path, Classifier)):
        is_plain = not isinstance(model, Classifier) and not str(model).startswith(("detect:", "bundled"))
        detector = as_classifier(f"detect:{model}" if is_plain else model, **options)
        if detector.info.output != "boxes":
            raise ModelError(f"{detector.info.spec} is a classifier: it returns no boxes")
        return detector
    settings = resolve_settings(None, Loading.from_options(**options))
    if torch_module.is_module(model):
        return torch_detector.wrap(model, settings)
    if callable(model):
        return python_detector.wrap(model, settings)
    raise ModelError(f"expected a specification, a torch module, a function or a detector, not {type(model).__name__}")


def _wrap(model: Any, settings: ModelSettings) -> Classifier:
    is_keras = keras_file.is_model(model)  # on the torch backend, a Keras model is a torch module as well
    if torch_module.is_module(model) and not is_keras:
        return torch_module.wrap(model, settings, _read_module_metadata(model))
    if settings.loading.runtime != "auto":
        raise OptionError(f"runtime is for torch modules, not for {type(model).__name__}: remove it")
    if is_keras:
        return keras_file.wrap(model, settings)
    if callable(model):
        return python_function.wrap(model, settings)
    raise ModelError(
        "expected a model specification, a torch module, a Keras model, a function or a Classifier, "
        f"not {type(model).__name__}"
    )


def _read_module_metadata(module: Any) -> ModelSettings | None:
    """What Hugging Face or timm stored in a torch module."""
    if hasattr(getattr(module, "config", None), "id2label"):
        return huggingface.read_metadata(module.config, None)
    timm = sys.modules.get("timm")
    if timm is not None and hasattr(module, "pretrained_cfg"):
        return timm_hub.read_metadata(timm.data.resolve_model_data_config(module), None)
    return None


def _split_spec(spec: str) -> tuple[str, str]:
    """Kind and target of a specification."""
    kind, colon, target = spec.partition(":")
    if kind == "detect":
        return _split_detector(spec, target)
    if kind in KINDS and (target or (kind == "bundled" and not colon)):
        return kind, target
    suffix = Path(spec).suffix.lower()
    if suffix in _SUFFIXES and kind not in KINDS:
        return _SUFFIXES[suffix], spec
    forms = ", ".join(item.form for item in KINDS.values())
    raise ModelError(f"{spec!r} is not a model specification; expected one of {forms}")


def _split_detector(spec: str, rest: str) -> tuple[str, str]:
    """Kind and target of a specification that starts with detect:."""
    inner, _, target = rest.partition(":")
    if f"detect:{inner}" in KINDS and target:
        return f"detect:{inner}", target
    if inner not in KINDS and Path(rest).suffix.lower() == ".onnx":
        return "detect:onnx", rest
    forms = ", ".join(item.form for name, item in KINDS.items() if name.startswith("detect:"))
    raise ModelError(f"{spec!r} is not the specification of an object detector; expected one of {forms}")


def _file_of(kind: str, target: str) -> Path | None:
    """The model's file, next to which a TOML file may be."""
    kind = kind.removeprefix("detect:")
    if kind in ("onnx", "keras"):
        return Path(target)
    if kind in ("torch", "python") and ".py" in target:
        return Path(target[: target.index(".py") + 3])
    return None
