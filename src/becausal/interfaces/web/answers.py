"""What was found, as HTML: the explanation, several of them, two methods side by side."""

import json
from dataclasses import replace
from hashlib import sha256
from html import escape

import numpy as np

from becausal.api.explanation import Explanation
from becausal.core.comparison import Comparison, Row
from becausal.interfaces.web.markup import (
    NBSP,
    draw_checks,
    draw_download,
    draw_figure,
    draw_figures,
    draw_pictures,
    lay_answer,
    write_share,
)
from becausal.interfaces.web.pictures import file_uri
from becausal.render.comparison import COLUMNS, table_of
from becausal.render.painting import as_png, colour_stops, paint_explanation, paint_map
from becausal.render.sheets import lay_out
from becausal.render.wording import say_confidence, say_count, say_stopped


def draw_found(explanation: Explanation, token: str) -> str:
    """The answer: a sentence, the explanation and the map, the figures, what was checked, the way to the files."""
    sheet = lay_answer(explanation)
    label = escape(explanation.label)
    share, pieces = write_share(explanation.size), say_count(explanation.pieces, "piece")
    place = first_pixel(explanation)
    h, w = explanation.visible.shape
    lit = draw_figure(
        file_uri(as_png(paint_explanation(sheet), sheet)),
        "The explanation",
        f"What is in the light is enough for {label}. <strong>Choose a pixel</strong> to see why it is needed.",
        f"The explanation: {share} of the pixels in {pieces}, the rest darkened",
        inner='<i class="bc-cursor"></i>',
        extra=f'class="bc-pixels" tabindex="0" role="application" aria-roledescription="image of pixels" '
        f'aria-label="The explanation. Arrow keys move the cursor, Enter asks why the pixel under it is needed." '
        f'data-rows="{h}" data-columns="{w}" data-row="{place[0]}" data-column="{place[1]}" '
        f'data-step="{explanation.checks.minimal_grain or 1}"',
    )
    heat = draw_figure(
        file_uri(as_png(paint_map(sheet), sheet)),
        "The responsibility map",
        f'How responsible each pixel is for {label}.<span class="bc-scale"><i>least</i>'
        f'<span style="background: linear-gradient(90deg, {colour_stops()})"></span><i>most</i></span>',
        f"The responsibility map for {label}, with the explanation outlined",
    )
    warning = say_stopped(explanation)
    cut = f'<p class="bc-warning" role="note"><b>Cut short.</b> {escape(warning)}</p>' if warning else ""
    notes = "".join(f"<li>{escape(note)}</li>" for note in explanation.notes)
    return (
        f'<section class="bc-stage" data-state="done" data-result="{escape(json.dumps(summary(explanation)))}">'
        f'<h2 class="bc-say" role="status">{say_found(explanation)}</h2>{cut}'
        f"{draw_pictures(lit, heat)}{draw_figures(figures_of(explanation))}{draw_checks(explanation)}"
        + (f'<ul class="bc-notes">{notes}</ul>' if notes else "")
        + draw_download(token, "Download all of it", "report, images, arrays and certificate, as a zip file")
        + "</section>"
    )


def say_found(explanation: Explanation) -> str:
    """The answer as a sentence or two, in HTML."""
    label, target = f"<em>{escape(explanation.label)}</em>", explanation.target
    confidence = say_confidence(explanation.confidence)
    known = f" ({escape(confidence)})" if confidence else ""
    if target.top > 1:
        says, kept = f"{label}{known} is number {target.top} of what the classifier says.", "to keep it there"
    else:
        says, kept = f"The classifier says {label}{known}.", "for that"
    if target.floor > 0:
        kept += f", with a confidence of at least {target.floor:{'.2f' if target.floor >= 0.01 else '.1g'}}"
    if explanation.checks.sufficient:
        return f"{says} <b>These {write_share(explanation.size)} of the pixels</b> alone are enough {kept}."
    return f"{says} No small set was found: the best so far has {write_share(explanation.size)} of the pixels."


def summary(explanation: Explanation) -> dict[str, object]:
    """What a program may want to read off the page."""
    return {
        "image": explanation.origin.image,
        "image_sha256": explanation.origin.image_sha256,
        "label": explanation.label,
        "method": explanation.origin.method,
        "pixels": explanation.pixels,
        "calls": explanation.calls,
        "stopped_by": explanation.stopped_by,
        "visible_sha256": sha256(np.packbits(explanation.visible).tobytes()).hexdigest(),
    }


def figures_of(explanation: Explanation) -> list[tuple[str, str]]:
    """The numbers beside the answer."""
    return [
        ("size", write_share(explanation.size)),
        ("pieces", f"{explanation.pieces:,}"),
        ("confidence alone", say_confidence(explanation.checks.confidence) or "unknown"),
        ("calls", f"{explanation.calls:,}"),
        ("time", f"{explanation.seconds:.1f}{NBSP}s"),
    ]


def first_pixel(explanation: Explanation) -> tuple[int, int]:
    """The pixel of the explanation that is nearest to its centre: where a cursor begins."""
    rows, columns = np.nonzero(explanation.visible)
    if not len(rows):
        return (0, 0)
    i = int(np.argmin((rows - rows.mean()) ** 2 + (columns - columns.mean()) ** 2))
    return int(rows[i]), int(columns[i])


def draw_others(explanation: Explanation) -> str:
    """Several explanations side by side; nothing where there is one."""
    if not explanation.others:
        return ""
    sheet, label = lay_out(explanation), escape(explanation.label)
    figures = "".join(
        draw_figure(
            file_uri(as_png(paint_explanation(replace(sheet, visible=visible)), sheet)),
            f"Explanation {number}",
            f"{write_share(float(visible.mean()))} of the pixels",
            f"Explanation {number} for {label}",
        )
        for number, visible in enumerate((explanation.visible, *explanation.others), start=1)
    )
    return (
        '<section class="bc-card"><h3>Each of these alone is enough</h3>'
        f"<p>They share no pixel: the classifier has {len(explanation.others) + 1} separate reasons to say {label}.</p>"
        f'<div class="bc-several">{figures}</div></section>'
    )


def draw_comparison(comparison: Comparison, token: str) -> str:
    """Two methods side by side: map, explanation, and a table of figures."""
    first = comparison.first
    cards = "".join(_method(row) for row in comparison.rows)
    ran = [table_of(row) for row in comparison.rows if row.explanation is not None]
    columns = [name for name in COLUMNS if name != "overlap" and any(cells[name] for cells in ran)]
    head = "".join(f'<th scope="col">{name}</th>' for name in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cells[name]).replace(' %', NBSP + '%')}</td>" for name in columns) + "</tr>"
        for cells in ran
    )
    return (
        f'<section class="bc-stage" data-state="done" data-methods="{escape(",".join(r.method for r in comparison.rows))}">'
        f'<h2 class="bc-say" role="status">Two answers to the same question: why <em>{escape(first.label)}</em>?</h2>'
        f'<div class="bc-methods">{cards}</div>'
        f'<div class="bc-table"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        "<p class='bc-small'>Insertion is better high, deletion low: how fast the confidence comes and goes along the map. "
        "Confidence is that of the explanation alone. Both sets are as fine as their method makes them.</p>"
        + draw_download(token, "Download the comparison", "page, figure and numbers, as a zip file")
        + "</section>"
    )


def _method(row: Row) -> str:
    name = escape(row.method)
    if row.explanation is None:
        return f'<div><h3>{name}</h3><p class="bc-error">{escape(row.error or "")}</p></div>'
    sheet = lay_answer(row.explanation)
    share = write_share(row.explanation.size)
    lit = draw_figure(
        file_uri(as_png(paint_explanation(sheet), sheet)), f"{share} are enough", "", f"The explanation of {name}"
    )
    heat = draw_figure(file_uri(as_png(paint_map(sheet), sheet)), "its map", "", f"The map of {name}")
    return f'<div><h3>{name}</h3><div class="bc-pair">{lit}{heat}</div></div>'
