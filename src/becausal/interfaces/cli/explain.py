"""`becausal explain`: explain why a model gives images their labels."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from becausal.core.errors import ImageError, NetworkError, OptionError
from becausal.core.files import path_inside, safe_name
from becausal.core.text import one_line
from becausal.interfaces.cli import options
from becausal.interfaces.cli.console import check_writable, complain, print_summary, write_json
from becausal.interfaces.cli.progress import watch_searches
from becausal.models import open_model

if TYPE_CHECKING:
    from becausal.api import Failure, Request
    from becausal.api.explanation import Explanation
    from becausal.core.contracts import Classifier


@options.expand_options
def explain(
    *,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE", help="Image files, or .npy signals and volumes.")],
    model: options.Model,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Folder to write to; each image gets its own folder in it.")
    ] = options.DEFAULT_OUT,
    every_box: options.EveryBox = False,
    as_json: options.AsJson = False,
    request: options.RequestOptions,
    loading: options.LoadingOptions,
) -> None:
    """Explain why a model gives images their labels.

    Finds small sets of pixels that alone are enough: for the label, for half of its confidence, and for most of it
    (90 %). Checks each of them. For each image, writes explanation.json, arrays.npz, explanation.png, heatmap.png and
    report.html. Press Ctrl-C to stop early and keep the best result so far.

    Of an object detector it explains a box: the one with the highest score, the one given by --box, or --all.

    **Examples**

    - `becausal explain photo.jpg --model bundled`
    - `becausal explain *.jpg --model net.onnx --labels names.txt --preprocess imagenet --resize 256`
    - `becausal explain scan.npy --model python:mine.py:predict --fill mean --fill blur --max-calls 2000`
    - `becausal explain dog.jpg --model hf:google/vit-base-patch16-224 --target wolf --against husky --json`
    - `becausal explain street.jpg --model detect:yolo.onnx --box 2`
    """
    check_images(images)
    check_writable(out)
    if every_box:
        options.check_every_box(request)
    folders = [(image, path_inside(out, folder.name)) for image, folder in choose_folders(images, out)]
    results = ResultWriter(folders, as_json=as_json)
    search = explain_every_box if every_box else explain_images
    entries = search(open_model(model, loading), request, results)
    if as_json:
        write_json(entries)
    if results.is_stopping:
        raise typer.Exit(130)
    if results.has_failed:
        raise typer.Exit(2)


def check_images(images: Sequence[Path]) -> None:
    """Refuse folders, which `becausal batch` explains. Raises OptionError."""
    for image in images:
        if os.path.isdir(image):
            raise OptionError(f"{image} is a folder: use becausal batch {image} --out RUN, or give image files")


class ResultWriter:
    """Saves the result of each image into its folder, prints it, and keeps track of failures.

    folders: each image and the folder for its files. as_json: print errors only.
    """

    def __init__(self, folders: list[tuple[Path, Path]], *, as_json: bool) -> None:
        self.folders = folders
        self.as_json = as_json
        self.is_stopping = False
        self.has_failed = False

    def write(self, number: int, result: "Explanation | Failure") -> dict[str, Any]:
        """Save and print the result of an image; returns what `--json` prints about it."""
        image, folder = self.folders[number]
        return self.write_to(image, folder, result)

    def write_to(self, image: Path, folder: Path, result: "Explanation | Failure") -> dict[str, Any]:
        """The same, into any folder."""
        from becausal.api import Failure, find_failure

        if isinstance(result, Failure):
            return {"image": str(image), "error": self._report_failure(image, str(result.error))}
        saved = result.save(folder)
        if result.stopped_by == "interrupt":
            self.is_stopping = True
        if not self.as_json:
            print_summary(result, saved)
        entry = result.summary() | {"folder": str(saved)}
        failure = find_failure(result)
        return entry if failure is None else entry | {"error": self._report_failure(image, failure)}

    def _report_failure(self, image: Path, error: str) -> str:
        """Print an error, with the image's name if the error does not mention it; returns the error as one line."""
        self.has_failed = True
        message = one_line(error)
        is_clear = len(self.folders) == 1 or image.name in message
        complain(message if is_clear else f"{image}: {message}")
        return message


def explain_images(model: "Classifier", request: "Request", results: ResultWriter) -> list[dict[str, Any]]:
    """Explain the images, several at a time if that is faster; returns what `--json` prints, in their order.

    An image that cannot be explained does not keep the others from being explained.
    """
    from becausal.api import explain_numbered

    images = [image for image, _ in results.folders]
    entries: dict[int, dict[str, Any]] = {}
    title = images[0].name if len(images) == 1 else f"{len(images)} images"
    with watch_searches(title=title, quiet=results.as_json, count=len(images)) as progress:
        try:
            for number, result in explain_numbered(images, model, request=request, progress=progress):
                with progress.paused():
                    entries[number] = results.write(number, result)
        except KeyboardInterrupt:
            if not entries:
                raise
            results.is_stopping = True
        except NetworkError as error:
            if not entries:
                raise
            results.has_failed = True
            if left := len(images) - len(entries):  # the errors of the other images are printed already
                complain(f"{left} of {len(images)} images not started: {error}")
    results.is_stopping |= progress.is_stopping
    return [entries[number] for number in sorted(entries)]


def explain_every_box(model: "Classifier", request: "Request", results: ResultWriter) -> list[dict[str, Any]]:
    """Explain all boxes in each image, each into a folder box-1, box-2, … of the image's; returns what `--json` prints."""
    from becausal.api import Failure, explain_boxes

    entries: list[dict[str, Any]] = []
    for image, folder in results.folders:
        with watch_searches(title=image.name, quiet=results.as_json) as progress:
            try:
                for number, result in explain_boxes(image, model, request=request, progress=progress):
                    with progress.paused():
                        entry = results.write_to(image, path_inside(folder, f"box-{number}"), result)
                        entries.append(entry | {"box_number": number})
            except ImageError as error:
                if len(results.folders) == 1:
                    raise
                entries.append(results.write_to(image, folder, Failure(image.name, error)))
            except KeyboardInterrupt:
                if not entries:
                    raise
                results.is_stopping = True
            except NetworkError as error:  # what was explained before is printed, as JSON too
                if not entries:
                    raise
                results.has_failed = True
                complain(f"{image}: not all boxes were explained: {error}")
                break
        results.is_stopping |= progress.is_stopping
        if results.is_stopping:
            break
    return entries


def choose_folders(images: Sequence[Path], out: Path) -> list[tuple[Path, Path]]:
    """Each image with its own folder: its name without the suffix, made safe, and -2, -3, … if that is taken."""
    taken: set[str] = set()
    chosen = []
    for image in images:
        name, number = safe_name(image.stem), 1
        while (unique := name if number == 1 else f"{name}-{number}").casefold() in taken:
            number += 1
        taken.add(unique.casefold())
        chosen.append((image, out / unique))
    return chosen
