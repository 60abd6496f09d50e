"""The diff page: two runs on the same images on one self-contained HTML page."""

from collections.abc import Callable

from becausal.batch.differences import RunDifference
from becausal.batch.reading import IndexRow
from becausal.batch.run_page import file_name, make_chart, place_of
from becausal.render.pages import render_page
from becausal.render.wording import format_confidence, format_share

MakeThumbnail = Callable[[int, IndexRow], str]  # (0 or 1 for the run, its row) -> data URI, empty if there is none
MEDIANS: dict[str, tuple[str, Callable[[float], str]]] = {
    "size": ("median size", format_share),
    "confidence": ("median confidence", format_confidence),
    "calls": ("median calls", lambda value: f"{value:,.0f}"),
    "inside": ("median share on the object", format_share),
}


def render_difference(difference: RunDifference, make_thumbnail: MakeThumbnail, *, most: int = 60) -> str:
    """The page as text; it shows up to `most` changed images, new labels first, then the smallest overlap."""
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
                "sources": (make_thumbnail(0, pair.left), make_thumbnail(1, pair.right)),
            }
            for pair in changed[:most]
        ],
    )
