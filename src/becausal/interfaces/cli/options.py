"""Options that several commands share and that no record holds: the model's spec, where to write, short forms."""

import inspect
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from becausal.core.errors import OptionError

DEFAULT_OUT = Path("becausal-out")
ROBUST = ("grey", "black", "white", "blur")
_MODEL, _WHAT, _HOW = "The model", "The question", "The search"

SPEC_HELP = (
    "What to ask: FILE.onnx, torch:FILE.py:BUILD, python:FILE.py:PREDICT, hf:NAME, timm:NAME, torchvision:NAME, "
    "keras:FILE, oip:URL or bundled. See: becausal models."
)


def matching(choices: tuple[str, ...]) -> Any:
    return lambda incomplete: [choice for choice in choices if choice.startswith(incomplete)]


def _methods(incomplete: str) -> list[str]:
    from becausal.methods import METHODS

    return [name for name in METHODS if name.startswith(incomplete)]


COMPLETIONS: dict[str, Any] = {"method": _methods}


Model = Annotated[str, typer.Option("--model", "-m", metavar="SPEC", help=SPEC_HELP, rich_help_panel=_MODEL)]
Robust = Annotated[
    bool,
    typer.Option("--robust", rich_help_panel=_WHAT, help=f"Hold under several fills at once: {', '.join(ROBUST)}."),
]
Complete = Annotated[
    bool, typer.Option("--complete", rich_help_panel=_WHAT, help="Keep the original confidence: short for --confidence 1.")
]
Partitions = Annotated[
    int | None,
    typer.Option("--partitions", metavar="N", rich_help_panel=_HOW, help="Short for --option partitions=N (dc-causal: 50)."),
]


def _short(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


ROBUST_ONLY = (_short("robust", Robust, False),)
SHORT_FORMS = (*ROBUST_ONLY, _short("complete", Complete, False), _short("partitions", Partitions, None))

Out = Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Where to write the files.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout and nothing else.")]


def check_device(device: str) -> None:
    """Refuse a device that no kind of model knows."""
    if not re.fullmatch(r"cpu|mps|cuda(:\d+)?", device):
        raise OptionError(f"unknown device {device!r}: use cpu or cuda, or cuda:1 for the second GPU")
