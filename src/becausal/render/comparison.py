"""Methods side by side: the table, its words, the figure, and the self-contained HTML page."""

from dataclasses import replace
from math import ceil
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np

from becausal.core.explanation import Comparison, ExplanationRecord, Row
from becausal.core.metrics import HELD_OUT_COUNT, STEPS
from becausal.render import wording
from becausal.render.colours import AGAINST, BLANK, FLAG, GROUND_TRUTH, INK, SOFT, ZONES, line_of, rgb_of
from becausal.render.endings import name_failure
from becausal.render.figures import draw_curve, draw_map, new_figure, png_bytes, printable
from becausal.render.numbers import format_confidence, format_share
from becausal.render.pages import data_uri, render_page
from becausal.render.painting import Painted, as_png, colour_stops, dilate, paint_explanation, paint_image, paint_map
from becausal.render.sheets import Sheet, enlarge, lay_out

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = (
    "method", "size", "backgrounds", "core size", "core backgrounds", "minimal", "overlap", "insertion", "deletion",
    "confidence", "pieces", "calls", "seconds",
)  # fmt: skip
_MEANINGS = {
    "size": "share of the view in the explanation: the set that the method itself found (causal), else the first pixels of "
    "the map, from high to low, that are enough",
    "core size": "share of the view in the core, the set inside it that keeps the confidence in the plain fill",
    "core backgrounds": "share of the random backgrounds on which the core keeps the label",
    "minimal": "side of the cells of which none can be removed from the core, or the only set; no: this was not shown",
    "overlap": "share of the explanation that lies on the occluder",
    "insertion": f"area under the confidence in the label while pixels are revealed, highest first, in {STEPS} steps",
    "deletion": f"area under the confidence in the label while pixels are masked, highest first, in {STEPS} steps",
    "backgrounds": f"share of {HELD_OUT_COUNT} random backgrounds that no search has seen on which the explanation "
    "keeps the label",
    "confidence": "the confidence in the label when only the explanation is visible",
    "pieces": "connected components of the explanation",
    "calls": "masked images evaluated by the model, including extraction; gradients are not counted",
    "seconds": "run time of the method with extraction, without the metrics",
}
_OTHER_WORDS = {  # what is said otherwise of a box or a segment
    "box": ("the confidence in the label", "the score of the box"),
    "segment": ("the confidence in the label", "the IoU of the segment"),
}
_ARROWS = {
    "size": "↓", "backgrounds": "↑", "core size": "↓", "core backgrounds": "↑", "overlap": "↓", "insertion": "↑",
    "deletion": "↓",
}  # which direction is better  # fmt: skip
_CONTROLS = ("random", "centre")
CLIP_PERCENTILE = 99  # maps are clipped here and at 100 minus this, so that a few extreme pixels do not hide the rest
_SIDE, _GAP, _HEAD, _MARGIN = 1.62, 0.30, 0.42, 0.30  # inches
_PAIR = 2 * _SIDE + 0.05  # the width of two images


def _measure(row: Row) -> dict[str, float | None]:
    """The numbers of a method that compete to be the best of their column."""
    found, curves, transfer = row.explanation, row.curves, row.transfer
    if found is None:
        return {}
    held = found.levels[0].checks.transfer
    return {
        "size": found.size,
        "core size": found.levels[0].size if len(found.levels) > 1 else None,
        "core backgrounds": None if held is None or len(found.levels) == 1 else held.share,
        "overlap": row.overlap,
        "insertion": None if curves is None else curves.insertion_area,
        "deletion": None if curves is None else curves.deletion_area,
        "backgrounds": None if transfer is None else transfer.share,
    }


def format_row(row: Row) -> dict[str, str]:
    """The cells of a method as text, by column; only the method's name where it did not run."""
    found = row.explanation
    if found is None:
        return {"method": row.method}
    grain = found.levels[0].checks.minimal_grain
    cells = {"method": row.method}
    for column, value in _measure(row).items():
        form = (lambda area: f"{area:.3f}") if column in ("insertion", "deletion") else format_share
        cells[column] = "" if value is None else form(value)
    return cells | {
        "minimal": "" if found.origin.grain is None else "no" if grain is None else f"{grain} px",
        "confidence": format_confidence(found.checks.confidence),
        "pieces": f"{found.pieces:,}",
        "calls": f"{found.calls:,}",
        "seconds": f"{row.seconds:.1f}",
    }


def choose_columns(comparison: Comparison) -> list[str]:
    """The columns that mean something here: overlap needs ground truth, minimal a grain, the core one."""
    left_out = {"overlap"} if comparison.truth is None else set()
    if all(row.explanation is None or len(row.explanation.levels) == 1 for row in comparison.rows):
        left_out |= {"core size", "core backgrounds"}
    if comparison.first.origin.grain is None:
        left_out.add("minimal")
    return [column for column in COLUMNS if column not in left_out]


def describe_settings(comparison: Comparison, *, is_short: bool = False) -> str:
    """The settings that all methods share, and the methods, or how many, whose sets are not minimal as asked."""
    origin, rows = comparison.first.origin, comparison.rows
    grain = "" if origin.grain is None else f", minimised to {origin.grain} px"
    text = f"fill {' and '.join(origin.request.fills)}{grain}"
    coarser = [row.method for row in rows if row.is_coarser]
    if not coarser:
        return text
    return text + (f" ({len(coarser)} of {len(rows)} not)" if is_short else f" (not reached by {', '.join(coarser)})")


def describe_image(comparison: Comparison) -> str:
    """The caption of the image: the settings and the legend."""
    legend = "" if comparison.truth is None else "; occluder outlined in orange"
    return describe_settings(comparison, is_short=True) + legend


def describe_sizes(explanation: ExplanationRecord) -> str:
    """The size of the explanation and, where there are levels, of the smallest one: 7.1 % (label 3.2 %)."""
    smallest = f" ({explanation.levels[0].name} {format_share(explanation.levels[0].size)})"
    return format_share(explanation.size) + (smallest if len(explanation.levels) > 1 else "")


def describe_shortfall(row: Row) -> str:
    """What a row lacks because its search ended early, in a few words; empty where nothing."""
    found = row.explanation
    if found is None:
        return ""
    reasons = {"budget": "out of budget", "interrupt": "interrupted", "failure": name_failure(found)}
    words = [] if found.stopped_by == "finished" else [reasons.get(found.stopped_by, found.stopped_by)]
    if row.is_coarser:
        grain = found.levels[0].checks.minimal_grain
        words.append("not minimal" if grain is None else f"minimal at {grain} px only")
    return ", ".join(words)


def comparison_png(comparison: Comparison) -> bytes:
    """The comparison figure as the content of a PNG file: cards, or of signals a row per method that ran, with its map."""
    if comparison.first.visible.ndim > 1:
        return png_bytes(_plot_cards(comparison))
    ran = [(row, row.explanation) for row in comparison.rows if row.explanation is not None]
    figure = new_figure(10.0, 1.7 * len(ran) + 0.6)
    panels = figure.subplots(len(ran), 2, squeeze=False, width_ratios=(3, 2))
    for (row, explanation), (left, right) in zip(ran, panels, strict=True):
        draw_curve(left, explanation)
        draw_map(right, explanation)
        shortfall = f" ({found})" if (found := describe_shortfall(row)) else ""
        title = f"{row.method}: {describe_sizes(explanation)}{shortfall}"
        left.set_title(title, loc="left", fontsize=9, color=INK, parse_math=False)
    return png_bytes(figure)


def clip_map(explanation: ExplanationRecord) -> ExplanationRecord:
    """The explanation with its map clipped to the percentiles (and to 0), for display only."""
    values = explanation.responsibility
    low = max(0.0, float(np.percentile(values, 100 - CLIP_PERCENTILE)))
    high = float(np.percentile(values, CLIP_PERCENTILE))
    if high <= low:
        return explanation
    return replace(explanation, responsibility=np.clip(values, low, high) - low)


def paint_ground_truth(comparison: Comparison, sheet: Sheet) -> Painted:
    """The image, faded, with the occluder outlined."""
    image = paint_image(sheet)
    out = (image * 0.45 + 120).astype(np.uint8)
    if comparison.truth is not None and comparison.truth.ndim == 2:
        inside = enlarge(comparison.truth, sheet.scale)
        line = dilate(inside, max(2, max(inside.shape) // 150)) & ~inside
        out[inside] = image[inside]
        out[line] = rgb_of(GROUND_TRUTH)
    return out


def _plot_cards(comparison: Comparison) -> "Figure":
    """A card of the image, then one per method with map and explanation side by side."""
    first, count = comparison.first, len(comparison.rows) + 1
    columns = 2 if count <= 4 else 3 if count <= 9 else 4
    lines = ceil(count / columns)
    h, w = lay_out(first).visible.shape
    tall = _SIDE * float(np.clip(h / w, 0.2, 3.0))
    width = 2 * _MARGIN + columns * _PAIR + (columns - 1) * _GAP
    height = 2 * _MARGIN + 0.35 + lines * (tall + _HEAD) + (lines - 1) * 0.5 * _GAP
    figure = new_figure(width, height)
    figure.set_layout_engine("none")
    title = printable(f"{wording.as_text(wording.question(first))}  {first.origin.image}", 90)
    figure.text(_MARGIN / width, 1 - _MARGIN / height, title, fontsize=13, color=INK, va="top", weight="bold",
                parse_math=False)  # fmt: skip
    for number, row in enumerate((None, *comparison.rows)):
        line, column = divmod(number, columns)
        top = _MARGIN + 0.35 + line * (tall + _HEAD + 0.5 * _GAP) + _HEAD  # from the upper edge
        card = _Card(figure, _MARGIN + column * (_PAIR + _GAP), height - top, tall)
        if row is None:
            _draw_image(card, comparison)
        else:
            _draw_method(card, row)
    return figure


class _Card:
    """A title and two images next to each other; positions in inches from the lower left corner of the figure."""

    def __init__(self, figure: "Figure", left: float, top: float, tall: float) -> None:
        self._figure = figure
        self._left, self._top, self._tall = left, top, tall
        self._width, self._height = figure.get_size_inches()

    def set_title(self, name: str, text: str, *, flag: str = "") -> None:
        """Write a name and a line of text above the images, and a warning at the right of the name."""
        x, y = (self._left + _PAIR) / self._width, (self._top + 0.21) / self._height
        self._figure.text(x, y, flag, fontsize=7.5, color=FLAG, ha="right")
        for line, above, size, colour, weight in ((name, 0.21, 10.5, INK, "bold"), (text, 0.06, 7.5, SOFT, "normal")):
            x, y = self._left / self._width, (self._top + above) / self._height
            self._figure.text(x, y, line, fontsize=size, color=colour, weight=weight, parse_math=False)

    def add_axes(self, number: int = 0, width: float = _SIDE) -> "Axes":
        """The area of the left (0) or right (1) image."""
        x, y = self._left + number * (_SIDE + 0.05), self._top - self._tall
        box = (x / self._width, y / self._height, width / self._width, self._tall / self._height)
        return self._figure.add_axes(box)

    def add_image(self, number: int, painted: Painted) -> None:
        """Show painted pixels on the left (0) or right (1)."""
        axes = self.add_axes(number)
        axes.imshow(painted, interpolation="antialiased", aspect="auto")
        axes.set_axis_off()


def _draw_image(card: _Card, comparison: Comparison) -> None:
    sheet = lay_out(comparison.first)
    card.set_title("image", describe_image(comparison))
    card.add_image(0, paint_image(sheet))
    if comparison.truth is not None:
        card.add_image(1, paint_ground_truth(comparison, sheet))
        return
    axes = card.add_axes(1)
    axes.set_axis_off()
    found = [row.explanation for row in comparison.rows if row.explanation is not None]
    legend = "left: the map\nright: the explanation,\nenough on its own"
    if any(len(one.levels) > 1 for one in found):
        legend += "\n\nwhite line: enough\nred line: the core"
    if any(one.against is not None for one in found):
        legend += "\nstriped: against"
    axes.text(0.06, 0.5, legend, fontsize=8, color=SOFT, va="center")


def _draw_method(card: _Card, row: Row) -> None:
    if row.explanation is None:
        card.set_title(row.method, "did not run")
        axes = card.add_axes(width=_PAIR)
        axes.set_facecolor(BLANK)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set_visible(False)
        lines = wrap(printable(row.error or "", 400), 46)
        text = "\n".join(lines[:8]) + (" …" if len(lines) > 8 else "")
        axes.text(0.04, 0.92, text, fontsize=7.5, color=SOFT, va="top", parse_math=False)
        return
    cells = format_row(row)
    words = [describe_sizes(row.explanation), f"{cells['calls']} calls"]
    if row.overlap is not None:
        words.insert(1, f"{cells['overlap']} on the occluder")
    card.set_title(row.method, " · ".join(words), flag=describe_shortfall(row))
    sheet = lay_out(clip_map(row.explanation))
    card.add_image(0, paint_map(sheet))
    card.add_image(1, paint_explanation(sheet))


def render_comparison(comparison: Comparison) -> str:
    """The page as text; no scripts, no external fonts, images or styles."""
    is_signal = comparison.first.visible.ndim == 1
    columns = choose_columns(comparison)
    first, meanings = comparison.first, _MEANINGS
    ran = [row.explanation for row in comparison.rows if row.explanation is not None]
    levels = max((found.levels for found in ran), key=len)
    own = ("the label", f"the {first.target.noun}")
    for words, others in (_OTHER_WORDS.get(first.target.noun, own), own):
        meanings = {column: text.replace(words, others) for column, text in meanings.items()}
    return render_page(
        "comparison.html",
        first=first,
        question=wording.question(first),
        title=wording.as_text(wording.question(first)),
        target=wording.describe_target(first),
        count=len(comparison.rows),
        settings=describe_settings(comparison),
        columns=[(c, _ARROWS.get(c, "")) for c in columns],
        rows=_format_rows(comparison, columns),
        meanings=[(c, meanings[c]) for c in columns[1:]],
        shortfalls=[(row.method, text) for row in comparison.rows if (text := describe_shortfall(row))],
        failures=[(row.method, row.error) for row in comparison.rows if row.explanation is None],
        signal=data_uri(comparison_png(comparison)) if is_signal else "",
        cards=[] if is_signal else _paint_cards(comparison),
        lines=[(line_of(i, len(levels)).colour, level.name) for i, level in enumerate(levels)][::-1],
        is_mixed=any(len(found.levels) < len(levels) for found in ran),
        against_colour=AGAINST if any(found.against is not None for found in ran) else "",
        has_plain_maps=any(found.zones is None for found in ran),
        zones=list(dict.fromkeys((ZONES[zone][0], name) for found in ran for zone, name, _ in wording.list_zones(found))),
        colour_stops=colour_stops(),
        percentile=CLIP_PERCENTILE,
    )


def _format_rows(comparison: Comparison, columns: list[str]) -> list[dict[str, Any]]:
    """The lines of the table: cells as (text, class)."""
    ran = [row for row in comparison.rows if row.explanation is not None]
    ranked = [_measure(row) for row in ran if row.method not in _CONTROLS]  # controls do not compete
    best = {}
    for column, arrow in _ARROWS.items():
        if values := [value for numbers in ranked if (value := numbers[column]) is not None]:
            best[column] = (max if arrow == "↑" else min)(values)
    lines = []
    for row in ran:
        text, numbers, is_control = format_row(row), _measure(row), row.method in _CONTROLS
        marks = {column: "best" for column, value in best.items() if not is_control and numbers[column] == value}
        marks |= {"minimal": "flag"} if row.is_coarser else {}
        cells = [(text[c], marks.get(c, "")) for c in columns[1:]]
        lines.append({"method": row.method, "is_control": is_control, "cells": cells})
    return lines


def _paint_cards(comparison: Comparison) -> list[dict[str, Any]]:
    """One card for the image, then one for each method that ran."""
    sheet = lay_out(comparison.first)
    images = [paint_image(sheet)]
    if comparison.truth is not None:
        images.append(paint_ground_truth(comparison, sheet))
    label, place = comparison.first.label, wording.describe_place(comparison.first)
    noun = comparison.first.target.noun
    alt = f"Image labelled {label} {place}" if noun == "label" else f"Image with the {noun} of {label} {place}"
    cards = [{"title": "Image", "text": describe_image(comparison), "alt": alt.rstrip()}]
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
