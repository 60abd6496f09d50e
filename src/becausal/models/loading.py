"""How a model is loaded: the options, as one record, and all that is known of its input and output.

What the options do not state is taken from a TOML file next to the model, then from the model's own metadata. Keys of the
TOML file (`model.toml` next to `model.onnx`): `preprocess` (a preset), or `mean`, `std`, `scale`, `order` ("rgb", "bgr",
"grey"); `resize`, `crop`, `interpolation`; `labels` (a file, or a list of names); `returns`; `threshold` (of object
detectors and multi-label models); `input`, `output_name`, `layout` ("nchw", "nhwc").
"""

import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from types import ModuleType, NoneType
from typing import Any, Self, get_args

from becausal.core.contracts import Geometry, ModelInfo
from becausal.core.errors import BecausalError, InputError, ModelError, OptionError
from becausal.core.options import option
from becausal.core.schema import read_fields
from becausal.core.text import one_line, reason_of
from becausal.models.array_model import Layout
from becausal.models.endpoint.options import as_pairs, without_secrets
from becausal.models.labels import read_labels, read_text
from becausal.models.outputs import RETURNS, Returns, output_kind
from becausal.models.preprocess import (
    INTERPOLATIONS,
    PRESETS,
    Interpolation,
    Normalisation,
    Order,
    Resize,
    choose_normalisation,
    parse_normalisation,
    parse_resize,
    parse_size,
    plan_geometry,
)

KEYS = (
    "preprocess", "mean", "std", "scale", "order", "resize", "crop", "interpolation", "labels", "returns", "threshold",
    "input", "output_name", "layout",
)  # fmt: skip
_MAX_VALUES = 2**26  # of one input image: 4,000 x 4,000 in colour fits, and some copies of it in memory
#: Options of earlier versions, and what to do about them.
GONE = {"runtime": "a torch module on a CPU is always run by torch: remove runtime"}


def check_threshold(value: Any) -> float:
    """A threshold as a float. Raises OptionError for what is no score."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 < value <= 1.0:
        raise OptionError(f"the threshold is a score above 0 and up to 1, e.g. 0.5, not {value!r}")
    return float(value)


@dataclass(frozen=True, kw_only=True)
class Loading:
    """The options a model is loaded with; None where the model's metadata or a default decides.

    Attributes:
        labels: Class names: a file, or the names themselves. Of `clip:` models the prompts, of `chat:` models the answers to
            choose from.
        preprocess: Normalisation: a preset's name, a TOML file, or a `Normalisation`.
        resize: How an image is resized before the centre crop, e.g. 256, "256/224", "squash", "letterbox".
        returns: What the model returns: probabilities, logits, multilabel, multilabel-logits or labels.
        threshold: The lowest score at which a box of an object detector counts as found, or a label of a multi-label model
            as present; of an `embed:` model the lowest cosine similarity that counts as similar.
        device: Where the model runs, e.g. "cpu" or "cuda".
        batch_size: Maximum number of images evaluated at once.
        threads: CPU threads for the model.
        half: Whether a copy in half precision may guide the search, on a GPU.
        endpoint: Options of an `oip:` or `chat:` model, as key=value pairs. They may hold secrets.
        text: The one prompt that a `clip:` model is asked about.
        ask: The question that a `chat:` model is asked about the image.
        like: The image that an `embed:` model compares the explained one with.
    """

    labels: str | Path | tuple[str, ...] | None = option(
        None,
        "Class names: a file with one per line, `synset name` lines, or JSON; or the names, separated by commas. For clip: "
        "models the prompts, for chat: models the answers to choose from. Default: the model's own.",
        metavar="FILE|A,B,…",
    )
    preprocess: str | Path | Normalisation | None = option(
        None,
        "Normalisation: imagenet (mean and std), tf (x/127.5 - 1), caffe (BGR minus mean), unit (0..1), raw (0..255), "
        "or a TOML file. Default: from the model's metadata.",
        metavar="PRESET|FILE",
        choices=tuple(PRESETS),
    )
    resize: str | int | None = option(
        None,
        "Resizing before the centre crop: 256 (short side), 256/224 (short side, then crop), squash (ignore the aspect "
        "ratio), squash:256, letterbox (keep the aspect ratio, grey bars). Default: short side to the model's input size; "
        "squash for object detectors.",
        metavar="HOW",
    )
    returns: str | None = option(
        None,
        f"What the model returns: {', '.join(RETURNS)}. Default: detected, and reported.",
        metavar="KIND",
        choices=RETURNS,
    )
    threshold: float | None = option(
        None,
        "Lowest score at which a detector's box counts as found, or a label of a multi-label model as present; embed: "
        "models: the lowest cosine similarity. Default: the model's own; 0.5 for labels; half of the similarity.",
        metavar="SCORE",
    )
    device: str = option("cpu", "Device the model runs on.", metavar="cpu|cuda", choices=("cpu", "cuda"))
    batch_size: int | None = option(
        None, "Maximum number of images evaluated at once; results do not depend on it.", metavar="N"
    )
    threads: int | None = option(None, "CPU threads for the model.", metavar="N")
    half: bool = option(
        False, "Guide the search by a copy of the torch model in half precision (cuda only); the model itself certifies."
    )
    endpoint: tuple[str, ...] = option(
        (),
        "Option of an oip: or chat: model, e.g. timeout=10 or token_env=VARIABLE; can be repeated. `becausal models` lists "
        "all.",
        metavar="KEY=VALUE",
        parse=tuple,
    )
    text: str | None = option(None, "clip: models: why does the image fit this one prompt?", metavar="PROMPT")
    ask: str | None = option(
        None, "chat: models: the question about the image whose answer is explained.", metavar="QUESTION"
    )
    like: str | Path | None = option(None, "embed: models: why is the image like this one?", metavar="IMAGE")

    def __post_init__(self) -> None:
        for name in ("text", "ask"):
            if not isinstance(given := getattr(self, name), str | None):
                raise OptionError(f"{name} is {one_line(repr(given), 80)}; expected a text")

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.record().items())
        return f"{type(self).__name__}({given})"  # without secrets

    @classmethod
    def from_options(cls, **options: Any) -> Self:
        """The record of options as `load_model` takes them: any sequence of labels, a mapping of endpoint options."""
        _refuse_unknown(cls, options)
        if options.get("labels") is not None and not isinstance(options["labels"], (str, Path)):
            options["labels"] = tuple(str(name) for name in options["labels"])
        return cls(**(options | {"endpoint": as_pairs(options.get("endpoint"))}))

    def record(self) -> dict[str, Any]:
        """The options that differ from the defaults, as JSON can hold them; secrets are left out."""
        plain: dict[str, Any] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if value == f.default or f.name == "threads":  # the number of threads is specific to this machine
                continue
            if f.name == "endpoint":
                value = without_secrets(value)
            elif isinstance(value, Normalisation):
                value = asdict(value)
            plain[f.name] = str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value
        return plain

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The options behind a `record`. Raises OptionError that names an unknown option, or one of another type."""
        # What guided a search was never certified by it, so older records mean the same without these options.
        given = {name: value for name, value in record.items() if name not in GONE}
        _refuse_unknown(cls, given)
        own: dict[str, Any] = {}
        if isinstance(given.get("preprocess"), Mapping):
            try:
                own["preprocess"] = Normalisation(**read_fields(Normalisation, given.pop("preprocess"), complete=True))
            except OptionError as error:
                raise OptionError(f"the recorded normalisation cannot be read: {error}") from None
        return cls(**own, **read_fields(cls, given))

    def over(self, saved: Self) -> Self:
        """These options where they differ from the defaults, else the saved ones; endpoint options are appended."""
        given = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        if self.endpoint:
            given["endpoint"] = (*saved.endpoint, *self.endpoint)
        return replace(saved, **given)


def _refuse_unknown(record: type, names: Iterable[str]) -> None:
    known = [f.name for f in fields(record)]
    if unknown := sorted(set(names) - set(known)):
        advice = GONE.get(unknown[0], f"expected {', '.join(known)}")
        raise OptionError(f"unknown loading option {unknown[0]!r}; {advice}")


@dataclass(frozen=True)
class Preprocessing:
    """How an image becomes a network's input. notes: what was assumed."""

    normalisation: Normalisation
    geometry: Geometry
    channels: int  # of the view
    notes: tuple[str, ...]

    def complete(self, info: ModelInfo) -> ModelInfo:
        return replace(info, geometry=self.geometry, channels=self.channels, normalisation=str(self.normalisation))


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """What one source, or all of them together, state about a model; None where nothing is stated."""

    normalisation: Normalisation | None = None
    resize: Resize = None
    crop: tuple[int, int] | None = None  # (h, w), the size of the view
    interpolation: Interpolation | None = None
    labels: tuple[str, ...] | None = None
    returns: Returns | None = None
    threshold: float | None = None  # the lowest score at which what is asked for counts as kept, see `Loading`
    input_name: str | None = None
    output_name: str | None = None
    layout: Layout | None = None
    notes: tuple[str, ...] = ()  # what had to be assumed
    question: str = ""  # the prefix of the specification: "detect", "embed", "segment", or none for scores
    loading: Loading = Loading()  # the options as given; device, batch size and the like are only here

    @property
    def detects(self) -> bool:
        """Whether it has to be an object detector, so that it has boxes, not scores."""
        return self.question == "detect"

    def name_kind(self, kind: str) -> str:
        """The name of a kind of model, as specifications begin: "onnx", or "detect:onnx" for a detector."""
        return f"{self.question}:{kind}" if self.question else kind

    def begin_info(self, kind: str, spec: str, sha256: str | None = None) -> ModelInfo:
        """What is known of a model of this kind before it is tried. Labels come last: they may add a note."""
        if self.detects and self.returns is not None:
            raise OptionError("a detector returns boxes: remove returns")
        return ModelInfo(
            spec=spec,
            kind=self.name_kind(kind),
            geometry=None,
            channels=None,
            labels=None,
            output="boxes" if self.detects else output_kind(self.returns),
            normalisation=str(self.normalisation) if self.normalisation is not None else "none",
            sha256=sha256,
            loading=self.loading.record(),
            threshold=self.threshold or 0.0,
        )

    def over(self, other: "ModelSettings") -> "ModelSettings":
        """These settings, with gaps filled from another source; the notes of both."""
        gaps = {f.name: getattr(other, f.name) for f in fields(self) if getattr(self, f.name) is None}
        return replace(self, **gaps, notes=(*self.notes, *other.notes))

    def plan_preprocessing(self, channels: int, grid: tuple[int, int] | None, *, is_integer: bool = False) -> Preprocessing:
        """How images become the input of a network with these channels and this size (None: any size)."""
        normalisation, notes = choose_normalisation(self.normalisation, channels=channels, is_integer=is_integer)
        geometry, more = plan_geometry(grid, resize=self.resize, crop=self.crop, interpolation=self.interpolation)
        h, w = geometry.grid
        if h * w * channels > _MAX_VALUES:
            raise ModelError(f"an input of {h}x{w} with {channels} channels is too large for an image model")
        return Preprocessing(normalisation, geometry, 3 if normalisation.order == "grey" else channels, (*notes, *more))


def resolve_settings(file: Path | None, loading: Loading) -> ModelSettings:
    """What the loading options state, with gaps filled from a TOML file.

    file: of the model, None if it has none; the TOML file is next to it, unless `preprocess` names one.
    """
    for name in ("batch_size", "threads"):
        if (number := getattr(loading, name)) is not None and number < 1:
            raise OptionError(f"{name} must be at least 1, not {number}")
    if loading.half and loading.device == "cpu":
        raise OptionError("half precision needs a GPU: add --device cuda, or remove half")
    toml = file.with_suffix(".toml") if file is not None and file.name else None
    if toml is not None and not toml.is_file():
        toml = None
    names = ("preprocess", "resize", "labels", "returns", "threshold")
    values = {name: getattr(loading, name) for name in names}
    if not isinstance(loading.preprocess, Normalisation) and str(loading.preprocess).endswith(".toml"):
        toml = Path(str(values.pop("preprocess")))
        if not toml.exists():
            raise ModelError(f"there is no file {toml}")
    given = replace(_read_values(values, Path()), loading=loading)
    return given.over(read_toml(toml)) if toml is not None else given


def read_toml(path: Path) -> ModelSettings:
    """The settings in a TOML file. Raises ModelError that names the file and the key."""
    try:
        content = tomllib.loads(read_text(path))
    except RecursionError:
        raise ModelError(f"{path} cannot be read: it is nested too deeply") from None
    except (OSError, ValueError, InputError) as error:
        raise ModelError(f"{path} cannot be read: {reason_of(error)}") from None
    if unknown := sorted(set(content) - set(KEYS)):
        raise ModelError(f"{path} has an unknown key {unknown[0]!r}; expected {', '.join(KEYS)}")
    labels = content.get("labels")
    try:
        if not isinstance(labels, (str, list, NoneType)) or (
            isinstance(labels, list) and not all(isinstance(name, str) for name in labels)
        ):
            raise OptionError("labels must be a file, or a list of names in quotes")
        for key in ("input", "output_name"):
            if not isinstance(content.get(key, ""), str):
                raise OptionError(f"{key} is {content[key]!r}; expected a name")
        return _read_values(content, path.parent)
    except OptionError as error:
        raise ModelError(f"{path}: {error}") from None


def read_constants(module: ModuleType | None, function: Any, folder: Path) -> ModelSettings:
    """What the constants of the user's code and the function's attributes state. Raises ModelError for invalid values.

    Constants a file may define: `SIZE` (224, or (h, w)), `RESIZE` (as `--resize`), `PREPROCESS` (as `--preprocess`),
    `LABELS` (a list, or a file next to it), `RETURNS` (as `--returns`; also under its former name `OUTPUT`), `THRESHOLD`
    (as `--threshold`). A function in memory may have the attributes `labels`, `returns` and `geometry`.
    """
    names = {"crop": "SIZE", "resize": "RESIZE", "preprocess": "PREPROCESS", "threshold": "THRESHOLD"}
    values = {key: getattr(module, name, None) for key, name in names.items()}
    for key, constants in (("labels", ("LABELS",)), ("returns", ("RETURNS", "OUTPUT"))):
        found = [getattr(function, name.lower(), None) for name in constants]
        found += [getattr(module, name, None) for name in constants]
        values[key] = next((value for value in found if value is not None), None)
    try:
        settings = _read_values(values, folder)
    except (BecausalError, TypeError) as error:
        raise ModelError(f"a constant in the model's code is invalid: {error}") from None
    geometry = getattr(function, "geometry", None)
    if isinstance(geometry, Geometry):
        return replace(settings, crop=geometry.grid, resize=geometry.resize, interpolation=geometry.interpolation)
    return settings


def _read_values(values: Mapping[str, Any], folder: Path) -> ModelSettings:
    """The settings in values under the keys of a TOML file. folder: where a file of labels is."""
    given = {key: value for key, value in values.items() if value is not None}
    resize, crop = parse_resize(given["resize"]) if "resize" in given else (None, None)
    if (size := given.get("crop")) is not None:  # a number, a text, or a pair of numbers
        is_pair = isinstance(size, Iterable) and not isinstance(size, str)
        crop = parse_size("x".join(str(side) for side in size) if is_pair else size)
    if "interpolation" in given and given["interpolation"] not in INTERPOLATIONS:
        expected = ", ".join(INTERPOLATIONS)
        raise OptionError(f"unknown interpolation {given['interpolation']!r}; expected one of {expected}")
    if "returns" in given and given["returns"] not in RETURNS:
        raise OptionError(f"unknown value {given['returns']!r} for returns; expected one of {', '.join(RETURNS)}")
    labels = given.get("labels")
    if isinstance(labels, str) and "," in labels and not os.path.exists(folder / labels):  # False for any text, however long
        labels = [name.strip() for name in labels.split(",") if name.strip()]
    elif isinstance(labels, (str, Path)):
        labels = read_labels(folder / labels)
    return ModelSettings(
        normalisation=_read_normalisation(given),
        resize=resize,
        crop=crop,
        interpolation=given.get("interpolation"),
        labels=tuple(str(name) for name in labels or ()) or None,
        returns=given.get("returns"),
        threshold=check_threshold(given["threshold"]) if "threshold" in given else None,
        input_name=given.get("input"),
        output_name=given.get("output_name"),
        layout=_read_choice(given, "layout", get_args(Layout)),
    )


def _read_normalisation(content: dict[str, Any]) -> Normalisation | None:
    own = {"mean", "std", "scale", "order"} & set(content)
    if "preprocess" in content:
        if own:
            raise OptionError(f"give either preprocess or {', '.join(sorted(own))}, not both")
        given = content["preprocess"]
        return given if isinstance(given, Normalisation) else parse_normalisation(str(given))
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


def _read_choice(content: dict[str, Any], key: str, choices: tuple[Any, ...]) -> Any:
    value = content.get(key)
    if value is not None and value not in choices:
        raise OptionError(f"{key} is {value!r}; expected one of {', '.join(choices)}")
    return value
