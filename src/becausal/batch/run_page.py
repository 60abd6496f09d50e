"""The run page: one self-contained HTML page about all explanations of a run."""

from collections.abc import Callable, Iterable
from typing import Any

from becausal.batch.overview import Histogram, Overview
from becausal.batch.reading import IndexRow
from becausal.batch.rows import corners_of
from becausal.render.pages import render_page
from becausal.render.wording import describe_corners, format_confidence, format_share

MakeThumbnail = Callable[[IndexRow, bool], str]  # (row, whether to draw its boxes) -> data URI, empty if there is none
MakeLink = Callable[[IndexRow], str]  # row -> URL of its explanation, empty if there is none
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


def render_run(
    overview: Overview,
    make_thumbnail: MakeThumbnail,
    *,
    below: float,
    folder: str | None = None,
    make_link: MakeLink = lambda row: "",
) -> str:
    """The page as text.

    Args:
        overview: The run in numbers.
        make_thumbnail: Paints the explanation of one row.
        below: Explanations with a smaller share of their pixels on the object count as outside.
        folder: URL of the explanations, relative to the page, where their own pages exist; None for no links in the table.
        make_link: The place that the thumbnail of a row links to.
    """

    def cards(rows: Iterable[IndexRow], with_boxes: bool = False) -> list[dict[str, Any]]:
        return [
            row
            | {"name": file_name(row), "place": place_of(row)}
            | {"source": make_thumbnail(row, with_boxes), "link": make_link(row)}
            for row in rows
        ]

    has_truth, is_detector = overview.mean_inside is not None, overview.is_detector
    left_out = {"inside": not has_truth, "label_size": not overview.has_levels}
    left_out |= {"box": overview.unit != "box", "place": not is_detector}
    columns = [name for name in COLUMNS if not left_out.get(name)]
    rows = [[_shorten((row | {"place": place_of(row)})[name]) for name in columns] for row in overview.rows]
    has_extremes = overview.explained >= 2 * len(overview.smallest) > 0
    kept = "box" if is_detector else "label"
    titles = {"inside": "on the object", "alone": "confidence alone", "label_size": f"size for the {kept}"}
    titles |= {"confidence": "score", "alone": "score alone", "place": "left,top to right,bottom"} if is_detector else {}
    return render_page(
        "run.html",
        overview=overview,
        below=below,
        has_truth=has_truth,
        outside=cards(overview.outside, with_boxes=True) if has_truth else [],
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
        table={"columns": columns, "rows": rows, "below": below, "folder": folder}
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
