"""Models in memory that bring their preprocessing and names along: what the objects of some libraries state.

An object is recognised by its form and by the name of its library. None is imported that is not there already.
"""

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.core.errors import ModelError
from becausal.models.box_layouts import LOWEST, YOLO_THRESHOLD
from becausal.models.hubs import (
    as_embedder_module,
    describe_timm,
    read_huggingface,
    read_torchvision,
    wrap_huggingface_boxes,
)
from becausal.models.loading import ModelSettings
from becausal.models.python_function import PythonClassifier
from becausal.models.python_function import wrap as wrap_function
from becausal.models.torch_module import TorchClassifier, wrap

_BOX_TASKS = ("detect", "segment", "pose")  # of ultralytics: their results have boxes
_HEAD = 1000  # classes that torchvision's weights were trained for


def is_pipeline(model: Any) -> bool:
    """Whether an object is a pipeline of transformers for images."""
    return isinstance(getattr(model, "task", None), str) and hasattr(model, "image_processor") and hasattr(model, "model")


def wrap_pipeline(pipeline: Any, settings: ModelSettings) -> TorchClassifier:
    """The model of a pipeline, with the preprocessing of its processor. Raises ModelError for other tasks."""
    module, spec = pipeline.model, f"pipeline {type(pipeline.model).__name__}"
    processor = pipeline.image_processor or getattr(pipeline, "feature_extractor", None)
    if pipeline.task == "object-detection":
        return wrap_huggingface_boxes(module, processor, replace(settings, question="detect"), spec=spec)
    if settings.question == "embed":
        module = as_embedder_module(module)
    elif pipeline.task != ("image-segmentation" if settings.question == "segment" else "image-classification"):
        raise ModelError(f"the pipeline is for {pipeline.task}; expected image-classification or object-detection")
    if settings.detects:
        raise ModelError("the pipeline is for image-classification: it returns scores per class, not boxes")
    return wrap(module, settings, read_huggingface(module.config, processor), spec=spec, kind="hf")


def is_ultralytics(model: Any) -> bool:
    """Whether an object is a model of ultralytics, e.g. a YOLO."""
    return any(kind.__module__.startswith("ultralytics.") for kind in type(model).__mro__) and hasattr(model, "predict")


def wrap_ultralytics(model: Any, settings: ModelSettings) -> PythonClassifier:
    """A model of ultralytics, called by its own `predict`, on views of its own input size.

    Raises ModelError for tasks other than boxes and classes.
    """
    is_detector = model.task in _BOX_TASKS
    if not is_detector and (model.task != "classify" or settings.detects):
        expected = ", ".join(_BOX_TASKS if settings.detects else (*_BOX_TASKS, "classify"))
        raise ModelError(f"the ultralytics model is for {model.task}; expected one for {expected}")
    side = (getattr(model, "overrides", None) or {}).get("imgsz") or (640 if is_detector else 224)
    names = model.names
    h, w = (side, side) if isinstance(side, int) else side
    own = ModelSettings(
        resize="letterbox" if is_detector else min(h, w),
        crop=(h, w),
        labels=tuple(str(names[i]) for i in sorted(names)) if isinstance(names, Mapping) else tuple(names),
        returns=None if is_detector else "probabilities",
        threshold=YOLO_THRESHOLD if is_detector else None,
    )

    def predict(images: NDArray[Any]) -> Any:
        given = [np.ascontiguousarray(image[..., ::-1]) for image in images]  # it takes arrays as BGR
        found = model.predict(given, imgsz=list(images.shape[1:3]), conf=LOWEST, verbose=False)
        if is_detector:
            return [(one.boxes.xyxy, one.boxes.conf, one.boxes.cls) for one in found]
        return [one.probs.data for one in found]

    spec = f"ultralytics {type(model).__name__}"
    return wrap_function(predict, replace(settings, question="detect" if is_detector else ""), own, spec=spec)


def wrap_module(module: Any, settings: ModelSettings) -> TorchClassifier:
    """A torch module, with what Hugging Face, timm or torchvision state about it."""
    timm, torchvision = sys.modules.get("timm"), sys.modules.get("torchvision")
    if hasattr(getattr(module, "config", None), "id2label"):
        if settings.detects or type(module).__name__.endswith("ForObjectDetection"):
            raise ModelError(
                "a Hugging Face detector needs its processor: give its object-detection pipeline, or save both to a folder "
                "and use detect:hf:FOLDER"
            )
        found = as_embedder_module(module) if settings.question == "embed" else module
        return wrap(found, settings, read_huggingface(found.config, None), spec=f"module {type(module).__name__}")
    if timm is not None and hasattr(module, "pretrained_cfg"):
        return wrap(module, settings, describe_timm(timm, module))
    library, _, rest = type(module).__module__.partition(".models.")
    if torchvision is not None and library == "torchvision":
        detects = settings.detects or rest.startswith("detection.")
        settings = replace(settings, question="detect" if detects else settings.question)
        return wrap(module, settings, describe_torchvision(torchvision, module))
    return wrap(module, settings)


def describe_torchvision(torchvision: Any, module: Any) -> ModelSettings | None:
    """What the weights with as many parameters state: torchvision's modules do not know theirs. None if there are none.

    Where the last layer has another number of classes, it is counted as if it had as many as those weights; the names of
    the classes are not known then.
    """
    count = sum(each.numel() for each in module.parameters())
    layers = [layer for layer in module.modules() if type(layer).__name__ == "Linear"]
    usual = count
    if layers:
        usual += (layers[-1].in_features + (layers[-1].bias is not None)) * (_HEAD - layers[-1].out_features)
    package = sys.modules[type(module).__module__.rpartition(".")[0]]
    for name in torchvision.models.list_models(module=package):
        kinds = torchvision.models.get_model_weights(name)
        fitting = [each for each in (kinds.DEFAULT, *kinds) if each.meta.get("num_params") in (count, usual)]
        if fitting:
            weights = fitting[0]
            own = read_torchvision(weights)
            if weights.meta["num_params"] != count:
                own = replace(own, labels=None)
            used = [what for what, value in (("preprocessing", own.crop), ("class names", own.labels)) if value is not None]
            note = f"modules of torchvision do not state their weights: {weights} assumed, for {' and '.join(used)}"
            return replace(own, notes=(note,) if used else ())
    return None
