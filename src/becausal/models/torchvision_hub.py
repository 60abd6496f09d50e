"""Pretrained torchvision models, with the transforms of their weights."""

from typing import Any

from becausal.core.errors import MissingExtraError, ModelError, NetworkError
from becausal.core.text import one_line
from becausal.models.preprocess import Normalisation, find_interpolation
from becausal.models.settings import ModelSettings
from becausal.models.torch_module import TorchClassifier, import_torch, wrap


def load(target: str, settings: ModelSettings) -> TorchClassifier:
    """The model of that name, with its default weights, or those after a colon (`resnet50:IMAGENET1K_V1`).

    Raises NetworkError if the weights must be downloaded and cannot be.
    """
    module, transform, meta = fetch(target)
    return wrap(module, settings, read_metadata(transform, meta), spec=f"torchvision:{target}", kind="torchvision")


def fetch(target: str, *, is_detector: bool = False) -> tuple[Any, Any, dict[str, Any]]:
    """The module, the transform and the metadata of a model with weights, e.g. `resnet50` or `resnet50:IMAGENET1K_V1`.

    Raises NetworkError if the weights must be downloaded and cannot be, ModelError if there is no such model, or if it is
    a detector and a classifier is wanted, or the other way round.
    """
    import_torch("a torchvision model", "torchvision")
    try:
        from torchvision import models
    except ImportError:
        raise MissingExtraError("torchvision", "torchvision", "a torchvision model") from None
    except RuntimeError as error:  # built for another torch
        raise ModelError(f"torchvision cannot be imported with this version of torch: {error}") from None
    name, _, choice = target.partition(":")
    try:
        weights = models.get_model_weights(name)[choice or "DEFAULT"]
        transform = weights.transforms()
        _check_task(target, transform, is_detector=is_detector)
        module = models.get_model(name, weights=weights)
    except OSError as error:
        raise NetworkError(
            f"the weights of torchvision:{target} are not cached and cannot be downloaded ({error}): download them on "
            "another machine and copy them to TORCH_HOME/hub/checkpoints"
        ) from None
    except (ValueError, KeyError) as error:
        wanted = "detector" if is_detector else "classifier"
        raise ModelError(f"torchvision has no {wanted} {target!r}: {one_line(error, 200)}") from None
    return module, transform, weights.meta


def _check_task(target: str, transform: Any, *, is_detector: bool) -> None:
    detects = type(transform).__name__ == "ObjectDetection"
    if detects and not is_detector:
        raise ModelError(f"torchvision:{target} is an object detector: use detect:torchvision:{target}")
    if is_detector and not detects:
        raise ModelError(f"torchvision:{target} does not return boxes: load it without detect:")


def read_metadata(transform: Any, meta: dict[str, Any]) -> ModelSettings:
    """Geometry and normalisation of a classification transform, and the labels of its weights.

    Raises ModelError if the transform is for another task.
    """
    if not hasattr(transform, "crop_size") or not hasattr(transform, "resize_size"):
        raise ModelError(f"the transform of these weights is {type(transform).__name__}; expected that of a classifier")
    crop, resize, mode = list(transform.crop_size), list(transform.resize_size), transform.interpolation
    return ModelSettings(
        normalisation=Normalisation(1 / 255, tuple(transform.mean), tuple(transform.std), name="transforms"),
        crop=(int(crop[0]), int(crop[-1])),
        resize=int(resize[0]) if len(resize) == 1 else (int(resize[0]), int(resize[1])),
        interpolation=find_interpolation(getattr(mode, "value", mode)) or "bilinear",
        labels=tuple(str(name) for name in meta.get("categories", ())) or None,
        returns="logits",
    )
