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
Size = Annotated[int, typer.Option(metavar="PX", help="Side of the images in pixels.")]


def make(
    count: Annotated[int, typer.Option(metavar="N", help="Number of scenes, e.g. 1000.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for images and ground truth.")],
    seed: Seed = 0,
    size: Size = 128,
) -> None:
    """Write scenes with ground truth: images, PNG masks, and COCO-style JSON.

    **Examples**

    - `becausal scenes make --count 100 --seed 7 --out scenes`
    - `becausal scenes make --count 20 --size 224 --out large`
    """
    from becausal.scenes import write_scenes

    _check(count, size, seed)
    check_writable(out)
    write_scenes(count, seed, out, size=size)
    open_console().print(f"{count:,} scenes of {size} px, seed {seed}, in {out}/")


def show(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE.png", help="Image file to write.")],
    count: Annotated[int, typer.Option(metavar="N", help="Number of scenes to show.")] = 24,
    seed: Seed = 0,
    size: Size = 128,
) -> None:
    """Draw a contact sheet of scenes.

    **Examples**

    - `becausal scenes show --out sheet.png`
    - `becausal scenes show --count 48 --seed 7 --out sheet.png`
    """
    from becausal.scenes import contact_sheet, make_scene

    _check(count, size, seed)
    if out.suffix.lower() not in (".png", ".jpg", ".jpeg", ".webp"):
        raise OptionError(f"the contact sheet is an image: give a name that ends in .png, not {out.name!r}")
    if out.is_dir():
        raise OutputError(f"cannot write to {out}: it is a folder")
    check_writable(out.parent)
    sheet = contact_sheet([make_scene(seed + i, size=size) for i in range(count)])
    out.parent.mkdir(parents=True, exist_ok=True)
    write_file(out, sheet.save)
    open_console().print(f"{count:,} scenes from seed {seed} in {out}")


add_command(app, "make", make)
add_command(app, "show", show)


def _check(count: int, size: int, seed: int) -> None:
    if seed < 0:
        raise OptionError(f"seed must be 0 or more, not {seed}")
    if count < 1:
        raise OptionError(f"count must be at least 1, not {count}")
    if not 32 <= size <= 2048:
        raise OptionError(f"size must be 32 to 2048 pixels, not {size}")
