"""The comparison page: methods side by side on one self-contained HTML page."""

from typing import Any

from becausal.core.comparison import Comparison, Row
from becausal.core.metrics import HELD_OUT_COUNT, STEPS
from becausal.render.comparison import (
    CLIP_PERCENTILE,
    choose_columns,
    clip_map,
    comparison_png,
    describe_image,
    describe_settings,
    describe_shortfall,
    describe_sizes,
    format_row,
    paint_ground_truth,
)
from becausal.render.pages import data_uri, render_page
from becausal.render.painting import as_png, colour_stops, paint_explanation, paint_image, paint_map
from becausal.render.sheets import lay_out
from becausal.render.wording import as_text, describe_box, describe_purpose, describe_target, question

MEANINGS = {
    "size": "share of the view in the explanation: the set found by the method itself (causal), else the shortest prefix "
    "of the map's ranking that keeps the label (and, with levels, 90 % of its confidence)",
    "label size": "the same for the level inside it that keeps the label alone",
    "minimal": "side of the cells of which none can be removed; no: the search ended before that was proved",
    "overlap": "share of the explanation that lies on the occluder",
    "insertion": f"area under the label's probability while pixels are revealed, highest first, in {STEPS} steps",
    "deletion": f"area under the label's probability while pixels are masked, highest first, in {STEPS} steps",
    "backgrounds": f"share of {HELD_OUT_COUNT} random backgrounds that no search has seen on which the explanation "
    "keeps its label",
    "confidence": "probability of the label when only the explanation is visible",
    "pieces": "connected components of the explanation",
    "calls": "masked images evaluated by the model, including extraction; gradients are not counted",
    "seconds": "run time of the method with extraction, without the metrics",
}
BOX_MEANINGS = MEANINGS | {
    "size": MEANINGS["size"].replace("the label", "the box"),
    "label size": MEANINGS["label size"].replace("the label", "the box"),
    "insertion": MEANINGS["insertion"].replace("the label's probability", "the score of the box"),
    "deletion": MEANINGS["deletion"].replace("the label's probability", "the score of the box"),
    "backgrounds": MEANINGS["backgrounds"].replace("its label", "the box"),
    "confidence": "score of the box when only the explanation is visible",
}
ARROWS = {
    "size": "↓", "label size": "↓", "overlap": "↓", "insertion": "↑", "deletion": "↓", "backgrounds": "↑",
}  # which direction is better  # fmt: skip
CONTROLS = ("random", "centre")


def render_comparison(comparison: Comparison) -> str:
    """The page as text; no scripts, no external fonts, images or styles."""
    is_signal = comparison.first.visible.ndim == 1
    columns = choose_columns(comparison)
    meanings = MEANINGS if comparison.first.target.box is None else BOX_MEANINGS
    return render_page(
        "comparison.html",
        first=comparison.first,
        question=question(comparison.first),
        title=as_text(question(comparison.first)),
        target=describe_target(comparison.first),
        count=len(comparison.rows),
        settings=describe_settings(comparison),
        columns=[(c, ARROWS.get(c, "")) for c in columns],
        rows=_format_rows(comparison, columns),
        meanings=[(c, meanings[c]) for c in columns[1:]],
        shortfalls=[(row.method, text) for row in comparison.rows if (text := describe_shortfall(row))],
        failures=[(row.method, row.error) for row in comparison.rows if row.explanation is None],
        signal=data_uri(comparison_png(comparison)) if is_signal else "",
        cards=[] if is_signal else _paint_cards(comparison),
        has_levels=len(comparison.first.levels) > 1,
        purpose=describe_purpose(comparison.first.level, comparison.first),
        inner_purpose=describe_purpose(comparison.first.levels[0], comparison.first),
        colour_stops=colour_stops(),
        percentile=CLIP_PERCENTILE,
    )


def _format_rows(comparison: Comparison, columns: list[str]) -> list[dict[str, Any]]:
    """The lines of the table: cells as (text, class)."""
    ran = [row for row in comparison.rows if row.explanation is not None]
    ranked = {c: [value for row in ran if (value := _value(row, c)) is not None] for c in ARROWS}
    best = {c: (max if ARROWS[c] == "↑" else min)(values) for c, values in ranked.items() if values}
    lines = []
    for row in ran:
        text = format_row(row)
        cells = [(text[c], _cell_class(row, c, best)) for c in columns[1:]]
        lines.append({"method": row.method, "is_control": row.method in CONTROLS, "cells": cells})
    return lines


def _cell_class(row: Row, column: str, best: dict[str, float]) -> str:
    if column == "minimal" and row.is_coarser:
        return "flag"
    return "best" if column in best and _value(row, column) == best[column] else ""


def _value(row: Row, column: str) -> float | None:
    """The number that competes to be the best of its column; controls do not compete."""
    if row.explanation is None or row.method in CONTROLS:
        return None
    match column:
        case "size":
            return row.explanation.size
        case "label size":
            return row.explanation.levels[0].size
        case "overlap":
            return row.overlap
        case "insertion":
            return None if row.curves is None else row.curves.insertion_area
        case "deletion":
            return None if row.curves is None else row.curves.deletion_area
        case "backgrounds":
            return None if row.transfer is None else row.transfer.share
    return None


def _paint_cards(comparison: Comparison) -> list[dict[str, Any]]:
    """One card for the image, then one for each method that ran."""
    sheet = lay_out(comparison.first)
    images = [paint_image(sheet)]
    if comparison.truth is not None:
        images.append(paint_ground_truth(comparison, sheet))
    label, box = comparison.first.label, describe_box(comparison.first)
    alt = f"Image with the box of {label} {box}" if box else f"Image labelled {label}"
    cards = [{"title": "Image", "text": describe_image(comparison), "alt": alt}]
    painted = [(sheet, images)]
    for row in comparison.rows:
        if row.explanation is not None:
            sheet = lay_out(clip_map(row.explanation))
            painted.append((sheet, [paint_map(sheet), paint_explanation(sheet)]))
            cells = format_row(row)
            shortfall = f"; {found}" if (found := describe_shortfall(row)) else ""
            size = f"{describe_sizes(row.explanation)} of the view"
            text = f"{size}, {cells['calls']} calls, {cells['seconds']} s{shortfall}"
            cards.append({"title": row.method, "text": text, "alt": f"Map and explanation by {row.method}: {text}"})
    return [
        card | {"images": [data_uri(as_png(pixels, sheet)) for pixels in images]}
        for card, (sheet, images) in zip(cards, painted, strict=True)
    ]
