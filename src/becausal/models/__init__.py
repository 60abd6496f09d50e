"""Classifiers: one file per kind of model, loaded when asked for.

load_model("photo_net.onnx")                    an ONNX file
load_model("torch:net.py:build")                an nn.Module that build() returns; net.py:build:text, build("text")
load_model("python:net.py:predict")             any function from a batch of images to scores, or just labels
load_model("hf:google/vit-base-patch16-224")    Hugging Face, by name or folder
load_model("timm:resnet50"), load_model("torchvision:resnet50"), load_model("keras:net.keras")
load_model("oip:http://host:8000/v2/models/net") a model that can only be called, by the Open Inference Protocol
load_model("bundled")                           the small classifier of the package's own scenes
"""

import importlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from becausal.core.contracts import Classifier
from becausal.core.errors import ModelError, OptionError
from becausal.models import huggingface, keras_file, python_function, timm_hub, torch_module
from becausal.models.endpoint.options import as_words
from becausal.models.labels import find_label, read_labels
from becausal.models.loading import Loading
from becausal.models.preprocess import Normalisation
from becausal.models.settings import Metadata, Settings, gather_settings

__all__ = ["KINDS", "Kind", "Loading", "as_classifier", "find_label", "load_model", "open_model", "read_labels"]


@dataclass(frozen=True)
class Kind:
    """One kind of model: the module whose `load` knows it, the extra it needs, how it is written, what it is."""

    module: str
    extra: str | None
    form: str
    description: str


KINDS: dict[str, Kind] = {
    "onnx": Kind("onnx_file", None, "FILE.onnx", "an ONNX file, run by onnxruntime"),
    "torch": Kind("torch_module", "torch", "torch:FILE.py:BUILD", "a function that returns a torch module"),
    "python": Kind("python_function", None, "python:FILE.py:PREDICT", "any function from images to scores or labels"),
    "hf": Kind("huggingface", "hf", "hf:NAME-OR-FOLDER", "an image classifier of Hugging Face"),
    "timm": Kind("timm_hub", "timm", "timm:NAME", "a pretrained model of timm"),
    "torchvision": Kind("torchvision_hub", "torchvision", "torchvision:NAME", "a pretrained model of torchvision"),
    "keras": Kind("keras_file", "keras", "keras:FILE.keras", "a saved Keras model"),
    "oip": Kind("endpoint.classifier", None, "oip:http://HOST/v2/models/NAME", "an endpoint of the Open Inference Protocol"),
    "bundled": Kind("bundled", None, "bundled", "the small classifier of the package's own scenes"),
}


def load_model(
    spec: str | Path,
    *,
    labels: str | Path | Sequence[str] | None = None,
    preprocess: str | Path | Normalisation | None = None,
    resize: str | int | None = None,
    returns: str | None = None,
    device: str = "cpu",
    batch_size: int | None = None,
    threads: int | None = None,
    half: bool = False,
    endpoint: Mapping[str, Any] | Sequence[str] | None = None,
) -> Classifier:
    """Load the classifier that a spec names.

    What is not given comes from the model's metadata, from a TOML file next to it, or is assumed and noted in
    `info.notes`.

    Args:
        spec: Which model, e.g. "net.onnx", "torch:net.py:build", "hf:google/vit-base-patch16-224" or "bundled".
        labels: Class names: a file, or a list.
        preprocess: Normalisation: a preset (imagenet, tf, caffe, unit, raw), a TOML file or a `Normalisation`.
        resize: How an image is resized before the centre crop: 256, "256/224", "squash" or "squash:256".
        returns: What the model returns: probabilities, logits, multilabel, multilabel-logits or labels.
        device: Where the model runs, e.g. "cpu" or "cuda".
        batch_size: Maximum number of rows evaluated at once.
        threads: CPU threads for the model.
        half: Half precision, on a GPU.
        endpoint: Options of an `oip:` model, e.g. {"timeout": 10, "price": 0.002}.

    Raises:
        ModelError: The spec names no model, or the model cannot be loaded.
        MissingExtraError: A library that this kind of model needs is not installed.
    """
    loading = Loading(
        labels=labels if labels is None or isinstance(labels, (str, Path)) else tuple(str(name) for name in labels),
        preprocess=preprocess,
        resize=resize,
        returns=returns,
        device=device,
        batch_size=batch_size,
        threads=threads,
        half=half,
        endpoint=as_words(endpoint),
    )
    return open_model(spec, loading)


def open_model(spec: str | Path, loading: Loading, *, uncached: bool = False) -> Classifier:
    """Load the classifier that a spec names, with all options in one record.

    Args:
        spec: As in `load_model`.
        loading: The options.
        uncached: Whether every call must reach the model, even where an endpoint's answers are kept on disk.
    """
    kind, target = _split(str(spec))
    if loading.endpoint and kind != "oip":
        raise OptionError(f"endpoint options are for oip: models, not for {kind}")
    settings = gather_settings(_file_of(kind, target), loading)
    if uncached and kind == "oip":
        settings = replace(settings, endpoint=(*settings.endpoint, "cache=none"))
    module = importlib.import_module(f"becausal.models.{KINDS[kind].module}")
    classifier: Classifier = module.load(target, settings)
    return classifier


def as_classifier(
    model: Any,
    *,
    labels: str | Path | Sequence[str] | None = None,
    preprocess: str | Path | Normalisation | None = None,
    resize: str | int | None = None,
    returns: str | None = None,
    device: str = "cpu",
    batch_size: int | None = None,
    threads: int | None = None,
    half: bool = False,
    endpoint: Mapping[str, Any] | Sequence[str] | None = None,
) -> Classifier:
    """Make a classifier from a spec, a torch module, a Keras model, a function, or return one that is one already.

    Args:
        model: The model.
        labels: These and the other options are those of `load_model`.
        preprocess: See `load_model`.
        resize: See `load_model`.
        returns: See `load_model`.
        device: See `load_model`.
        batch_size: See `load_model`.
        threads: See `load_model`.
        half: See `load_model`.
        endpoint: See `load_model`.

    Raises:
        ModelError: It is none of these.
        OptionError: Options were given for a classifier that is loaded already.
    """
    loading = Loading(
        labels=labels if labels is None or isinstance(labels, (str, Path)) else tuple(str(name) for name in labels),
        preprocess=preprocess,
        resize=resize,
        returns=returns,
        device=device,
        batch_size=batch_size,
        threads=threads,
        half=half,
        endpoint=as_words(endpoint),
    )
    if isinstance(model, (str, Path)):
        return open_model(model, loading)
    if loading.endpoint:
        raise OptionError("endpoint options are for oip: models")
    if isinstance(model, Classifier):
        if loading != Loading():
            raise OptionError("this classifier is loaded already: give its options where it is loaded")
        return model
    return _wrap(model, gather_settings(None, loading))


def _wrap(model: Any, settings: Settings) -> Classifier:
    if keras_file.is_model(model):  # before torch: a Keras model on the torch backend is a torch module as well
        return keras_file.wrap(model, settings)
    if torch_module.is_module(model):
        return torch_module.wrap(model, settings, _own_metadata(model))
    if callable(model):
        return python_function.wrap(model, settings)
    raise ModelError(f"a model is a spec, a torch module, a function or a Classifier, not {type(model).__name__}")


def _own_metadata(module: Any) -> Metadata | None:
    """What a torch module brought along from Hugging Face or timm."""
    if hasattr(getattr(module, "config", None), "id2label"):
        return huggingface.read_metadata(module.config, None)
    timm = sys.modules.get("timm")
    if timm is not None and hasattr(module, "pretrained_cfg"):
        return timm_hub.read_metadata(timm.data.resolve_model_data_config(module), None)
    return None


def _split(spec: str) -> tuple[str, str]:
    """Kind and target of a spec."""
    kind, colon, target = spec.partition(":")
    if kind in KINDS and (target or (kind == "bundled" and not colon)):
        return kind, target
    if spec.lower().endswith(".onnx") and kind not in KINDS:
        return "onnx", spec
    grammar = ", ".join(item.form for item in KINDS.values())
    raise ModelError(f"{spec!r} names no model: write one of {grammar}")


def _file_of(kind: str, target: str) -> Path | None:
    """The file whose neighbour of the same name, in TOML, may say more."""
    if kind in ("onnx", "keras"):
        return Path(target)
    if kind in ("torch", "python") and ".py" in target:
        return Path(target[: target.index(".py") + 3])
    return None
