"""Methods side by side: the comparison figure and the cells of its table."""

from dataclasses import replace
from math import ceil
from textwrap import wrap
from typing import TYPE_CHECKING

import numpy as np

from becausal.core.comparison import Comparison, Row
from becausal.core.explanation import ExplanationRecord
from becausal.render.figures import INK, SOFT, new_figure, png_bytes, printable
from becausal.render.limits import name_failure
from becausal.render.painting import Painted, dilate, paint_explanation, paint_image, paint_map
from becausal.render.sheets import Sheet, enlarge, lay_out
from becausal.render.signals import draw_curve, draw_map
from becausal.render.wording import as_text, describe_purpose, format_confidence, format_share, question

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = (
    "method", "size", "label size", "minimal", "overlap", "insertion", "deletion",
    "backgrounds", "confidence", "pieces", "calls", "seconds",
)  # fmt: skip
CLIP_PERCENTILE = 99  # maps are clipped here and at 100 minus this, so that a few extreme pixels do not hide the rest
_SIDE, _GAP, _HEAD, _MARGIN = 1.62, 0.30, 0.42, 0.30  # inches
_PAIR = 2 * _SIDE + 0.05  # the width of two images
_FLAG = "#9c2b1f"
_GROUND_TRUTH = np.array([255, 176, 32], np.uint8)


def format_row(row: Row) -> dict[str, str]:
    """The cells of a method as text, by column; only the method's name where it did not run."""
    found, curves = row.explanation, row.curves
    if found is None:
        return {"method": row.method}
    return {
        "method": row.method,
        "size": format_share(found.size),
        "label size": format_share(found.levels[0].size) if len(found.levels) > 1 else "",
        "minimal": _format_minimal(found),
        "overlap": "" if row.overlap is None else format_share(row.overlap),
        "insertion": "" if curves is None else f"{curves.insertion_area:.3f}",
        "deletion": "" if curves is None else f"{curves.deletion_area:.3f}",
        "backgrounds": "" if row.transfer is None else format_share(row.transfer.share),
        "confidence": format_confidence(found.checks.confidence),
        "pieces": f"{found.pieces:,}",
        "calls": f"{found.calls:,}",
        "seconds": f"{row.seconds:.1f}",
    }


def choose_columns(comparison: Comparison) -> list[str]:
    """The columns that mean something here: overlap needs ground truth, minimal a grain, the label's size levels."""
    left_out = {"overlap"} if comparison.truth is None else set()
    if len(comparison.first.levels) == 1:
        left_out.add("label size")
    if comparison.first.origin.grain is None:
        left_out.add("minimal")
    return [column for column in COLUMNS if column not in left_out]


def describe_settings(comparison: Comparison) -> str:
    """The settings that all methods share, in a few words, and the methods whose sets are not minimal as asked."""
    coarser = [row.method for row in comparison.rows if row.is_coarser]
    return _describe_fill(comparison) + (f" (not reached by {', '.join(coarser)})" if coarser else "")


def describe_image(comparison: Comparison) -> str:
    """The caption of the image: the settings and the legend."""
    count = sum(row.is_coarser for row in comparison.rows)
    coarser = f" ({count} of {len(comparison.rows)} not)" if count else ""
    return _describe_fill(comparison) + coarser + ("" if comparison.truth is None else "; occluder outlined in orange")


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
        grain = found.checks.minimal_grain
        words.append("not minimal" if grain is None else f"minimal at {grain} px only")
    return ", ".join(words)


def _describe_fill(comparison: Comparison) -> str:
    origin = comparison.first.origin
    grain = "" if origin.grain is None else f", minimised to {origin.grain} px"
    return f"fill {' and '.join(origin.fills)}{grain}"


def _format_minimal(explanation: ExplanationRecord) -> str:
    if explanation.origin.grain is None:
        return ""
    grain = explanation.checks.minimal_grain
    return "no" if grain is None else f"{grain} px"


def comparison_png(comparison: Comparison) -> bytes:
    """The comparison figure as the content of a PNG file."""
    is_signal = comparison.first.visible.ndim == 1
    return png_bytes(_plot_signals(comparison) if is_signal else _plot_cards(comparison))


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
        out[line] = _GROUND_TRUTH
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
    title = printable(f"{as_text(question(first))}  {first.origin.image}", 90)
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
        self._figure.text(x, y, flag, fontsize=7.5, color=_FLAG, ha="right")
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
    legend = "left: the map\nright: the explanation,\nsufficient on its own"
    if len(comparison.first.levels) > 1:
        inner = describe_purpose(comparison.first.levels[0], comparison.first)
        legend += "\n\nouter line: enough for\nmost of the confidence\ninner line: enough for\n" + "\n".join(wrap(inner, 24))
    axes.text(0.06, 0.5, legend, fontsize=8, color=SOFT, va="center")


def _draw_method(card: _Card, row: Row) -> None:
    if row.explanation is None:
        card.set_title(row.method, "did not run")
        axes = card.add_axes(width=_PAIR)
        axes.set_facecolor("#f3f1ed")
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


def _plot_signals(comparison: Comparison) -> "Figure":
    """One row per method that ran: the signal with its explanation, and the map."""
    ran = [(row, row.explanation) for row in comparison.rows if row.explanation is not None]
    figure = new_figure(10.0, 1.7 * len(ran) + 0.6)
    panels = figure.subplots(len(ran), 2, squeeze=False, width_ratios=(3, 2))
    for (row, explanation), (left, right) in zip(ran, panels, strict=True):
        draw_curve(left, explanation)
        draw_map(right, explanation)
        shortfall = f" ({found})" if (found := describe_shortfall(row)) else ""
        title = f"{row.method}: {describe_sizes(explanation)}{shortfall}"
        left.set_title(title, loc="left", fontsize=9, color=INK, parse_math=False)
    return figure
