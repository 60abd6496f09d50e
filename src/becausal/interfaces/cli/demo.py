"""`becausal demo`: explain a bundled image offline, with the bundled classifier."""

from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from becausal.core.errors import InputError
from becausal.core.files import path_inside
from becausal.core.text import one_line
from becausal.interfaces.cli import options
from becausal.interfaces.cli.console import check_writable, open_console, print_facts, write_json
from becausal.interfaces.cli.progress import watch_searches

if TYPE_CHECKING:
    from becausal.api.explanation import Explanation

IMAGE, OCCLUDER = "demo.png", "demo_occluder.png"


def demo(
    out: options.Out = options.DEFAULT_OUT,
    as_json: options.AsJson = False,
) -> None:
    """Explain a bundled image, offline, in seconds.

    The image shows an object with something in front of it, an occluder. The explanation should lie on the visible
    part of the object. Writes its files, with report.html, to the folder `demo` in --out.

    **Examples**

    - `becausal demo`
    - `becausal demo --out first-look`
    """
    from becausal.api import explain

    check_writable(out)
    bundled = files("becausal.models.bundled")
    if not bundled.joinpath(IMAGE).is_file():
        raise InputError(f"the bundled image {IMAGE} is missing from this installation: install becausal again")
    with as_file(bundled.joinpath(IMAGE)) as image, as_file(bundled.joinpath(OCCLUDER)) as occluder:
        with watch_searches(title="demo", quiet=as_json) as progress:
            explanation = explain(image, "bundled", progress=progress)
        overlap = measure_overlap(explanation, occluder)
    folder = explanation.save(path_inside(out, "demo"))
    if as_json:
        write_json([explanation.summary() | {"overlap": overlap, "folder": str(folder)}])
    else:
        print_demo(explanation, overlap, folder)
    if explanation.stopped_by == "interrupt":
        raise typer.Exit(130)


def measure_overlap(explanation: "Explanation", occluder: Path) -> float:
    """The share of the explanation's pixels that lie on the occluder, given as an image that is white there."""
    from becausal.core.metrics import overlap
    from becausal.images.loading import load_image

    truth = load_image(occluder).pixels.max(axis=-1) > 127
    return overlap(explanation.visible, explanation.frame.from_original(truth))


def print_demo(explanation: "Explanation", overlap: float, folder: Path) -> None:
    """Print what was found, and which commands to try next."""
    from rich.text import Text

    from becausal.render.limits import describe_stop
    from becausal.render.wording import (
        describe_checks,
        describe_level,
        format_confidence,
        format_count,
        format_share,
    )

    console = open_console()
    smallest, alone = explanation.levels[0], format_confidence(explanation.checks.confidence)
    console.print(
        Text.assemble(
            "The model says ",
            (one_line(explanation.label), "bold magenta"),
            f" ({format_confidence(explanation.confidence)}), although something stands in front of it. ",
            (f"{format_share(explanation.size)} of the pixels", "bold"),
            f" alone keep that with a confidence of {alone}; {format_share(smallest.size)} are enough for the label.",
        )
    )
    facts: list[tuple[str, str | Text]] = [
        *((f"level {level.name}", describe_level(level, explanation)) for level in reversed(explanation.levels)),
        ("on the occluder", f"{format_share(overlap)} of the level {explanation.level.name}"),
        *((check.name, f"{check.answer}: {check.meaning}") for check in describe_checks(explanation)[:3]),
        ("cost", f"{format_count(explanation.calls, 'call')}, {explanation.seconds:.1f} s"),
        *((name, str(folder / file)) for name, file in (("report", "report.html"), ("figure", "explanation.png"))),
    ]
    if stopped := describe_stop(explanation):
        facts.append(("cut short", Text(stopped, style="not dim bold yellow")))
    print_facts(console, facts)
    console.print("\nNow with your own image and model:")
    console.print("  becausal models                                        list the kinds of model")
    console.print("  becausal inspect net.onnx photo.jpg                    show how a model is used, and its top 5")
    console.print("  becausal explain photo.jpg --model net.onnx --labels names.txt --preprocess imagenet")
