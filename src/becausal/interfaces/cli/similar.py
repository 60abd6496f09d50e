"""`becausal similar`: explain why two images are alike."""

from pathlib import Path
from typing import Annotated

import typer

from becausal.core.files import write_files
from becausal.core.text import one_line
from becausal.interfaces.cli import options
from becausal.interfaces.cli.console import check_writable, complain, open_console, print_facts, write_json
from becausal.interfaces.cli.explain import save_result
from becausal.interfaces.cli.folders import keep_folders
from becausal.interfaces.cli.progress import watch_searches


@options.expand_options
def similar(
    *,
    first: Annotated[Path, typer.Argument(metavar="A", help="An image file.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="The image it is similar to.")],
    model: Annotated[str, options.model_option("Network of embeddings, e.g. embed:FILE.onnx; see `becausal models`.")],
    above: Annotated[
        float | None,
        typer.Option(
            metavar="SIMILARITY",
            rich_help_panel=options.TARGET,
            help="Lowest cosine similarity that counts, e.g. 0.7. Default: half, not counting what an empty image has.",
        ),
    ] = None,
    out: options.Out = options.DEFAULT_OUT,
    as_json: options.AsJson = False,
    request: options.SimilarRequest,
    loading: options.SimilarLoading,
) -> int:
    """Explain why a network of embeddings finds two images similar.

    Finds, in both images, the pixels that keep half of the cosine similarity, not counting what an empty image has, or a
    similarity above the threshold of your own system. Writes an explanation of each image into its own folder, as
    `becausal explain` does, and similar.png, both side by side.

    **Examples**

    - `becausal similar a.jpg b.jpg --model embed:net.onnx --preprocess imagenet`
    - `becausal similar a.jpg b.jpg --model embed:hf:facebook/dinov2-small --above 0.7`
    """
    from becausal.api.similar import similar as explain_pair

    check_writable(out)
    with watch_searches(title=f"{first.name} and {second.name}", quiet=as_json, count=2) as progress:
        pair = explain_pair(first, second, model, above=above, request=request, loading=loading, progress=progress)
    console, numbers = open_console(), {"similarity": pair.similarity, "empty": list(pair.empty)}
    if not as_json:
        console.print(f"{first.name} and {second.name}: cosine similarity {pair.similarity:.3f}")
        rows = zip((second, first), pair.empty, strict=True)
        print_facts(console, [(f"similarity of {image.name} to an empty image", f"{least:.3f}") for image, least in rows])
        console.print()
    if first.read_bytes() == second.read_bytes():
        complain(f"{first} and {second} are the same image: what is explained is its similarity to itself", kind="note")
    saved = zip(pair.explanations, keep_folders([first, second], out), strict=False)  # only the first, after Ctrl-C
    entries = [save_result(found, image, folder, is_only=False, as_json=as_json) for found, (image, folder) in saved]
    write_files(out, pair.files())
    if as_json:
        write_json({**numbers, "images": entries, "folder": str(out)})
    else:
        print_facts(console, [("side by side", f"{out}/similar.png")])
    if pair.error is not None:
        complain(one_line(f"{second}: {pair.error}"))
    is_stopping = any(found.stopped_by == "interrupt" for found in pair.explanations)
    return 130 if is_stopping else 2 if pair.error is not None or any("error" in entry for entry in entries) else 0
