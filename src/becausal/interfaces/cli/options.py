"""Options that several commands share, each said once: the model, the question, the search, what is written."""

from pathlib import Path
from typing import Annotated, Any

import typer

DEFAULT_OUT = Path("becausal-out")
ROBUST = ("grey", "black", "white", "blur")
PRESETS = ("imagenet", "tf", "caffe", "unit", "raw")
OUTPUTS = ("probabilities", "logits", "multilabel", "multilabel-logits", "labels")
_MODEL, _WHAT, _HOW = "The model", "The question", "The search"

SPEC_HELP = (
    "What to ask: FILE.onnx, torch:FILE.py:BUILD, python:FILE.py:PREDICT, hf:NAME, timm:NAME, torchvision:NAME, "
    "keras:FILE, oip:URL or bundled. See: becausal models."
)


def _matching(choices: tuple[str, ...]) -> Any:
    return lambda incomplete: [choice for choice in choices if choice.startswith(incomplete)]


def _methods(incomplete: str) -> list[str]:
    from becausal.methods import METHODS

    return [name for name in METHODS if name.startswith(incomplete)]


def _fills(incomplete: str) -> list[str]:
    from becausal.images.fills import NAMES

    return [name for name in NAMES if name.startswith(incomplete)]


Model = Annotated[str, typer.Option("--model", "-m", metavar="SPEC", help=SPEC_HELP, rich_help_panel=_MODEL)]
Labels = Annotated[
    Path | None,
    typer.Option(
        "--labels",
        metavar="FILE",
        rich_help_panel=_MODEL,
        help="Class names: one per line, `synset name` lines, or JSON. Default: the model's own.",
    ),
]
Preprocess = Annotated[
    str | None,
    typer.Option(
        "--preprocess",
        metavar="PRESET",
        rich_help_panel=_MODEL,
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
        rich_help_panel=_MODEL,
        help="The geometry before the centre crop: 256 (short side, px), squash (ignore the aspect), squash:256. "
        "Default: short side to the network's side.",
    ),
]
Output = Annotated[
    str | None,
    typer.Option(
        "--output",
        metavar="KIND",
        rich_help_panel=_MODEL,
        autocompletion=_matching(OUTPUTS),
        help=f"What the model returns: {', '.join(OUTPUTS)}. Default: found out, and said.",
    ),
]
Device = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="cpu|cuda",
        rich_help_panel=_MODEL,
        autocompletion=_matching(("cpu", "cuda")),
        help="Where the model runs.",
    ),
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        "--batch-size",
        metavar="N",
        rich_help_panel=_MODEL,
        help="Most mutants per call of the model; the answer does not depend on it.",
    ),
]
Threads = Annotated[
    int | None, typer.Option("--threads", metavar="N", rich_help_panel=_MODEL, help="CPU threads for the model.")
]
Half = Annotated[
    bool, typer.Option("--half", rich_help_panel=_MODEL, help="Run a torch model in half precision (cuda only).")
]
Endpoint = Annotated[
    list[str] | None,
    typer.Option(
        "--endpoint",
        metavar="KEY=VALUE",
        rich_help_panel=_MODEL,
        help="An option of an oip: model, given once for each: token_env=VARIABLE, 'header=NAME: VALUE', ca=FILE, "
        "timeout=S, deadline=S, retries=N, rate=N (requests/s), price=N (a picture), cache=DIR|none, cache_mb=N, "
        "binary=yes|no, input=, output=, shape=, datatype=, layout=.",
    ),
]

Target = Annotated[
    str | None,
    typer.Option(
        "--target", metavar="LABEL|ID", rich_help_panel=_WHAT, help="The label to explain. Default: the one on top."
    ),
]
Against = Annotated[
    str | None,
    typer.Option("--against", metavar="LABEL|ID", rich_help_panel=_WHAT, help="Only this rival must stay behind the label."),
]
Top = Annotated[
    int,
    typer.Option("--top", metavar="K", rich_help_panel=_WHAT, help="It is enough that the label stays in the top K."),
]
Confidence = Annotated[
    float | None,
    typer.Option(
        "--confidence",
        metavar="SHARE",
        rich_help_panel=_WHAT,
        help="Also keep this share of the original confidence, as 0.5. Default: the label is enough.",
    ),
]
Fill = Annotated[
    list[str],
    typer.Option(
        "--fill",
        metavar="FILL",
        rich_help_panel=_WHAT,
        autocompletion=_fills,
        help="What hidden pixels become: black, grey, white, '#rrggbb', 'r,g,b', mean, blur, noise, inpaint, "
        "image:FILE. Given several times, the explanation must hold under all of them.",
    ),
]
Robust = Annotated[
    bool,
    typer.Option("--robust", rich_help_panel=_WHAT, help=f"Hold under several fills at once: {', '.join(ROBUST)}."),
]
Complete = Annotated[
    bool,
    typer.Option("--complete", rich_help_panel=_WHAT, help="Keep the whole original confidence: --confidence 1."),
]
Contrast = Annotated[
    bool,
    typer.Option(
        "--contrast",
        rich_help_panel=_WHAT,
        help="Find a set that is sufficient and necessary at once: alone it keeps the label, hidden it loses it.",
    ),
]
Several = Annotated[
    int,
    typer.Option(
        "--several", metavar="K", rich_help_panel=_WHAT, help="Look for so many disjoint explanations (method causal)."
    ),
]

Method = Annotated[
    str,
    typer.Option("--method", metavar="NAME", rich_help_panel=_HOW, autocompletion=_methods, help="See: becausal methods."),
]
MethodOption = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="KEY=VALUE",
        rich_help_panel=_HOW,
        help="An option of the method; see: becausal methods NAME.",
    ),
]
Partitions = Annotated[
    int | None,
    typer.Option("--partitions", metavar="N", rich_help_panel=_HOW, help="Short for --option partitions=N (dc-causal: 50)."),
]
Grain = Annotated[
    str,
    typer.Option(
        "--grain",
        metavar="PX|none",
        rich_help_panel=_HOW,
        help="Remove all that can go, down to cells of this side in pixels; none: do not. Default: 1/56 of the "
        "view (4 px of 224) for causal, none for the others.",
    ),
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", rich_help_panel=_HOW, help="Same seed, same answer.")]
MaxCalls = Annotated[
    int | None,
    typer.Option(
        "--max-calls",
        metavar="N",
        rich_help_panel=_HOW,
        help="Most calls per image, as 500; then the best so far, marked so.",
    ),
]

Out = Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Where to write the files.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout and nothing else.")]
