"""`becausal compare`: several methods on the same image, side by side."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from becausal.core.text import one_line
from becausal.interfaces.cli import options
from becausal.interfaces.cli.console import check_writable, open_console, print_facts, print_table, write_json
from becausal.interfaces.cli.progress import watch_searches
from becausal.models import open_model

if TYPE_CHECKING:
    from becausal.core.comparison import Comparison


@options.expand_options
def compare(
    *,
    image: Annotated[Path, typer.Argument(metavar="IMAGE", help="An image file, or an .npy signal or volume.")],
    model: options.Model,
    methods: Annotated[
        str,
        typer.Option(
            metavar="A,B,C|all", rich_help_panel=options.SEARCH, help="Methods to compare; see `becausal methods`."
        ),
    ] = "all",
    out: options.Out = options.DEFAULT_OUT,
    as_json: options.AsJson = False,
    truth: Annotated[
        Path | None,
        typer.Option(
            metavar="MASK.png",
            rich_help_panel=options.TARGET,
            help="Ground truth: an image of the same size, white where the photobomber is.",
        ),
    ] = None,
    request: options.ComparisonRequest,
    loading: options.LoadingOptions,
) -> None:
    """Run several methods on one image and compare what they find.

    All methods share the model, the fill, the target and the extraction of an explanation from a saliency map, so that
    only the maps differ. Writes comparison.png, comparison.json and comparison.html. A method that does not work with
    this model is listed with the reason.

    **Examples**

    - `becausal compare photo.jpg --model bundled --methods causal,rise,random`
    - `becausal compare scene.png --model bundled --truth occluder.png --grain 4 --out comparison`
    - `becausal compare dog.jpg --model torch:net.py:build --methods causal,grad-cam,ig,lrp --preprocess imagenet`
    """
    from becausal.api.compare import choose_methods, compare_methods, save_comparison

    choose_methods(methods)  # a wrong name is refused before the model is loaded
    check_writable(out)
    classifier = open_model(model, loading)
    names = choose_methods(methods, classifier.info)
    with watch_searches(title=image.name, quiet=as_json) as progress:
        comparison = compare_methods(image, classifier, names, request=request, truth=truth, progress=progress)
    folder = save_comparison(comparison, out)
    if as_json:
        write_json(comparison.record() | {"folder": str(folder)})
    else:
        print_comparison(comparison, folder)
    if progress.is_stopping:
        raise typer.Exit(130)


def print_comparison(comparison: "Comparison", folder: Path) -> None:
    """Print the table, the methods that did not run, and where the files are."""
    from becausal.render.comparison import choose_columns, describe_shortfall, format_row
    from becausal.render.wording import as_text, format_label, is_plain, question

    console = open_console()
    first = comparison.first
    head = format_label(first) if is_plain(first) else as_text(question(first))
    console.print(f"{one_line(head)}  {one_line(first.origin.image)}\n")
    ran = [row for row in comparison.rows if row.explanation is not None]
    columns = choose_columns(comparison)
    print_table(tuple(columns), [tuple(format_row(row)[c] for c in columns) for row in ran])
    facts = [(row.method, describe_shortfall(row)) for row in ran if row.is_coarser]
    facts += [(row.method, f"did not run: {row.error}") for row in comparison.rows if row.explanation is None]
    console.print()
    print_facts(console, [*facts, ("files", f"{folder}/  (open comparison.html)")])
