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
load_model("clip:FOLDER", text="a red bus"), load_model("chat:http://host:8000/v1", ask="What is on the table?"),
load_model("embed:net.onnx", like="other.jpg"), load_model("segment:net.onnx")    four other questions
"""

import importlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from becausal.core.contracts import Classifier
from becausal.core.errors import ModelError, OptionError
from becausal.core.text import one_line
from becausal.models import keras_file, objects, python_function, segments, similarity, text, torch_module
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
    "as_embedder",
    "as_matcher",
    "as_segmenter",
    "find_label",
    "load_model",
    "open_model",
    "read_labels",
]


@dataclass(frozen=True)
class ModelKind:
    """One kind of model: the function that loads it, the extra it needs, how it is written, what it is.

    loader: "module.function", imported when it is needed. asks: the options of `Loading` that only some kinds have.
    """

    loader: str
    extra: str | None
    form: str
    description: str
    asks: tuple[str, ...] = ()


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
        "endpoint.classifier.load",
        "endpoint",
        "oip:http://HOST/v2/models/NAME",
        "a server with the Open Inference Protocol",
        ("endpoint",),
    ),
    "clip": ModelKind(
        "text.load", "hf", "clip:NAME-OR-FOLDER", "images and texts: which of --labels fits, or why --text?", ("text",)
    ),
    "chat": ModelKind(
        "chat.load", "endpoint", "chat:http://HOST/v1", "a chat model on a server: the answer to --ask", ("ask", "endpoint")
    ),
    "embed": ModelKind(
        "similarity.ask", None, "embed:MODEL", "a network of embeddings: why like --like IMAGE?", ("like", "endpoint")
    ),
    "segment": ModelKind("segments.ask", None, "segment:MODEL", "a network that gives every pixel a class", ("endpoint",)),
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
        "endpoint.classifier.load",
        "endpoint",
        "detect:oip:http://HOST/v2/models/NAME",
        "a detector on such a server",
        ("endpoint",),
    ),
    "bundled": ModelKind(
        "bundled.load",
        None,
        "bundled, bundled:NAME",
        "for the package's own scenes: vit, detector, clip, segmenter",
    ),
}
QUESTIONS = ("embed", "segment")  # kinds that are another model, asked another question
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
            batch_size, threads, half, endpoint, text, ask, like. Labels may be any sequence, endpoint options a mapping.

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
    if str(spec) == "bundled:segmenter":  # it can be asked nothing else
        spec = f"segment:{spec}"
    question = str(spec).partition(":")[0]
    if question in QUESTIONS:
        return _as_asked(spec, question, loading, uncached=uncached)
    return _open(str(spec), loading, "", uncached=uncached)


def _open(spec: str, loading: Loading, question: str, *, uncached: bool = False) -> Classifier:
    """The model of a specification without the prefix of a question. question: that prefix, see `ModelSettings`."""
    prefix = "detect:" if spec.startswith("detect:") else ""
    rest = spec.removeprefix(prefix)
    kind, colon, target = rest.partition(":")
    suffix = Path(rest).suffix.lower()
    if kind not in KINDS and f"{prefix}{_SUFFIXES.get(suffix)}" in KINDS:
        kind, target = _SUFFIXES[suffix], rest
    elif f"{prefix}{kind}" not in KINDS or not (target or (kind == "bundled" and not colon)):
        forms = ", ".join(item.form for name, item in KINDS.items() if name.startswith(prefix))
        what = "the specification of an object detector" if prefix else "a model specification"
        raise ModelError(f"{spec!r} is not {what}; expected one of {forms}")
    kind = f"{prefix}{kind}"
    if question and (prefix or kind in ("chat", *QUESTIONS) or rest == "bundled:detector"):
        raise ModelError(
            f"{question}: reads the raw output of a network, so {spec!r} cannot follow it: give a network alone"
        )
    _check_asked("clip" if rest == "bundled:clip" else kind, loading)
    if uncached and "endpoint" in KINDS[kind].asks:
        loading = replace(loading, endpoint=(*loading.endpoint, "cache=none"))
    # A kind that is a file may have a TOML file next to it; all others are loaded by their row in KINDS alone.
    file: Path | None = None
    match kind.removeprefix("detect:"):
        case "onnx" | "keras":
            file = Path(target)
        case "torch" | "python" if ".py" in target:
            file = Path(target[: target.index(".py") + 3])
    settings = replace(resolve_settings(file, loading), question="detect" if prefix else question)
    if question:
        settings = _read_raw(settings)
    module, _, function = KINDS[kind].loader.rpartition(".")
    load = getattr(importlib.import_module(f"becausal.models.{module}"), function)
    classifier: Classifier = load(target, settings)
    return _check_threshold(classifier, settings)


def _check_asked(kind: str, loading: Loading) -> None:
    """Raise OptionError where an option is for other kinds of models."""
    if kind == "embed" and loading.labels is not None:
        raise OptionError(
            "labels are for models that tell classes apart, and an embed: model compares images: remove labels"
        )
    if (
        kind == "clip"
        and isinstance(loading.labels, str)
        and "," not in loading.labels
        and not os.path.exists(loading.labels)
    ):
        raise OptionError(
            f"labels {one_line(loading.labels, 80)!r} is no file, and one prompt: use text for it, or give two or more"
        )
    for name in dict.fromkeys(name for item in KINDS.values() for name in item.asks):
        if getattr(loading, name) not in (None, ()) and name not in KINDS[kind].asks:
            own = [key for key, item in KINDS.items() if name in item.asks and ":" not in key]
            if name == "endpoint":  # which the others hand on
                own = [key for key in own if key not in QUESTIONS]
            what, kinds = (
                "endpoint options are" if name == "endpoint" else f"{name} is",
                " and ".join(f"{key}:" for key in own),
            )
            raise OptionError(f"{what} for {kinds} models, not for {kind}")


def _read_raw(settings: ModelSettings) -> ModelSettings:
    """The settings of a network whose raw output is read: `AskedNetwork`."""
    if settings.returns is not None:
        raise OptionError(f"{settings.question}: reads what the network returns by itself: remove returns")
    is_whole = settings.question == "segment" and settings.resize is None  # a crop would leave segments out
    return replace(settings, returns="raw", resize="squash" if is_whole else settings.resize)


def _check_threshold(classifier: Classifier, settings: ModelSettings) -> Classifier:
    """The classifier. Raises OptionError where a threshold was stated for a model whose labels exclude each other."""
    if settings.threshold is not None and classifier.info.output in ("probabilities", "labels") and not settings.question:
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
    _check_asked("python", loading)
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


def as_embedder(model: Any, **options: Any) -> Classifier:
    """A network of embeddings, (n, numbers), asked how like another image, the option `like`, an image is.

    Model, options and errors are those of `as_classifier`. The one label of what is returned is "like" that image.
    """
    return _as_asked(model, "embed", Loading.from_options(**options))


def open_embedder(model: Any, loading: Loading) -> Classifier:
    """A network of embeddings alone, from what `as_embedder` takes: it may be compared with several images."""
    _check_asked("embed", loading)
    return _as_network(model, "embed", replace(loading, like=None, threshold=None))


def as_segmenter(model: Any, **options: Any) -> Classifier:
    """A network that gives every pixel a class, (n, classes, h, w) logits, asked about places and segments.

    Model, options and errors are those of `as_classifier`. For `explain(..., at=...)` or `explain(..., target=...)`.
    """
    return _as_asked(model, "segment", Loading.from_options(**options))


def _as_asked(model: Any, question: str, loading: Loading, *, uncached: bool = False) -> Classifier:
    _check_asked(question, loading)
    network = _as_network(model, question, replace(loading, like=None, threshold=None), uncached=uncached)
    return segments.ask(network, loading) if question == "segment" else similarity.ask(network, loading)


def _as_network(model: Any, question: str, loading: Loading, *, uncached: bool = False) -> Classifier:
    """A network whose raw output is read: a specification, with or without the question before it, or an object."""
    if isinstance(model, (str, Path)):
        return _open(str(model).removeprefix(f"{question}:"), loading, question, uncached=uncached)
    _check_asked("python", loading)
    if isinstance(model, Classifier):
        if loading != Loading():
            raise OptionError("this network is already loaded: give the options where it is loaded")
        return model
    network = _wrap(model, _read_raw(replace(resolve_settings(None, loading), question=question)))
    if network is None:
        raise ModelError(f"expected {_FORMS}, not {type(model).__name__}")
    return network


def as_matcher(images: Any, texts: text.EmbedTexts, *, scale: float = text.SCALE, **options: Any) -> Classifier:
    """Two encoders, of images and of texts, as a model that is asked which prompt an image fits; its labels are the prompts.

    Args:
        images: As in `as_classifier`. It returns one embedding for each image, (n, numbers).
        texts: A function from a list of n texts to their embeddings, (n, numbers), an array or a torch tensor.
        scale: What the cosine similarities are multiplied with before the softmax over `labels`.
        **options: How the image encoder is loaded, as in `load_model`, and what is asked: `labels`, two or more prompts that
            exclude each other, or `text`, one prompt.
    """
    loading = Loading.from_options(**options)
    _check_asked("clip", replace(loading, endpoint=()))
    settings, plain = resolve_settings(None, loading), replace(loading, labels=None, text=None, threshold=None)
    text.find_prompts(settings)
    network = _as_network(images, "embed", plain)
    return text.ask(network, texts, settings, scale=scale, spec=f"{network.info.spec} with a text encoder")


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
    settings = replace(resolve_settings(None, Loading.from_options(**options)), question="detect")
    found = _wrap(model, settings)
    if found is None:
        raise ModelError(f"expected {_FORMS} or a detector, not {type(model).__name__}")
    return found
