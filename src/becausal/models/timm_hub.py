"""Pretrained timm models, with timm's data config."""

import math
from typing import Any

from becausal.core.errors import MissingExtraError, ModelError, NetworkError
from becausal.core.text import one_line
from becausal.models.preprocess import Normalisation, Resize, find_interpolation
from becausal.models.settings import ModelSettings
from becausal.models.torch_module import TorchClassifier, import_torch, wrap


def load(target: str, settings: ModelSettings) -> TorchClassifier:
    """The model of that name. Raises NetworkError if its weights must be downloaded and cannot be."""
    import_torch("a timm model", "timm")
    try:
        import timm
    except ImportError:
        raise MissingExtraError("timm", "timm", "a timm model") from None
    except RuntimeError as error:  # torchvision, which timm imports, built for another torch
        raise ModelError(f"timm cannot be imported with this version of torch: {error}") from None
    try:
        module = timm.create_model(target, pretrained=True)
    except OSError as error:
        raise NetworkError(
            f"the weights of timm:{target} are not cached and cannot be downloaded ({error}): download them on another "
            "machine and set HF_HOME to the cache folder"
        ) from None
    except (RuntimeError, ValueError, KeyError) as error:
        raise ModelError(f"timm:{target} cannot be loaded: {one_line(error, 200)}") from error
    config = timm.data.resolve_model_data_config(module)
    own = read_metadata(config, _find_labels(timm, module))
    return wrap(module, settings, own, spec=f"timm:{target}", kind="timm")


def read_metadata(config: dict[str, Any], labels: tuple[str, ...] | None) -> ModelSettings:
    """Geometry and normalisation of timm's evaluation transform.

    config: input_size (channels, h, w), crop_pct, crop_mode, interpolation, mean, std.
    """
    _, h, w = config["input_size"]
    share = float(config.get("crop_pct") or 0.875)
    before = (math.floor(h / share), math.floor(w / share))
    notes: tuple[str, ...] = ()
    resize: Resize = before[0] if h <= w else before[1]
    if config.get("crop_mode") == "squash":
        resize = before
    elif config.get("crop_mode") == "border":
        notes = ("timm would pad the image with a border: centre crop used instead",)
    return ModelSettings(
        normalisation=Normalisation(1 / 255, tuple(config["mean"]), tuple(config["std"]), name="data config"),
        crop=(h, w),
        resize=resize,
        interpolation=find_interpolation(config.get("interpolation")) or "bilinear",
        labels=labels,
        returns="logits",
        notes=notes,
    )


def _find_labels(timm: Any, module: Any) -> tuple[str, ...] | None:
    """Names from the config of the weights, or from the ImageNet subset that timm recognises."""
    config = getattr(module, "pretrained_cfg", None) or {}
    names = config.get("label_names")
    if names:
        described = config.get("label_descriptions") or {}
        return tuple(str(described.get(name, name)) for name in names)
    subset = timm.data.infer_imagenet_subset(module)
    if not subset:
        return None
    info = timm.data.ImageNetInfo(subset)
    return tuple(str(info.index_to_description(i)) for i in range(info.num_classes()))
