"""`becausal backgrounds`: samples of the random backgrounds that explanations can be tested on."""

from collections import Counter
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from becausal.core.errors import OptionError, OutputError
from becausal.core.files import write_file
from becausal.core.text import one_line
from becausal.interfaces.cli import options
from becausal.interfaces.cli.console import check_writable, open_console, print_facts
from becausal.interfaces.cli.demo import IMAGE
from becausal.models import open_model

if TYPE_CHECKING:
    from rich.text import Text

    from becausal.core.contracts import Geometry, ModelInfo, Pixels
    from becausal.images.backgrounds import Backgrounds

MOST = 99
SIDE = 224  # pixels, of the short side of a view without a model
_SPEC = options.SPEC_HELP.replace("Model to explain", "Show backgrounds of the size that this model takes")


@options.expand_options
def backgrounds(
    *,
    image: Annotated[
        Path | None,
        typer.Argument(metavar="IMAGE", help="Image, signal or volume to make them for. Default: the bundled image."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE.png", help="Image file for the samples.")] = Path(
        "backgrounds.png"
    ),
    count: Annotated[int, typer.Option(metavar="N", help=f"Number of samples, 1 to {MOST}.")] = 24,
    seed: Annotated[int, typer.Option(metavar="S", help="Seed. Same seed, same backgrounds.")] = 0,
    folder: Annotated[
        Path | None,
        typer.Option("--backgrounds", metavar="DIR", help="Draw them from the images in this folder instead."),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", metavar="SPEC", rich_help_panel=options.MODEL, help=_SPEC)
    ] = None,
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
    from becausal.images.backgrounds import make_backgrounds
    from becausal.render.backgrounds import backgrounds_png

    _check(out, count, seed)
    info = open_model(model, loading).info if model is not None else None
    view = _read_view(image, info)
    fitted = info.geometry if info is not None and info.geometry is not None else _geometry_of(view)
    drawn = make_backgrounds(folder, view, seed, lambda path: _read(path, fitted, info))
    families = [drawn.family(number) for number in range(count)]
    content = backgrounds_png(view, [(family, drawn.draw(number)) for number, family in enumerate(families)])
    out.parent.mkdir(parents=True, exist_ok=True)
    write_file(out, content)
    _print(drawn, families, f"{count:,} backgrounds for {image or 'the bundled image'}, seed {seed}, in {out}")


def _check(out: Path, count: int, seed: int) -> None:
    if seed < 0:
        raise OptionError(f"seed must be 0 or more, not {seed}")
    if not 1 <= count <= MOST:
        raise OptionError(f"count must be 1 to {MOST}, not {count}")
    if out.suffix.lower() != ".png":
        raise OptionError(f"the samples are a PNG image: give a name that ends in .png, not {out.name!r}")
    if out.is_dir():
        raise OutputError(f"cannot write to {out}: it is a folder")
    check_writable(out.parent)


def _read_view(image: Path | None, info: "ModelInfo | None") -> "Pixels":
    """The view of the image, or of the bundled one."""
    from becausal.images.loading import load_image, make_view

    if image is None:
        with as_file(files("becausal.models.bundled").joinpath(IMAGE)) as bundled:
            source = load_image(bundled)
    else:
        source = load_image(image)
    if info is not None:
        return make_view(source, info.geometry, channels=info.channels).pixels
    return make_view(source, _geometry_of(source.pixels)).pixels


def _read(path: str, geometry: "Geometry | None", info: "ModelInfo | None") -> "Pixels":
    from becausal.images.loading import load_image, make_view

    return make_view(load_image(path), geometry, channels=3 if info is None else info.channels).pixels


def _geometry_of(pixels: "Pixels") -> "Geometry | None":
    """The shape of an image, with a short side of at most SIDE pixels; None for signals and volumes."""
    from becausal.core.contracts import Geometry

    if pixels.ndim != 3 or pixels.shape[-1] != 3 or pixels.dtype != "uint8":
        return None
    h, w = pixels.shape[:2]
    factor = min(1.0, SIDE / min(h, w))
    return Geometry((max(1, round(h * factor)), max(1, round(w * factor))))


def _print(drawn: "Backgrounds", families: list[str], done: str) -> None:
    """Print where the samples are, and what they were drawn from."""
    from becausal.images.backgrounds import MEANINGS, RandomBackgrounds

    console = open_console()
    console.print(one_line(done))
    facts: list[tuple[str, str | Text]] = [("drawn from", drawn.describe())]
    if isinstance(drawn, RandomBackgrounds):
        counted = Counter(families)
        facts += [(family, f"{meaning}: {counted[family]} of {len(families)}") for family, meaning in MEANINGS.items()]
    print_facts(console, facts)
