"""The pages about runs, each one self-contained HTML file: of a run, of the difference of two, and of a check."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from becausal.batch.differences import RunDifference
from becausal.batch.evidence import Place, Places, RunBoxes
from becausal.batch.overview import Histogram, Overview
from becausal.batch.reading import BatchRun, IndexRow
from becausal.batch.rows import corners_of
from becausal.batch.rules import CheckRules, format_limit
from becausal.batch.verdicts import Offender, Verdict
from becausal.core.version import __version__
from becausal.render.pages import render_page
from becausal.render.thumbnails import make_thumbnail
from becausal.render.wording import describe_corners, format_confidence, format_share

COLUMNS = (
    *("id", "image", "box", "label", "place", "confidence", "alone", "size", "label_size", "pieces", "calls", "inside"),
    "error",
)
CHARTS: dict[str, tuple[str, str, Callable[[float], str]]] = {
    "size": ("Size", "share of the view in the explanation", format_share),
    "label_size": ("Size for the label", "share of the view in the level that keeps the label alone", format_share),
    "confidence": ("Confidence", "of the label on the whole view", format_confidence),
    "calls": ("Model calls", "per image", lambda value: f"{value:,.0f}"),
    "inside": ("On the object", "share of the explanation inside the object's boxes", format_share),
}
BOX_CHARTS = CHARTS | {
    "label_size": ("Size for the box", "share of the view in the level that keeps the box alone", format_share),
    "confidence": ("Score", "of the box on the whole view", format_confidence),
    "calls": ("Model calls", "per box; boxes of one image share them", CHARTS["calls"][2]),
}
MEDIANS: dict[str, tuple[str, Callable[[float], str]]] = {
    "size": ("median size", format_share),
    "confidence": ("median confidence", format_confidence),
    "calls": ("median calls", lambda value: f"{value:,.0f}"),
    "inside": ("median share on the object", format_share),
}


def render_run(run: BatchRun, overview: Overview, path: Path, *, below: float) -> str:
    """The page about a run as text. Explanations that cannot be read have no thumbnail, see `BatchRun.unreadable`.

    overview: the run in numbers. path: of the page, for links to the explanations. below: explanations with a smaller share
    of their pixels on the object count as outside.
    """

    def cards(rows: Iterable[IndexRow], place: Place | None = None) -> list[dict[str, Any]]:
        return [
            row
            | {"name": file_name(row), "place": place_of(row)}
            | {"source": _paint(run, row["id"], place), "link": _link_to(run, row, path)}
            for row in rows
        ]

    has_truth, is_detector = overview.mean_inside is not None, overview.is_detector
    left_out = {"inside": not has_truth, "label_size": not overview.has_levels}
    left_out |= {"box": overview.unit != "box", "place": not is_detector}
    columns = [name for name in COLUMNS if not left_out.get(name)]
    rows = [[_shorten((row | {"place": place_of(row)})[name]) for name in columns] for row in overview.rows]
    has_extremes = overview.explained >= 2 * len(overview.smallest) > 0
    folder = _link(run.folder / "explanations", path) if overview.settings.get("render") else ""  # of pages of images
    kept = "box" if is_detector else "label"
    titles = {"inside": "on the object", "alone": "confidence alone", "label_size": f"size for the {kept}"}
    titles |= {"confidence": "score", "alone": "score alone", "place": "left,top to right,bottom"} if is_detector else {}
    return render_page(
        "run.html",
        overview=overview,
        below=below,
        has_truth=has_truth,
        outside=cards(overview.outside, RunBoxes()) if has_truth else [],
        charts=[
            chart
            for name, form in (BOX_CHARTS if is_detector else CHARTS).items()
            if not left_out.get(name) and (chart := make_chart(overview.histograms[name], *form))
        ],
        widest=max((each.size for each in overview.classes), default=0.0) or 1.0,
        smallest=cards(overview.smallest) if has_extremes else [],
        largest=cards(overview.largest) if has_extremes else [],
        sample=cards(overview.sample),
        kept=kept,
        table={"columns": columns, "rows": rows, "below": below, "folder": folder or None}
        | {"titles": {name: titles[name] for name in columns if name in titles}, "per_image": overview.per_image},
        settings=[
            (name, value) for name, value in overview.settings.items() if value or (value == 0 and value is not False)
        ],
    )


def make_chart(values: Histogram, title: str, text: str, form: Callable[[float], str]) -> dict[str, Any] | None:
    """A histogram as the shapes of a drawing, with its median marked; None where there is nothing to draw."""
    if not values.counts:
        return None
    width, height, most = 240, 90, max(values.counts)
    step = width / len(values.counts)
    bars = [
        {
            "x": f"{i * step:.1f}",
            "y": f"{height - max(count / most * height, 1):.1f}",
            "width": f"{step - 1:.1f}",
            "height": f"{max(count / most * height, 1):.1f}",
            "text": f"{form(values.edges[i])} to {form(values.edges[i + 1])}: {count:,}",
        }
        for i, count in enumerate(values.counts)
        if count
    ]
    median, high = values.middle or 0.0, values.edges[-1]
    return {
        "title": title, "text": text, "width": width, "height": height, "bars": bars,
        "low": form(values.edges[0]), "high": form(high), "median": form(median),
        "middle": f"{min(median / high * width, width) if high else 0:.1f}",
    }  # fmt: skip


def file_name(row: IndexRow) -> str:
    """The name of a row's image without its folder."""
    return str(row["image"]).rsplit("/", 1)[-1]


def place_of(row: IndexRow) -> str | None:
    """Where the explained box of a row is, in words; None for a classifier."""
    box = corners_of(row)
    return None if box is None else describe_corners(box)


def _shorten(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def render_difference(difference: RunDifference, left: BatchRun, right: BatchRun, *, most: int = 60) -> str:
    """The page about two runs as text; it shows up to `most` changed images, new labels first, then the smallest overlap."""
    numbers = []
    for name, (title, form) in MEDIANS.items():
        before, after = difference.medians(name)
        if before is not None and after is not None:
            numbers.append((title, form(before), form(after)))
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
                "name": file_name(pair.left),
                "places": (place_of(pair.left), place_of(pair.right)),
                "sources": (_paint(left, pair.left["id"]), _paint(right, pair.right["id"])),
            }
            for pair in changed[:most]
        ],
    )


def render_check(verdict: Verdict, rules: CheckRules, run: BatchRun, baseline: BatchRun | None) -> str:
    """The page about a check as text: every rule, and the images that break it as thumbnails."""
    places = Places(rules.folder)
    entries = []
    for judged, rule in zip(verdict.rules, rules.by_name.values(), strict=True):
        place = rule.place(places)
        cards = [_make_card(each, place, run, baseline) for each in judged.worst]
        about = {"outlined": place and place.name, "is_pair": rule.needs_baseline}
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


def _make_card(offender: Offender, place: Place | None, run: BatchRun, baseline: BatchRun | None) -> dict[str, Any]:
    sources = [] if offender.label is None else [_paint(run, offender.id, place)]
    if baseline is not None and offender.baseline_id is not None:
        sources.insert(0, _paint(baseline, offender.baseline_id))
    return {"offender": offender, "name": offender.image.rsplit("/", 1)[-1], "sources": sources}


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


def _link_to(run: BatchRun, row: IndexRow, page: Path) -> str:
    """The URL of an explanation: of its own page if there is one; empty if there is no file."""
    place = run.folder_of(row["id"])
    files = (place / "report.html", place / "explanation.json")
    return next((_link(file, page) for file in files if file.is_file()), "")


def _link(target: Path, page: Path) -> str:
    """The URL of a file, relative to a page; empty if there is none, e.g. on another drive."""
    try:
        return quote(os.path.relpath(target, page.parent).replace(os.sep, "/"))
    except ValueError:
        return ""
