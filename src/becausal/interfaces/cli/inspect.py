"""`becausal inspect`, `models`, `methods` and `backgrounds`: how a model is used, and which models and methods there are."""

import math
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from becausal.core.boxes import describe_far
from becausal.core.errors import EXTRAS, ImageError, OptionError, OutputError
from becausal.core.files import write_file, write_files
from becausal.core.options import list_options, option
from becausal.core.text import one_line
from becausal.interfaces.cli import options
from becausal.interfaces.cli.console import check_writable, complain, open_console, print_facts, print_table, write_json
from becausal.interfaces.cli.explain import IMAGE
from becausal.interfaces.cli.folders import choose_folders
from becausal.models import open_model

if TYPE_CHECKING:
    from rich.text import Text

    from becausal.core.contracts import Classifier, Geometry, ModelInfo, Pixels

_OUTPUTS = {
    "probabilities": "probabilities of exclusive classes",
    "multilabel": "independent probabilities, several labels at once",
    "labels": "labels only, no scores",
    "boxes": "boxes of an object detector",
    "similarity": "similarity to another image, or to a text",
    "segments": "a class for every pixel; listed are their shares of the image",
}


@options.expand_options
def inspect(
    *,
    model: Annotated[str, typer.Argument(metavar="MODEL", help=options.SPEC_HELP)],
    images: Annotated[list[Path] | None, typer.Argument(metavar="IMAGE", help="Images to classify.")] = None,
    out: Annotated[Path | None, options.out_option("Object detectors: folder for the images with numbered boxes.")] = None,
    as_json: options.AsJson = False,
    loading: options.LoadingOptions,
) -> int:
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
        print_facts(open_console(), list_facts(info))
        print_entries(entries, info)
    return 2 if any("error" in entry for entry in entries) else 0


def print_entries(entries: list[dict[str, Any]], info: "ModelInfo") -> None:
    """Print the top labels with their numbers, where they have some, or the boxes, of each image."""
    console = open_console()
    for entry in entries:
        if "error" in entry:
            continue
        console.print(f"\n  {one_line(entry['image'])}" + (f", drawn in {entry['file']}" if "file" in entry else ""))
        for top in entry.get("top", ()):
            score = "      " if top["confidence"] is None else f"{top['confidence']:.4f}"
            number = "" if top["label_id"] in info.names else f" ({top['label_id']})"  # of a name it is a hash
            console.print(f"    {score}  {one_line(top['label'])}{number}")
        for box in entry.get("boxes", ()):
            sides = ",".join(f"{side:.0f}" for side in box["box"])
            console.print(f"    {box['number']:>2}  {box['score']:.4f}  {one_line(box['label'])}  {sides}")
        if entry.get("boxes") == []:
            console.print(f"    no box with a score of at least {info.threshold:g}")


def classify_image(image: Path, classifier: "Classifier", *, is_only: bool, drawn: Path | None) -> dict[str, Any]:
    """What `--json` prints about an image: its top labels or its boxes, or the error, which is also printed.

    is_only: there are no further images, so that an error is raised instead. drawn: the file in which boxes are drawn.
    """
    from becausal.api import classify, detect
    from becausal.images.loading import load_image
    from becausal.render.figures import draw_boxes

    try:
        if classifier.info.output != "boxes":
            top = [
                {"label_id": label_id, "label": name, "confidence": None if math.isnan(confidence) else confidence}
                for label_id, name, confidence in classify(image, classifier)
            ]
            return {"image": str(image), "top": top}
        boxes = detect(image, classifier)
        entry: dict[str, Any] = {"image": str(image), "boxes": [asdict(box) for box in boxes]}
        for note in [note for box in boxes for note in describe_far(box.box, load_image(image).pixels.shape)]:
            complain(f"{image.name}: {note}", kind="note")
        if drawn is None:
            return entry
        labelled = [(box.box, f"{box.number} {box.label} {box.score:.2f}") for box in boxes]
        write_files(drawn.parent, {drawn.name: draw_boxes(load_image(image).pixels, labelled)})
        return entry | {"file": str(drawn)}
    except ImageError as error:
        if is_only:
            raise
        complain(str(error) if image.name in str(error) else f"{image}: {error}")
        return {"image": str(image), "error": one_line(error)}


def list_facts(info: "ModelInfo") -> "list[tuple[str, Any]]":
    """What is printed about a model, as names and texts."""
    from becausal.render.numbers import format_count

    names = "names, as the model returns them" if info.names else "no names, numbers only"
    facts = [
        ("model", f"{info.spec} ({info.kind}, on {info.device})"),
        ("inputs", info.inputs or "unknown"),
        ("outputs", info.outputs or "unknown"),
        ("geometry", str(info.geometry) if info.geometry else "images and arrays as they are"),
        ("normalisation", info.normalisation),
        ("returns", _OUTPUTS[info.output]),
        ("labels", format_count(len(info.labels), "name") if info.labels else names),
        ("sha256", info.sha256 or "no file"),
    ]
    whats = {
        "boxes": "a box counts as found if its score", "multilabel": "a label counts as present if its confidence",
        "segments": "a segment counts as found again if its IoU",
    }  # fmt: skip
    if (what := whats.get(info.output)) is not None:
        facts.insert(6, ("threshold", f"{what} is at least {info.threshold:g}"))
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
        "threshold": info.threshold if info.output in ("boxes", "multilabel", "segments") else None,
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
    from becausal.models.endpoint.options import OWN, EndpointOptions

    if as_json:
        fields = [(name, kind.form, kind.extra, kind.description) for name, kind in KINDS.items()]
        write_json([dict(zip(("kind", "spec", "extra", "description"), row, strict=True)) for row in fields])
        return
    packages = EXTRAS | {"keras": ("keras", "torch")}  # Keras needs a backend
    rows = [
        (kind.form, kind.description, f"pip install {' '.join(packages[kind.extra])}" if kind.extra else "nothing else")
        for kind in KINDS.values()
    ]
    print_table(("spec", "description", "needs"), rows)
    known = {option.name: f"{option.name}={option.metavar}" for option in list_options(EndpointOptions)}
    own = {kind: ", ".join(known.pop(name) for name in names) for kind, names in OWN.items()}
    only = "; ".join(f"of {kind}: only {keys}" for kind, keys in own.items())
    shared = ", ".join(known.values())
    open_console().print(f"\nOptions of oip: and chat: models, each as --endpoint KEY=VALUE: {shared}; {only}")


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
    from becausal.methods import METHODS, list_options

    if name is None:
        columns, rows = ("method", "needs", "description"), [(n, m.needs, m.summary) for n, m in METHODS.items()]
        keys = ("name", "needs", "summary")
    else:
        found = list_options(name)
        columns, rows = ("option", "default", "meaning"), [(o.name, o.default, o.meaning) for o in found]
        keys = columns
    if as_json:
        write_json([dict(zip(keys, row, strict=True)) for row in rows])
        return
    if name is not None:
        open_console().print(f"{name}: {METHODS[name].summary}\n")
    print_table(columns, [tuple(str(cell) for cell in row) for row in rows])


MOST_SAMPLES = 99
SAMPLE_SIDE = 224  # pixels, of the short side of a view without a model
_SAMPLE_SPEC = options.SPEC_HELP.replace("Model to explain", "Show backgrounds of the size that this model takes")


@dataclass(frozen=True, kw_only=True)
class SampleOptions:
    """Which backgrounds are drawn, and where to."""

    out: Path = option(Path("backgrounds.png"), "Image file for the samples.", metavar="FILE.png", flag="--out -o")
    count: int = option(24, f"Number of samples, 1 to {MOST_SAMPLES}.", metavar="N")
    seed: int = option(0, "Seed. Same seed, same backgrounds.", metavar="S")
    backgrounds: Path | None = option(None, "Draw them from the images in this folder instead.", metavar="DIR")

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise OptionError(f"seed must be 0 or more, not {self.seed}")
        if not 1 <= self.count <= MOST_SAMPLES:
            raise OptionError(f"count must be 1 to {MOST_SAMPLES}, not {self.count}")
        if self.out.suffix.lower() != ".png":
            raise OptionError(f"the samples are a PNG image: give a name that ends in .png, not {self.out.name!r}")
        if self.out.is_dir():
            raise OutputError(f"cannot write to {self.out}: it is a folder")
        check_writable(self.out.parent)


@options.expand_options
def backgrounds(
    *,
    image: Annotated[
        Path | None,
        typer.Argument(metavar="IMAGE", help="Image, signal or volume to make them for. Default: the bundled image."),
    ] = None,
    samples: Annotated[SampleOptions, options.group_of(SampleOptions, options.OWN)],
    model: Annotated[str | None, options.model_option(_SAMPLE_SPEC)] = None,
    loading: options.LoadingOptions,
) -> None:
    """Show samples of random backgrounds.

    An explanation can be required to hold on any background: whatever the masked pixels become, the label has to stay, on
    at least 90 % of random backgrounds. This command draws samples of these backgrounds for an image, so that you can see
    what is meant. No model is evaluated. Without --model, images are shown with a short side of at most 224 pixels.

    There are four families, equally likely: one colour, a smooth field of colours, the blurred image, and noise. With
    --backgrounds, the backgrounds are the images in a folder, e.g. photographs of the place where a camera will be used.

    **Examples**

    - `becausal backgrounds`
    - `becausal backgrounds photo.jpg --model net.onnx --seed 7 --out samples.png`
    - `becausal backgrounds photo.jpg --backgrounds streets --count 48`
    """
    from becausal.images.backgrounds import FAMILIES, RandomBackgrounds, make_backgrounds
    from becausal.images.loading import load_image, make_view
    from becausal.render.figures import backgrounds_png

    info = open_model(model, loading).info if model is not None else None
    with ExitStack() as opened:
        place = image or opened.enter_context(as_file(files("becausal.models.bundled").joinpath(IMAGE)))
        source = load_image(place)
    fitted, channels = (_geometry_of(source.pixels), 3) if info is None else (info.geometry, info.channels)
    view = make_view(source, fitted, channels=channels).pixels
    if fitted is None:
        fitted = _geometry_of(view)

    def read(path: str) -> "Pixels":
        return make_view(load_image(path), fitted, channels=channels).pixels

    drawn = make_backgrounds(samples.backgrounds, view, samples.seed, read)
    families = [drawn.family(number) for number in range(samples.count)]
    content = backgrounds_png(view, [(family, drawn.draw(number)) for number, family in enumerate(families)])
    samples.out.parent.mkdir(parents=True, exist_ok=True)
    write_file(samples.out, content)
    console = open_console()
    what = f"{samples.count:,} backgrounds for {image or 'the bundled image'}, seed {samples.seed}"
    console.print(one_line(f"{what}, in {samples.out}"))
    facts: list[tuple[str, str | Text]] = [("drawn from", drawn.describe())]
    if isinstance(drawn, RandomBackgrounds):
        counted = Counter(families)
        facts += [(name, f"{family.meaning}: {counted[name]} of {len(families)}") for name, family in FAMILIES.items()]
    print_facts(console, facts)


def _geometry_of(pixels: "Pixels") -> "Geometry | None":
    """The shape of an image, with a short side of at most SAMPLE_SIDE pixels; None for signals and volumes."""
    from becausal.core.contracts import Geometry

    if pixels.ndim != 3 or pixels.shape[-1] != 3 or pixels.dtype != "uint8":
        return None
    h, w = pixels.shape[:2]
    factor = min(1.0, SAMPLE_SIDE / min(h, w))
    return Geometry((max(1, round(h * factor)), max(1, round(w * factor))))
