"""`becausal scenes`: generated images with exact truth."""

from pathlib import Path
from typing import Annotated

import typer

from becausal.core.errors import OptionError, OutputError
from becausal.interfaces.cli.console import open_console

app = typer.Typer(
    no_args_is_help=False,
    rich_markup_mode="markdown",
    help="Generate photobombed images with exact truth.",
    invoke_without_command=True,
)

Seed = Annotated[int, typer.Option(metavar="S", help="The first scene's seed; same seed, same bytes.")]
Size = Annotated[int, typer.Option(metavar="PX", help="Side of the images, in pixels.")]


@app.callback()
def start(context: typer.Context) -> None:
    """Generate photobombed images with exact truth."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit


@app.command("make")
def make(
    count: Annotated[int, typer.Option(metavar="N", help="How many scenes, as 1000.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Where to write images and truth.")],
    seed: Seed = 0,
    size: Size = 128,
) -> None:
    """Write scenes and their truth: images, PNG masks, and COCO-style JSON.

    **Examples**

    - `becausal scenes make --count 100 --seed 7 --out scenes`
    - `becausal scenes make --count 20 --size 224 --out large`
    """
    from becausal.interfaces.cli.explain import check_writable
    from becausal.scenes import write_scenes

    _check(count, size, seed)
    check_writable(out)
    write_scenes(count, seed, out, size=size)
    open_console().print(f"{count:,} scenes of {size} px, seed {seed}, in {out}/")


@app.command("show")
def show(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE.png", help="The image to write.")],
    count: Annotated[int, typer.Option(metavar="N", help="How many scenes to show.")] = 24,
    seed: Seed = 0,
    size: Size = 128,
) -> None:
    """Draw a contact sheet of scenes.

    **Examples**

    - `becausal scenes show --out sheet.png`
    - `becausal scenes show --count 48 --seed 7 --out sheet.png`
    """
    from becausal.interfaces.cli.explain import check_writable
    from becausal.scenes import contact_sheet, make_scene

    _check(count, size, seed)
    if out.suffix.lower() not in (".png", ".jpg", ".jpeg", ".webp"):
        raise OptionError(f"the contact sheet is an image: give a name that ends in .png, not {out.name!r}")
    if out.is_dir():
        raise OutputError(f"cannot write to {out}: it is a folder")
    check_writable(out.parent)
    sheet = contact_sheet([make_scene(seed + i, size=size) for i in range(count)])
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_name(f".{out.name}.part{out.suffix}")  # under its own name only once it is whole
    sheet.save(part)
    part.replace(out)
    open_console().print(f"{count:,} scenes from seed {seed} in {out}")


def _check(count: int, size: int, seed: int) -> None:
    if seed < 0:
        raise OptionError(f"a seed must be 0 or more, not {seed}")
    if count < 1:
        raise OptionError(f"count must be at least 1, not {count}")
    if not 32 <= size <= 2048:
        raise OptionError(f"size must lie in 32..2048 pixels, not {size}")
