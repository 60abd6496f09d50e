"""The pages about runs, each one self-contained HTML file: of a run, of the difference of two, and of a check."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from becausal.batch.check import Verdict
from becausal.batch.index import IndexRow, corners_of
from becausal.batch.places import RUN_BOXES, Place
from becausal.batch.reading import BatchRun
from becausal.batch.rules import CheckRules
from becausal.batch.summaries import EXTREMES, Histogram, Overview, RunDifference, take_evenly
from becausal.core.version import __version__
from becausal.render.numbers import format_confidence, format_limit, format_share
from becausal.render.pages import render_page
from becausal.render.painting import make_thumbnail, shrink
from becausal.render.wording import describe_corners

COLUMNS = (
    *("id", "image", "box", "label", "place", "confidence", "alone", "level", "size", "backgrounds", "core_size"),
    *("core_backgrounds", "pieces", "calls", "inside", "error"),
)
MAX_PICTURES = 400  # rows of the table with a thumbnail, the first ones
TABLE_SIDE = 72  # pixels of such a thumbnail, the longer side
MOST_CHANGED = 60  # images of two runs that are shown
CHARTS: dict[str, tuple[str, str, Callable[[float], str]]] = {
    "size": ("Size", "share of the view in the explanation", format_share),
    "core_size": ("Size of the core", "share of the view in the core", format_share),
    "backgrounds": ("Random backgrounds", "share on which the explanation keeps its label", format_share),
    "core_backgrounds": ("The core on random backgrounds", "share on which it keeps the label", format_share),
    "confidence": ("Confidence", "of the label on the whole view", format_confidence),
    "calls": ("Model calls", "per image", lambda value: f"{value:,.0f}"),
    "inside": ("On the object", "share of the explanation inside the object's boxes", format_share),
}
BOX_CHARTS = CHARTS | {
    "backgrounds": ("Random backgrounds", "share on which the explanation keeps its box", format_share),
    "core_backgrounds": ("The core on random backgrounds", "share on which it keeps the box", format_share),
    "confidence": ("Score", "of the box on the whole view", format_confidence),
    "calls": ("Model calls", "per box; boxes of one image share them", CHARTS["calls"][2]),
}
MEDIANS: dict[str, tuple[str, Callable[[float], str]]] = {
    "size": ("median size", format_share),
    "confidence": ("median confidence", format_confidence),
    "calls": ("median calls", lambda value: f"{value:,.0f}"),
    "inside": ("median share on the object", format_share),
}


def render_run(run: BatchRun, overview: Overview, path: Path) -> str:
    """The page about a run as text. Explanations that cannot be read have no thumbnail, see `BatchRun.unreadable`.

    overview: the run in numbers. path: of the page, for links to the explanations.
    """

    painted: dict[int, str] = {}

    def paint(number: int) -> str:
        if number not in painted:
            painted[number] = _paint(run, number)
        return painted[number]

    def cards(rows: Iterable[IndexRow], place: Place | None = None) -> list[dict[str, Any]]:
        made = []
        for row in rows:
            files = (run.folder_of(row["id"]) / name for name in ("report.html", "explanation.json"))
            link = next((_link(file, path) for file in files if file.is_file()), "")  # to its own page, if there is one
            source = paint(row["id"]) if place is None else _paint(run, row["id"], place)
            made.append(
                row | {"name": row["image"].rsplit("/", 1)[-1], "place": place_of(row), "source": source, "link": link}
            )
        return made

    has_truth, is_detector = overview.mean_inside is not None, overview.is_detector
    left_out = {"core_size", "backgrounds", "core_backgrounds", "inside"} - overview.known
    left_out |= set() if overview.lacking else {"level"}
    left_out |= ({"box"} if overview.unit != "box" else set()) | (set() if is_detector else {"place"})
    columns = [name for name in COLUMNS if name not in left_out]
    table = [(row | {"place": place_of(row)}) for row in overview.rows]
    rows = [[float(f"{x:.6g}") if isinstance(x := row[name], float) else x for name in columns] for row in table]
    pictured = [row["id"] for row in overview.rows if row["state"] == "done"][:MAX_PICTURES]
    folder = _link(run.folder / "explanations", path) if overview.settings.get("render") else ""  # of pages of images
    kept = "box" if is_detector else "label"
    titles = {"level": "set", "inside": "on the object", "alone": "confidence alone", "core_size": "size of the core"}
    titles["core_backgrounds"] = "core on backgrounds"
    titles |= {"confidence": "score", "alone": "score alone", "place": "left,top to right,bottom"} if is_detector else {}
    return render_page(
        "run.html",
        overview=overview,
        has_truth=has_truth,
        outside=cards(overview.outside, RUN_BOXES) if has_truth else [],
        charts=make_charts(overview),
        widest=max((each["size"] for each in overview.classes), default=0.0) or 1.0,
        least_sure=cards(overview.least_sure),
        least_held=cards(overview.least_held),
        lacking=cards(take_evenly(overview.lacking, EXTREMES)),
        smallest=cards(overview.smallest),
        largest=cards(overview.largest),
        sample=cards(overview.sample),
        kept=kept,
        table={"columns": columns, "rows": rows, "below": overview.below, "folder": folder or None}
        | {"titles": {name: titles[name] for name in columns if name in titles}, "per_image": overview.per_image}
        | {"pictures": {number: small for number in pictured if (small := shrink(paint(number), TABLE_SIDE))}},
        settings=[
            (name, value) for name, value in overview.settings.items() if value or (value == 0 and value is not False)
        ],
    )


def make_charts(overview: Overview) -> list[dict[str, Any]]:
    """The histograms of a run; where not all explanations are `enough`, the sizes are those of the ones that are."""
    forms = BOX_CHARTS if overview.is_detector else CHARTS
    if overview.lacking and overview.has_enough:
        forms = forms | {"size": ("Size of enough", "share of the view in enough", format_share)}
    made = (make_chart(overview.histograms[name], *form) for name, form in forms.items())
    return [chart for chart in made if chart is not None]


def make_chart(values: Histogram, title: str, text: str, form: Callable[[float], str]) -> dict[str, Any] | None:
    """A histogram for the template, with the values' form in words; None where there is nothing to draw."""
    return {"title": title, "text": text, "values": values, "form": form} if values.counts else None


def place_of(row: IndexRow) -> str | None:
    """Where the explained box of a row is, in words; None for a classifier."""
    box = corners_of(row)
    return None if box is None else describe_corners(box)


def render_difference(difference: RunDifference, left: BatchRun, right: BatchRun) -> str:
    """The page about two runs as text; of the changed images it shows new labels first, then the smallest overlap."""
    numbers = []
    for name, (title, form) in MEDIANS.items():
        before, after = difference.medians(name)
        if before is not None and after is not None:
            numbers.append((title, form(before), form(after)))
    if levels := difference.describe_levels():
        numbers.append(("sets", *levels))
    if outside := difference.outside():
        numbers.append(("outside the object", f"{outside[0]:,}", f"{outside[1]:,}"))
    changed = [p for p in difference.pairs if p.is_relabelled or p.overlap is None or p.overlap < 1]
    text = "intersection over union of the two explanations"
    return render_page(
        "diff.html",
        difference=difference,
        names=difference.names,
        numbers=numbers,
        chart=make_chart(difference.overlaps, "Overlap", text, format_share),
        changed=len(changed),
        cards=[
            {
                "pair": pair,
                "name": pair.left["image"].rsplit("/", 1)[-1],
                "places": (place_of(pair.left), place_of(pair.right)),
                "sources": (_paint(left, pair.left["id"]), _paint(right, pair.right["id"])),
            }
            for pair in changed[:MOST_CHANGED]
        ],
    )


def render_check(verdict: Verdict, rules: CheckRules, run: BatchRun, baseline: BatchRun | None) -> str:
    """The page about a check as text: every rule, and the images that break it as thumbnails."""
    entries = []
    for judged, rule in zip(verdict.rules, rules.by_name.values(), strict=True):
        cards = []
        for each in judged.worst:
            sources = [] if each.label is None else [_paint(run, each.id, rule.place)]
            if baseline is not None and each.baseline_id is not None:
                sources.insert(0, _paint(baseline, each.baseline_id))
            cards.append({"offender": each, "name": each.image.rsplit("/", 1)[-1], "sources": sources})
        about = {"outlined": rule.place and rule.place.name, "is_pair": rule.needs_baseline}
        entries.append({"verdict": judged, "cards": cards, **about})
    return render_page(
        "check.html",
        verdict=verdict,
        run_name=run.folder.name,
        baseline_name=None if baseline is None else baseline.folder.name,
        notes=run.notes,
        model=run.options.get("model"),
        rules=entries,
        limit=format_limit,
        version=__version__,
    )


def _paint(run: BatchRun, number: int, place: Place | None = None) -> str:
    """The thumbnail of an explanation, with a place outlined; empty if it cannot be read: the others can be shown."""
    try:
        explanation, outline = run.load(number), None
        if place is not None and explanation.visible.ndim == 2:
            outline = place.outline(run, next(run.rows("id = ?", number)), explanation.frame)
        return make_thumbnail(explanation, outline)
    except Exception as error:  # arrays of a damaged explanation can be anything
        run.skip(number, error)
        return ""


def _link(target: Path, page: Path) -> str:
    """The URL of a file, relative to a page; empty if there is none, e.g. on another drive."""
    try:
        return quote(os.path.relpath(target, page.parent).replace(os.sep, "/"))
    except ValueError:
        return ""
