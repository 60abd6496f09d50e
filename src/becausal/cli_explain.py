"""`becausal explain`: why does the model give these pictures their labels?"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from becausal import cli_options as options
from becausal.cli_console import complain, one_line, print_summary, write_json
from becausal.cli_progress import Watch
from becausal.errors import OptionError, OutputError

if TYPE_CHECKING:
    from becausal.api import Failure, Request
    from becausal.contracts import Classifier
    from becausal.explanation import Explanation

DEFAULT_OUT = Path("becausal-out")
ROBUST = ("grey", "black", "white", "blur")
_WHAT, _HOW = "The question", "The search"


def _methods(incomplete: str) -> list[str]:
    from becausal.explainers import METHODS

    return [name for name in METHODS if name.startswith(incomplete)]


def _fills(incomplete: str) -> list[str]:
    from becausal.fills import NAMES

    return [name for name in NAMES if name.startswith(incomplete)]


def explain(
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE", help="Pictures, or .npy signals and volumes.")],
    model: options.Model,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Where to write; one folder per image inside.")
    ] = DEFAULT_OUT,
    as_json: options.AsJson = False,
    target: Annotated[
        str | None,
        typer.Option(metavar="LABEL|ID", rich_help_panel=_WHAT, help="The label to explain. Default: the one on top."),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(metavar="LABEL|ID", rich_help_panel=_WHAT, help="Only this rival must stay behind the label."),
    ] = None,
    top: Annotated[
        int, typer.Option(metavar="K", rich_help_panel=_WHAT, help="It is enough that the label stays in the top K.")
    ] = 1,
    confidence: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            rich_help_panel=_WHAT,
            help="Also keep this share of the original confidence, as 0.5. Default: the label is enough.",
        ),
    ] = None,
    fill: Annotated[
        list[str],
        typer.Option(
            metavar="FILL",
            rich_help_panel=_WHAT,
            autocompletion=_fills,
            help="What hidden pixels become: black, grey, white, '#rrggbb', 'r,g,b', mean, blur, noise, inpaint, "
            "image:FILE. Given several times, the explanation must hold under all of them.",
        ),
    ] = ["grey"],  # noqa: B006 - typer reads it, nothing writes to it
    robust: Annotated[
        bool,
        typer.Option("--robust", rich_help_panel=_WHAT, help=f"Hold under several fills at once: {', '.join(ROBUST)}."),
    ] = False,
    complete: Annotated[
        bool,
        typer.Option("--complete", rich_help_panel=_WHAT, help="Keep the whole original confidence: --confidence 1."),
    ] = False,
    contrast: Annotated[
        bool,
        typer.Option(
            "--contrast",
            rich_help_panel=_WHAT,
            help="Find a set that is sufficient and necessary at once: alone it keeps the label, hidden it loses it.",
        ),
    ] = False,
    several: Annotated[
        int,
        typer.Option(metavar="K", rich_help_panel=_WHAT, help="Look for so many disjoint explanations (method causal)."),
    ] = 1,
    method: Annotated[
        str,
        typer.Option(metavar="NAME", rich_help_panel=_HOW, autocompletion=_methods, help="See: becausal methods."),
    ] = "causal",
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", rich_help_panel=_HOW, help="An option of the method; see: becausal methods NAME."),
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option(metavar="N", rich_help_panel=_HOW, help="Short for --option partitions=N (dc-causal: 50)."),
    ] = None,
    grain: Annotated[
        str,
        typer.Option(
            metavar="PX|none",
            rich_help_panel=_HOW,
            help="Remove all that can go, down to cells of this side in pixels; none: do not. Default: 1/56 of the "
            "view (4 px of 224) for causal, none for the others.",
        ),
    ] = "default",
    seed: Annotated[int, typer.Option(metavar="N", rich_help_panel=_HOW, help="Same seed, same answer.")] = 0,
    max_calls: Annotated[
        int | None,
        typer.Option(
            metavar="N", rich_help_panel=_HOW, help="Most calls per image, as 500; then the best so far, marked so."
        ),
    ] = None,
    labels: options.Labels = None,
    preprocess: options.Preprocess = None,
    resize: options.Resize = None,
    output: options.Output = None,
    device: options.Device = "cpu",
    batch_size: options.BatchSize = None,
    threads: options.Threads = None,
    half: options.Half = False,
    endpoint: options.Endpoint = None,
) -> None:
    """Explain why a model gives pictures their labels.

    Finds a small set of pixels that alone is enough for the label, checks it, and writes per image: explanation.json,
    arrays.npz, explanation.png, heatmap.png and report.html. Ctrl-C gives the best so far.

    **Examples**

    - `becausal explain cat.jpg --model bundled`
    - `becausal explain *.jpg --model net.onnx --labels names.txt --preprocess imagenet --resize 256`
    - `becausal explain scan.npy --model python:mine.py:predict --fill mean --fill blur --max-calls 2000`
    - `becausal explain dog.jpg --model hf:google/vit-base-patch16-224 --target wolf --against husky --json`
    """
    from becausal.api import Request
    from becausal.explainers import make_explainer

    loading = options.Loading(
        labels=labels,
        preprocess=preprocess,
        resize=resize,
        output=output,
        device=device,
        batch_size=batch_size,
        threads=threads,
        half=half,
        endpoint=endpoint or (),
    )
    request = Request(
        method=method,
        options=parse_options(option or [], partitions),
        target=target,
        against=against,
        top=top,
        confidence=1.0 if complete else confidence,
        fills=ROBUST if robust else tuple(fill),
        grain=parse_grain(grain),
        seed=seed,
        max_calls=max_calls,
        several=several,
        contrast=contrast,
    )
    make_explainer(method, request.options)  # an option that does not exist is said before a model is loaded
    check_writable(out)
    run = Run(loading.load(model), request, choose_folders(images, out), as_json)
    entries = run.entries()
    if as_json:
        write_json(entries)
    if run.is_stopping:
        raise typer.Exit(130)
    if any("error" in entry for entry in entries):
        raise typer.Exit(2)


class Run:
    """The pictures of one command, side by side where that is faster; a bad one does not keep the others from going."""

    def __init__(self, model: "Classifier", request: "Request", folders: list[tuple[Path, Path]], as_json: bool) -> None:
        self.is_stopping = False
        self._model = model
        self._request = request
        self._folders = folders
        self._as_json = as_json

    def entries(self) -> list[dict[str, Any]]:
        """What `--json` says of each picture, once it is explained, saved and summed up on the terminal; in their order."""
        from becausal.api import explain_numbered

        images = [image for image, _ in self._folders]
        entries: dict[int, dict[str, Any]] = {}
        title = images[0].name if len(images) == 1 else f"{len(images)} pictures"
        with Watch(title=title, quiet=self._as_json, count=len(images)) as watch:
            try:
                for number, answer in explain_numbered(images, self._model, request=self._request, progress=watch):
                    with watch.aside():
                        entries[number] = self._entry(number, answer)
            except KeyboardInterrupt:
                if not entries:
                    raise
                self.is_stopping = True
        self.is_stopping |= watch.is_stopping
        return [entries[number] for number in sorted(entries)]

    def _entry(self, number: int, answer: "Explanation | Failure") -> dict[str, Any]:
        from becausal.api import Failure

        image, folder = self._folders[number]
        if isinstance(answer, Failure):
            message = one_line(str(answer.error))
            is_clear = len(self._folders) == 1 or image.name in message
            complain(message if is_clear else f"{image}: {message}")
            return {"image": str(image), "error": message}
        saved = answer.save(folder)
        if answer.stopped_by == "interrupt":
            self.is_stopping = True
        if not self._as_json:
            print_summary(answer, saved)
        return answer.summary() | {"folder": str(saved)}


def parse_options(pairs: Sequence[str], partitions: int | None) -> dict[str, Any]:
    """The method's options from key=value words."""
    found: dict[str, Any] = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign or not key.strip():
            raise OptionError(f"an option of the method is written key=value, as --option partitions=20, not {pair!r}")
        found[key.strip().replace("-", "_")] = value.strip()
    return found if partitions is None else found | {"partitions": partitions}


def parse_grain(text: str) -> int | Literal["default"] | None:
    """A side in pixels, `none`, or `default`."""
    match text.strip().lower():
        case "default":
            return "default"
        case "none":
            return None
        case number if number.isascii() and number.isdigit():
            return int(number)
    raise OptionError(f"the grain is a side in whole pixels, as 4, or none, not {text!r}")


def choose_folders(images: Sequence[Path], out: Path) -> list[tuple[Path, Path]]:
    """Each image with its own folder: its name without the ending, and -2, -3, … where that is taken."""
    taken: set[str] = set()
    chosen = []
    for image in images:
        name, number = image.stem or image.name or "image", 1
        while (unique := name if number == 1 else f"{name}-{number}").casefold() in taken:
            number += 1
        taken.add(unique.casefold())
        chosen.append((image, out / unique))
    return chosen


def check_writable(out: Path) -> None:
    """Refuse a folder that cannot be written to before anything is spent; nothing is made yet."""
    place = out.absolute()
    while not os.path.lexists(place):
        place = place.parent
    if not place.is_dir():
        raise OutputError(f"cannot write to {out}: {place} is no folder")
    if not os.access(place, os.W_OK | os.X_OK):
        raise OutputError(f"cannot write to {out}: no permission in {place}")
