"""HTML of results: an explanation, several of them, a comparison, the slider along the ranking, proof for a pixel."""

import json
import math
from dataclasses import replace
from hashlib import sha256
from typing import Any

import numpy as np

from becausal.api.explanation import Explanation
from becausal.core.comparison import Comparison
from becausal.core.contracts import Pixels, Visible
from becausal.core.explanation import ExplanationRecord
from becausal.core.frames import Frame
from becausal.interfaces.serve.images import encode_png, show_array
from becausal.interfaces.serve.predictions import RankingSteps, Witness
from becausal.interfaces.serve.rendering import NBSP, format_share_nbsp, render
from becausal.render.comparison import COLUMNS, clip_map, describe_sizes, format_row
from becausal.render.limits import describe_stop
from becausal.render.pages import data_uri
from becausal.render.painting import COLOURS, colour_stops, line_of, paint_explanation, paint_map
from becausal.render.sheets import as_rgb, lay_out, lay_out_original, value_range
from becausal.render.wording import (
    describe_checks,
    describe_extent,
    describe_pieces,
    describe_purpose,
    format_confidence,
    format_count,
    headline,
    list_claims,
)

VISIBLE_DIP = 0.1  # fall of the confidence behind the explanation that needs a sentence
CHECKS = ("sufficient", "any background", "minimal", "necessary")  # of all checks, those shown on the page


def render_explanation(explanation: Explanation, address: str) -> str:
    """The result: a sentence, explanation and map, statistics, checks and the download link."""
    return render(
        "explanation",
        explanation=explanation,
        headline=[replace(span, text=span.text.replace(" %", f"{NBSP}%")) for span in headline(explanation)],
        address=address,
        summary=json.dumps(summarise(explanation)),
        warning=describe_stop(explanation),
        images=_draw_images(explanation),
        pieces=format_count(explanation.pieces, "piece"),
        pixel_attributes=_pixel_attributes(explanation),
        colour_stops=colour_stops(),
        levels=_describe_levels(explanation),
        figures=[
            ("size", format_share_nbsp(explanation.size)),
            ("pixels", f"{explanation.pixels:,}"),
            ("pieces", f"{explanation.pieces:,}"),
            ("confidence alone", format_confidence(explanation.checks.confidence) or "unknown"),
            ("model calls", f"{explanation.calls:,}"),
            ("time", f"{explanation.seconds:.1f}{NBSP}s"),
        ],
        checks=[check for check in describe_checks(explanation) if check.name in CHECKS],
    )


def _describe_levels(explanation: Explanation) -> list[dict[str, str]]:
    """Each level, the largest first: its line, its numbers and what it is enough for."""
    count = len(explanation.levels)
    return [
        {
            "name": level.name,
            "purpose": describe_purpose(level, explanation).replace(" %", f"{NBSP}%"),
            "colour": line_of(number, count).colour,
            "size": format_share_nbsp(level.size),
            "pieces": describe_pieces(level),
            "confidence": format_confidence(level.checks.confidence) or "unknown",
        }
        for number, level in reversed(list(enumerate(explanation.levels)))
    ]


def summarise(explanation: Explanation) -> dict[str, Any]:
    """The result for programs that read the page."""
    return {
        "image": explanation.origin.image,
        "image_sha256": explanation.origin.image_sha256,
        "label": explanation.label,
        "method": explanation.origin.method,
        "level": explanation.level.name,
        "pixels": explanation.pixels,
        "levels": {level.name: level.pixels for level in explanation.levels},
        "calls": explanation.calls,
        "stopped_by": explanation.stopped_by,
        "visible_sha256": sha256(np.packbits(explanation.visible).tobytes()).hexdigest(),
    }


def central_pixel(explanation: Explanation) -> tuple[int, int]:
    """The pixel of the explanation nearest to its centre, where the cursor starts."""
    rows, columns = np.nonzero(explanation.visible)
    if not len(rows):
        return (0, 0)
    i = int(np.argmin((rows - rows.mean()) ** 2 + (columns - columns.mean()) ** 2))
    return int(rows[i]), int(columns[i])


def render_others(explanation: Explanation) -> str:
    """Several explanations side by side; empty if there is only one."""
    if not explanation.others:
        return ""
    sheet = lay_out(explanation)
    images = [
        {
            "uri": show_array(paint_explanation(sheet.only(number))),
            "colour": COLOURS[number % len(COLOURS)],
            "extent": describe_extent(found).replace(" %", f"{NBSP}%"),
            "claims": ", ".join(list_claims(found)),
        }
        for number, found in enumerate(explanation.sets)
    ]
    are_sufficient = all(found.checks.sufficient for found in explanation.sets)
    return render("others", label=explanation.label, images=images, are_sufficient=are_sufficient)


def render_comparison(comparison: Comparison, address: str) -> str:
    """Two methods side by side: maps, explanations and a table of metrics."""
    cells = [format_row(row) for row in comparison.rows if row.explanation is not None]
    methods = [
        {"name": row.method, "error": row.error or ""}
        if row.explanation is None
        else {
            "name": row.method,
            "error": None,
            "size": describe_sizes(row.explanation).replace(" %", f"{NBSP}%"),
            "images": _draw_images(row.explanation),
        }
        for row in comparison.rows
    ]
    return render(
        "comparison",
        label=comparison.first.label,
        is_box=comparison.first.target.box is not None,
        address=address,
        methods=methods,
        columns=[name for name in COLUMNS if name != "overlap" and any(row[name] for row in cells)],
        rows=[{name: text.replace(" %", f"{NBSP}%") for name, text in row.items()} for row in cells],
    )


def render_ranking(explanation: Explanation, ranking: RankingSteps) -> str:
    """The slider along the ranking; the page's script draws the image from the data in the HTML."""
    low, high = value_range(explanation.view)
    heights = [0.0 if math.isnan(c) else c for c in (step.prediction.confidence for step in ranking.steps)]
    last, lowest = max(1, len(heights) - 1), min(heights[ranking.start :])
    height, width = explanation.visible.shape
    steps = []
    for step in ranking.steps:
        made = step.prediction
        confidence = format_confidence(made.confidence)
        steps.append([format_share_nbsp(step.share), f"{step.pixels:,}", made.label, confidence, made.holds])
    return render(
        "reveal",
        label=explanation.label,
        is_box=explanation.target.box is not None,
        steps=json.dumps(steps),
        width=width,
        height=height,
        points=" ".join(f"{100 * i / last:.2f},{30 * (1 - value):.2f}" for i, value in enumerate(heights)),
        last=last,
        stops=[
            {
                "step": stop,
                "name": level.name,
                "purpose": describe_purpose(level, explanation),
                "percent": f"{100 * stop / last:.2f}",
            }
            for stop, level in zip(ranking.stops, explanation.levels, strict=True)
        ],
        dip=format_confidence(lowest) if heights[ranking.start] - lowest > VISIBLE_DIP else "",
        start=ranking.start,
        data_uris=[
            show_array(as_rgb(explanation.view, low, high)),
            show_array(as_rgb(explanation.backgrounds[0], low, high)),
            data_uri(encode_png(ranking.entry)),
        ],
    )


def render_witness(explanation: Explanation, witness: Witness, row: int, column: int) -> str:
    """Why this pixel: a close-up of the explanation with it and without it."""
    why = witness.why
    low, high = value_range(explanation.view)
    top, left, side = crop_square(explanation.visible, row, column)

    def crop_uri(pixels: Pixels) -> str:
        return show_array(as_rgb(pixels, low, high)[top : top + side, left : left + side])

    alone = "The explanation alone"
    title = "With it" if why.without is not None else alone
    images = [{"title": title, "uri": crop_uri(why.shown), "alt": alone, "prediction": witness.shown}]
    if why.without is not None and witness.without is not None:
        alt = "The explanation without this pixel's cell"
        images.append({"title": "Without it", "uri": crop_uri(why.without), "alt": alt, "prediction": witness.without})
    return render(
        "witness",
        row=row,
        column=column,
        is_part=why.part,
        text=why.text[:1].upper() + why.text[1:],
        images=images,
        top=f"{100 * (row + 0.5 - top) / side:.2f}",
        left=f"{100 * (column + 0.5 - left) / side:.2f}",
    )


def crop_square(visible: Visible, row: int, column: int) -> tuple[int, int, int]:
    """Top, left and side of a square inside the view that contains the set and the pixel, with a margin."""
    h, w = visible.shape
    rows = np.append(np.flatnonzero(visible.any(axis=1)), row)
    columns = np.append(np.flatnonzero(visible.any(axis=0)), column)
    extent = int(max(np.ptp(rows), np.ptp(columns))) + 1
    side = min(h, w, max(extent + extent // 3, min(h, w) // 4))
    top = int(np.clip((rows.min() + rows.max() + 1 - side) // 2, 0, h - side))
    left = int(np.clip((columns.min() + columns.max() + 1 - side) // 2, 0, w - side))
    return top, left, side


def _draw_images(explanation: ExplanationRecord) -> dict[str, str]:
    """The explanation and its map as data URIs; maps of other methods are clipped, since most have a few extreme values."""
    sheet = lay_out_original(explanation if explanation.origin.method == "causal" else clip_map(explanation))
    return {
        "explanation": show_array(paint_explanation(sheet)),
        "map": show_array(paint_map(sheet)),
    }


def _pixel_attributes(explanation: Explanation) -> dict[str, Any]:
    """HTML attributes of the image on which pixels are selected. data-view: where the view lies on it, as shares of it."""
    (rows, columns), (row, column) = explanation.visible.shape, central_pixel(explanation)
    frame = Frame.identity(explanation.visible.shape) if explanation.original is None else explanation.frame
    places = [(f / o, g * s / o) for f, g, s, o in zip(frame.offset, frame.grid, frame.scale, frame.original, strict=True)]
    return {
        "class": "bc-pixels",
        "tabindex": 0,
        "role": "application",
        "aria-roledescription": "image of pixels",
        "aria-label": "Explanation. Move the cursor with the arrow keys; press Enter to see why the pixel is needed.",
        "data-rows": rows,
        "data-columns": columns,
        "data-row": row,
        "data-column": column,
        "data-step": explanation.checks.minimal_grain or 1,
        "data-view": " ".join(f"{number:.6f}" for place in places for number in place),  # top, height, left, width
    }
