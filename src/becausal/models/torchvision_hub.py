"""Pretrained models of torchvision, with their weights' own transforms."""

from typing import Any

from becausal.core.errors import MissingExtraError, ModelError, NetworkError
from becausal.models.preprocess import INTERPOLATIONS, Interpolation, Normalisation
from becausal.models.settings import Metadata, Settings
from becausal.models.torch_module import TorchClassifier, import_torch, wrap


def load(target: str, settings: Settings) -> TorchClassifier:
    """The model of that name, with its default weights, or those after a colon (`resnet50:IMAGENET1K_V1`).

    Raises NetworkError where the weights must be fetched and cannot be.
    """
    import_torch("a torchvision model")
    try:
        from torchvision import models
    except ImportError:
        raise MissingExtraError("torchvision", "torchvision", "a torchvision model") from None
    except RuntimeError as error:  # built for another torch
        raise ModelError(f"torchvision cannot be imported beside this torch: {error}") from None
    name, _, choice = target.partition(":")
    try:
        weights = models.get_model_weights(name)[choice or "DEFAULT"]
        transform = weights.transforms()
        module = models.get_model(name, weights=weights)
    except OSError as error:
        raise NetworkError(
            f"the weights of torchvision:{target} are not here and cannot be fetched ({error}): download them "
            "elsewhere into TORCH_HOME/hub/checkpoints"
        ) from None
    except (ValueError, KeyError) as error:
        raise ModelError(f"torchvision has no classifier {target!r}: {' '.join(str(error).split())[:200]}") from None
    found = read_metadata(transform, weights.meta)
    return wrap(module, settings, found, spec=f"torchvision:{target}", kind="torchvision")


def read_metadata(transform: Any, meta: dict[str, Any]) -> Metadata:
    """Geometry and numbers of a preset transform for classification, and the labels of its weights.

    Raises ModelError for a transform of another task.
    """
    if not hasattr(transform, "crop_size") or not hasattr(transform, "resize_size"):
        raise ModelError(f"these weights come with {type(transform).__name__}; expected those of a classifier")
    crop, resize = list(transform.crop_size), list(transform.resize_size)
    return Metadata(
        numbers=Normalisation(1 / 255, tuple(transform.mean), tuple(transform.std), name="its transforms"),
        grid=(int(crop[0]), int(crop[-1])),
        resize=int(resize[0]) if len(resize) == 1 else (int(resize[0]), int(resize[1])),
        interpolation=_interpolation(transform.interpolation),
        labels=tuple(str(name) for name in meta.get("categories", ())) or None,
        output="logits",
    )


def _interpolation(mode: Any) -> Interpolation:
    value = getattr(mode, "value", mode)
    return next((known for known in INTERPOLATIONS if known == value), "bilinear")
