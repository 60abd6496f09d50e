"""Pretrained models of timm, with timm's own data config."""

import math
from typing import Any

from becausal.core.errors import MissingExtraError, ModelError, NetworkError
from becausal.models.preprocess import INTERPOLATIONS, Interpolation, Normalisation, Resize
from becausal.models.settings import Metadata, Settings
from becausal.models.torch_module import TorchClassifier, import_torch, wrap


def load(target: str, settings: Settings) -> TorchClassifier:
    """The model of that name. Raises NetworkError where its weights must be fetched and cannot be."""
    import_torch("a timm model")
    try:
        import timm
    except ImportError:
        raise MissingExtraError("timm", "timm", "a timm model") from None
    except RuntimeError as error:  # torchvision, which timm imports, built for another torch
        raise ModelError(f"timm cannot be imported beside this torch: {error}") from None
    try:
        module = timm.create_model(target, pretrained=True)
    except OSError as error:
        raise NetworkError(
            f"the weights of timm:{target} are not here and cannot be fetched ({error}): download them elsewhere and "
            "set HF_HOME to the folder of the cache"
        ) from None
    except (RuntimeError, ValueError, KeyError) as error:
        raise ModelError(f"timm:{target} cannot be loaded: {' '.join(str(error).split())[:200]}") from error
    config = timm.data.resolve_model_data_config(module)
    found = read_metadata(config, _find_labels(timm, module))
    return wrap(module, settings, found, spec=f"timm:{target}", kind="timm")


def read_metadata(config: dict[str, Any], labels: tuple[str, ...] | None) -> Metadata:
    """Geometry and numbers as timm's own evaluation transform has them.

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
        notes = ("timm would show the whole image with a border: cropped in the centre instead",)
    return Metadata(
        numbers=Normalisation(1 / 255, tuple(config["mean"]), tuple(config["std"]), name="its data config"),
        grid=(h, w),
        resize=resize,
        interpolation=_interpolation(config.get("interpolation")),
        labels=labels,
        output="logits",
        notes=notes,
    )


def _interpolation(name: Any) -> Interpolation:
    return next((known for known in INTERPOLATIONS if known == name), "bilinear")


def _find_labels(timm: Any, module: Any) -> tuple[str, ...] | None:
    """Names from the weights' own config, or from the ImageNet subset timm recognises."""
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
