"""Hugging Face image classifiers, from a local folder or from the hub."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from becausal.core.errors import MissingExtraError, ModelError, NetworkError
from becausal.core.text import one_line
from becausal.models.preprocess import Interpolation, Normalisation, Resize
from becausal.models.settings import ModelSettings
from becausal.models.torch_module import TorchClassifier, import_torch, wrap

_RESAMPLE: dict[int, Interpolation] = dict(
    enumerate(("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"))  # Pillow's constants
)
_HUB_TIMEOUT = 5.0  # seconds; the hub's own library would retry for minutes


@dataclass(frozen=True)
class HubModel:
    """A model with its processor, None if there is none, and a hash over its files."""

    module: Any
    processor: Any | None
    sha256: str


def load(target: str, settings: ModelSettings) -> TorchClassifier:
    """The classifier in a folder, or of that name on the hub, with its processor's geometry and normalisation.

    Raises NetworkError if it must be downloaded and cannot be, ModelError if it is not an image classifier.
    """
    found = fetch(target, "ImageClassification")
    own = read_metadata(found.module.config, found.processor)
    return wrap(found.module, settings, own, spec=f"hf:{target}", kind="hf", sha256=found.sha256)


def fetch(target: str, task: str) -> HubModel:
    """The model in a folder, or of that name on the hub. task: "ImageClassification" or "ObjectDetection".

    Raises NetworkError if it must be downloaded and cannot be, ModelError if it is not a model for this task.
    """
    import_torch("a Hugging Face model", "hf")
    try:
        import transformers
    except ImportError:
        raise MissingExtraError("transformers", "hf", "a Hugging Face model") from None
    is_local = os.path.isdir(target) or _is_cached(transformers, target)
    if not is_local:
        _reach_hub(target)
    with _quiet(transformers):
        try:
            # Without trust_remote_code=False the library would ask on stdin whether it may run code from the hub.
            config = transformers.AutoConfig.from_pretrained(target, local_files_only=is_local, trust_remote_code=False)
            _check_task(target, config, task)
            module = getattr(transformers, f"AutoModelFor{task}").from_pretrained(
                target, local_files_only=is_local, trust_remote_code=False
            )
        except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
            raise ModelError(f"hf:{target} cannot be loaded: {one_line(error, 200)}") from error
        processor = _find_processor(transformers, target, is_local=is_local)
    return HubModel(module, processor, _folder_sha256(transformers, target))


def _check_task(target: str, config: Any, task: str) -> None:
    """Raise ModelError if the model is for the other task, with what to write instead."""
    architectures = [str(name) for name in getattr(config, "architectures", None) or ()]
    if task != "ObjectDetection" and any(name.endswith("ForObjectDetection") for name in architectures):
        raise ModelError(f"hf:{target} is an object detector: use detect:hf:{target}")
    if task == "ObjectDetection" and any(name.endswith("ForImageClassification") for name in architectures):
        raise ModelError(f"hf:{target} returns scores per class, not boxes: load it without detect:")


def read_metadata(config: Any, processor: Any | None) -> ModelSettings:
    """Geometry, normalisation and labels from the model's config and its processor.

    If the margin of the centre crop is odd, the crop may be one pixel off the processor's: that rounds down, and views
    are cropped as in torchvision.
    """
    side = getattr(config, "image_size", None)
    input_size = (side, side) if isinstance(side, int) else tuple(side) if side else None
    is_multilabel = getattr(config, "problem_type", None) == "multi_label_classification"
    own = ModelSettings(labels=read_names(config), returns="multilabel-logits" if is_multilabel else "logits")
    if processor is None:
        note = "the model has no processor, so its normalisation is not known"
        return replace(own, crop=input_size, notes=(note,))
    resize, crop, notes = _read_sizes(processor, input_size)
    return replace(
        own,
        normalisation=read_normalisation(processor),
        crop=crop,
        resize=resize,
        interpolation=read_interpolation(processor),
        notes=notes,
    )


def read_names(config: Any) -> tuple[str, ...] | None:
    """The class names in a config."""
    names = getattr(config, "id2label", None) or {}
    return tuple(str(names[key]) for key in sorted(names, key=int)) or None


def read_interpolation(processor: Any) -> Interpolation:
    """The interpolation that a processor resizes with."""
    resample = int(getattr(processor, "resample", None) or 0) if hasattr(processor, "resample") else 2
    return _RESAMPLE.get(resample, "bilinear")


def read_normalisation(processor: Any) -> Normalisation:
    """(x · rescale_factor - image_mean) / image_std, each step if it is enabled."""
    scale = float(processor.rescale_factor) if getattr(processor, "do_rescale", True) else 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    if getattr(processor, "do_normalize", False):
        mean, std = _as_floats(processor.image_mean), _as_floats(processor.image_std)
    if getattr(processor, "rescale_offset", False):  # EfficientNet: x · factor - 1 first
        mean = tuple(m + 1.0 for m in mean)
    if getattr(processor, "include_top", False):  # EfficientNet again: divided by std a second time
        std = tuple(s * s for s in std)
    is_flipped = bool(getattr(processor, "do_flip_channel_order", False))
    return Normalisation(scale, mean, std, "bgr" if is_flipped else "rgb", name="processor")


def _read_sizes(
    processor: Any, input_size: tuple[int, int] | None
) -> tuple[Resize, tuple[int, int] | None, tuple[str, ...]]:
    """The size to resize to, the crop, and notes on what was assumed."""
    size, crop = getattr(processor, "size", None), None
    if getattr(processor, "do_center_crop", False):
        crop = read_pair(getattr(processor, "crop_size", None))
    if not getattr(processor, "do_resize", True) or size is None:
        return None, crop or input_size, ()
    if (pair := read_pair(size)) is not None:
        return (pair, crop, ()) if crop else ("squash", pair, ())
    short = read_entry(size, "shortest_edge")
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


def read_pair(size: Any) -> tuple[int, int] | None:
    """(h, w) of a processor's size, None if it is not one."""
    if isinstance(size, int):
        return size, size
    h, w = read_entry(size, "height"), read_entry(size, "width")
    return (h, w) if h is not None and w is not None else None


def read_entry(size: Any, key: str) -> int | None:
    """An entry of a processor's size; a number is the size of every side."""
    if size is None or isinstance(size, int):
        return size
    value = size.get(key) if isinstance(size, dict) else getattr(size, key, None)
    return int(value) if value is not None else None


def _as_floats(values: Any) -> tuple[float, ...]:
    return tuple(float(v) for v in values) if hasattr(values, "__iter__") else (float(values),)


def _is_cached(transformers: Any, name: str) -> bool:
    try:
        transformers.utils.cached_file(name, "config.json", local_files_only=True)
    except (OSError, ValueError):
        return False
    return True


def _reach_hub(name: str) -> None:
    """Raise NetworkError unless the hub responds, with whatever status."""
    import urllib.error
    import urllib.request

    advice = "download it on another machine and give the folder, or set HF_HOME to a cache that has it"
    if os.environ.get("HF_HUB_OFFLINE", "0").upper() in ("1", "TRUE", "YES", "ON"):
        raise NetworkError(f"hf:{name} is not in the cache, and HF_HUB_OFFLINE is set: {advice}")
    address = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    try:
        urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=_HUB_TIMEOUT).close()
    except urllib.error.HTTPError as response:
        response.close()
    except (OSError, ValueError) as error:
        raise NetworkError(f"hf:{name} is not cached and {address} cannot be reached ({error}): {advice}") from None


def _find_processor(transformers: Any, target: str, *, is_local: bool) -> Any | None:
    try:
        return transformers.AutoImageProcessor.from_pretrained(target, local_files_only=is_local, trust_remote_code=False)
    except (OSError, ValueError, KeyError, ImportError):
        return None


def _folder_sha256(transformers: Any, target: str) -> str:
    """A hash over the names and hashes of the sorted files."""
    folder = Path(target)
    if not folder.is_dir():
        folder = Path(transformers.utils.cached_file(target, "config.json", local_files_only=True)).parent
    digest = hashlib.sha256()
    for file in sorted(item for item in folder.iterdir() if item.is_file()):
        with file.open("rb") as stream:
            digest.update(f"{hashlib.file_digest(stream, 'sha256').hexdigest()}  {file.name}\n".encode())
    return digest.hexdigest()


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Suppress the library's progress bars and warnings while it loads."""
    log = transformers.utils.logging
    before, had_bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(before)
        if had_bars:
            log.enable_progress_bar()
