"""`becausal inspect`, `models` and `methods`: how a model is used, and which models and methods there are."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from becausal.core.boxes import describe_far
from becausal.core.errors import ImageError, OptionError
from becausal.core.files import write_files
from becausal.core.text import one_line
from becausal.interfaces.cli import options
from becausal.interfaces.cli.console import check_writable, complain, open_console, print_facts, print_table, write_json
from becausal.interfaces.cli.explain import choose_folders
from becausal.models import open_model

if TYPE_CHECKING:
    from becausal.core.contracts import Classifier, ModelInfo

_OUTPUTS = {
    "probabilities": "probabilities of exclusive classes",
    "multilabel": "independent probabilities, several labels at once",
    "labels": "labels only, no scores",
    "boxes": "boxes of an object detector",
}


@options.expand_options
def inspect(
    *,
    model: Annotated[str, typer.Argument(metavar="MODEL", help=options.SPEC_HELP)],
    images: Annotated[list[Path] | None, typer.Argument(metavar="IMAGE", help="Images to classify.")] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="DIR", help="Object detectors: folder for the images with numbered boxes."),
    ] = None,
    as_json: options.AsJson = False,
    loading: options.LoadingOptions,
) -> None:
    """Show how a model is used, and how it classifies images.

    Do this first with a model of your own. If the top 5 labels are wrong, the normalisation, the resizing or the labels
    are probably wrong, and explanations would be too. The boxes of an object detector are listed, numbered as
    `becausal explain --box` takes them, and drawn on the images with --out.

    **Examples**

    - `becausal inspect bundled`
    - `becausal inspect net.onnx *.jpg --labels names.txt --preprocess tf --resize 256`
    - `becausal inspect detect:yolo.onnx street.jpg --out boxes`
    """
    classifier = open_model(model, loading)
    if out is not None:
        if classifier.info.output != "boxes" or not images:
            raise OptionError("--out is for images with the boxes of an object detector")
        check_writable(out)
    files = [
        None if out is None else file.with_name(f"{file.name}.png")
        for _, file in choose_folders(images or [], out or Path())
    ]
    entries = [
        classify_image(image, classifier, is_only=len(files) == 1, drawn=file)
        for image, file in zip(images or (), files, strict=True)
    ]
    info = classifier.info  # read after the images: some models reveal only then what they return
    if as_json:
        write_json(describe(info) | (entries[0] if len(entries) == 1 else {}) | ({"images": entries} if entries else {}))
    else:
        console = open_console()
        print_facts(console, list_facts(info))
        for entry in (entry for entry in entries if "top" in entry):
            console.print(f"\n  {one_line(entry['image'])}")
            for top in entry["top"]:
                score = "      " if top["confidence"] is None else f"{top['confidence']:.4f}"
                console.print(f"    {score}  {one_line(top['label'])} ({top['label_id']})")
        for entry in (entry for entry in entries if "boxes" in entry):
            console.print(f"\n  {one_line(entry['image'])}" + (f", drawn in {entry['file']}" if "file" in entry else ""))
            for box in entry["boxes"]:
                sides = ",".join(f"{side:.0f}" for side in box["box"])
                console.print(f"    {box['number']:>2}  {box['score']:.4f}  {one_line(box['label'])}  {sides}")
            if not entry["boxes"]:
                console.print(f"    no box with a score of at least {info.threshold:g}")
    if any("error" in entry for entry in entries):
        raise typer.Exit(2)


def classify_image(image: Path, classifier: "Classifier", *, is_only: bool, drawn: Path | None) -> dict[str, Any]:
    """What `--json` prints about an image: its top labels or its boxes, or the error, which is also printed.

    is_only: there are no further images, so that an error is raised instead. drawn: the file in which boxes are drawn.
    """
    from becausal.api import classify

    try:
        if classifier.info.output == "boxes":
            return _find_boxes(image, classifier, drawn)
        top = classify(image, classifier)
    except ImageError as error:
        if is_only:
            raise
        complain(str(error) if image.name in str(error) else f"{image}: {error}")
        return {"image": str(image), "error": one_line(error)}
    return {
        "image": str(image),
        "top": [
            {"label_id": label_id, "label": name, "confidence": None if math.isnan(confidence) else confidence}
            for label_id, name, confidence in top
        ],
    }


def _find_boxes(image: Path, classifier: "Classifier", drawn: Path | None) -> dict[str, Any]:
    """The boxes that a detector finds in an image, and the file they are drawn in, if any."""
    from becausal.api import detect
    from becausal.images.loading import load_image
    from becausal.render.boxes import draw_boxes

    boxes = detect(image, classifier)
    entry: dict[str, Any] = {"image": str(image), "boxes": [asdict(box) for box in boxes]}
    for note in [note for box in boxes for note in describe_far(box.box, load_image(image).pixels.shape)]:
        complain(f"{image.name}: {note}", kind="note")
    if drawn is None:
        return entry
    labelled = [(box.box, f"{box.number} {box.label} {box.score:.2f}") for box in boxes]
    write_files(drawn.parent, {drawn.name: draw_boxes(load_image(image).pixels, labelled)})
    return entry | {"file": str(drawn)}


def list_facts(info: "ModelInfo") -> "list[tuple[str, Any]]":
    """What is printed about a model, as names and texts."""
    from becausal.render.wording import format_count

    facts = [
        ("model", f"{info.spec} ({info.kind}, on {info.device})"),
        ("inputs", info.inputs or "unknown"),
        ("outputs", info.outputs or "unknown"),
        ("geometry", str(info.geometry) if info.geometry else "images and arrays as they are"),
        ("normalisation", info.normalisation),
        ("returns", _OUTPUTS[info.output]),
        ("labels", format_count(len(info.labels), "name") if info.labels else "no names, numbers only"),
        ("sha256", info.sha256 or "no file"),
    ]
    if info.output == "boxes":
        facts.insert(6, ("threshold", f"a box is found from a score of {info.threshold:g} on"))
    return facts + [("note", note) for note in info.notes]


def describe(info: "ModelInfo") -> dict[str, Any]:
    """What `--json` prints about a model."""
    return {
        "model": info.spec,
        "kind": info.kind,
        "device": info.device,
        "inputs": info.inputs,
        "outputs": info.outputs,
        "geometry": str(info.geometry) if info.geometry else None,
        "grid": list(info.geometry.grid) if info.geometry else None,
        "normalisation": info.normalisation,
        "output": info.output,
        "threshold": info.threshold if info.output == "boxes" else None,
        "labels": len(info.labels) if info.labels else 0,
        "sha256": info.sha256,
        "notes": list(info.notes),
    }


def models(as_json: options.AsJson = False) -> None:
    """List the kinds of model, and how each is written after --model.

    **Examples**

    - `becausal models`
    - `becausal explain photo.jpg --model torch:net.py:build`
    """
    from becausal.models import KINDS

    if as_json:
        write_json(
            [
                {"kind": name, "spec": kind.form, "extra": kind.extra, "description": kind.description}
                for name, kind in KINDS.items()
            ]
        )
        return
    rows = [
        (kind.form, kind.description, f"pip install 'becausal[{kind.extra}]'" if kind.extra else "nothing else")
        for kind in KINDS.values()
    ]
    print_table(("spec", "description", "needs"), rows)


def methods(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Show the options of this method.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """List the methods, or the options of one method.

    **Examples**

    - `becausal methods`
    - `becausal methods dc-causal`
    - `becausal explain photo.jpg --model bundled --method dc-causal --option partitions=20`
    """
    from becausal.methods import METHODS

    if name is not None:
        _show_options(name, as_json=as_json)
    elif as_json:
        write_json([{"name": n, "needs": m.needs, "summary": m.summary} for n, m in METHODS.items()])
    else:
        print_table(("method", "needs", "description"), [(n, m.needs, m.summary) for n, m in METHODS.items()])


def _show_options(name: str, *, as_json: bool) -> None:
    from becausal.methods import METHODS, list_options

    found = list_options(name)
    if as_json:
        write_json([{"option": o.name, "default": o.default, "meaning": o.meaning} for o in found])
        return
    console = open_console()
    console.print(f"{name}: {METHODS[name].summary}\n")
    print_table(("option", "default", "meaning"), [(o.name, str(o.default), o.meaning) for o in found])
