"""`becausal data`: fetch the published sets, or make sets of one's own images."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from becausal.core.errors import OptionError
from becausal.interfaces.cli import options, settings
from becausal.interfaces.cli.console import open_console, print_facts
from becausal.interfaces.cli.explain import check_writable
from becausal.models import open_model

if TYPE_CHECKING:
    from becausal.bench.planting import Made

app = typer.Typer(
    no_args_is_help=False, rich_markup_mode="markdown", help="Fetch or make sets of images for the benches.",
    invoke_without_command=True,
)  # fmt: skip
make_app = typer.Typer(
    no_args_is_help=False, rich_markup_mode="markdown", help="Make a set of your own images.", invoke_without_command=True
)
app.add_typer(make_app, name="make")

Images = Annotated[Path, typer.Option("--images", metavar="DIR", help="A folder of images.")]
Out = Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Where to write; a new or empty folder.")]
Seed = Annotated[int, typer.Option(metavar="S", help="Same seed, same images.")]


@app.callback()
def start(context: typer.Context) -> None:
    """Fetch or make sets of images for the benches."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit


@make_app.callback()
def start_make(context: typer.Context) -> None:
    """Make a set of your own images."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit


@app.command("get")
def get(
    name: Annotated[str, typer.Argument(metavar="photobombing|roaming-panda", help="Which set.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="DIR", help="Where to put it. Default: data/NAME.")
    ] = None,
    address: Annotated[
        str | None, typer.Option("--from", metavar="URL", help="A mirror with the same folders. Default: the authors'.")
    ] = None,
) -> None:
    """Download a published set from its authors' repository and check it.

    The pixels come from ImageNet and are for research. What is there already is not fetched again, so a broken download
    is gone on with by the same command.

    **Examples**

    - `becausal data get photobombing`
    - `becausal data get roaming-panda --out sets/panda`
    """
    from becausal.bench.fetching import SETS, get_set

    if name not in SETS:
        raise OptionError(f"unknown set {name!r}: take one of {', '.join(SETS)}")
    folder = out or Path("data") / name
    check_writable(folder)
    with _bar(f"fetching {name}") as watch:
        get_set(name, folder, address=address, watch=watch)
    open_console().print(f"{SETS[name].files:,} files, checked, in {folder}/  (becausal bench {name} --data {folder} …)")


@make_app.command("photobombing")
@settings.expand_options
def photobombing(
    *,
    images: Images,
    model: options.Model,
    out: Out,
    shapes: Annotated[
        str, typer.Option(metavar="A,B", help="Of rectangle, box, ellipse, disk; one is drawn each time.")
    ] = "rectangle,box,ellipse,disk",
    paint: Annotated[
        str,
        typer.Option(metavar="COLOUR|texture|cutout", help="black, any fill's colour as #ff8800, texture, or cutout."),
    ] = "black",
    cutouts: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Images to cut pieces from; transparency gives the outline. Default: --images."),
    ] = None,
    area: Annotated[str, typer.Option(metavar="LOW:HIGH", help="Least and largest share of the image.")] = "0.02:0.15",
    boxes: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Lines name x0 y0 x1 y1: the middle then lies on the object.")
    ] = None,
    seed: Seed = 0,
    loading: settings.ShortLoading,
) -> None:
    """Plant photobombers into images and keep those whose label the model still gives.

    Writes the layout of the published set, and masks/ with every planted pixel; `becausal bench photobombing` reads it.

    **Examples**

    - `becausal data make photobombing --images photos --model net.onnx --out bombed`
    - `becausal data make photobombing --images photos --model bundled --paint texture --area 0.05:0.2 --out bombed`
    """
    from becausal.bench.planting import Planting, make_photobombs

    planting = Planting(
        shapes=tuple(part.strip() for part in shapes.split(",") if part.strip()),
        paint=paint,
        area=parse_area(area),
        seed=seed,
    )
    _check_folder(images)
    check_writable(out)
    classifier = open_model(model, loading)
    with _bar("planting") as watch:
        made = make_photobombs(images, classifier, out, planting, cutouts=cutouts, boxes=boxes, watch=watch)
    _print_made(made, f"becausal bench photobombing --data {out} …")


@make_app.command("roaming")
@settings.expand_options
def roaming(
    *,
    thing: Annotated[Path, typer.Option("--object", metavar="PNG", help="The object, an image with transparency.")],
    images: Images,
    model: options.Model,
    out: Out,
    label: Annotated[
        str | None, typer.Option(metavar="LABEL|ID", help="What it is. Default: what the model says of it alone.")
    ] = None,
    size: Annotated[float, typer.Option(metavar="SHARE", help="Its width, as a share of the image's short side.")] = 0.44,
    seed: Seed = 0,
    loading: settings.ShortLoading,
) -> None:
    """Paste an object somewhere on each image and keep those on which the model sees it.

    **Examples**

    - `becausal data make roaming --object panda.png --images photos --model net.onnx --label "red panda" --out roaming`
    """
    from becausal.bench.planting import make_roaming

    _check_folder(images)
    check_writable(out)
    classifier = open_model(model, loading)
    with _bar("pasting") as watch:
        made = make_roaming(thing, images, classifier, out, label=label, size=size, seed=seed, watch=watch)
    _print_made(made, f"becausal bench roaming-panda --data {out} …")


def parse_area(text: str) -> tuple[float, float]:
    """A range of shares: 0.05, or 0.02:0.15. Raises OptionError."""
    try:
        parts = [float(part) for part in text.split(":")]
    except ValueError:
        parts = []
    if len(parts) not in (1, 2):
        raise OptionError(f"an area is a share of the image, or a range as 0.02:0.15, not {text!r}")
    return parts[0], parts[-1]


def _check_folder(images: Path) -> None:
    if not images.is_dir():
        raise OptionError(f"there is no folder {images}")


def _print_made(made: "Made", following: str) -> None:
    console = open_console()
    console.print(f"{made.count:,} images in {made.folder}/")
    facts = [("left out", f"{count:,}: {reason}") for reason, count in made.left_out.items()]
    print_facts(console, [*facts, ("then", following)])


@contextmanager
def _bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr where that is a terminal; what it gives takes (done, in all)."""
    from becausal.interfaces.cli.bench import open_bar

    with open_bar(title) as move:
        yield lambda done, total: move(done, total, "")
