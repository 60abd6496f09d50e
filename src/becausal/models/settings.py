"""What is said about a model: by options, and by a TOML file next to it (`model.onnx`, `model.toml`).

Keys of the file: `preprocess` (a preset), or `mean`, `std`, `scale`, `order` ("rgb", "bgr", "grey"); `resize`, `crop`,
`interpolation`; `labels` (a file, or the list itself); `output`; `input`, `output_name`, `layout` ("nchw", "nhwc").
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from becausal.core.errors import ModelError, OptionError
from becausal.models.compose import Layout
from becausal.models.labels import read_labels
from becausal.models.loading import Loading
from becausal.models.outputs import OutputOption, parse_output
from becausal.models.preprocess import (
    Interpolation,
    Normalisation,
    Order,
    Resize,
    parse_interpolation,
    parse_numbers,
    parse_resize,
    parse_size,
)

_KEYS = ("preprocess", "mean", "std", "scale", "order", "resize", "crop", "interpolation", "labels", "output")
KEYS = (*_KEYS, "input", "output_name", "layout")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All that is said about a model; None where nothing is said, and the model's own metadata or a default holds."""

    numbers: Normalisation | None = None
    resize: Resize = None
    crop: tuple[int, int] | None = None
    interpolation: Interpolation | None = None
    labels: tuple[str, ...] | None = None
    output: OutputOption | None = None
    input_name: str | None = None
    output_name: str | None = None
    layout: Layout | None = None
    device: str = "cpu"
    batch_size: int | None = None
    threads: int | None = None
    half: bool = False
    endpoint: tuple[str, ...] = field(default=(), repr=False)  # key=value words, which may hold secrets
    loading: Loading = Loading()  # the options as they were given, for the record

    def __post_init__(self) -> None:
        for name, number in (("batch_size", self.batch_size), ("threads", self.threads)):
            if number is not None and number < 1:
                raise OptionError(f"{name} must be at least 1, not {number}")
        if self.half and self.device == "cpu":
            raise OptionError("half precision is for a GPU: give --device cuda, or leave half out")


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """What a model's own library, or its code, says about it; settings win over it."""

    numbers: Normalisation | None = None
    grid: tuple[int, int] | None = None
    resize: Resize = None
    interpolation: Interpolation | None = None
    labels: tuple[str, ...] | None = None
    output: OutputOption | None = None
    notes: tuple[str, ...] = ()


def gather_settings(file: Path | None, loading: Loading) -> Settings:
    """The settings that loading options and the TOML file next to `file` add up to; options win.

    `loading.preprocess` may itself name a TOML file, which then takes the place of the one next to the model.
    """
    card = file.with_suffix(".toml") if file is not None else None
    numbers = None
    if isinstance(loading.preprocess, Normalisation):
        numbers = loading.preprocess
    elif loading.preprocess is not None and str(loading.preprocess).endswith(".toml"):
        card = Path(loading.preprocess)
        if not card.is_file():
            raise ModelError(f"there is no file {card}")
    elif loading.preprocess is not None:
        numbers = parse_numbers(str(loading.preprocess))
    said = read_card(card) if card is not None and card.is_file() else Settings()
    how, crop = (said.resize, said.crop) if loading.resize is None else parse_resize(loading.resize)
    return Settings(
        numbers=numbers or said.numbers,
        resize=how,
        crop=crop or said.crop,
        interpolation=said.interpolation,
        labels=said.labels if loading.labels is None else as_labels(loading.labels),
        output=said.output if loading.returns is None else parse_output(loading.returns),
        input_name=said.input_name,
        output_name=said.output_name,
        layout=said.layout,
        device=loading.device,
        batch_size=loading.batch_size,
        threads=loading.threads,
        half=loading.half,
        endpoint=loading.endpoint,
        loading=loading,
    )


def read_card(path: Path) -> Settings:
    """The settings in a TOML file. Raises ModelError that names the file and the key."""
    try:
        said = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from None
    if unknown := sorted(set(said) - set(KEYS)):
        raise ModelError(f"{path} has an unknown key {unknown[0]!r}; known are {', '.join(KEYS)}")
    try:
        how, crop = parse_resize(said["resize"]) if "resize" in said else (None, None)
        return Settings(
            numbers=_numbers(said),
            resize=how,
            crop=_size(said["crop"]) if "crop" in said else crop,
            interpolation=parse_interpolation(said["interpolation"]) if "interpolation" in said else None,
            labels=_labels(said["labels"], path) if "labels" in said else None,
            output=parse_output(said["output"]) if "output" in said else None,
            input_name=_text(said, "input"),
            output_name=_text(said, "output_name"),
            layout=_one_of(said, "layout", get_args(Layout)),
        )
    except OptionError as error:
        raise ModelError(f"{path}: {error}") from None


def as_labels(labels: str | Path | Sequence[str]) -> tuple[str, ...]:
    """Label names from a file or from a list of them."""
    return read_labels(labels) if isinstance(labels, (str, Path)) else tuple(str(name) for name in labels)


def _numbers(said: dict[str, Any]) -> Normalisation | None:
    own = {"mean", "std", "scale", "order"} & set(said)
    if "preprocess" in said:
        if own:
            raise OptionError(f"give either preprocess or {', '.join(sorted(own))}, not both")
        return parse_numbers(str(said["preprocess"]))
    if not own:
        return None
    order: Order = _one_of(said, "order", get_args(Order)) or "rgb"
    (scale,) = _floats(said.get("scale", 1.0), "scale", 1)
    mean, std = _floats(said.get("mean", 0.0), "mean"), _floats(said.get("std", 1.0), "std")
    return Normalisation(scale, mean, std, order, name="TOML file")


def _floats(value: Any, key: str, length: int | None = None) -> tuple[float, ...]:
    numbers = value if isinstance(value, list) else [value]
    if not numbers or not all(type(n) in (int, float) for n in numbers) or (length and len(numbers) != length):
        raise OptionError(f"{key} is {value!r}; expected a number" + ("" if length else " or a list of them"))
    return tuple(float(n) for n in numbers)


def _size(value: Any) -> tuple[int, int]:
    return parse_size("x".join(str(part) for part in value) if isinstance(value, list) else value)


def _labels(value: Any, path: Path) -> tuple[str, ...]:
    return as_labels(path.parent / value if isinstance(value, str) else value)


def _text(said: dict[str, Any], key: str) -> str | None:
    value = said.get(key)
    if value is not None and not isinstance(value, str):
        raise OptionError(f"{key} is {value!r}; expected a name")
    return value


def _one_of(said: dict[str, Any], key: str, choices: tuple[Any, ...]) -> Any:
    value = said.get(key)
    if value is not None and value not in choices:
        raise OptionError(f"{key} is {value!r}; expected one of {', '.join(choices)}")
    return value
