"""`becausal inspect`, `models` and `methods`: what there is, and how it will be used."""

import math
from dataclasses import MISSING, fields
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from becausal.core.errors import OptionError
from becausal.interfaces.cli import options, settings
from becausal.interfaces.cli.console import one_line, open_console, print_facts, print_table, write_json
from becausal.models import open_model

if TYPE_CHECKING:
    from becausal.core.contracts import ModelInfo

_OUTPUTS = {
    "probabilities": "probabilities of exclusive classes",
    "multilabel": "independent probabilities, several labels at once",
    "labels": "labels only, no scores",
}


@settings.expand_options
def inspect(
    *,
    model: Annotated[str, typer.Argument(metavar="MODEL", help=options.SPEC_HELP)],
    image: Annotated[Path | None, typer.Argument(metavar="[IMAGE]", help="An image to classify.")] = None,
    as_json: options.AsJson = False,
    loading: settings.LoadingOptions,
) -> None:
    """Show how a model will be read, and what it says of an image.

    Do this first with a model of your own: if the top 5 look wrong, so do explanations.

    **Examples**

    - `becausal inspect bundled`
    - `becausal inspect net.onnx photo.jpg --labels names.txt --preprocess tf --resize 256`
    """
    from becausal.api import classify

    classifier = open_model(model, loading)
    top = classify(image, classifier) if image is not None else None
    info = classifier.info  # after the image: some models show only then what they return
    if as_json:
        write_json(describe(info) | ({} if top is None else {"image": str(image), "top": [_entry(*t) for t in top]}))
        return
    console = open_console()
    print_facts(console, facts_of(info))
    if top is not None:
        console.print(f"\n  {one_line(str(image))}")
        for number, name, confidence in top:
            said = "      " if math.isnan(confidence) else f"{confidence:.4f}"
            console.print(f"    {said}  {one_line(name)} ({number})")


def facts_of(info: "ModelInfo") -> "list[tuple[str, Any]]":
    """What a person wants to know of a model."""
    facts = [
        ("model", f"{info.spec} ({info.kind}, on {info.device})"),
        ("inputs", info.inputs or "unknown"),
        ("outputs", info.outputs or "unknown"),
        ("geometry", str(info.geometry) if info.geometry else "images and arrays as they are"),
        ("numbers", info.numbers),
        ("read as", _OUTPUTS[info.output]),
        ("labels", f"{len(info.labels)} names" if info.labels else "no names, numbers only"),
        ("sha256", info.sha256 or "no file"),
    ]
    return facts + [("note", note) for note in info.notes]


def describe(info: "ModelInfo") -> dict[str, Any]:
    """The same for machines."""
    return {
        "model": info.spec,
        "kind": info.kind,
        "device": info.device,
        "inputs": info.inputs,
        "outputs": info.outputs,
        "geometry": str(info.geometry) if info.geometry else None,
        "grid": list(info.geometry.grid) if info.geometry else None,
        "numbers": info.numbers,
        "output": info.output,
        "labels": len(info.labels) if info.labels else 0,
        "sha256": info.sha256,
        "notes": list(info.notes),
    }


def _entry(number: int, name: str, confidence: float) -> dict[str, Any]:
    return {"label_id": number, "label": name, "confidence": None if math.isnan(confidence) else confidence}


def models(as_json: options.AsJson = False) -> None:
    """List the kinds of model that can be asked, and how each is written.

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
        (kind.form, kind.description, f"pip install 'becausal[{kind.extra}]'" if kind.extra else "nothing more")
        for kind in KINDS.values()
    ]
    print_table(("spec", "what it is", "needs"), rows)


def methods(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Show the options of this method.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """List the methods, or the options of one of them.

    **Examples**

    - `becausal methods`
    - `becausal methods dc-causal`
    - `becausal explain photo.jpg --model bundled --method dc-causal --option partitions=20`
    """
    from becausal.methods import METHODS

    if name is not None and name not in METHODS:
        raise OptionError(f"unknown method {name!r}: take one of {', '.join(METHODS)}")
    if name is not None:
        _show_options(name, as_json=as_json)
    elif as_json:
        write_json([{"name": n, "needs": m.needs, "summary": m.summary} for n, m in METHODS.items()])
    else:
        print_table(("method", "needs", "what it does"), [(n, m.needs, m.summary) for n, m in METHODS.items()])


def _show_options(name: str, *, as_json: bool) -> None:
    from becausal.methods import METHODS

    method = METHODS[name]
    kind: Any = getattr(import_module(method.module), method.class_name)
    rows = [(f.name, None if f.default is MISSING else f.default, _meaning(kind, f.name)) for f in fields(kind)]
    if as_json:
        write_json([{"option": n, "default": default, "meaning": meaning} for n, default, meaning in rows])
        return
    console = open_console()
    console.print(f"{name}: {method.summary}\n")
    print_table(("option", "default", "meaning"), [(n, str(default), meaning) for n, default, meaning in rows])


def _meaning(kind: type, option: str) -> str:
    """What a method's docstring says of an option, in its `option: words` paragraph."""
    words: list[str] = []
    for line in (kind.__doc__ or "").splitlines():
        start, colon, rest = line.strip().partition(": ")
        if colon and start.isidentifier():
            words = [*words, rest] if start == option else words
            if words and start != option:
                break
        elif words and not line.strip():
            break
        elif words:
            words.append(line.strip())
    return " ".join(words)
