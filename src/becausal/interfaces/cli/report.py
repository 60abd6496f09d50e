"""`becausal report`, `export` and `diff`: what a run found, for people and for other tools."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from becausal.core.errors import OptionError, OutputError
from becausal.interfaces.cli import options
from becausal.interfaces.cli.console import open_console, print_facts, print_summary, write_json

if TYPE_CHECKING:
    from becausal.batch.differences import Difference
    from becausal.batch.reading import Row, Run

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A folder that batch has written.")]
ENDINGS = {"csv": "csv", "parquet": "parquet", "coco": "json"}


def report(
    run: RunFolder,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE.html", help="The page. Default: RUN/report.html.")
    ] = None,
    thumbs: Annotated[int, typer.Option(metavar="N", help="Images on the contact sheet.")] = 120,
    below: Annotated[
        float,
        typer.Option(metavar="SHARE", help="An explanation with less of it in the object's boxes lies outside (COCO)."),
    ] = 0.5,
    picture: Annotated[
        str | None,
        typer.Option(metavar="NAME|NUMBER", help="Instead: draw one image's own PNGs and page, into its folder."),
    ] = None,
) -> None:
    """Write one HTML page about a run, finished or under way.

    Distributions of size, confidence and calls, a line per label, the largest and smallest explanations, a contact sheet,
    a table to search; and, where the input had truth boxes, the explanations that lie outside of their object.

    **Examples**

    - `becausal report run`
    - `becausal report run --picture 12`
    """
    from becausal.batch.overview import make_overview
    from becausal.batch.reading import Run

    if not 0 <= thumbs <= 2000:
        raise OptionError(f"--thumbs must lie in 0..2000, not {thumbs}")
    if not 0 < below <= 1:
        raise OptionError(f"--below is a share, above 0 and up to 1, not {below:g}")
    with Run(run) as opened:
        if picture is not None:
            row = opened.find(picture)
            if row["state"] != "done":
                raise OutputError(f"{row['image']} is {row['state']}: {row['error'] or 'not explained yet'}")
            explanation = opened.load(row["id"])
            print_summary(explanation, explanation.save(opened.folder_of(row["id"])))
            return
        from becausal.batch.run_page import render_run

        path = out or run / "report.html"
        overview = make_overview(opened, thumbs=thumbs, below=below)
        has_pages = bool(overview.settings.get("pictures"))
        pages = os.path.relpath(run / "explanations", path.parent).replace(os.sep, "/") if has_pages else None
        _write(path, render_run(overview, lambda row, boxes: _paint(opened, row, boxes), below=below, folder=pages))
    facts = [("explained", f"{overview.counts['done']:,} of {overview.total:,}")]
    if overview.counts["failed"]:
        facts.append(("failed", f"{overview.counts['failed']:,}"))
    if overview.judged:
        facts.append(("outside of the object", f"{overview.outside_count:,} of {overview.judged:,} with boxes"))
    print_facts(open_console(), [*facts, ("page", str(path))])


def export(
    run: RunFolder,
    form: Annotated[str, typer.Option("--format", "-f", metavar="csv|parquet|coco", help="What to write.")] = "csv",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Default: RUN/export.csv, .parquet or .json.")
    ] = None,
) -> None:
    """Write a run as one file for other tools.

    csv and parquet: all columns of the index, one row per image. coco: each explanation as an annotation, outlined by
    run lengths on the original image, with its label and confidence.

    **Examples**

    - `becausal export run --format csv --out run.csv`
    - `becausal export run --format coco --out explanations.json`
    """
    from becausal.batch.export import export as write
    from becausal.batch.reading import Run

    path = out or run / f"export.{ENDINGS.get(form, form)}"
    with Run(run) as opened:
        count = write(opened, path, form)
    open_console().print(f"{count:,} {'explanations' if form == 'coco' else 'rows'} in {path}")


def diff(
    before: Annotated[Path, typer.Argument(metavar="RUN1", help="A folder that batch has written.")],
    after: Annotated[Path, typer.Argument(metavar="RUN2", help="Another, with the same images.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE.html", help="Also write a page.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Compare two runs on the same images: two models, two versions, two ways of asking.

    Images are matched by path, else by content.

    **Examples**

    - `becausal diff run-v1 run-v2`
    - `becausal diff run-v1 run-v2 --out diff.html --json`
    """
    from becausal.batch.differences import compare_runs
    from becausal.batch.reading import Run

    with Run(before) as first, Run(after) as second:
        difference = compare_runs(first, second)
        if out is not None:
            from becausal.batch.diff_page import render_difference

            _write(out, render_difference(difference, lambda side, row: _paint((first, second)[side], row, False)))
    if as_json:
        write_json(difference.record())
    else:
        print_difference(difference, out)


def print_difference(difference: "Difference", out: Path | None) -> None:
    """What changed, in a few lines, and the images that changed most."""
    from becausal.render.wording import say_share

    console = open_console()
    console.print(f"{difference.names[0]} → {difference.names[1]}: {len(difference.pairs):,} images explained in both")
    facts = [("differs", change) for change in difference.changes]
    facts.append(("other label", f"{difference.relabelled:,}"))
    if difference.overlaps.middle is not None:
        facts.append(("overlap", f"{say_share(difference.overlaps.middle)} in the median"))
    sizes = difference.medians("size")
    if sizes[0] is not None and sizes[1] is not None:
        facts.append(("size", f"{say_share(sizes[0])} → {say_share(sizes[1])} in the median"))
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
        ("", f"{p.left['image']}: {p.left['label']} → {p.right['label']}") for p in difference.pairs[:8] if p.is_relabelled
    ]
    if out is not None:
        facts.append(("page", str(out)))
    print_facts(console, list(facts))


def _paint(run: "Run", row: "Row", with_boxes: bool) -> str:
    from becausal.batch.truth import inside_boxes
    from becausal.render.thumbnails import make_thumbnail

    explanation = run.load(row["id"])
    boxes = run.boxes_of(row) if with_boxes and explanation.visible.ndim == 2 else []
    return make_thumbnail(explanation, inside_boxes(boxes, explanation.frame) if boxes else None)


def _write(path: Path, text: str) -> None:
    """Write a page; it appears whole or not at all."""
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise OutputError(f"cannot write to {path}: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)
