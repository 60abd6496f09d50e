"""`becausal scenes`: generated images with exact ground truth."""

from pathlib import Path
from typing import Annotated

import typer

from becausal.core.errors import OptionError, OutputError
from becausal.core.files import write_file
from becausal.interfaces.cli.console import check_writable, open_console
from becausal.interfaces.cli.help import add_command, make_group

app = make_group("Generate images of partly covered objects, with exact ground truth.")

Seed = Annotated[int, typer.Option(metavar="S", help="Seed of the first scene. Same seed, same files.")]
Size = Annotated[
    int | None,
    typer.Option(metavar="PX", help="Side of the images in pixels; by default 128, with --boxes 192.", show_default=False),
]
Boxes = Annotated[bool, typer.Option("--boxes", help="Draw scenes with several objects, each with its box.")]


def make(
    count: Annotated[int, typer.Option(metavar="N", help="Number of scenes, e.g. 1000.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for images and ground truth.")],
    seed: Seed = 0,
    size: Size = None,
    boxes: Boxes = False,
) -> None:
    """Write scenes with ground truth: images, PNG masks, and COCO-style JSON.

    **Examples**

    - `becausal scenes make --count 100 --seed 7 --out scenes`
    - `becausal scenes make --count 20 --size 224 --out large`
    - `becausal scenes make --count 100 --boxes --out several`
    """
    from becausal.render.wording import format_count
    from becausal.scenes import write_groups, write_scenes

    side = _check(count, size, seed, boxes=boxes)
    check_writable(out)
    (write_groups if boxes else write_scenes)(count, seed, out, size=side)
    open_console().print(f"{format_count(count, 'scene')} of {side} px, seed {seed}, in {out}/")


def show(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE.png", help="Image file to write.")],
    count: Annotated[int, typer.Option(metavar="N", help="Number of scenes to show.")] = 24,
    seed: Seed = 0,
    size: Size = None,
    boxes: Boxes = False,
) -> None:
    """Draw a contact sheet of scenes.

    **Examples**

    - `becausal scenes show --out sheet.png`
    - `becausal scenes show --count 48 --seed 7 --out sheet.png`
    - `becausal scenes show --boxes --out sheet.png`
    """
    from becausal.scenes import contact_sheet, make_group, make_scene

    side = _check(count, size, seed, boxes=boxes)
    if out.suffix.lower() not in (".png", ".jpg", ".jpeg", ".webp"):
        raise OptionError(f"the contact sheet is an image: give a name that ends in .png, not {out.name!r}")
    if out.is_dir():
        raise OutputError(f"cannot write to {out}: it is a folder")
    check_writable(out.parent)
    draw = make_group if boxes else make_scene
    sheet = contact_sheet([draw(seed + i, size=side) for i in range(count)], truth=boxes)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_file(out, sheet.save)
    open_console().print(f"{count:,} scenes from seed {seed} in {out}")


add_command(app, "make", make)
add_command(app, "show", show)


def _check(count: int, size: int | None, seed: int, *, boxes: bool) -> int:
    """Check the options, and return the side of the images."""
    side = (192 if boxes else 128) if size is None else size
    least = 64 if boxes else 32
    if seed < 0:
        raise OptionError(f"seed must be 0 or more, not {seed}")
    if count < 1:
        raise OptionError(f"count must be at least 1, not {count}")
    if not least <= side <= 2048:
        raise OptionError(f"size must be {least} to 2048 pixels, not {side}")
    return side
