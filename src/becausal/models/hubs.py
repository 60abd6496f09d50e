"""Pretrained models of Hugging Face, timm and torchvision, with the preprocessing that their libraries state."""

import hashlib
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from becausal.core.errors import BecausalError, ModelError, NetworkError
from becausal.core.text import one_line
from becausal.models.box_layouts import LOWEST
from becausal.models.boxes import plan_boxes
from becausal.models.loading import ModelSettings
from becausal.models.preprocess import INTERPOLATIONS, Interpolation, Normalisation, Order, Resize
from becausal.models.torch_device import Tensor
from becausal.models.torch_module import TorchClassifier, import_beside_torch, import_torch, wrap, wrap_boxes
from becausal.models.user_code import file_sha256

_RESAMPLE: dict[int, Interpolation] = dict(
    enumerate(("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"))  # Pillow's constants
)
_HUB_TIMEOUT = 5.0  # seconds; the hub's own library would retry for minutes


def load_huggingface(target: str, settings: ModelSettings) -> TorchClassifier:
    """The network for this question in a folder, or of that name on Hugging Face's hub, with its processor's preprocessing.

    Raises NetworkError if it must be downloaded and cannot be, ModelError if it is not a model for this task.
    """
    transformers = import_beside_torch("transformers", "hf", "a Hugging Face model")
    where = find_files(transformers, target, f"hf:{target}")
    with loading_quietly(transformers, f"hf:{target}"):
        config = transformers.AutoConfig.from_pretrained(target, **where)
        kinds = [str(name) for name in getattr(config, "architectures", None) or ()]
        tasks = {name.rpartition("For")[2] for name in kinds}
        if not settings.detects and "ObjectDetection" in tasks:
            raise ModelError(f"hf:{target} is an object detector: use detect:hf:{target}")
        if settings.detects and "ImageClassification" in tasks:
            raise ModelError(f"hf:{target} returns scores per class, not boxes: load it without detect:")
        if not settings.question and "SemanticSegmentation" in tasks:
            raise ModelError(f"hf:{target} gives every pixel a class: use segment:hf:{target}")
        if settings.question == "segment" and "SemanticSegmentation" not in tasks:
            raise ModelError(f"hf:{target} is {', '.join(kinds) or 'not known'}: expected a model for semantic segmentation")
        task = {"detect": "ObjectDetection", "segment": "SemanticSegmentation"}.get(settings.question, "ImageClassification")
        if settings.question == "embed":
            module, settings = _load_embedder(transformers, target, where, settings)
        else:
            module = getattr(transformers, f"AutoModelFor{task}").from_pretrained(target, **where)
        try:
            processor = transformers.AutoImageProcessor.from_pretrained(target, **where)
        except (OSError, ValueError, KeyError, ImportError):
            processor = None
    sha256 = hash_files(transformers, target)
    if settings.detects:
        if processor is None:
            raise ModelError(f"hf:{target} has no image processor that decodes boxes: save it to the folder with the model")
        return wrap_huggingface_boxes(module, processor, settings, spec=f"detect:hf:{target}", sha256=sha256)
    own = read_huggingface(module.config, processor)
    return wrap(module, settings, own, spec=settings.name_kind(f"hf:{target}"), kind="hf", sha256=sha256)


def _load_embedder(transformers: Any, target: str, where: Any, settings: ModelSettings) -> tuple[Any, ModelSettings]:
    """A model without its head as a module from images to embeddings, and the settings with what was chosen."""
    model, report = transformers.AutoModel.from_pretrained(target, output_loading_info=True, **where)
    untrained = sorted(report["missing_keys"])  # which the library fills with random numbers
    if other := [key for key in untrained if "pooler" not in key]:
        raise ModelError(f"hf:{target} has no weights for {other[0]}: it is only a part of a model, or of another kind")
    note = "the files have no weights for a pooler, so the embedding is the output for the first token"
    notes = (*settings.notes, note) if untrained else settings.notes
    return as_embedder_module(model, has_pooler=not untrained), replace(settings, notes=notes)


def as_embedder_module(model: Any, *, has_pooler: bool = True) -> Any:
    """A model of transformers as a module from images to embeddings: its pooled output, else that for the first token."""
    base: Any = import_torch("a Hugging Face model", "hf").nn.Module

    class Embedder(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.config = getattr(model.config, "vision_config", model.config)

        def forward(self, images: Any) -> Any:
            found = getattr(self.model, "get_image_features", self.model)(pixel_values=images)  # of CLIP and its relatives
            pooled = getattr(found, "pooler_output", None) if has_pooler else None
            if pooled is not None or not hasattr(found, "last_hidden_state"):
                return found if pooled is None else pooled
            hidden = found.last_hidden_state
            return hidden.mean(dim=(2, 3)) if hidden.ndim == 4 else hidden[:, 0]

    return Embedder()


def find_files(transformers: Any, target: str, spec: str) -> dict[str, bool]:
    """How the library loads a folder or a name on the hub. Raises NetworkError if it must be downloaded and cannot be."""
    is_local = os.path.isdir(target)
    if not is_local:
        try:
            transformers.utils.cached_file(target, "config.json", local_files_only=True)
            is_local = True
        except (OSError, ValueError):
            _reach_hub(spec)
    return {"local_files_only": is_local, "trust_remote_code": False}  # else the library would ask on stdin about code


def hash_files(transformers: Any, target: str) -> str:
    """A hash over the names and hashes of the files in a folder, or of a model in the hub's cache."""
    folder = Path(target)
    if not folder.is_dir():
        folder = Path(transformers.utils.cached_file(target, "config.json", local_files_only=True)).parent
    digest = hashlib.sha256()
    for file in sorted(item for item in folder.iterdir() if item.is_file()):
        digest.update(f"{file_sha256(file)}  {file.name}\n".encode())
    return digest.hexdigest()


def wrap_huggingface_boxes(
    module: Any, processor: Any, settings: ModelSettings, *, spec: str, sha256: str | None = None
) -> TorchClassifier:
    """A detector, whose processor decodes the boxes."""
    if not hasattr(processor, "post_process_object_detection"):
        raise ModelError(f"{spec} has no image processor that decodes boxes: save it to the folder with the model")
    size = getattr(processor, "size", None) if getattr(processor, "do_resize", True) else None
    grid, short = _read_pair(size), _read_entry(size, "shortest_edge")
    is_squashed = grid is not None and short is None
    own = replace(_read_processor(module.config, processor), crop=grid, resize="squash" if is_squashed else None)
    if grid is None and short is not None:  # such a processor gives inputs of many sizes; views have one
        wider = f"{short}x{4 * short // 3}"
        note = f"the processor keeps the aspect ratio; set another input size with e.g. --resize squash/{wider}"
        own = replace(own, crop=(short, short), notes=(note,))
    settings = settings.over(own)
    plan = plan_boxes(settings, 3, None)
    h, w = plan.geometry.grid
    info = replace(
        plan.complete(settings.begin_info("hf", spec, sha256)),
        labels=settings.labels,
        inputs=f"float32 [N,3,{h},{w}]",
        outputs="boxes, scores, labels",
        notes=(*settings.notes, *plan.notes),
    )

    def detect(of: Any, batch: Tensor) -> Any:
        outputs = of(pixel_values=batch)
        return processor.post_process_object_detection(outputs, threshold=LOWEST, target_sizes=[(h, w)] * len(batch))

    return wrap_boxes(module, settings, info, plan.normalisation, detect)


def read_huggingface(config: Any, processor: Any | None) -> ModelSettings:
    """Geometry, normalisation and labels from the model's config and its processor.

    If the margin of the centre crop is odd, the crop may be one pixel off the processor's: that rounds down, and views
    are cropped as in torchvision.
    """
    side = getattr(config, "image_size", None)
    input_size = (side, side) if isinstance(side, int) else tuple(side) if side else None
    is_multilabel = getattr(config, "problem_type", None) == "multi_label_classification"
    own = replace(_read_processor(config, processor), returns="multilabel-logits" if is_multilabel else "logits")
    if processor is None:
        note = "the model has no processor, so its normalisation is not known"
        return replace(own, crop=input_size, notes=(note,))
    resize, crop, notes = _read_sizes(processor, input_size)
    return replace(own, crop=crop, resize=resize, notes=notes)


def _read_processor(config: Any, processor: Any | None) -> ModelSettings:
    """Labels, interpolation, and (x · rescale_factor - image_mean) / image_std, each step if it is enabled."""
    names = getattr(config, "id2label", None) or {}
    labels = tuple(str(names[key]) for key in sorted(names, key=int)) or None
    if processor is None:
        return ModelSettings(labels=labels)
    resample = int(getattr(processor, "resample", None) or 0) if hasattr(processor, "resample") else 2
    scale = float(processor.rescale_factor) if getattr(processor, "do_rescale", True) else 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    if getattr(processor, "do_normalize", False):
        mean, std = (tuple(map(float, np.atleast_1d(each))) for each in (processor.image_mean, processor.image_std))
    if getattr(processor, "rescale_offset", False):  # EfficientNet: x · factor - 1 first
        mean = tuple(m + 1.0 for m in mean)
    if getattr(processor, "include_top", False):  # EfficientNet again: divided by std a second time
        std = tuple(s * s for s in std)
    order: Order = "bgr" if getattr(processor, "do_flip_channel_order", False) else "rgb"
    return ModelSettings(
        normalisation=Normalisation(scale, mean, std, order, name="processor"),
        interpolation=_RESAMPLE.get(resample, "bilinear"),
        labels=labels,
    )


def _read_sizes(
    processor: Any, input_size: tuple[int, int] | None
) -> tuple[Resize, tuple[int, int] | None, tuple[str, ...]]:
    """The size to resize to, the crop, and notes on what was assumed."""
    size, crop = getattr(processor, "size", None), None
    if getattr(processor, "do_center_crop", False):
        crop = _read_pair(getattr(processor, "crop_size", None))
    if not getattr(processor, "do_resize", True) or size is None:
        return None, crop or input_size, ()
    if (pair := _read_pair(size)) is not None:
        return (pair, crop, ()) if crop else ("squash", pair, ())
    short = _read_entry(size, "shortest_edge")
    if short is None:
        note = "the processor's way of resizing is not supported: the short side is resized to the input size instead"
        return None, crop or input_size, (note,)
    share = getattr(processor, "crop_pct", None)
    if share and "convnext" in type(processor).__name__.lower() and short >= 384:
        return "squash", (short, short), ()  # ConvNeXT at 384 and above: no crop
    if share:
        return int(short / share), crop or (short, short), ()
    if "levit" in type(processor).__name__.lower():
        return int(256 / 224 * short), crop or (short, short), ()
    if crop is None:
        return short, (short, short), ("the processor does not crop: a centre crop to a square is used",)
    return short, crop, ()


def _read_pair(size: Any) -> tuple[int, int] | None:
    """(h, w) of a processor's size, None if it is not one."""
    if isinstance(size, int):
        return size, size
    h, w = _read_entry(size, "height"), _read_entry(size, "width")
    return (h, w) if h is not None and w is not None else None


def _read_entry(size: Any, key: str) -> int | None:
    """An entry of a processor's size; a number is the size of every side."""
    if size is None or isinstance(size, int):
        return size
    value = size.get(key) if isinstance(size, dict) else getattr(size, key, None)
    return int(value) if value is not None else None


def _reach_hub(spec: str) -> None:
    """Raise NetworkError unless the hub responds, with whatever status."""
    import urllib.error
    import urllib.request

    advice = "download it on another machine and give the folder, or set HF_HOME to a cache that has it"
    if os.environ.get("HF_HUB_OFFLINE", "0").upper() in ("1", "TRUE", "YES", "ON"):
        raise NetworkError(f"{spec} is not in the cache, and HF_HUB_OFFLINE is set: {advice}")
    address = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    try:
        urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=_HUB_TIMEOUT).close()
    except urllib.error.HTTPError as response:
        response.close()
    except (OSError, ValueError) as error:
        raise NetworkError(f"{spec} is not cached and {address} cannot be reached ({error}): {advice}") from None


@contextmanager
def loading_quietly(transformers: Any, spec: str) -> Iterator[None]:
    """Suppress the library's progress bars and warnings while it loads; its errors become ModelError."""
    log = transformers.utils.logging
    before, had_bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    except BecausalError:
        raise
    except Exception as error:  # safetensors and tokenizers raise types of their own, with no common base
        raise ModelError(f"{spec} cannot be loaded: {one_line(error, 200)}") from error
    finally:
        log.set_verbosity(before)
        if had_bars:
            log.enable_progress_bar()


def load_timm(target: str, settings: ModelSettings) -> TorchClassifier:
    """The timm model of that name. Raises NetworkError if its weights must be downloaded and cannot be."""
    timm = import_beside_torch("timm", "timm", "a timm model")
    try:
        head = {"num_classes": 0} if settings.question == "embed" else {}  # none, for what comes before it
        module = timm.create_model(target, pretrained=True, **head)
    except OSError as error:
        raise NetworkError(
            f"the weights of timm:{target} are not cached and cannot be downloaded ({error}): download them on another "
            "machine and set HF_HOME to the cache folder"
        ) from None
    except (RuntimeError, ValueError, KeyError) as error:
        raise ModelError(f"timm:{target} cannot be loaded: {one_line(error, 200)}") from error
    return wrap(module, settings, describe_timm(timm, module), spec=settings.name_kind(f"timm:{target}"), kind="timm")


def describe_timm(timm: Any, module: Any) -> ModelSettings:
    """Geometry, normalisation and labels of a timm model. The labels of its weights are left out if its head is another."""
    config = getattr(module, "pretrained_cfg", None) or {}
    labels: list[str] | None = None
    names = config.get("label_names") or ()
    if names and len(names) == getattr(module, "num_classes", len(names)):
        described = config.get("label_descriptions") or {}
        labels = [str(described.get(name, name)) for name in names]
    elif subset := timm.data.infer_imagenet_subset(module):
        info = timm.data.ImageNetInfo(subset)
        labels = [str(info.index_to_description(i)) for i in range(info.num_classes())]
    own = read_timm(timm.data.resolve_model_data_config(module))
    return replace(own, labels=tuple(labels) if labels is not None else None)


def read_timm(config: dict[str, Any]) -> ModelSettings:
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
        interpolation=_known_interpolation(config.get("interpolation")),
        returns="logits",
        notes=notes,
    )


def load_torchvision(target: str, settings: ModelSettings) -> TorchClassifier:
    """The classifier or detector of that name, with its default weights or others, as in `resnet50:IMAGENET1K_V1`.

    Raises NetworkError if the weights must be downloaded and cannot be, ModelError if there is no such model, or if it is
    a detector and a classifier is wanted, or the other way round.
    """
    models = import_beside_torch("torchvision", "torchvision", "a torchvision model").models
    name, _, choice = target.partition(":")
    try:
        weights = models.get_model_weights(name)[choice or "DEFAULT"]
        transform = weights.transforms()
        detects = type(transform).__name__ == "ObjectDetection"
        if detects and not settings.detects:
            raise ModelError(f"torchvision:{target} is an object detector: use detect:torchvision:{target}")
        if settings.detects and not detects:
            raise ModelError(f"torchvision:{target} does not return boxes: load it without detect:")
        module = models.get_model(name, weights=weights)
    except OSError as error:
        raise NetworkError(
            f"the weights of torchvision:{target} are not cached and cannot be downloaded ({error}): download them on "
            "another machine and copy them to TORCH_HOME/hub/checkpoints"
        ) from None
    except (ValueError, KeyError) as error:
        wanted = "detector" if settings.detects else "classifier"
        raise ModelError(f"torchvision has no {wanted} {target!r}: {one_line(error, 200)}") from None
    own = read_torchvision(weights)
    if settings.question == "embed":
        advice = "load a module without its last layer, as embed:torch:FILE.py:BUILD, for what comes before them"
        own = replace(own, labels=None, notes=(*own.notes, f"the embedding is the scores of the classes: {advice}"))
    spec = f"{settings.name_kind('torchvision')}:{target}"
    return wrap(module, settings, own, spec=spec, kind="torchvision")


def read_torchvision(weights: Any) -> ModelSettings:
    """Labels, and of a classifier its geometry and normalisation, from weights of torchvision."""
    own = ModelSettings(labels=tuple(str(name) for name in weights.meta.get("categories", ())) or None)
    transform = weights.transforms()
    if (found := type(transform).__name__) == "ObjectDetection":
        return own
    if not hasattr(transform, "crop_size") or not hasattr(transform, "resize_size"):
        raise ModelError(f"the transform of these weights is {found}; expected that of a classifier")
    crop, resize, mode = list(transform.crop_size), list(transform.resize_size), transform.interpolation
    return replace(
        own,
        normalisation=Normalisation(1 / 255, tuple(transform.mean), tuple(transform.std), name="transforms"),
        crop=(int(crop[0]), int(crop[-1])),
        resize=int(resize[0]) if len(resize) == 1 else (int(resize[0]), int(resize[1])),
        interpolation=_known_interpolation(getattr(mode, "value", mode)),
        returns="logits",
    )


def _known_interpolation(wanted: Any) -> Interpolation:
    return next((name for name in INTERPOLATIONS if name == wanted), "bilinear")
