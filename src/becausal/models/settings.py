"""What is known about a model's input and output: from options, from a TOML file next to it, from its own metadata.

Keys of the TOML file (`model.toml` next to `model.onnx`): `preprocess` (a preset), or `mean`, `std`, `scale`, `order`
("rgb", "bgr", "grey"); `resize`, `crop`, `interpolation`; `labels` (a file, or a list of names); `returns`; `threshold` (of
object detectors); `input`, `output_name`, `layout` ("nchw", "nhwc").
"""

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args

from becausal.core.contracts import Geometry
from becausal.core.errors import InputError, ModelError, OptionError
from becausal.core.text import one_line, reason_of
from becausal.models.compose import Layout
from becausal.models.labels import read_labels, read_text
from becausal.models.loading import Loading, check_threshold
from becausal.models.outputs import Returns, parse_returns
from becausal.models.preprocess import (
    Interpolation,
    Normalisation,
    Order,
    Resize,
    choose_normalisation,
    parse_interpolation,
    parse_normalisation,
    parse_resize,
    parse_size,
    plan_geometry,
)

_NORMALISATION_KEYS = ("preprocess", "mean", "std", "scale", "order")
_OTHER_KEYS = ("resize", "crop", "interpolation", "labels", "returns", "threshold", "input", "output_name", "layout")
KEYS = (*_NORMALISATION_KEYS, *_OTHER_KEYS)
_MAX_FILE = 64 * 2**20  # bytes
_MAX_VALUES = 2**26  # of one input image: 4,000 x 4,000 in colour fits, and some copies of it in memory


@dataclass(frozen=True)
class Preprocessing:
    """How an image becomes a network's input. channels: of the view. notes: what was assumed."""

    normalisation: Normalisation
    geometry: Geometry
    channels: int
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """What one source, or all of them together, state about a model; None where nothing is stated.

    Attributes:
        normalisation: What is done to pixels.
        resize: What an image is resized to.
        crop: (h, w), the size of the view.
        interpolation: Used in resizing.
        labels: Class names.
        returns: What the network returns.
        threshold: Of an object detector: the lowest score at which a box counts as found.
        input_name: Input tensor to use.
        output_name: Output tensor to use.
        layout: Order of the input's axes.
        notes: What had to be assumed.
        loading: The options as given. Device, batch size and the like are only here.
    """

    normalisation: Normalisation | None = None
    resize: Resize = None
    crop: tuple[int, int] | None = None
    interpolation: Interpolation | None = None
    labels: tuple[str, ...] | None = None
    returns: Returns | None = None
    threshold: float | None = None
    input_name: str | None = None
    output_name: str | None = None
    layout: Layout | None = None
    notes: tuple[str, ...] = ()
    loading: Loading = Loading()

    def over(self, other: "ModelSettings") -> "ModelSettings":
        """These settings, with gaps filled from another source; the notes of both."""
        gaps = {f.name: getattr(other, f.name) for f in fields(self) if getattr(self, f.name) is None}
        return replace(self, **gaps, notes=(*self.notes, *other.notes))

    def plan_preprocessing(self, channels: int, grid: tuple[int, int] | None, *, is_integer: bool = False) -> Preprocessing:
        """How images become the input of a network with these channels and this size (None: any size).

        Raises:
            ModelError: Normalisation or crop do not fit the network.
        """
        normalisation, notes = choose_normalisation(self.normalisation, channels=channels, is_integer=is_integer)
        geometry, more = plan_geometry(grid, resize=self.resize, crop=self.crop, interpolation=self.interpolation)
        h, w = geometry.grid
        if h * w * channels > _MAX_VALUES:
            raise ModelError(f"an input of {h}x{w} with {channels} channels is too large for an image model")
        return Preprocessing(normalisation, geometry, 3 if normalisation.order == "grey" else channels, (*notes, *more))


def resolve_settings(file: Path | None, loading: Loading) -> ModelSettings:
    """What the loading options state, with gaps filled from a TOML file.

    Args:
        file: The model's file; a TOML file of the same name next to it is read. None if the model has no file.
        loading: The options. `preprocess` may name a TOML file, which is then read instead.

    Raises:
        OptionError: An option has an invalid value.
        ModelError: The TOML file does not exist or cannot be read.
    """
    loading.check()
    toml = file.with_suffix(".toml") if file is not None and file.name else None
    if toml is not None and not toml.is_file():
        toml = None
    normalisation, resize, crop = None, None, None
    if isinstance(loading.preprocess, Normalisation):
        normalisation = loading.preprocess
    elif loading.preprocess is not None and str(loading.preprocess).endswith(".toml"):
        toml = Path(loading.preprocess)
        if not toml.exists():
            raise ModelError(f"there is no file {toml}")
    elif loading.preprocess is not None:
        normalisation = parse_normalisation(str(loading.preprocess))
    if loading.resize is not None:
        resize, crop = parse_resize(loading.resize)
    given = ModelSettings(
        normalisation=normalisation,
        resize=resize,
        crop=crop,
        labels=as_labels(loading.labels),
        returns=parse_returns(loading.returns) if loading.returns is not None else None,
        threshold=loading.threshold,
        loading=loading,
    )
    return given.over(read_toml(toml)) if toml is not None else given


def read_toml(path: Path) -> ModelSettings:
    """The settings in a TOML file. Raises ModelError that names the file and the key."""
    try:
        content = tomllib.loads(read_text(path, _MAX_FILE))
    except RecursionError:
        raise ModelError(f"{path} cannot be read: it is nested too deeply") from None
    except (OSError, ValueError, InputError) as error:
        raise ModelError(f"{path} cannot be read: {reason_of(error)}") from None
    if unknown := sorted(set(content) - set(KEYS)):
        raise ModelError(f"{path} has an unknown key {unknown[0]!r}; expected {', '.join(KEYS)}")
    try:
        resize, crop = parse_resize(content["resize"]) if "resize" in content else (None, None)
        labels = _read_labels(content, path.parent)
        return ModelSettings(
            normalisation=_read_normalisation(content),
            resize=resize,
            crop=as_size(content["crop"]) if "crop" in content else crop,
            interpolation=parse_interpolation(content["interpolation"]) if "interpolation" in content else None,
            labels=as_labels(labels),
            returns=parse_returns(content["returns"]) if "returns" in content else None,
            threshold=check_threshold(content["threshold"]) if "threshold" in content else None,
            input_name=_read_name(content, "input"),
            output_name=_read_name(content, "output_name"),
            layout=_read_choice(content, "layout", get_args(Layout)),
        )
    except OptionError as error:
        raise ModelError(f"{path}: {error}") from None


def as_labels(labels: str | Path | Sequence[str] | None) -> tuple[str, ...] | None:
    """Class names from a file or a sequence; None where there are none."""
    if labels is None:
        return None
    return read_labels(labels) if isinstance(labels, (str, Path)) else tuple(str(name) for name in labels) or None


def as_size(value: Any) -> tuple[int, int]:
    """(h, w) from a number, a text, or a pair of numbers."""
    is_pair = isinstance(value, Iterable) and not isinstance(value, str)
    return parse_size("x".join(str(side) for side in value) if is_pair else value)


def _read_normalisation(content: dict[str, Any]) -> Normalisation | None:
    own = set(_NORMALISATION_KEYS[1:]) & set(content)
    if "preprocess" in content:
        if own:
            raise OptionError(f"give either preprocess or {', '.join(sorted(own))}, not both")
        return parse_normalisation(str(content["preprocess"]))
    if not own:
        return None
    order: Order = _read_choice(content, "order", get_args(Order)) or "rgb"
    (scale,) = _read_floats(content.get("scale", 1.0), "scale", 1)
    mean, std = _read_floats(content.get("mean", 0.0), "mean"), _read_floats(content.get("std", 1.0), "std")
    return Normalisation(scale, mean, std, order, name="TOML file")


def _read_floats(value: Any, key: str, length: int | None = None) -> tuple[float, ...]:
    values = value if isinstance(value, list) else [value]
    if not values or not all(type(n) in (int, float) for n in values) or (length and len(values) != length):
        expected = "a number" if length else "a number or a list of numbers"
        raise OptionError(f"{key} is {one_line(repr(value), 80)}; expected {expected}")
    try:
        return tuple(float(n) for n in values)
    except OverflowError:
        raise OptionError(f"{key} is too large; expected a number such as 0.5") from None


def _read_labels(content: dict[str, Any], folder: Path) -> Path | list[str] | None:
    labels = content.get("labels")
    if isinstance(labels, str):
        return folder / labels
    if labels is not None and not (isinstance(labels, list) and all(isinstance(name, str) for name in labels)):
        raise OptionError("labels must be a file, or a list of names in quotes")
    return labels


def _read_name(content: dict[str, Any], key: str) -> str | None:
    value = content.get(key)
    if value is not None and not isinstance(value, str):
        raise OptionError(f"{key} is {value!r}; expected a name")
    return value


def _read_choice(content: dict[str, Any], key: str, choices: tuple[Any, ...]) -> Any:
    value = content.get(key)
    if value is not None and value not in choices:
        raise OptionError(f"{key} is {value!r}; expected one of {', '.join(choices)}")
    return value
