"""`becausal report`, `export`, `diff` and `check`: pages, files and verdicts about the runs of `becausal batch`."""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from becausal.core.errors import OptionError, OutputError
from becausal.core.files import path_inside, safe_name
from becausal.core.options import option
from becausal.core.request import Request
from becausal.core.text import one_line
from becausal.interfaces.cli import options
from becausal.interfaces.cli.batch import SOME_FAILED, Placement, PlacementOptions, StartOptions, make_job, start_run
from becausal.interfaces.cli.console import check_writable, complain, open_console, print_facts, print_summary, write_json
from becausal.models.loading import Loading

if TYPE_CHECKING:
    from becausal.batch.check import Verdict
    from becausal.batch.reading import BatchRun
    from becausal.batch.summaries import RunDifference

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder that `becausal batch` wrote.")]
SUFFIXES = {"csv": "csv", "parquet": "parquet", "coco": "json"}
SHOWN = 100  # characters of a label, printed


@dataclass(frozen=True, kw_only=True)
class PageOptions:
    """What is written about a run."""

    out: Path | None = option(None, "Page to write. Default: RUN/report.html.", metavar="FILE.html", flag="--out -o")
    thumbs: int = option(120, "Maximum number of images on the contact sheet.", metavar="N")
    below: float = option(
        0.5,
        "List an explanation as outside its object if less than this share of it lies in the object's boxes.",
        metavar="SHARE",
    )
    image: str | None = option(
        None,
        "Instead of the page about the run, render the PNG figures and the report page of one image.",
        metavar="NAME|NUMBER",
    )

    def __post_init__(self) -> None:
        if not 0 <= self.thumbs <= 2000:
            raise OptionError(f"--thumbs must be 0 to 2000, not {self.thumbs}")
        if not 0 < self.below <= 1:
            raise OptionError(f"--below must be a share above 0 and up to 1, not {self.below:g}")


@options.expand_options
def report(*, run: RunFolder, page: Annotated[PageOptions, options.group_of(PageOptions, options.OWN)]) -> None:
    """Write one HTML page about a run, finished or not.

    The page has the distributions of size, confidence and model calls, a row per label, the largest and smallest
    explanations, a contact sheet, and a searchable table. If the input had ground-truth boxes, it also lists
    explanations outside their object.

    **Examples**

    - `becausal report run`
    - `becausal report run --image 12`
    """
    from becausal.batch.export import write_output
    from becausal.batch.pages import render_run
    from becausal.batch.reading import BatchRun
    from becausal.batch.summaries import Overview
    from becausal.render.numbers import format_count

    with BatchRun(run) as opened:
        if page.image is not None:
            row = opened.find(page.image)
            if row["state"] != "done":
                raise OutputError(f"{row['image']} is {row['state']}: {row['error'] or 'not explained yet'}")
            explanation = opened.load(row["id"])
            print_summary(explanation, explanation.save(opened.own_folder_of(row["id"])), is_only=False)
            return
        path = page.out or path_inside(run, "report.html")
        overview = Overview(opened, thumbs=page.thumbs, below=page.below)
        write_output(path, render_run(opened, overview, path).encode("utf-8"))
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
        warn_unreadable(opened)


def warn_unreadable(*runs: "BatchRun") -> int:
    """Print one line for each run with explanations that could not be read; returns their number."""
    for run in runs:
        if run.unreadable:
            number = min(run.unreadable)
            what = "explanation was left out" if len(run.unreadable) == 1 else "explanations were left out"
            complain(f"{len(run.unreadable):,} {what} of {run.folder}, e.g. {run.unreadable[number]}", kind="warning")
    return sum(len(run.unreadable) for run in runs)


def export(
    run: RunFolder,
    form: Annotated[
        str, typer.Option("--format", "-f", metavar="csv|parquet|coco|fiftyone", help="Format to write.")
    ] = "csv",
    out: Annotated[
        Path | None,
        options.out_option(
            "File to write, or folder for fiftyone. Default: RUN/export.csv, .parquet, .json or fiftyone.", "PATH"
        ),
    ] = None,
) -> int:
    """Export a run for other tools.

    csv and parquet: all columns of the index, one row per image, or per box. coco: one annotation per explanation, with a
    run-length encoded mask on the original image, the label, the confidence and the explained box of an object detector.
    fiftyone: a folder that FiftyOne loads as a FiftyOneDataset, with masks and heat maps. Explanations that cannot be read
    are left out, with a warning and exit status 3.

    **Examples**

    - `becausal export run --format csv --out run.csv`
    - `becausal export run --format coco --out explanations.json`
    - `becausal export run --format fiftyone --out dataset`
    """
    from becausal.batch.export import FOLDER, export_run
    from becausal.batch.reading import BatchRun

    with BatchRun(run) as opened:
        path = (
            out
            if out is not None
            else path_inside(run, form if form == FOLDER else f"export.{SUFFIXES.get(form, safe_name(form))}")
        )
        count = export_run(opened, path, form)
    open_console().print(f"{count:,} {'explanations' if form in ('coco', FOLDER) else 'rows'} in {path}")
    return SOME_FAILED if warn_unreadable(opened) else 0


def diff(
    before: Annotated[Path, typer.Argument(metavar="RUN1", help="A run folder that `becausal batch` wrote.")],
    after: Annotated[Path, typer.Argument(metavar="RUN2", help="Another run folder, with the same images.")],
    out: Annotated[Path | None, options.out_option("Page to write as well.", "FILE.html")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Compare two runs on the same images, e.g. of two models or with different options.

    Images are matched by path, otherwise by content; boxes of an object detector by their overlap.

    **Examples**

    - `becausal diff run-v1 run-v2`
    - `becausal diff run-v1 run-v2 --out diff.html --json`
    """
    from becausal.batch.reading import BatchRun
    from becausal.batch.summaries import compare_runs

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
    from becausal.render.numbers import format_count, format_share

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
    if levels := difference.describe_levels():
        facts.append(("sets", f"{levels[0]} → {levels[1]}: the sizes are of sets of different kinds"))
    if outside := difference.outside():
        facts.append(("outside", f"{outside[0]:,} → {outside[1]:,} explanations outside of their object"))
    for what, numbers in (("only in", difference.only), ("failed in", difference.failed)):
        facts += [(what, f"{name}: {count:,}") for name, count in zip(difference.names, numbers, strict=True) if count]
    facts += [
        ("", f"{p.left['image']}: {one_line(p.left['label'], SHOWN)} → {one_line(p.right['label'], SHOWN)}")
        for p in difference.pairs[:8]
        if p.is_relabelled
    ]
    if out is not None:
        facts.append(("page", str(out)))
    print_facts(console, list(facts))


_OUTCOMES = {"holds": "green", "broken": "bold red", "not judged": "bold yellow"}


@dataclass(frozen=True, kw_only=True)
class CheckFiles:
    """Files that a check writes, besides what it prints."""

    page: str | None = option(None, "HTML page to write, with the worst images of each rule.", metavar="FILE.html")
    junit: str | None = option(None, "JUnit XML to write: one test case per rule.", metavar="FILE.xml")
    markdown: str | None = option(None, "Markdown summary to write.", metavar="FILE.md")


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """What a run is judged by."""

    rules: Path | None = option(
        None,
        "The rules. Default: failures, of which none is allowed; outside if there are boxes, labels and overlap with "
        "--baseline, each at most 5 % of the images.",
        metavar="RULES.toml",
    )
    baseline: Path | None = option(None, "Earlier run on the same images, for the rules labels and overlap.", metavar="RUN")
    strict: bool = option(
        False, "Break a rule as soon as the share of images is above its limit, however few images were judged."
    )


Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN|IMAGES…",
        help="A run folder that `becausal batch` wrote. With --model: images, as `becausal batch` takes them.",
    ),
]
ModelToExplain = Annotated[str | None, options.model_option(f"Explain the images first. {options.SPEC_HELP}")]
NewRun = Annotated[Path | None, options.out_option("With --model: run folder, new or to be resumed.", "RUN")]
FileOptions = Annotated[CheckFiles, options.group_of(CheckFiles, "Files")]


@options.expand_options
def check(
    *,
    sources: Sources,
    by: Annotated[CheckOptions, options.group_of(CheckOptions, options.OWN)],
    as_json: options.AsJson = False,
    out: NewRun = None,
    files: FileOptions,
    model: ModelToExplain = None,
    placement: PlacementOptions,
    request: options.RequestOptions,
    loading: options.LoadingOptions,
) -> int:
    """Judge a run by rules: a gate for releases.

    Rules limit the share of images whose explanation lies outside its object or in a forbidden region, is too large or not
    necessary, or has changed since a baseline. An image that was not explained breaks the gate, unless the rules allow some
    to fail. A rule is broken if the data say so: if the lower bound of the
    share's Wilson interval is above the limit. Exit status: 0 if all rules hold, 1 if one is broken, 2 if one could not be
    judged.

    **Examples**

    - `becausal check run`
    - `becausal check run --rules rules.toml --baseline run-v1 --junit check.xml --page check.html`
    - `becausal check val.json --model net.onnx --preprocess imagenet --out run --rules rules.toml`
    """
    from becausal.batch.check import default_rules, judge_run, open_rules
    from becausal.batch.export import write_output
    from becausal.batch.pages import render_check
    from becausal.batch.reading import BatchRun

    given = open_rules(by.rules, by.baseline)
    for name in (files.page, files.junit, files.markdown):
        if name is not None:  # refused before images are explained, which may take long
            check_writable(Path(name).parent)
    with ExitStack() as stack:
        earlier = None if by.baseline is None else stack.enter_context(BatchRun(by.baseline))
        folder = _find_run(sources, model, out, placement, request, loading, quiet=as_json)
        run = stack.enter_context(BatchRun(folder))
        chosen = given or default_rules(run, earlier)
        verdict = judge_run(run, chosen, baseline=earlier, strict=by.strict)
        if files.page is not None:
            write_output(Path(files.page), render_check(verdict, chosen, run, earlier).encode("utf-8"))
            warn_unreadable(*(each for each in (run, earlier) if each is not None))
    _report(verdict, files, as_json=as_json)
    return verdict.status


def _find_run(
    sources: list[str],
    model: str | None,
    out: Path | None,
    placement: Placement,
    request: Request,
    loading: Loading,
    *,
    quiet: bool,
) -> Path:
    """The run folder that was given, or the one into which images are explained first."""
    if model is not None:
        if out is None:
            raise OptionError("--model explains the images first: add --out RUN, the run folder to write to")
        summary = start_run(
            sources, make_job(model, request, loading, placement), out, placement, StartOptions(), quiet=quiet
        )
        if summary.was_stopped:
            raise typer.Exit(130)
        return out
    if len(sources) > 1:
        raise OptionError(f"expected one run folder, not {len(sources)}: to explain images first, add --model")
    if (placement, request, loading, out) != (Placement(), Request(), Loading(), None):
        raise OptionError("options of a new run were given: to explain images first, add --model")
    return Path(sources[0])


def _report(verdict: "Verdict", files: CheckFiles, *, as_json: bool) -> None:
    """Write the files for CI systems, print the verdict, and say why rules could not be judged."""
    from becausal.batch.check import format_junit, format_markdown
    from becausal.batch.export import write_output

    if files.junit is not None:
        write_output(Path(files.junit), format_junit(verdict))
    if files.markdown is not None:
        write_output(Path(files.markdown), format_markdown(verdict).encode("utf-8"))
    if as_json:
        write_json(verdict.record())
    else:
        print_verdict(verdict, files)
    for rule in verdict.rules:
        if rule.reason is not None:
            complain(f"the rule {rule.name} could not be judged: {rule.reason}")


def print_verdict(verdict: "Verdict", files: CheckFiles) -> None:
    """Print the verdict, every rule, the worst images of broken ones, and the names of files."""
    from rich.text import Text

    console = open_console()
    console.print(Text(f"{one_line(verdict.run)}: ").append(verdict.headline, _OUTCOMES[verdict.outcome]))
    width = max(len(rule.outcome) for rule in verdict.rules)
    facts: list[tuple[str, str | Text]] = []
    for rule in verdict.rules:
        text = Text(f"{rule.outcome:<{width}}", style=f"not dim {_OUTCOMES[rule.outcome]}")
        facts.append((rule.name, text.append(f"  {rule.summary}", style="not dim not bold default")))
        if rule.outcome == "broken":
            worst = [f"{'':{width}}  {one_line(each.image)}: {each.detail}" for each in rule.worst[:3]]
            facts += [("", Text(line, style="not dim")) for line in worst]
    written = (("page", files.page), ("JUnit", files.junit), ("Markdown", files.markdown))
    print_facts(console, [*facts, *((kind, name) for kind, name in written if name is not None)])
