"""How a model is loaded: one record, for Python, command line, batches, page and saved explanations."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Self, TypedDict, Unpack

from becausal.core.errors import OptionError
from becausal.core.options import option
from becausal.core.schema import read_fields
from becausal.models.endpoint.options import as_pairs, without_secrets
from becausal.models.outputs import RETURNS
from becausal.models.preprocess import PRESETS, Normalisation

RUNTIMES = ("auto", "torch")


def check_threshold(value: Any) -> float:
    """The threshold of a detector as a float. Raises OptionError for what is no score."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 < value <= 1.0:
        raise OptionError(f"the threshold of a detector is a score above 0 and up to 1, e.g. 0.5, not {value!r}")
    return float(value)


class LoadingOptions(TypedDict, total=False):
    """The options of `load_model`: those of `Loading`, as Python takes them."""

    labels: str | Path | Sequence[str] | None
    preprocess: str | Path | Normalisation | None
    resize: str | int | None
    returns: str | None
    threshold: float | None
    device: str
    batch_size: int | None
    threads: int | None
    half: bool
    runtime: str
    endpoint: Mapping[str, Any] | Sequence[str] | None


@dataclass(frozen=True, kw_only=True)
class Loading:
    """The options a model is loaded with; None where the model's metadata or a default decides.

    Attributes:
        labels: Class names: a file, or the names themselves.
        preprocess: Normalisation: a preset's name, a TOML file, or a `Normalisation`.
        resize: How an image is resized before the centre crop, e.g. 256, "256/224", "squash", "letterbox".
        returns: What the model returns: probabilities, logits, multilabel, multilabel-logits or labels.
        threshold: Of an object detector: the lowest score at which a box counts as found.
        device: Where the model runs, e.g. "cpu" or "cuda".
        batch_size: Maximum number of images evaluated at once.
        threads: CPU threads for the model.
        half: Whether a copy in half precision may guide the search, on a GPU.
        runtime: What may guide the search for a torch module on a CPU: "auto", an export to ONNX where that is faster, or
            "torch", the module alone.
        endpoint: Options of an `oip:` model, as key=value pairs. They may hold secrets.
    """

    labels: str | Path | tuple[str, ...] | None = option(
        None,
        "Class names: a file with one per line, `synset name` lines, or JSON. Default: the model's own.",
        metavar="FILE",
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
        None, "Detectors: lowest score at which a box counts as found. Default: the model's own.", metavar="SCORE"
    )
    device: str = option("cpu", "Device the model runs on.", metavar="cpu|cuda", choices=("cpu", "cuda"))
    batch_size: int | None = option(
        None, "Maximum number of images evaluated at once; results do not depend on it.", metavar="N"
    )
    threads: int | None = option(None, "CPU threads for the model.", metavar="N")
    half: bool = option(
        False, "Guide the search by a copy of the torch model in half precision (cuda only); the model itself certifies."
    )
    runtime: str = option(
        "auto",
        "What guides the search for a torch module on a CPU: auto (an export of it to ONNX, where that is faster) or torch "
        "(the module alone). Either way the module itself certifies.",
        metavar="|".join(RUNTIMES),
        choices=RUNTIMES,
    )
    endpoint: tuple[str, ...] = option(
        (),
        "Option of an oip: model; can be repeated: token_env=VARIABLE, 'header=NAME: VALUE', ca=FILE, timeout=S, "
        "deadline=S, retries=N, rate=N (requests/s), price=N (per image), cache=DIR|none, cache_mb=N, binary=yes|no, "
        "input=, output=, shape=, datatype=, layout=.",
        metavar="KEY=VALUE",
        parse=tuple,
    )

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.record().items())
        return f"{type(self).__name__}({given})"  # without secrets

    @classmethod
    def from_options(cls, **options: Unpack[LoadingOptions]) -> Self:
        """The record of options as `load_model` takes them: any sequence of labels, a mapping of endpoint options.

        Raises:
            OptionError: There is no such option.
        """
        if unknown := sorted(set(options) - {f.name for f in fields(cls)}):
            raise OptionError(f"unknown loading option {unknown[0]!r}; expected {', '.join(f.name for f in fields(cls))}")
        given: dict[str, Any] = dict(options)
        if given.get("labels") is not None and not isinstance(given["labels"], (str, Path)):
            given["labels"] = tuple(str(name) for name in given["labels"])
        return cls(**(given | {"endpoint": as_pairs(given.get("endpoint"))}))

    def check(self) -> None:
        """Raise OptionError for values that no model can be loaded with."""
        for name, number in (("batch_size", self.batch_size), ("threads", self.threads)):
            if number is not None and number < 1:
                raise OptionError(f"{name} must be at least 1, not {number}")
        if self.threshold is not None:
            check_threshold(self.threshold)
        if self.half and self.device == "cpu":
            raise OptionError("half precision needs a GPU: add --device cuda, or remove half")
        if self.runtime not in RUNTIMES:
            raise OptionError(f"unknown runtime {self.runtime!r}; expected one of {', '.join(RUNTIMES)}")

    def record(self) -> dict[str, Any]:
        """The options that differ from the defaults, as JSON can hold them; secrets are left out."""
        plain: dict[str, Any] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if value == f.default or f.name == "threads":  # the number of threads is specific to this machine
                continue
            if isinstance(value, Normalisation):
                value = asdict(value)
            elif isinstance(value, Path):
                value = str(value)
            elif f.name == "endpoint":
                value = without_secrets(value)
            elif isinstance(value, tuple):
                value = list(value)
            plain[f.name] = value
        return plain

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The options behind a `record`.

        Raises:
            OptionError: The record has an unknown option, or a value of another type; the message names it.
        """
        known = {f.name for f in fields(cls)}
        if unknown := sorted(set(record) - known):
            raise OptionError(f"unknown loading option {unknown[0]!r}; expected {', '.join(sorted(known))}")
        given = dict(record)
        if given.get("runtime") == "onnxruntime":  # of older records
            del given["runtime"]
        if isinstance(given.get("preprocess"), Mapping):
            try:
                normalisation = Normalisation(**read_fields(Normalisation, given.pop("preprocess"), complete=True))
            except OptionError as error:
                raise OptionError(f"the recorded normalisation cannot be read: {error}") from None
            return cls(preprocess=normalisation, **read_fields(cls, given))
        return cls(**read_fields(cls, given))

    def over(self, saved: Self) -> Self:
        """These options where they differ from the defaults, else the saved ones; endpoint options are appended."""
        given = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        if self.endpoint:
            given["endpoint"] = (*saved.endpoint, *self.endpoint)
        return replace(saved, **given)
