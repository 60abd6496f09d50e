"""`becausal explain`, `demo` and `compare`: explain why a model gives images their labels."""

import os
from collections.abc import Sequence
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from becausal.core.errors import ImageError, InputError, NetworkError, OptionError
from becausal.core.files import path_inside
from becausal.core.text import format_cost, one_line
from becausal.interfaces.cli import options
from becausal.interfaces.cli.console import (
    check_writable,
    complain,
    list_facts,
    open_console,
    print_facts,
    print_spans,
    print_summary,
    print_table,
    write_json,
)
from becausal.interfaces.cli.folders import announce_replacement, keep_folders, remove_boxes, remove_earlier
from becausal.interfaces.cli.progress import watch_searches
from becausal.models import open_model

if TYPE_CHECKING:
    from becausal.api import Failure, Request
    from becausal.api.explanation import Explanation
    from becausal.core.contracts import Classifier
    from becausal.core.explanation import Comparison

IMAGE, OCCLUDER = "demo.png", "demo_occluder.png"
NAMED = 5  # images that were not explained, named in a line


@options.expand_options
def explain(
    *,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE", help="Image files, or .npy signals and volumes.")],
    model: options.Model,
    out: Annotated[
        Path, options.out_option("Folder to write to; each image gets its own folder in it.")
    ] = options.DEFAULT_OUT,
    every_box: options.EveryBox = False,
    as_json: options.AsJson = False,
    request: options.RequestOptions,
    loading: options.LoadingOptions,
) -> int:
    """Explain why a model gives images their labels.

    Finds two sets of pixels, one inside the other. `enough` keeps the label on at least 90 % of random backgrounds,
    shown on fresh ones. `core` keeps the confidence with everything else in a plain colour. Both are checked. For each
    image, writes explanation.json, arrays.npz, explanation.png, heatmap.png and report.html. Press Ctrl-C to stop early
    and keep the best result so far.

    With an object detector, the question is why a box is found: the best one, that of --box, or every one with --all.

    **Examples**

    - `becausal explain photo.jpg --model bundled`
    - `becausal explain *.jpg --model net.onnx --labels names.txt --preprocess imagenet --resize 256`
    - `becausal explain scan.npy --model python:mine.py:predict --fill mean --fill blur --max-calls 2000`
    - `becausal explain dog.jpg --model hf:google/vit-base-patch16-224 --target wolf --against husky --json`
    - `becausal explain street.jpg --model detect:yolo.onnx --box 2`
    """
    for image in images:
        if os.path.isdir(image):
            raise OptionError(f"{image} is a folder: use becausal batch {image} --out RUN, or give image files")
    check_writable(out)
    if every_box:
        options.check_every_box(request)
    folders, classifier = keep_folders(images, out), open_model(model, loading)
    if classifier.info.is_costly:
        most = request.limited(classifier.info).max_calls
        complain(describe_limit(classifier.info.spec, most, loading.endpoint, len(images)), kind="note")
    entries, status = explain_all(folders, classifier, request, every_box=every_box, as_json=as_json)
    if as_json:
        write_json(entries)
    return status


def describe_limit(spec: str, most: int | None, endpoint: Sequence[str], count: int) -> str:
    """What it takes at most to explain so many images, where each call costs money or seconds. endpoint: its options."""
    from becausal.models.endpoint.options import parse_endpoint

    if most is None:
        return f"no limit on the calls to {spec}: set one with --max-calls"
    price = parse_endpoint(endpoint, "chat").price
    calls = f"{most:,} calls" + (f" for each of {count} images" if count > 1 else "")
    cost = "" if price is None else f", which cost {format_cost(most * count * price)}"
    return f"at most {calls} to {spec}{cost}: set another limit with --max-calls"


def explain_all(
    folders: list[tuple[Path, Path]], model: "Classifier", request: "Request", *, every_box: bool, as_json: bool
) -> tuple[list[dict[str, Any]], int]:
    """Explain images, or all boxes in them, and save and print each result; what `--json` prints, and the exit status.

    folders: each image and the folder for its files. An image that cannot be explained does not keep the others from it.
    """
    from becausal.api import Failure, explain_boxes, explain_numbered

    entries: dict[tuple[int, int], dict[str, Any]] = {}
    is_stopping, error, is_only = False, None, len(folders) == 1
    # Several images at a time may be faster; the boxes of an image share the model's answers, so there it is one by one.
    rounds = [[pair] for pair in folders] if every_box else [folders]
    for number, pairs in enumerate(rounds):
        images, count = [image for image, _ in pairs], len(pairs)
        title = images[0].name if count == 1 else f"{count} images"
        with watch_searches(title=title, quiet=as_json, count=count) as progress:
            try:
                search: Any = explain_boxes if every_box else explain_numbered
                asked: Any = images[0] if every_box else images
                for inner, result in search(asked, model, request=request, progress=progress):  # number of image, or box
                    image, folder = pairs[0 if every_box else inner]
                    with progress.paused():
                        own = path_inside(folder, f"box-{inner}") if every_box else folder
                        entry = save_result(result, image, own, is_only=is_only, as_json=as_json)
                    entries[number, inner] = entry | ({"box_number": inner} if every_box else {})
                    is_stopping |= entry.get("stopped_by") == "interrupt"
            except ImageError as refused:  # of the file whose boxes were to be explained
                if is_only or not every_box:
                    raise
                entries[number, 0] = save_result(Failure(images[0].name, refused), *pairs[0], is_only=False, as_json=as_json)
            except KeyboardInterrupt:  # what was explained before is printed, as JSON too; so it is below
                if not entries:
                    raise
                is_stopping = True
            except NetworkError as failed:  # the errors of other images are printed already
                if not entries:
                    raise
                error = failed
        is_stopping |= progress.is_stopping
        if is_stopping or error is not None:
            break
        if every_box and all("error" not in entry for place, entry in entries.items() if place[0] == number):
            remove_earlier(pairs[0][1], [box for index, box in entries if index == number])
    if is_stopping or error is not None:
        reached = {place[0 if every_box else 1] for place in entries}
        list_missing([image for image, _ in folders], reached, error, cut=folders[number][0] if every_box else None)
    found = [entries[place] for place in sorted(entries)]
    is_failed = error is not None or any("error" in entry for entry in found)
    return found, 130 if is_stopping else 2 if is_failed else 0


def list_missing(images: list[Path], reached: set[int], error: NetworkError | None, *, cut: Path | None) -> None:
    """Say in one line which images were not explained, after Ctrl-C or an error of the network.

    reached: the numbers of those that were. cut: the image of whose boxes some may be missing.
    """
    left = [str(image) for number, image in enumerate(images) if number not in reached]
    words = []
    if cut is not None and str(cut) not in left:
        words.append(f"{cut}: not all boxes were explained" if error else f"{cut}: some of its boxes may not be explained")
    if left:
        names = ", ".join(left[:NAMED]) + (f" and {len(left) - NAMED:,} more" if len(left) > NAMED else "")
        words.append(f"{len(left):,} of {len(images):,} images not {'started' if error else 'explained'}: {names}")
    if words:
        complain("; ".join(words) + (f": {error}" if error else ""), kind="error" if error else "stopped")


def save_result(
    result: "Explanation | Failure", image: Path, folder: Path, *, is_only: bool, as_json: bool
) -> dict[str, Any]:
    """Save and print the result of an image, or print why there is none; returns what `--json` prints about it."""
    from becausal.api import Failure, find_failure

    entry: dict[str, Any] = {"image": str(image)}
    if isinstance(result, Failure):
        failure: str | None = str(result.error)
    else:
        announce_replacement(folder, result)
        saved = result.save(folder)
        remove_boxes(saved)
        if not as_json:
            print_summary(result, saved, is_only=is_only)
        entry, failure = result.summary() | {"folder": str(saved)}, find_failure(result)
    if failure is None:
        return entry
    message = one_line(failure)
    complain(message if is_only or image.name in message else f"{image}: {message}")
    return entry | {"error": message}


def demo(out: options.Out = options.DEFAULT_OUT, as_json: options.AsJson = False) -> int:
    """Explain a bundled image, offline, in seconds.

    The image shows an object with something in front of it, an occluder. The explanation should lie on the visible
    part of the object. Writes its files, with report.html, to the folder `demo` in --out.

    **Examples**

    - `becausal demo`
    - `becausal demo --out first-look`
    """
    from becausal.api import explain
    from becausal.core.metrics import overlap
    from becausal.images.loading import load_image

    check_writable(out)
    bundled = files("becausal.models.bundled")
    if not bundled.joinpath(IMAGE).is_file():
        raise InputError(f"the bundled image {IMAGE} is missing from this installation: install becausal again")
    with as_file(bundled.joinpath(IMAGE)) as image, as_file(bundled.joinpath(OCCLUDER)) as occluder:
        with watch_searches(title="demo", quiet=as_json) as progress:
            explanation = explain(image, "bundled", progress=progress)
        ((_, folder),) = keep_folders([image], out)
        truth = load_image(occluder).pixels.max(axis=-1) > 127  # white where the occluder is
    on_occluder = overlap(explanation.visible, explanation.frame.from_original(truth))
    explanation.save(folder)
    if as_json:
        write_json([explanation.summary() | {"overlap": on_occluder, "folder": str(folder)}])
    else:
        print_demo(explanation, on_occluder, folder)
    return 130 if explanation.stopped_by == "interrupt" else 0


def print_demo(explanation: "Explanation", overlap: float, folder: Path) -> None:
    """Print what was found, how much of it is on the occluder, and which commands to try next."""
    from becausal.render.numbers import format_share
    from becausal.render.wording import headline

    console = open_console()
    print_spans(console, "A mug, with something in front of it. ", headline(explanation))
    print_facts(console, [("on the occluder", f"{format_share(overlap)} of {explanation.level.name}")])
    print_facts(console, list_facts(explanation, folder))
    console.print("\nNow with your own image and model:")
    console.print("  becausal models                                        list the kinds of model")
    console.print("  becausal inspect net.onnx photo.jpg                    show how a model is used, and its top 5")
    console.print("  becausal explain photo.jpg --model net.onnx --labels names.txt --preprocess imagenet")


@options.expand_options
def compare(
    *,
    image: Annotated[Path, typer.Argument(metavar="IMAGE", help="An image file, or an .npy signal or volume.")],
    model: options.Model,
    methods: Annotated[
        str,
        typer.Option(
            metavar="A,B,C|all", rich_help_panel=options.SEARCH, help="Methods to compare; see `becausal methods`."
        ),
    ] = "all",
    out: options.Out = options.DEFAULT_OUT,
    as_json: options.AsJson = False,
    truth: Annotated[
        Path | None,
        typer.Option(
            metavar="MASK.png",
            rich_help_panel=options.TARGET,
            help="Ground truth: an image of the same size, white where the photobomber is.",
        ),
    ] = None,
    request: options.ComparisonRequest,
    loading: options.LoadingOptions,
) -> int:
    """Run several methods on one image and compare what they find.

    All methods share the model, the fill, the target and the extraction of an explanation from a saliency map, so that
    only the maps differ. Writes comparison.png, comparison.json and comparison.html. A method that does not work with
    this model is listed with the reason.

    **Examples**

    - `becausal compare photo.jpg --model bundled --methods causal,rise,random`
    - `becausal compare scene.png --model bundled --truth occluder.png --grain 4 --out comparison`
    - `becausal compare dog.jpg --model torch:net.py:build --methods causal,grad-cam,ig,lrp --preprocess imagenet`
    """
    from becausal.api.compare import choose_methods, compare_methods, save_comparison

    choose_methods(methods)  # a wrong name is refused before the model is loaded
    check_writable(out)
    classifier = open_model(model, loading)
    names = choose_methods(methods, classifier.info)
    with watch_searches(title=image.name, quiet=as_json) as progress:
        comparison = compare_methods(image, classifier, names, request=request, truth=truth, progress=progress)
    folder = save_comparison(comparison, out)
    if as_json:
        write_json(comparison.record() | {"folder": str(folder)})
    else:
        print_comparison(comparison, folder)
    return 130 if progress.is_stopping else 0


def print_comparison(comparison: "Comparison", folder: Path) -> None:
    """Print the table, the methods that did not run, and where the files are."""
    from becausal.render.comparison import choose_columns, describe_shortfall, format_row
    from becausal.render.wording import as_text, format_label, is_plain, question

    console = open_console()
    first = comparison.first
    head = format_label(first) if is_plain(first) else as_text(question(first))
    console.print(f"{one_line(head)}  {one_line(first.origin.image)}\n")
    ran = [row for row in comparison.rows if row.explanation is not None]
    columns = choose_columns(comparison)
    print_table(tuple(columns), [tuple(format_row(row)[c] for c in columns) for row in ran])
    facts = [(row.method, describe_shortfall(row)) for row in ran if row.is_coarser]
    facts += [(row.method, f"did not run: {row.error}") for row in comparison.rows if row.explanation is None]
    console.print()
    print_facts(console, [*facts, ("files", f"{folder}/  (open comparison.html)")])
