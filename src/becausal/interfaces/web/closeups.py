"""A closer look at an answer, as HTML: the slider along the ranking, and why one pixel is needed."""

import json
import math
from html import escape

import numpy as np

from becausal.api.explanation import Explanation
from becausal.core.contracts import Pixels, Visible
from becausal.interfaces.web.markup import draw_figure, write_share
from becausal.interfaces.web.pictures import array_uri
from becausal.interfaces.web.questions import Reveal, Said, Witness
from becausal.render.sheets import as_rgb, span
from becausal.render.wording import say_confidence


def draw_reveal(explanation: Explanation, reveal: Reveal) -> str:
    """The slider along the ranking: the page's script draws on the canvas, from what is here."""
    low, high = span(explanation.view)
    view, hidden = (as_rgb(p, low, high) for p in (explanation.view, explanation.backgrounds[0]))
    steps = [
        [write_share(step.share), f"{step.pixels:,}", step.label, say_confidence(step.confidence), step.holds]
        for step in reveal.steps
    ]
    heights = [0.0 if math.isnan(step.confidence) else step.confidence for step in reveal.steps]
    last = max(1, len(heights) - 1)
    line = " ".join(f"{100 * i / last:.2f},{30 * (1 - height):.2f}" for i, height in enumerate(heights))
    h, w = explanation.visible.shape
    label = escape(explanation.label)
    return (
        '<section class="bc-card"><h3>How much does it need?</h3>'
        "<p>The explanation first, then the other pixels in the order of the map. Move the slider to show more of them, "
        "and see what the classifier says to them alone.</p>"
        f'<div class="bc-reveal" data-label="{label}" data-steps="{escape(json.dumps(steps))}">'
        f'<canvas width="{w}" height="{h}" role="img"></canvas>'
        f'<div><p class="bc-answer" aria-live="polite"></p>'
        f'<svg viewBox="0 0 100 30" preserveAspectRatio="none" aria-hidden="true"><polyline points="{line}"/>'
        '<line y1="0" y2="30" x1="0" x2="0"/></svg>'
        f'<input type="range" min="0" max="{last}" value="{reveal.start}" aria-label="How much of the ranking is shown">'
        f'<p class="bc-ends"><span>fewest pixels</span><span>confidence in {label}</span><span>all</span></p></div>'
        f'<img class="bc-data" alt="" src="{array_uri(view)}"><img class="bc-data" alt="" src="{array_uri(hidden)}">'
        f'<img class="bc-data" alt="" src="{array_uri(reveal.entry)}"></div></section>'
    )


def draw_witness(explanation: Explanation, witness: Witness, row: int, column: int) -> str:
    """Why this pixel: the image with it and the image without it, near enough to see the difference."""
    why = witness.why
    low, high = span(explanation.view)
    text = escape(why.text[:1].upper() + why.text[1:])
    top, left, side = near(explanation.visible, row, column)
    place = f"top: {100 * (row + 0.5 - top) / side:.2f}%; left: {100 * (column + 0.5 - left) / side:.2f}%"

    def show(pixels: Pixels, title: str, alt: str) -> str:
        part = as_rgb(pixels, low, high)[top : top + side, left : left + side]
        mark = f'<i class="bc-cursor" style="{place}"></i>'
        return draw_figure(array_uri(part), title, "", alt, inner=mark, extra='class="bc-mark"')

    what = "With it" if why.without is not None else "The explanation alone"
    figures = show(why.shown, f"{what}: {_says(witness.shown)}", "The explanation alone")
    if why.without is not None and witness.without is not None:
        figures += show(why.without, f"Without it: {_says(witness.without)}", "The explanation without this pixel's cell")
    return (
        f'<section class="bc-card" data-row="{row}" data-column="{column}" data-part="{json.dumps(why.part)}">'
        f"<h3>Why the pixel in row {row}, column {column}?</h3>"
        f'<p role="status">{text}.</p><div class="bc-pair">{figures}</div></section>'
    )


def near(visible: Visible, row: int, column: int) -> tuple[int, int, int]:
    """Top, left and side of a square that holds the set and the pixel, with some room around them, inside of the view."""
    h, w = visible.shape
    rows = np.append(np.flatnonzero(visible.any(axis=1)), row)
    columns = np.append(np.flatnonzero(visible.any(axis=0)), column)
    reach = int(max(np.ptp(rows), np.ptp(columns))) + 1
    side = min(h, w, max(reach + reach // 3, min(h, w) // 4))
    top = int(np.clip((rows.min() + rows.max() + 1 - side) // 2, 0, h - side))
    left = int(np.clip((columns.min() + columns.max() + 1 - side) // 2, 0, w - side))
    return top, left, side


def _says(said: Said) -> str:
    confidence = say_confidence(said.own)
    mark = "yes" if said.holds else "no"
    return f'<em class="bc-{mark}">{escape(said.label)}{f" ({escape(confidence)})" if confidence else ""}</em>'
