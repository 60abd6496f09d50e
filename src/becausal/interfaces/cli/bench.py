"""`becausal bench`: an experiment in one command, with tables, figures and a page at the end."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from becausal.core.errors import OptionError
from becausal.interfaces.cli import options, settings
from becausal.interfaces.cli.console import complain, one_line, open_console, print_facts, print_table, write_json
from becausal.interfaces.cli.explain import check_writable
from becausal.models import open_model

if TYPE_CHECKING:
    from becausal.bench import Progress, Run

_WHAT, _HOW = "The experiment", "The run"


@settings.expand_options
def bench(
    *,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Which one; without, they are listed.")] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", metavar="SPEC", rich_help_panel="The model", help=options.SPEC_HELP)
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", rich_help_panel=_WHAT, help="A published set, one you made, or any folder of images."),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,C|all",
            rich_help_panel=_WHAT,
            help="Which methods; name:key=value gives options. Default: as listed.",
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(metavar="N", rich_help_panel=_WHAT, help="At most so many images, evenly spaced.")
    ] = None,
    side: Annotated[
        int, typer.Option(metavar="N", rich_help_panel=_WHAT, help="Side of the tiny images of the bench exact, 2 to 4.")
    ] = 4,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="DIR", rich_help_panel=_HOW, help="Where to write. Default: becausal-out/bench/NAME."
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", rich_help_panel=_HOW, help="Go on with the run in --out.")] = False,
    width: Annotated[
        int | None,
        typer.Option(metavar="N", rich_help_panel=_HOW, help="Images side by side; the results do not depend on it."),
    ] = None,
    as_json: options.AsJson = False,
    request: settings.BenchRequest,
    loading: settings.LoadingOptions,
) -> None:
    """Run one of the paper's experiments, or one of ours.

    Every explanation is kept as it comes: a run that was stopped goes on with `--resume` and ends with the same table.
    Writes results.csv, summary.json, the figures as PNG and SVG, and report.html.

    **Examples**

    - `becausal bench` lists them
    - `becausal bench scenes --model bundled --methods causal,rise --limit 20`
    - `becausal bench photobombing --model net.onnx --data data/photobombing --limit 100 --out bombs`
    """
    from becausal.bench import run

    if name is None:
        list_benches()
        return
    if model is None:
        raise OptionError("which model? give --model SPEC, as --model bundled (see: becausal models)")
    folder = out or options.DEFAULT_OUT / "bench" / name
    check_writable(folder)
    if data is not None and not data.is_dir():
        raise OptionError(f"there is no folder {data}")
    classifier = open_model(model, loading)
    try:
        with open_bar(name, quiet=as_json) as move:

            def watch(progress: "Progress") -> None:
                move(progress.done, progress.total, progress.method)

            done = run(
                name, classifier, out=folder, data=data, methods=methods, limit=limit, seed=request.seed,
                fill=request.fills[0], grain=request.grain, max_calls=request.max_calls, side=side, width=width,
                resume=resume, progress=watch,
            )  # fmt: skip
    except KeyboardInterrupt:
        complain(f"what was found so far is kept: go on with the same command and --resume (--out {folder})", kind="stopped")
        raise typer.Exit(130) from None
    if as_json:
        write_json(done.summary() | {"folder": str(folder)})
    else:
        print_run(done)


def list_benches() -> None:
    """Every bench, what it asks, and what it takes by default."""
    from becausal.bench import BENCHES, load_bench

    found = [load_bench(name) for name in BENCHES]
    rows = [(b.name, b.question, b.methods, "all" if b.limit is None else str(b.limit)) for b in found]
    print_table(("bench", "question", "methods", "pictures"), rows)


def print_run(done: "Run") -> None:
    """The first table, what was left out, and where the files are."""
    from becausal.bench.wording import say_cell

    console = open_console()
    table = done.findings.tables[0]
    console.print(f"{done.bench.question}\n")
    lines = [
        tuple(say_cell(cell, column, interval=False) for cell, column in zip(row, table.columns, strict=True))
        for row in table.rows
    ]
    print_table(tuple(column.name for column in table.columns), lines)
    console.print()
    facts = [("left out", f"{count:,} images: {reason}") for reason, count in done.pool.left_out.items()]
    facts += [(method, f"did not run: {why}") for method, why in done.methods_left_out.items()]
    facts += [
        (method, f"{count:,} images without an explanation: {why}")
        for method, counts in done.failures.items()
        for why, count in counts.items()
    ]
    print_facts(console, [*facts, ("files", f"{done.folder}/  (open report.html, which has the intervals too)")])


@contextmanager
def open_bar(title: str, *, quiet: bool = False) -> Iterator[Callable[[int, int, str], None]]:
    """A bar on stderr where that is a terminal; what it gives takes (done, in all, what is under way)."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    console = open_console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda done, total, said: None
        return
    bar = Progress(
        TextColumn("{task.description}", markup=False), BarColumn(bar_width=24), MofNCompleteColumn(),
        TextColumn("{task.fields[said]}", markup=False), TimeElapsedColumn(), TimeRemainingColumn(), console=console,
        transient=True,
    )  # fmt: skip
    with bar:
        task = bar.add_task(one_line(title), total=None, said="")
        yield lambda done, total, said: bar.update(task, completed=done, total=total, said=said)
