"""How a model is loaded: one record, for Python, command line, batches, page and saved explanations."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from becausal.core.errors import OptionError
from becausal.core.options import option
from becausal.models.endpoint.options import kept_words
from becausal.models.preprocess import Normalisation

PRESETS = ("imagenet", "tf", "caffe", "unit", "raw")
RETURNS = ("probabilities", "logits", "multilabel", "multilabel-logits", "labels")


@dataclass(frozen=True, kw_only=True)
class Loading:
    """The options a model is loaded with; None where the model's own metadata, or a stated assumption, decides.

    Attributes:
        labels: Class names: a file, or the names themselves.
        preprocess: Normalisation: a preset's name, a TOML file, or a `Normalisation`.
        resize: How an image is resized before the centre crop, e.g. 256, "256/224", "squash".
        returns: What the model returns: probabilities, logits, multilabel, multilabel-logits or labels.
        device: Where the model runs, e.g. "cpu" or "cuda".
        batch_size: Maximum number of rows evaluated at once.
        threads: CPU threads for the model.
        half: Half precision, on a GPU.
        endpoint: Options of an `oip:` model, as key=value words. They may hold secrets.
    """

    labels: str | Path | tuple[str, ...] | None = option(
        None,
        "Class names: a file with one per line, `synset name` lines, or JSON. Default: the model's own.",
        metavar="FILE",
    )
    preprocess: str | Path | Normalisation | None = option(
        None,
        "Normalisation: imagenet (mean and std), tf (x/127.5 - 1), caffe (BGR minus mean), unit (0..1), raw (0..255), "
        "or a TOML file. Default: what the model's metadata say.",
        metavar="PRESET|FILE",
        choices=PRESETS,
    )
    resize: str | int | None = option(
        None,
        "Resizing before the centre crop: 256 (short side), 256/224 (short side, then crop), squash (ignore the aspect "
        "ratio), squash:256. Default: short side to the model's input size.",
        metavar="HOW",
    )
    returns: str | None = option(
        None,
        f"What the model returns: {', '.join(RETURNS)}. Default: detected, and reported.",
        metavar="KIND",
        choices=RETURNS,
    )
    device: str = option("cpu", "Device the model runs on.", metavar="cpu|cuda", choices=("cpu", "cuda"))
    batch_size: int | None = option(
        None, "Maximum number of rows evaluated at once; results do not depend on it.", metavar="N"
    )
    threads: int | None = option(None, "CPU threads for the model.", metavar="N")
    half: bool = option(False, "Run a torch model in half precision (cuda only).")
    endpoint: tuple[str, ...] = option(
        (),
        "Option of an oip: model; can be repeated: token_env=VARIABLE, 'header=NAME: VALUE', ca=FILE, timeout=S, "
        "deadline=S, retries=N, rate=N (requests/s), price=N (per image), cache=DIR|none, cache_mb=N, binary=yes|no, "
        "input=, output=, shape=, datatype=, layout=.",
        metavar="KEY=VALUE",
        parse=tuple,
    )

    def record(self) -> dict[str, Any]:
        """The options that differ from the defaults, as JSON can hold them; secrets are left out."""
        plain: dict[str, Any] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if value == f.default or f.name == "threads":  # threads are this machine's own affair
                continue
            if isinstance(value, Normalisation):
                value = asdict(value)
            elif isinstance(value, Path):
                value = str(value)
            elif f.name == "endpoint":
                value = kept_words(value)
            elif isinstance(value, tuple):
                value = list(value)
            plain[f.name] = value
        return plain

    @staticmethod
    def from_record(record: Mapping[str, Any]) -> "Loading":
        """The options behind a `record`.

        Raises:
            OptionError: The record has an option that does not exist, or one of a wrong type.
        """
        known = {f.name for f in fields(Loading)}
        if unknown := sorted(set(record) - known):
            raise OptionError(f"unknown loading option {unknown[0]!r}")
        given = dict(record)
        if isinstance(given.get("preprocess"), Mapping):
            said = dict(given["preprocess"])
            try:
                given["preprocess"] = Normalisation(**(said | {"mean": tuple(said["mean"]), "std": tuple(said["std"])}))
            except (KeyError, TypeError) as error:
                raise OptionError(f"the recorded normalisation cannot be read: {error}") from None
        for name in ("labels", "endpoint"):
            if isinstance(given.get(name), list):
                given[name] = tuple(str(word) for word in given[name])
        return Loading(**given)

    def over(self, saved: "Loading") -> "Loading":
        """These options where they differ from the defaults, else the saved ones; endpoint options are added to them."""
        given = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        if self.endpoint:
            given["endpoint"] = (*saved.endpoint, *self.endpoint)
        return replace(saved, **given)
