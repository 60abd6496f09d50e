"""`becausal demo`: a photobombed image, explained offline with the classifier that ships with the package."""

from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from becausal.core.errors import InputError
from becausal.interfaces.cli import options
from becausal.interfaces.cli.console import one_line, open_console, print_facts, write_json
from becausal.interfaces.cli.progress import Watch

if TYPE_CHECKING:
    from becausal.api.explanation import Explanation

PICTURE, OCCLUDER = "demo.png", "demo_occluder.png"
SHARE, GRAIN = 0.9, 4  # the label alone can be kept by very little; nine tenths of the confidence make an image to look at


def demo(
    out: options.Out = options.DEFAULT_OUT,
    as_json: options.AsJson = False,
) -> None:
    """Explain a bundled image, offline, in seconds.

    Something stands in front of the object. The explanation should lie on what can be seen of it.

    **Examples**

    - `becausal demo`
    - `becausal demo --out /tmp/first-look`
    """
    from becausal.api import explain
    from becausal.interfaces.cli.explain import check_writable

    check_writable(out)
    bundled = files("becausal.scenes").joinpath("bundled")
    if not bundled.joinpath(PICTURE).is_file():
        raise InputError(f"this installation has no bundled image {PICTURE}: install becausal again")
    with as_file(bundled.joinpath(PICTURE)) as picture, as_file(bundled.joinpath(OCCLUDER)) as occluder:
        with Watch(title="demo", quiet=as_json) as watch:
            explanation = explain(picture, "bundled", confidence=SHARE, grain=GRAIN, progress=watch)
        overlap = measure_overlap(explanation, occluder)
    folder = explanation.save(out / "demo")
    if as_json:
        write_json([explanation.summary() | {"overlap": overlap, "folder": str(folder)}])
    else:
        print_demo(explanation, overlap, folder)
    if explanation.stopped_by == "interrupt":
        raise typer.Exit(130)


def measure_overlap(explanation: "Explanation", occluder: Path) -> float:
    """The share of the explanation's pixels that lie on the photobomber, given its truth as an image."""
    import numpy as np

    from becausal.images.loading import load_image

    truth = load_image(occluder).pixels.max(axis=-1) > 127
    covered = explanation.frame.from_original(truth)
    return float(np.count_nonzero(covered & explanation.visible) / max(1, explanation.pixels))


def print_demo(explanation: "Explanation", overlap: float, folder: Path) -> None:
    """What was found, and what to type next."""
    from rich.text import Text

    from becausal.render.wording import say_checks, say_confidence, say_count, say_share, say_stopped

    console = open_console()
    console.print(
        Text.assemble(
            "The classifier says ",
            (one_line(explanation.label), "bold magenta"),
            f" ({say_confidence(explanation.confidence)}), though something stands in front of it. ",
            (f"These {say_share(explanation.size)} of the pixels", "bold"),
            f" alone are enough for that, with at least {SHARE:.0%} of the confidence.",
        )
    )
    facts: list[tuple[str, str | Text]] = [
        ("explanation", f"{say_count(explanation.pixels, 'pixel')} in {say_count(explanation.pieces, 'piece')}"),
        ("on the photobomber", f"{say_share(overlap)} of them"),
        *((check.name, f"{check.answer}: {check.meaning}") for check in say_checks(explanation)[:3]),
        ("cost", f"{say_count(explanation.calls, 'call')}, {explanation.seconds:.1f} s"),
        *((name, str(folder / file)) for name, file in (("page", "report.html"), ("picture", "explanation.png"))),
    ]
    if stopped := say_stopped(explanation):
        facts.append(("cut short", Text(stopped, style="not dim bold yellow")))
    print_facts(console, facts)
    console.print("\nNow your own image and model:")
    console.print("  becausal models                                        what kinds of model there are")
    console.print("  becausal inspect net.onnx photo.jpg                    how yours will be read, and its top 5")
    console.print("  becausal explain photo.jpg --model net.onnx --labels names.txt --preprocess imagenet")
