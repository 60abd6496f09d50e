"""Image classifiers of Hugging Face, from a local folder or from the hub."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from becausal.core.errors import MissingExtraError, ModelError, NetworkError
from becausal.models.outputs import OutputOption
from becausal.models.preprocess import INTERPOLATIONS, Interpolation, Normalisation, Resize
from becausal.models.settings import Metadata, Settings
from becausal.models.torch_module import TorchClassifier, import_torch, wrap

_RESAMPLE: dict[int, Interpolation] = dict(
    enumerate(("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"))  # Pillow's numbers
)
_PATIENCE = 5.0  # seconds to wait for the hub's first word; its own library would try again for minutes


def load(target: str, settings: Settings) -> TorchClassifier:
    """The classifier in a folder, or of that name on the hub, with its own processor's geometry and numbers.

    Raises NetworkError where it must be fetched and cannot be, ModelError where it is no image classifier.
    """
    import_torch("a Hugging Face model")
    try:
        import transformers
    except ImportError:
        raise MissingExtraError("transformers", "hf", "a Hugging Face model") from None
    is_local = os.path.isdir(target) or _is_cached(transformers, target)
    if not is_local:
        _reach_hub(target)
    with _quiet(transformers):
        try:
            module = transformers.AutoModelForImageClassification.from_pretrained(target, local_files_only=is_local)
        except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
            raise ModelError(f"hf:{target} cannot be loaded: {_one_line(error)}") from error
        processor = _find_processor(transformers, target, is_local=is_local)
    found = read_metadata(module.config, processor)
    return wrap(module, settings, found, spec=f"hf:{target}", kind="hf", sha256=_folder_sha256(transformers, target))


def read_metadata(config: Any, processor: Any | None) -> Metadata:
    """Geometry, numbers and labels as the model's config and its processor say them.

    Where the margin of the centre crop is odd, the crop may lie one pixel off the processor's: it rounds down, and
    views are cut as torchvision cuts them.
    """
    side = getattr(config, "image_size", None)
    own = (side, side) if isinstance(side, int) else tuple(side) if side else None
    names = getattr(config, "id2label", None) or {}
    labels = tuple(str(names[key]) for key in sorted(names, key=int)) or None
    is_many = getattr(config, "problem_type", None) == "multi_label_classification"
    output: OutputOption = "multilabel-logits" if is_many else "logits"
    if processor is None:
        note = "the model comes without a processor, so its numbers are not known"
        return Metadata(grid=own, labels=labels, output=output, notes=(note,))
    resize, grid, notes = _read_sizes(processor, own)
    resample = int(getattr(processor, "resample", None) or 0) if hasattr(processor, "resample") else 2
    return Metadata(
        numbers=_read_numbers(processor),
        grid=grid,
        resize=resize,
        interpolation=_RESAMPLE.get(resample, INTERPOLATIONS[1]),
        labels=labels,
        output=output,
        notes=notes,
    )


def _read_numbers(processor: Any) -> Normalisation:
    """(x · rescale_factor - image_mean) / image_std, each where it is switched on."""
    scale = float(processor.rescale_factor) if getattr(processor, "do_rescale", True) else 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    if getattr(processor, "do_normalize", False):
        mean, std = _numbers(processor.image_mean), _numbers(processor.image_std)
    if getattr(processor, "rescale_offset", False):  # EfficientNet: x · factor - 1 first
        mean = tuple(m + 1.0 for m in mean)
    if getattr(processor, "include_top", False):  # EfficientNet again: divided by std a second time
        std = tuple(s * s for s in std)
    is_flipped = bool(getattr(processor, "do_flip_channel_order", False))
    return Normalisation(scale, mean, std, "bgr" if is_flipped else "rgb", name="its processor")


def _read_sizes(processor: Any, own: tuple[int, int] | None) -> tuple[Resize, tuple[int, int] | None, tuple[str, ...]]:
    """What to resize to, the grid, and what had to be assumed, in words."""
    size, crop = getattr(processor, "size", None), None
    if getattr(processor, "do_center_crop", False):
        crop = _pair(getattr(processor, "crop_size", None))
    if not getattr(processor, "do_resize", True) or size is None:
        return None, crop or own, ()
    if (pair := _pair(size)) is not None:
        return (pair, crop, ()) if crop else ("squash", pair, ())
    short = _entry(size, "shortest_edge")
    if short is None:
        note = "its processor resizes in a way that is not supported: short side to the network's side instead"
        return None, crop or own, (note,)
    share = getattr(processor, "crop_pct", None)
    if share and "convnext" in type(processor).__name__.lower() and short >= 384:
        return "squash", (short, short), ()  # ConvNeXT at 384 and above: no crop
    if share:
        return int(short / share), crop or (short, short), ()
    if "levit" in type(processor).__name__.lower():
        return int(256 / 224 * short), crop or (short, short), ()
    if crop is None:
        return short, (short, short), ("its processor does not crop: cut to a square in the centre",)
    return short, crop, ()


def _pair(size: Any) -> tuple[int, int] | None:
    if isinstance(size, int):
        return size, size
    h, w = _entry(size, "height"), _entry(size, "width")
    return (h, w) if h is not None and w is not None else None


def _entry(size: Any, key: str) -> int | None:
    if size is None or isinstance(size, int):
        return size
    value = size.get(key) if isinstance(size, dict) else getattr(size, key, None)
    return int(value) if value is not None else None


def _numbers(values: Any) -> tuple[float, ...]:
    return tuple(float(v) for v in values) if hasattr(values, "__iter__") else (float(values),)


def _is_cached(transformers: Any, name: str) -> bool:
    try:
        transformers.utils.cached_file(name, "config.json", local_files_only=True)
    except (OSError, ValueError):
        return False
    return True


def _reach_hub(name: str) -> None:
    """Raise NetworkError unless the hub answers; any answer will do."""
    import urllib.error
    import urllib.request

    advice = "download it elsewhere and give the folder, or set HF_HOME to a cache that has it"
    if os.environ.get("HF_HUB_OFFLINE", "0").upper() in ("1", "TRUE", "YES", "ON"):
        raise NetworkError(f"hf:{name} is not in the cache, and HF_HUB_OFFLINE is set: {advice}")
    address = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    try:
        urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=_PATIENCE).close()
    except urllib.error.HTTPError as answer:
        answer.close()
    except (OSError, ValueError) as error:
        raise NetworkError(f"hf:{name} is not here and {address} cannot be reached ({error}): {advice}") from None


def _find_processor(transformers: Any, target: str, *, is_local: bool) -> Any | None:
    try:
        return transformers.AutoImageProcessor.from_pretrained(target, local_files_only=is_local)
    except (OSError, ValueError, KeyError, ImportError):
        return None


def _folder_sha256(transformers: Any, target: str) -> str:
    """Of the sorted files' names and hashes."""
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
    """No progress bars and advice of the library while it loads."""
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


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
