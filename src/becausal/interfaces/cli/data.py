"""`becausal data`: download the published datasets, or make datasets from images of your own."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from becausal.core.errors import OptionError
from becausal.interfaces.cli import options
from becausal.interfaces.cli.console import check_writable, open_console, print_facts
from becausal.interfaces.cli.help import add_command, make_group
from becausal.interfaces.cli.progress import ProgressBar
from becausal.models import open_model

if TYPE_CHECKING:
    from becausal.lab.bench.planting import CreatedDataset

Images = Annotated[Path, typer.Option("--images", metavar="DIR", help="Folder of images to start from.")]
Out = Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder to write to, new or empty.")]
Seed = Annotated[int, typer.Option(metavar="S", help="Random seed. Same seed, same images.")]


def get(
    name: Annotated[str, typer.Argument(metavar="photobombing|roaming-panda", help="Dataset to download.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="DIR", help="Folder to write to. Default: data/NAME.")
    ] = None,
    address: Annotated[
        str | None,
        typer.Option("--from", metavar="URL", help="Mirror with the same folders. Default: the authors' repository."),
    ] = None,
) -> None:
    """Download a published dataset from its authors' repository and check it.

    The images come from ImageNet and are for research. To continue an interrupted download, run the same command again:
    files that are already there are not downloaded again.

    **Examples**

    - `becausal data get photobombing`
    - `becausal data get roaming-panda --out sets/panda`
    """
    from becausal.lab.bench.fetching import SETS, fetch_dataset

    folder = out or Path("data") / name
    check_writable(folder)
    with ProgressBar(f"downloading {name}", has_time_left=True) as bar:
        fetch_dataset(name, folder, address=address, watch=bar.update)
    open_console().print(f"{SETS[name].files:,} files, checked, in {folder}/  (becausal bench {name} --data {folder} …)")


@options.expand_options
def photobombing(
    *,
    images: Images,
    model: options.Model,
    out: Out,
    shapes: Annotated[
        str, typer.Option(metavar="A,B", help="Shapes to draw from: rectangle, box, ellipse, disk.")
    ] = "rectangle,box,ellipse,disk",
    paint: Annotated[
        str,
        typer.Option(
            metavar="COLOUR|texture|cutout",
            help="What fills the shapes: a colour such as black or '#ff8800', a pattern, or a piece of another image.",
        ),
    ] = "black",
    cutouts: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Images to cut pieces from with --paint cutout; transparency gives the outline. Default: --images.",
        ),
    ] = None,
    area: Annotated[
        str, typer.Option(metavar="LOW:HIGH", help="Smallest and largest share of the image to cover.")
    ] = "0.02:0.15",
    boxes: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Object boxes, lines of `name x0 y0 x1 y1`: shapes are centred on the object."),
    ] = None,
    seed: Seed = 0,
    loading: options.LoadingOptions,
) -> None:
    """Draw photobombers into images and keep the images whose label does not change.

    The folder has the layout of the published dataset, plus masks/ with the ground truth. Use it with
    `becausal bench photobombing`.

    **Examples**

    - `becausal data make photobombing --images photos --model net.onnx --out bombed`
    - `becausal data make photobombing --images photos --model bundled --paint texture --area 0.05:0.2 --out bombed`
    """
    from becausal.lab.bench.planting import Planting, make_photobombs

    names = tuple(part.strip() for part in shapes.split(",") if part.strip())
    planting = Planting(shapes=names, paint=paint, area=parse_area(area), seed=seed)
    _check_folder(images)
    check_writable(out)
    classifier = open_model(model, loading)
    with ProgressBar("drawing", has_time_left=True) as bar:
        made = make_photobombs(images, classifier, out, planting, cutouts=cutouts, boxes=boxes, watch=bar.update)
    _print_made(made, f"becausal bench photobombing --data {out} …")


@options.expand_options
def roaming(
    *,
    thing: Annotated[Path, typer.Option("--object", metavar="PNG", help="Image of the object, with transparency.")],
    images: Images,
    model: options.Model,
    out: Out,
    label: Annotated[
        str | None,
        typer.Option(metavar="LABEL|ID", help="Label of the object. Default: the model's top label for it."),
    ] = None,
    size: Annotated[
        float, typer.Option(metavar="SHARE", help="Width of the object, as a share of the image's short side.")
    ] = 0.44,
    seed: Seed = 0,
    loading: options.LoadingOptions,
) -> None:
    """Paste an object at a random place into each image and keep the images that get its label.

    **Examples**

    - `becausal data make roaming --object panda.png --images photos --model net.onnx --label "red panda" --out roaming`
    """
    from becausal.lab.bench.planting import make_roaming

    _check_folder(images)
    check_writable(out)
    classifier = open_model(model, loading)
    with ProgressBar("pasting", has_time_left=True) as bar:
        made = make_roaming(thing, images, classifier, out, label=label, size=size, seed=seed, watch=bar.update)
    _print_made(made, f"becausal bench roaming-panda --data {out} …")


app = make_group("Download or make datasets for `becausal bench`.")
make_app = make_group("Make a dataset from images of your own.")
app.add_typer(make_app, name="make")
add_command(app, "get", get)
add_command(make_app, "photobombing", photobombing)
add_command(make_app, "roaming", roaming)


def parse_area(text: str) -> tuple[float, float]:
    """A range of shares: 0.05, or 0.02:0.15. Raises OptionError."""
    try:
        parts = [float(part) for part in text.split(":")]
    except ValueError:
        parts = []
    if len(parts) not in (1, 2):
        raise OptionError(f"an area is a share of the image or a range such as 0.02:0.15, not {text!r}")
    return parts[0], parts[-1]


def _check_folder(images: Path) -> None:
    if not images.is_dir():
        raise OptionError(f"there is no folder {images}")


def _print_made(made: "CreatedDataset", next_command: str) -> None:
    console = open_console()
    console.print(f"{made.count:,} images in {made.folder}/")
    facts = [("left out", f"{count:,}: {reason}") for reason, count in made.left_out.items()]
    print_facts(console, [*facts, ("next", next_command)])
