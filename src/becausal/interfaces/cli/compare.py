"""`becausal compare`: every method on the same image, side by side."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from becausal.interfaces.cli import options, settings
from becausal.interfaces.cli.console import one_line, open_console, print_facts, print_table, write_json
from becausal.interfaces.cli.explain import check_writable
from becausal.interfaces.cli.progress import Watch
from becausal.models import open_model

if TYPE_CHECKING:
    from becausal.core.comparison import Comparison

_WHAT, _HOW = "The question", "The search"


@settings.expand_options
def compare(
    *,
    image: Annotated[Path, typer.Argument(metavar="IMAGE", help="An image, or an .npy signal or volume.")],
    model: options.Model,
    methods: Annotated[
        str, typer.Option(metavar="A,B,C|all", rich_help_panel=_HOW, help="Which methods; see: becausal methods.")
    ] = "all",
    out: options.Out = options.DEFAULT_OUT,
    as_json: options.AsJson = False,
    truth: Annotated[
        Path | None,
        typer.Option(metavar="MASK.png", rich_help_panel=_WHAT, help="The photobomber, white where it is."),
    ] = None,
    request: settings.ComparisonRequest,
    loading: settings.LoadingOptions,
) -> None:
    """Run several methods on one image and compare what they find.

    All share the model, the fill, the target and the way an explanation is taken from a map, so that only the maps
    differ. Writes comparison.png, comparison.json and comparison.html. A method this model cannot run is said so.

    **Examples**

    - `becausal compare cat.jpg --model bundled --methods causal,rise,random`
    - `becausal compare scene.png --model bundled --truth occluder.png --grain 4 --out cmp`
    - `becausal compare dog.jpg --model torch:net.py:build --methods causal,grad-cam,ig,lrp --preprocess imagenet`
    """
    from becausal.api.compare import choose_methods, compare_methods, save_comparison

    names = choose_methods(methods)
    check_writable(out)
    classifier = open_model(model, loading)
    with Watch(title=image.name, quiet=as_json) as watch:
        comparison = compare_methods(image, classifier, names, request=request, truth=truth, progress=watch)
    folder = save_comparison(comparison, out)
    if as_json:
        write_json(comparison.record() | {"folder": str(folder)})
    else:
        print_comparison(comparison, folder)
    if watch.is_stopping:
        raise typer.Exit(130)


def print_comparison(comparison: "Comparison", folder: Path) -> None:
    """The table, what could not run, and where the files are."""
    from becausal.render.comparison import COLUMNS, table_of
    from becausal.render.wording import say_label

    console = open_console()
    first = comparison.first
    console.print(f"{one_line(say_label(first))}  {one_line(first.origin.image)}\n")
    ran = [row for row in comparison.rows if row.explanation is not None]
    columns = [c for c in COLUMNS if comparison.truth is not None or c != "overlap"]
    print_table(tuple(columns), [tuple(table_of(row)[c] for c in columns) for row in ran])
    facts = [(row.method, f"did not run: {row.error}") for row in comparison.rows if row.explanation is None]
    console.print()
    print_facts(console, [*facts, ("files", f"{folder}/  (open comparison.html)")])
