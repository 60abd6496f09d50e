"""`becausal bench`, `scenes` and `data`: experiments, generated images with exact ground truth, and published datasets."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from becausal.core.errors import OptionError, OutputError
from becausal.core.files import write_file
from becausal.core.options import option
from becausal.interfaces.cli import options
from becausal.interfaces.cli.console import check_writable, complain, open_console, print_facts, print_table, write_json
from becausal.interfaces.cli.options import add_command, make_group
from becausal.interfaces.cli.progress import ProgressBar
from becausal.models import open_model

if TYPE_CHECKING:
    from becausal.lab import BenchRun


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """What an experiment is run on, and where its results go."""

    data: Path | None = option(
        None, "Dataset: a published one, one of the same layout, or any folder of images.", metavar="DIR"
    )
    methods: str | None = option(
        None,
        "Methods to run; name:key=value sets an option of a method. Default: those listed by `becausal bench`.",
        metavar="A,B,C|all",
    )
    limit: int | None = option(None, "Maximum number of images, evenly spaced in the dataset.", metavar="N")
    side: int = option(4, "Side of the tiny images of the experiment exact, 2 to 4.", metavar="N")
    out: Path | None = option(None, "Folder to write to. Default: becausal-out/bench/NAME.", metavar="DIR", flag="--out -o")
    resume: bool = option(False, "Continue the run in --out.")
    width: int | None = option(None, "Images explained at the same time; results do not depend on it.", metavar="N")


@options.expand_options
def bench(
    *,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Experiment to run. Without a name, list all experiments.")
    ] = None,
    model: options.OptionalModel = None,
    run: Annotated[BenchOptions, options.group_of(BenchOptions, "Experiment")],
    as_json: options.AsJson = False,
    request: options.BenchRequest,
    loading: options.LoadingOptions,
) -> int:
    """Run an experiment that measures how well methods explain a model.

    Every result is stored at once: continue an interrupted run with --resume. Writes results.csv, summary.json, the
    figures as PNG and SVG, and report.html.

    **Examples**

    - `becausal bench`
    - `becausal bench scenes --model bundled --methods causal,rise --limit 20`
    - `becausal bench photobombing --model net.onnx --data data/photobombing --limit 100 --out bombs`
    """
    from becausal.lab import BENCHES, load_bench
    from becausal.lab import run as run_bench

    if name is None:
        found = [load_bench(each) for each in BENCHES]
        rows = [
            (b.name, b.question, b.methods.replace(",", ", "), "all" if b.limit is None else str(b.limit)) for b in found
        ]
        print_table(("name", "question", "methods", "images"), rows)
        return 0
    if model is None:
        raise OptionError("a model is missing: give --model SPEC, e.g. --model bundled (see: becausal models)")
    folder = run.out or options.DEFAULT_OUT / "bench" / name
    check_writable(folder)
    if run.data is not None and not run.data.is_dir():
        raise OptionError(f"there is no folder {run.data}")
    classifier = open_model(model, loading)
    try:
        with ProgressBar(name, quiet=as_json, has_time_left=True) as bar:
            done = run_bench(
                name, classifier, out=folder, data=run.data, methods=run.methods, limit=run.limit, request=request,
                side=run.side, width=run.width, resume=run.resume,
                progress=lambda p: bar.update(p.done, p.total, f"{p.done}/{p.total} {p.method}"),
            )  # fmt: skip
    except KeyboardInterrupt:
        complain(f"results so far are stored: continue with the same command and --resume (--out {folder})", kind="stopped")
        return 130
    if as_json:
        write_json(done.summary() | {"folder": str(folder)})
    else:
        print_run(done)
    return 0


def print_run(done: "BenchRun") -> None:
    """Print the first table, what was left out, and where the files are."""
    from becausal.lab.tables import format_cell

    console = open_console()
    table = done.findings.tables[0]
    console.print(f"{done.bench.question}\n")
    rows = [
        tuple(format_cell(cell, column, interval=False) for cell, column in zip(row, table.columns, strict=True))
        for row in table.rows
    ]
    print_table(tuple(column.name for column in table.columns), rows)
    console.print()
    facts = [("left out", f"{count:,} images: {reason}") for reason, count in done.selection.left_out.items()]
    print_facts(console, [*facts, *done.missing(), ("files", f"{done.folder}/  (open report.html for the intervals)")])


Seed = Annotated[int, typer.Option(metavar="S", help="Seed of the first scene. Same seed, same files.")]
Size = Annotated[
    int | None,
    typer.Option(metavar="PX", help="Side of the images in pixels; by default 128, with --boxes 192.", show_default=False),
]
Boxes = Annotated[bool, typer.Option("--boxes", help="Draw scenes with several objects, each with its box.")]


def make(
    count: Annotated[int, typer.Option(metavar="N", help="Number of scenes, e.g. 1000.")],
    out: Annotated[Path, options.out_option("Folder for images and ground truth.")],
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
    from becausal.render.numbers import format_count
    from becausal.scenes import write_groups, write_scenes

    side = _check(count, size, seed, boxes=boxes)
    check_writable(out)
    (write_groups if boxes else write_scenes)(count, seed, out, size=side)
    open_console().print(f"{format_count(count, 'scene')} of {side} px, seed {seed}, in {out}/")


def show(
    out: Annotated[Path, options.out_option("Image file to write.", "FILE.png")],
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


def get(
    name: Annotated[str, typer.Argument(metavar="photobombing|roaming-panda", help="Dataset to download.")],
    out: Annotated[Path | None, options.out_option("Folder to write to. Default: data/NAME.")] = None,
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
    from becausal.lab.datasets import SETS, fetch_dataset

    folder = out or Path("data") / name
    check_writable(folder)
    with ProgressBar(f"downloading {name}", has_time_left=True) as bar:
        fetch_dataset(name, folder, address=address, watch=bar.update)
    open_console().print(f"{SETS[name].files:,} files, checked, in {folder}/  (becausal bench {name} --data {folder} …)")


scenes = make_group("Generate images of partly covered objects, with exact ground truth.")
add_command(scenes, "make", make)
add_command(scenes, "show", show)
data = make_group("Download datasets for `becausal bench`.")
add_command(data, "get", get)
