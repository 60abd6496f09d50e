"""The images on a bench's page: where the first method does best and worst, and what the others do there."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.bench.datasets import Sample
from becausal.bench.findings import Row, answered, groups, numbers
from becausal.bench.packing import unpack_map, unpack_set
from becausal.bench.plan import Bench, Subject
from becausal.bench.pools import see
from becausal.core.contracts import Classifier, Visible
from becausal.core.errors import BecausalError
from becausal.render.painting import Painted, as_png, grow, paint_explanation, paint_map, paint_picture
from becausal.render.sheets import Sheet, Tile, as_rgb, enlarge, span
from becausal.render.wording import say_share

CASES = 3  # best ones, and worst ones
METHODS = 7  # explanations shown of each
SIDE = 224  # pixels a drawn image has at most, so that the page stays small
TRUTH = np.array([255, 176, 32], np.uint8)


@dataclass(frozen=True)
class Card:
    """A drawn image with a title and a line below."""

    png: bytes
    title: str
    said: str


@dataclass(frozen=True)
class Strip:
    """One image and what methods made of it, under a heading."""

    heading: str
    said: str
    title: str
    cards: tuple[Card, ...]


def choose_strips(bench: Bench, rows: Sequence[Row], samples: Sequence[Sample], classifier: Classifier) -> list[Strip]:
    """The strips of a page; none for a bench whose rows carry no sets."""
    found = [row for row in answered(rows) if "_shown" in row]
    if not found:
        return []
    found = [row for row in found if row.get("fill") == "grey"] or found
    by_name = {sample.name: sample for sample in samples}
    if bench.pictures is not None:
        return [_steps(strip, by_name[strip["name"]], bench, classifier) for strip in bench.pictures(found)]
    first = found[0]["method"]
    own = [row for row in found if row["method"] == first and numbers([row], bench.judge)]
    once = [part[0] for part in groups(own, "name").values()]
    ranked = sorted(once, key=lambda row: (row[bench.judge] if bench.low else -row[bench.judge], row["size"], row["name"]))
    worst = list(reversed(ranked[CASES:]))[:CASES]
    said = f"By {bench.judge.replace('_', ' ')}, {'low' if bench.low else 'high'} is good." + (
        f" In orange: the {bench.truth}." if bench.truth else ""
    )
    strips = []
    for heading, part in ((f"Where {first} does best", ranked[:CASES]), (f"Where {first} does worst", worst)):
        for row in part:
            try:
                strips.append(_methods(heading, said, row, found, by_name[row["name"]], bench, classifier))
            except BecausalError:
                continue  # an image that cannot be read any more has its row, but no strip
    return strips


def _methods(
    heading: str, said: str, row: Row, rows: Sequence[Row], sample: Sample, bench: Bench, classifier: Classifier
) -> Strip:
    subject = see(sample, classifier)
    here = [part[0] for part in groups([r for r in rows if r["name"] == row["name"]], "method").values()][:METHODS]
    cards = [_original(subject, bench)]
    for each in here:
        told = "" if bench.judge == "size" or each.get(bench.judge) is None else f", {bench.judge} {each[bench.judge]:.2f}"
        png = _png(subject, paint_explanation, unpack_set(each["_shown"]), bench)
        cards.append(Card(png, str(each["method"]), f"{say_share(each['size'])}{told}"))
    label = classifier.info.name_of(int(row["label"])).split(",")[0]
    return Strip(heading, said, f"{sample.name}: {label}", tuple(cards))


def _steps(strip: dict[str, Any], sample: Sample, bench: Bench, classifier: Classifier) -> Strip:
    subject = see(sample, classifier)
    cards = [_original(subject, bench)]
    for row in strip["rows"]:
        level = unpack_map(row["_map"])
        png = _png(subject, paint_map, unpack_set(row["_shown"]), bench, level)
        cards.append(Card(png, str(row[strip["caption"]]), f"{say_share(row['size'])}, {row['calls']:,} calls"))
    said = "The map over the image, the explanation outlined."
    return Strip("Step by step", said, f"{sample.name}, {strip['title']}", tuple(cards))


def _original(subject: Subject, bench: Bench) -> Card:
    png = _png(subject, paint_picture, np.zeros(subject.view.grid, bool), bench)
    return Card(png, "the image", "")


def _png(subject: Subject, paint: Any, visible: Visible, bench: Bench, level: NDArray[np.float64] | None = None) -> bytes:
    view = subject.view.pixels
    low, high = span(view)
    rgb = as_rgb(view, low, high)
    scale = max(1, SIDE // max(visible.shape))
    sheet = Sheet(
        picture=rgb,
        hidden=rgb,
        visible=visible,
        level=np.zeros(visible.shape) if level is None else level,
        inside=np.ones(visible.shape, bool),
        tiles=(Tile(0, 0, ""),),
        scale=scale,
    )
    painted: Painted = paint(sheet)
    truth = subject.truths.get(bench.truth or "")
    if truth is not None and truth.any():
        inside = enlarge(truth, scale)
        painted[grow(inside, 1) & ~inside] = TRUTH
    return as_png(painted, sheet)
