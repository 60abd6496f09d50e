"""Options that several commands share: which model, and how it is read."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from becausal.errors import OptionError

if TYPE_CHECKING:
    from becausal.contracts import Classifier

PRESETS = ("imagenet", "tf", "caffe", "unit", "raw")
OUTPUTS = ("probabilities", "logits", "multilabel", "multilabel-logits", "labels")
_PANEL = "The model"

SPEC_HELP = (
    "What to ask: FILE.onnx, torch:FILE.py:BUILD, python:FILE.py:PREDICT, hf:NAME, timm:NAME, torchvision:NAME, "
    "keras:FILE, oip:URL or bundled. See: becausal models."
)


def _matching(choices: tuple[str, ...]) -> Any:
    return lambda incomplete: [choice for choice in choices if choice.startswith(incomplete)]


Model = Annotated[str, typer.Option("--model", "-m", metavar="SPEC", help=SPEC_HELP, rich_help_panel=_PANEL)]
Labels = Annotated[
    Path | None,
    typer.Option(
        "--labels",
        metavar="FILE",
        rich_help_panel=_PANEL,
        help="Class names: one per line, `synset name` lines, or JSON. Default: the model's own.",
    ),
]
Preprocess = Annotated[
    str | None,
    typer.Option(
        "--preprocess",
        metavar="PRESET",
        rich_help_panel=_PANEL,
        autocompletion=_matching(PRESETS),
        help="The numbers the model wants: imagenet (mean and std), tf (x/127.5 - 1), caffe (BGR minus mean), unit "
        "(0..1), raw (0..255), or a TOML file. Default: what the model says of itself.",
    ),
]
Resize = Annotated[
    str | None,
    typer.Option(
        "--resize",
        metavar="HOW",
        rich_help_panel=_PANEL,
        help="The geometry before the centre crop: 256 (short side, px), squash (ignore the aspect), squash:256. "
        "Default: short side to the network's side.",
    ),
]
Output = Annotated[
    str | None,
    typer.Option(
        "--output",
        metavar="KIND",
        rich_help_panel=_PANEL,
        autocompletion=_matching(OUTPUTS),
        help=f"What the model returns: {', '.join(OUTPUTS)}. Default: found out, and said.",
    ),
]
Device = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="cpu|cuda",
        rich_help_panel=_PANEL,
        autocompletion=_matching(("cpu", "cuda")),
        help="Where the model runs.",
    ),
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        "--batch-size",
        metavar="N",
        rich_help_panel=_PANEL,
        help="Most mutants per call of the model; the answer does not depend on it.",
    ),
]
Threads = Annotated[
    int | None, typer.Option("--threads", metavar="N", rich_help_panel=_PANEL, help="CPU threads for the model.")
]
Half = Annotated[
    bool, typer.Option("--half", rich_help_panel=_PANEL, help="Run a torch model in half precision (cuda only).")
]
Endpoint = Annotated[
    list[str] | None,
    typer.Option(
        "--endpoint",
        metavar="KEY=VALUE",
        rich_help_panel=_PANEL,
        help="An option of an oip: model, given once for each: token_env=VARIABLE, 'header=NAME: VALUE', ca=FILE, "
        "timeout=S, deadline=S, retries=N, rate=N (requests/s), price=N (a picture), cache=DIR|none, cache_mb=N, "
        "binary=yes|no, input=, output=, shape=, datatype=, layout=.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout and nothing else.")]


@dataclass(frozen=True, kw_only=True)
class Loading:
    """How a model is read, as the command line was told."""

    labels: Path | str | None = None
    preprocess: str | None = None
    resize: str | int | None = None
    output: str | None = None
    device: str = "cpu"
    batch_size: int | None = None
    threads: int | None = None
    half: bool = False
    endpoint: Sequence[str] = ()

    def load(self, spec: str, *, afresh: bool = False) -> "Classifier":
        """The model of that spec; afresh: every question must reach it, no kept answer will do."""
        from becausal.classifiers import load_model

        if not re.fullmatch(r"cpu|mps|cuda(:\d+)?", self.device):
            raise OptionError(f"unknown device {self.device!r}: take cpu or cuda, or cuda:1 for the second GPU")
        return load_model(
            spec,
            labels=self.labels,
            preprocess=self.preprocess,
            resize=self.resize,
            output=self.output,
            device=self.device,
            batch_size=self.batch_size,
            threads=self.threads,
            half=self.half,
            endpoint=(*self.endpoint, "cache=none") if afresh and spec.startswith("oip:") else self.endpoint,
        )

    def over(self, saved: dict[str, Any]) -> "Loading":
        """These options where they were given, else those that were saved; options of an endpoint are added to them."""
        plain = Loading()
        mine = {f.name: getattr(self, f.name) for f in fields(self)}
        given = {name: value for name, value in mine.items() if value != getattr(plain, name)}
        if self.endpoint:
            given["endpoint"] = (*saved.get("endpoint", ()), *self.endpoint)
        return Loading(**({key: value for key, value in saved.items() if key in mine} | given))
