"""`becausal explain`: why does the model give these images their labels?"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from becausal.core.errors import NetworkError, OutputError
from becausal.interfaces.cli import options, settings
from becausal.interfaces.cli.console import complain, one_line, print_summary, write_json
from becausal.interfaces.cli.progress import Watch
from becausal.models import open_model

if TYPE_CHECKING:
    from becausal.api import Failure, Request
    from becausal.api.explanation import Explanation
    from becausal.core.contracts import Classifier


@settings.expand_options
def explain(
    *,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE", help="Images, or .npy signals and volumes.")],
    model: options.Model,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Where to write; one folder per image inside.")
    ] = options.DEFAULT_OUT,
    as_json: options.AsJson = False,
    request: settings.RequestOptions,
    loading: settings.LoadingOptions,
) -> None:
    """Explain why a model gives images their labels.

    Finds a small set of pixels that alone is enough for the label, checks it, and writes per image: explanation.json,
    arrays.npz, explanation.png, heatmap.png and report.html. Ctrl-C gives the best so far; so does a model that fails.

    **Examples**

    - `becausal explain cat.jpg --model bundled`
    - `becausal explain *.jpg --model net.onnx --labels names.txt --preprocess imagenet --resize 256`
    - `becausal explain scan.npy --model python:mine.py:predict --fill mean --fill blur --max-calls 2000`
    - `becausal explain dog.jpg --model hf:google/vit-base-patch16-224 --target wolf --against husky --json`
    """
    check_writable(out)
    run = Run(open_model(model, loading), request, choose_folders(images, out), as_json)
    entries = run.entries()
    if as_json:
        write_json(entries)
    if run.is_stopping:
        raise typer.Exit(130)
    if run.has_failed:
        raise typer.Exit(2)


class Run:
    """The images of one command, side by side where that is faster; a bad one does not keep the others from going."""

    def __init__(self, model: "Classifier", request: "Request", folders: list[tuple[Path, Path]], as_json: bool) -> None:
        self.is_stopping = False
        self.has_failed = False
        self._model = model
        self._request = request
        self._folders = folders
        self._as_json = as_json

    def entries(self) -> list[dict[str, Any]]:
        """What `--json` says of each image, once it is explained, saved and summed up on the terminal; in their order."""
        from becausal.api import explain_numbered

        images = [image for image, _ in self._folders]
        entries: dict[int, dict[str, Any]] = {}
        title = images[0].name if len(images) == 1 else f"{len(images)} images"
        with Watch(title=title, quiet=self._as_json, count=len(images)) as watch:
            try:
                for number, answer in explain_numbered(images, self._model, request=self._request, progress=watch):
                    with watch.aside():
                        entries[number] = self._entry(number, answer)
            except KeyboardInterrupt:
                if not entries:
                    raise
                self.is_stopping = True
            except NetworkError as error:
                if not entries:
                    raise
                self.has_failed = True
                if left := len(images) - len(entries):  # what is wrong with the others was said with them
                    complain(f"{left} of {len(images)} images not begun: {error}")
        self.is_stopping |= watch.is_stopping
        return [entries[number] for number in sorted(entries)]

    def _entry(self, number: int, answer: "Explanation | Failure") -> dict[str, Any]:
        from becausal.api import Failure, find_failure

        image, folder = self._folders[number]
        if isinstance(answer, Failure):
            return {"image": str(image), "error": self._complain(image, str(answer.error))}
        saved = answer.save(folder)
        if answer.stopped_by == "interrupt":
            self.is_stopping = True
        if not self._as_json:
            print_summary(answer, saved)
        entry = answer.summary() | {"folder": str(saved)}
        failure = find_failure(answer)
        return entry if failure is None else entry | {"error": self._complain(image, failure)}

    def _complain(self, image: Path, error: str) -> str:
        """Say what went wrong with an image, and with which where that is not clear; the message alone."""
        self.has_failed = True
        message = one_line(error)
        is_clear = len(self._folders) == 1 or image.name in message
        complain(message if is_clear else f"{image}: {message}")
        return message


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
