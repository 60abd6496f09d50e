"""`becausal inspect`, `models` and `methods`: how a model is used, and which models and methods there are."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from becausal.core.text import one_line
from becausal.interfaces.cli import options
from becausal.interfaces.cli.console import open_console, print_facts, print_table, write_json
from becausal.models import open_model

if TYPE_CHECKING:
    from becausal.core.contracts import ModelInfo

_OUTPUTS = {
    "probabilities": "probabilities of exclusive classes",
    "multilabel": "independent probabilities, several labels at once",
    "labels": "labels only, no scores",
}


@options.expand_options
def inspect(
    *,
    model: Annotated[str, typer.Argument(metavar="MODEL", help=options.SPEC_HELP)],
    image: Annotated[Path | None, typer.Argument(metavar="IMAGE", help="An image to classify.")] = None,
    as_json: options.AsJson = False,
    loading: options.LoadingOptions,
) -> None:
    """Show how a model is used, and how it classifies an image.

    Do this first with a model of your own. If the top 5 labels are wrong, the normalisation, the resizing or the labels
    are probably wrong, and explanations would be too.

    **Examples**

    - `becausal inspect bundled`
    - `becausal inspect net.onnx photo.jpg --labels names.txt --preprocess tf --resize 256`
    """
    from becausal.api import classify

    classifier = open_model(model, loading)
    top = classify(image, classifier) if image is not None else None
    info = classifier.info  # read after the image: some models reveal only then what they return
    if as_json:
        write_json(describe(info) | ({} if top is None else {"image": str(image), "top": [_entry(*t) for t in top]}))
        return
    console = open_console()
    print_facts(console, list_facts(info))
    if top is not None:
        console.print(f"\n  {one_line(str(image))}")
        for label_id, name, confidence in top:
            score = "      " if math.isnan(confidence) else f"{confidence:.4f}"
            console.print(f"    {score}  {one_line(name)} ({label_id})")


def list_facts(info: "ModelInfo") -> "list[tuple[str, Any]]":
    """What is printed about a model, as names and texts."""
    facts = [
        ("model", f"{info.spec} ({info.kind}, on {info.device})"),
        ("inputs", info.inputs or "unknown"),
        ("outputs", info.outputs or "unknown"),
        ("geometry", str(info.geometry) if info.geometry else "images and arrays as they are"),
        ("normalisation", info.normalisation),
        ("returns", _OUTPUTS[info.output]),
        ("labels", f"{len(info.labels)} names" if info.labels else "no names, numbers only"),
        ("sha256", info.sha256 or "no file"),
    ]
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
        "labels": len(info.labels) if info.labels else 0,
        "sha256": info.sha256,
        "notes": list(info.notes),
    }


def _entry(label_id: int, name: str, confidence: float) -> dict[str, Any]:
    return {"label_id": label_id, "label": name, "confidence": None if math.isnan(confidence) else confidence}


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
