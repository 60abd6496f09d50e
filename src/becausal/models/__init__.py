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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from becausal.core.contracts import Classifier
from becausal.core.errors import ModelError, OptionError
from becausal.models import keras_file, objects, python_function, torch_module
from becausal.models.labels import find_label, read_labels
from becausal.models.loading import Loading, ModelSettings, resolve_settings

# onnxruntime reads this when it is imported, here or in a user's own file; disable_telemetry_events() comes too late.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

__all__ = [
    "KINDS",
    "Loading",
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
    """One kind of model: the function that loads it, the extra it needs, how it is written, what it is."""

    loader: str  # "module.function", imported when it is needed
    extra: str | None
    form: str
    description: str


KINDS: dict[str, ModelKind] = {
    "onnx": ModelKind("onnx_file.load", None, "FILE.onnx", "an ONNX file, run by onnxruntime"),
    "torch": ModelKind("torch_module.load", "torch", "torch:FILE.py:BUILD", "a function that returns a torch module"),
    "python": ModelKind(
        "python_function.load", None, "python:FILE.py:PREDICT", "any function from images to scores or labels"
    ),
    "hf": ModelKind("hubs.load_huggingface", "hf", "hf:NAME-OR-FOLDER", "a Hugging Face image classifier"),
    "timm": ModelKind("hubs.load_timm", "timm", "timm:NAME", "a pretrained timm model"),
    "torchvision": ModelKind("hubs.load_torchvision", "torchvision", "torchvision:NAME", "a pretrained torchvision model"),
    "keras": ModelKind("keras_file.load", "keras", "keras:FILE.keras", "a saved Keras model"),
    "oip": ModelKind(
        "endpoint.classifier.load", "endpoint", "oip:http://HOST/v2/models/NAME", "a server with the Open Inference Protocol"
    ),
    "detect:onnx": ModelKind("onnx_file.load", None, "detect:FILE.onnx", "an object detector in an ONNX file, e.g. YOLO"),
    "detect:torch": ModelKind(
        "torch_module.load", "torch", "detect:torch:FILE.py:BUILD", "a function that returns a torch detector"
    ),
    "detect:python": ModelKind(
        "python_function.load", None, "detect:python:FILE.py:DETECT", "any function from images to boxes"
    ),
    "detect:hf": ModelKind("hubs.load_huggingface", "hf", "detect:hf:NAME-OR-FOLDER", "a Hugging Face object detector"),
    "detect:torchvision": ModelKind(
        "hubs.load_torchvision", "torchvision", "detect:torchvision:NAME", "a pretrained torchvision detector"
    ),
    "detect:oip": ModelKind(
        "endpoint.classifier.load", "endpoint", "detect:oip:http://HOST/v2/models/NAME", "a detector on such a server"
    ),
    "bundled": ModelKind(
        "bundled.load", None, "bundled, bundled:vit, bundled:detector", "small models of the package's own scenes"
    ),
}
_FORMS = "a model specification, a torch module, a pipeline of transformers, a model of Keras or ultralytics, a function"
_SUFFIXES = {".onnx": "onnx", ".keras": "keras", ".h5": "keras", ".hdf5": "keras"}  # files that need no prefix


def load_model(spec: str | Path, **options: Any) -> Classifier:
    """Load a classifier or an object detector by its specification.

    What is not given is taken from a TOML file next to the model, from the model's metadata, or assumed and noted in
    `info.notes`.

    Args:
        spec: Which model, e.g. "net.onnx", "torch:net.py:build", "hf:google/vit-base-patch16-224" or "bundled"; an object
            detector is written e.g. "detect:yolo.onnx".
        **options: How it is loaded, the fields of `Loading`: labels, preprocess, resize, returns, threshold, device,
            batch_size, threads, half, endpoint. Labels may be any sequence, endpoint options a mapping.

    Returns:
        The classifier, for `explain` and the other functions.

    Raises:
        ModelError: The specification is not valid, or the model cannot be loaded.
        OptionError: An option is unknown, or has an invalid value.
        MissingExtraError: A library that this kind of model needs is not installed.
    """
    return open_model(spec, Loading.from_options(**options))


def open_model(spec: str | Path, loading: Loading, *, uncached: bool = False) -> Classifier:
    """`load_model` with all options in one record. uncached: every call must reach the model, not an endpoint's cache."""
    prefix = "detect:" if str(spec).startswith("detect:") else ""
    rest = str(spec).removeprefix(prefix)
    kind, colon, target = rest.partition(":")
    suffix = Path(rest).suffix.lower()
    if kind not in KINDS and f"{prefix}{_SUFFIXES.get(suffix)}" in KINDS:
        kind, target = _SUFFIXES[suffix], rest
    elif f"{prefix}{kind}" not in KINDS or not (target or (kind == "bundled" and not colon)):
        forms = ", ".join(item.form for name, item in KINDS.items() if name.startswith(prefix))
        what = "the specification of an object detector" if prefix else "a model specification"
        raise ModelError(f"{str(spec)!r} is not {what}; expected one of {forms}")
    kind = f"{prefix}{kind}"
    if loading.endpoint and kind not in ("oip", "detect:oip"):
        raise OptionError(f"endpoint options are for oip: models, not for {kind}")
    if uncached and kind in ("oip", "detect:oip"):
        loading = replace(loading, endpoint=(*loading.endpoint, "cache=none"))
    # A kind that is a file may have a TOML file next to it; all others are loaded by their row in KINDS alone.
    file: Path | None = None
    match kind.removeprefix("detect:"):
        case "onnx" | "keras":
            file = Path(target)
        case "torch" | "python" if ".py" in target:
            file = Path(target[: target.index(".py") + 3])
    settings = replace(resolve_settings(file, loading), detects=kind.startswith("detect:"))
    module, _, function = KINDS[kind].loader.rpartition(".")
    load = getattr(importlib.import_module(f"becausal.models.{module}"), function)
    classifier: Classifier = load(target, settings)
    return _check_threshold(classifier, settings)


def _check_threshold(classifier: Classifier, settings: ModelSettings) -> Classifier:
    """The classifier. Raises OptionError where a threshold was stated for a model whose labels exclude each other."""
    if settings.threshold is not None and classifier.info.output not in ("boxes", "multilabel"):
        raise OptionError(
            "threshold is for object detectors and multi-label models, and the labels of this model exclude each other: "
            "remove it, or add --returns multilabel"
        )
    return classifier


def as_classifier(model: Any, **options: Any) -> Classifier:
    """Make a classifier, or a detector, from a specification or an object in memory.

    Args:
        model: A specification, a torch module, a pipeline of transformers, a model of Keras or ultralytics, or a function; a
            classifier is returned unchanged.
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
    classifier = _wrap(model, resolve_settings(None, loading))
    if classifier is None:
        raise ModelError(f"expected {_FORMS} or a Classifier, not {type(model).__name__}")
    return classifier


def _wrap(model: Any, settings: ModelSettings) -> Classifier | None:
    """The classifier or the detector that an object in memory is; None if it is neither."""
    classifier: Classifier
    if keras_file.is_model(model) and not settings.detects:  # first: on the torch backend, it is a torch module as well
        classifier = keras_file.wrap(model, settings)
    elif objects.is_pipeline(model):
        classifier = objects.wrap_pipeline(model, settings)
    elif objects.is_ultralytics(model):  # a torch module as well
        classifier = objects.wrap_ultralytics(model, settings)
    elif torch_module.is_module(model):
        classifier = objects.wrap_module(model, settings)
    elif callable(model):
        classifier = python_function.wrap(model, settings)
    else:
        return None
    return _check_threshold(classifier, settings)


def as_detector(model: Any, **options: Any) -> Classifier:
    """Make an object detector from a specification or an object in memory.

    Args:
        model: A specification, a torch module that follows torchvision, a pipeline of transformers, a model of ultralytics,
            or a function; a detector is returned unchanged.
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
    settings = replace(resolve_settings(None, Loading.from_options(**options)), detects=True)
    found = _wrap(model, settings)
    if found is None:
        raise ModelError(f"expected {_FORMS} or a detector, not {type(model).__name__}")
    return found
