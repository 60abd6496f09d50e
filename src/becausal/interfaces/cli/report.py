"""`becausal report`, `export` and `diff`: pages and files about the runs of `becausal batch`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from becausal.core.errors import OptionError, OutputError
from becausal.core.files import path_inside, safe_name
from becausal.core.text import one_line
from becausal.interfaces.cli import options
from becausal.interfaces.cli.console import complain, open_console, print_facts, print_summary, write_json

if TYPE_CHECKING:
    from becausal.batch.differences import RunDifference
    from becausal.batch.overview import Overview
    from becausal.batch.reading import BatchRun

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder that `becausal batch` wrote.")]
SUFFIXES = {"csv": "csv", "parquet": "parquet", "coco": "json"}
SOME_FAILED = 3  # exit status
SHOWN = 100  # characters of a label, printed


def report(
    run: RunFolder,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE.html", help="Page to write. Default: RUN/report.html.")
    ] = None,
    thumbs: Annotated[int, typer.Option(metavar="N", help="Maximum number of images on the contact sheet.")] = 120,
    below: Annotated[
        float,
        typer.Option(
            metavar="SHARE",
            help="List an explanation as outside its object if less than this share of it lies in the object's boxes.",
        ),
    ] = 0.5,
    image: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|NUMBER",
            help="Instead of the page about the run, render the PNG figures and the report page of one image.",
        ),
    ] = None,
) -> None:
    """Write one HTML page about a run, finished or not.

    The page has the distributions of size, confidence and model calls, a row per label, the largest and smallest
    explanations, a contact sheet, and a searchable table. If the input had ground-truth boxes, it also lists
    explanations outside their object.

    **Examples**

    - `becausal report run`
    - `becausal report run --image 12`
    """
    if not 0 <= thumbs <= 2000:
        raise OptionError(f"--thumbs must be 0 to 2000, not {thumbs}")
    if not 0 < below <= 1:
        raise OptionError(f"--below must be a share above 0 and up to 1, not {below:g}")
    from becausal.batch.reading import BatchRun

    with BatchRun(run) as opened:
        if image is not None:
            render_image(opened, image)
        else:
            path = out if out is not None else path_inside(run, "report.html")
            print_overview(write_report(opened, path, thumbs=thumbs, below=below), path)
            warn_unreadable(opened)


def render_image(run: "BatchRun", image: str) -> None:
    """Render the figures and the page of one image into its folder, and print its summary."""
    row = run.find(image)
    if row["state"] != "done":
        raise OutputError(f"{row['image']} is {row['state']}: {row['error'] or 'not explained yet'}")
    explanation = run.load(row["id"])
    print_summary(explanation, explanation.save(run.own_folder_of(row["id"])))


def write_report(run: "BatchRun", path: Path, *, thumbs: int, below: float) -> "Overview":
    """Write the page about a run."""
    from becausal.batch.export import write_output
    from becausal.batch.overview import Overview
    from becausal.batch.pages import render_run

    overview = Overview(run, thumbs=thumbs, below=below)
    write_output(path, render_run(run, overview, path, below=below).encode("utf-8"))
    return overview


def warn_unreadable(*runs: "BatchRun") -> int:
    """Print one line for each run with explanations that could not be read; returns their number."""
    for run in runs:
        if run.unreadable:
            number = min(run.unreadable)
            what = "explanation was left out" if len(run.unreadable) == 1 else "explanations were left out"
            complain(f"{len(run.unreadable):,} {what} of {run.folder}, e.g. {run.unreadable[number]}", kind="warning")
    return sum(len(run.unreadable) for run in runs)


def print_overview(overview: "Overview", path: Path) -> None:
    """Print how many images were explained, and where the page is."""
    from becausal.render.wording import format_count

    facts = [("note", note) for note in overview.notes]
    boxes = f" images, {format_count(overview.explained, 'box')}" if overview.unit == "box" else ""
    facts.append(("explained", f"{overview.counts['done']:,} of {overview.total:,}{boxes}"))
    if overview.counts["waiting"]:
        facts.append(("incomplete", overview.completion))
    if overview.counts["failed"]:
        facts.append(("failed", f"{overview.counts['failed']:,}"))
    if overview.judged:
        facts.append(("outside of the object", f"{overview.outside_count:,} of {overview.judged:,} with boxes"))
    print_facts(open_console(), [*facts, ("page", str(path))])


def export(
    run: RunFolder,
    form: Annotated[str, typer.Option("--format", "-f", metavar="csv|parquet|coco", help="Format of the file.")] = "csv",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="File to write. Default: RUN/export.csv, .parquet or .json."),
    ] = None,
) -> None:
    """Export a run to one file for other tools.

    csv and parquet: all columns of the index, one row per image, or per box. coco: one annotation per explanation, with a
    run-length encoded mask on the original image, the label, the confidence and the explained box of an object detector.
    Explanations that cannot be read are left out, with a warning and exit status 3.

    **Examples**

    - `becausal export run --format csv --out run.csv`
    - `becausal export run --format coco --out explanations.json`
    """
    from becausal.batch.export import export_run
    from becausal.batch.reading import BatchRun

    with BatchRun(run) as opened:
        path = out if out is not None else path_inside(run, f"export.{SUFFIXES.get(form, safe_name(form))}")
        count = export_run(opened, path, form)
    open_console().print(f"{count:,} {'explanations' if form == 'coco' else 'rows'} in {path}")
    if warn_unreadable(opened):
        raise typer.Exit(SOME_FAILED)


def diff(
    before: Annotated[Path, typer.Argument(metavar="RUN1", help="A run folder that `becausal batch` wrote.")],
    after: Annotated[Path, typer.Argument(metavar="RUN2", help="Another run folder, with the same images.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE.html", help="Page to write as well.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Compare two runs on the same images, e.g. of two models or with different options.

    Images are matched by path, otherwise by content; boxes of an object detector by their overlap.

    **Examples**

    - `becausal diff run-v1 run-v2`
    - `becausal diff run-v1 run-v2 --out diff.html --json`
    """
    from becausal.batch.differences import compare_runs
    from becausal.batch.reading import BatchRun

    with BatchRun(before) as first, BatchRun(after) as second:
        difference = compare_runs(first, second)
        if out is not None:
            from becausal.batch.export import write_output
            from becausal.batch.pages import render_difference

            write_output(out, render_difference(difference, first, second).encode("utf-8"))
        warn_unreadable(first, second)
    if as_json:
        write_json(difference.record())
    else:
        print_difference(difference, out)


def print_difference(difference: "RunDifference", out: Path | None) -> None:
    """Print what changed between two runs, and the images whose label changed."""
    from becausal.render.wording import format_count, format_share

    console = open_console()
    shared = format_count(len(difference.pairs), difference.unit)
    console.print(f"{difference.names[0]} → {difference.names[1]}: {shared} explained in both")
    facts = [("differs", change) for change in difference.changes]
    facts.append(("other label", f"{difference.relabelled:,}"))
    if difference.overlaps.middle is not None:
        facts.append(("overlap", f"{format_share(difference.overlaps.middle)} in the median"))
    sizes = difference.medians("size")
    if sizes[0] is not None and sizes[1] is not None:
        facts.append(("size", f"{format_share(sizes[0])} → {format_share(sizes[1])} in the median"))
    if outside := difference.outside():
        facts.append(("outside", f"{outside[0]:,} → {outside[1]:,} explanations outside of their object"))
    for number, name, what in zip(
        (*difference.only, *difference.failed),
        difference.names * 2,
        ("only in", "only in", "failed in", "failed in"),
        strict=True,
    ):
        if number:
            facts.append((what, f"{name}: {number:,}"))
    facts += [
        ("", f"{p.left['image']}: {one_line(p.left['label'], SHOWN)} → {one_line(p.right['label'], SHOWN)}")
        for p in difference.pairs[:8]
        if p.is_relabelled
    ]
    if out is not None:
        facts.append(("page", str(out)))
    print_facts(console, list(facts))
