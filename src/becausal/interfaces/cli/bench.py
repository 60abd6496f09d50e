"""`becausal bench`: run an experiment and write tables, figures and a page."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from becausal.core.errors import OptionError
from becausal.interfaces.cli import options
from becausal.interfaces.cli.console import check_writable, complain, open_console, print_facts, print_table, write_json
from becausal.interfaces.cli.progress import ProgressBar
from becausal.models import open_model

if TYPE_CHECKING:
    from becausal.lab.bench import BenchRun

_EXPERIMENT, _RUN = "Experiment", "Run"

Name = Annotated[str | None, typer.Argument(metavar="NAME", help="Experiment to run. Without a name, list all experiments.")]
Model = Annotated[
    str | None, typer.Option("--model", "-m", metavar="SPEC", rich_help_panel=options.MODEL, help=options.SPEC_HELP)
]
Data = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        rich_help_panel=_EXPERIMENT,
        help="Dataset: a published one, one of the same layout, or any folder of images.",
    ),
]
Methods = Annotated[
    str | None,
    typer.Option(
        metavar="A,B,C|all",
        rich_help_panel=_EXPERIMENT,
        help="Methods to run; name:key=value sets an option of a method. Default: those listed by `becausal bench`.",
    ),
]
Limit = Annotated[
    int | None,
    typer.Option(metavar="N", rich_help_panel=_EXPERIMENT, help="Maximum number of images, evenly spaced in the dataset."),
]
Side = Annotated[
    int,
    typer.Option(metavar="N", rich_help_panel=_EXPERIMENT, help="Side of the tiny images of the experiment exact, 2 to 4."),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", "-o", metavar="DIR", rich_help_panel=_RUN, help="Folder to write to. Default: becausal-out/bench/NAME."
    ),
]
Resume = Annotated[bool, typer.Option("--resume", rich_help_panel=_RUN, help="Continue the run in --out.")]
Width = Annotated[
    int | None,
    typer.Option(metavar="N", rich_help_panel=_RUN, help="Images explained at the same time; results do not depend on it."),
]


@options.expand_options
def bench(
    *,
    name: Name = None,
    model: Model = None,
    data: Data = None,
    methods: Methods = None,
    limit: Limit = None,
    side: Side = 4,
    out: Out = None,
    resume: Resume = False,
    width: Width = None,
    as_json: options.AsJson = False,
    request: options.BenchRequest,
    loading: options.LoadingOptions,
) -> None:
    """Run an experiment that measures how well methods explain a model.

    Every result is stored at once: continue an interrupted run with --resume. Writes results.csv, summary.json, the
    figures as PNG and SVG, and report.html.

    **Examples**

    - `becausal bench`
    - `becausal bench scenes --model bundled --methods causal,rise --limit 20`
    - `becausal bench photobombing --model net.onnx --data data/photobombing --limit 100 --out bombs`
    """
    from becausal.lab.bench import run

    if name is None:
        list_benches()
        return
    if model is None:
        raise OptionError("a model is missing: give --model SPEC, e.g. --model bundled (see: becausal models)")
    folder = out or options.DEFAULT_OUT / "bench" / name
    check_writable(folder)
    if data is not None and not data.is_dir():
        raise OptionError(f"there is no folder {data}")
    classifier = open_model(model, loading)
    try:
        with ProgressBar(name, quiet=as_json, has_time_left=True) as bar:
            done = run(
                name, classifier, out=folder, data=data, methods=methods, limit=limit, request=request, side=side,
                width=width, resume=resume, progress=lambda p: bar.update(p.done, p.total, f"{p.done}/{p.total} {p.method}"),
            )  # fmt: skip
    except KeyboardInterrupt:
        complain(f"results so far are stored: continue with the same command and --resume (--out {folder})", kind="stopped")
        raise typer.Exit(130) from None
    if as_json:
        write_json(done.summary() | {"folder": str(folder)})
    else:
        print_run(done)


def list_benches() -> None:
    """Print every experiment with its question, its default methods and its default number of images."""
    from becausal.lab.bench import BENCHES, load_bench

    found = [load_bench(name) for name in BENCHES]
    rows = [(b.name, b.question, b.methods.replace(",", ", "), "all" if b.limit is None else str(b.limit)) for b in found]
    print_table(("name", "question", "methods", "images"), rows)


def print_run(done: "BenchRun") -> None:
    """Print the first table, what was left out, and where the files are."""
    from becausal.lab.bench.formatting import format_cell

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
    print_facts(
        console, [*facts, *done.missing(), ("files", f"{done.folder}/  (open report.html for the confidence intervals)")]
    )
