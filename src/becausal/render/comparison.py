"""Methods side by side: one figure, and the cells of one table."""

from dataclasses import replace
from math import ceil

import numpy as np
from matplotlib.figure import Figure

from becausal.core.comparison import Comparison, Row
from becausal.core.explanation import ExplanationRecord
from becausal.render.figures import INK, SOFT, new_figure, png_bytes, printable
from becausal.render.painting import Painted, grow, paint_explanation, paint_map, paint_picture
from becausal.render.sheets import Sheet, enlarge, lay_out
from becausal.render.signals import draw_curve, draw_level
from becausal.render.wording import say_confidence, say_label, say_share

COLUMNS = ("method", "size", "overlap", "insertion", "deletion", "confidence", "pieces", "calls", "seconds")
CLIPPED = 99  # percentile at which each map is cut, and 1 below, or one bright pixel would leave the rest dark
_SIDE, _GAP, _HEAD, _MARGIN = 1.62, 0.30, 0.42, 0.30  # inches
_TRUTH = np.array([255, 176, 32], np.uint8)


def table_of(row: Row) -> dict[str, str]:
    """The cells of a method that ran, in words."""
    found, curves = row.explanation, row.curves
    if found is None:
        return {"method": row.method}
    return {
        "method": row.method,
        "size": say_share(found.size),
        "overlap": "" if row.overlap is None else say_share(row.overlap),
        "insertion": "" if curves is None else f"{curves.insertion_area:.3f}",
        "deletion": "" if curves is None else f"{curves.deletion_area:.3f}",
        "confidence": say_confidence(found.checks.confidence),
        "pieces": f"{found.pieces:,}",
        "calls": f"{found.calls:,}",
        "seconds": f"{row.seconds:.1f}",
    }


def comparison_png(comparison: Comparison) -> bytes:
    """The figure as PNG."""
    if comparison.first.visible.ndim == 1:
        return png_bytes(_plot_signals(comparison))
    return png_bytes(plot_comparison(comparison))


def plot_comparison(comparison: Comparison) -> Figure:
    """A card per method, map and explanation side by side, after a card of the image itself."""
    cards = len(comparison.rows) + 1
    columns = 2 if cards <= 4 else 3 if cards <= 9 else 4
    lines = ceil(cards / columns)
    sheet = lay_out(comparison.first)
    tall = _SIDE * float(np.clip(sheet.visible.shape[0] / sheet.visible.shape[1], 0.2, 3.0))
    wide = 2 * _SIDE + 0.05
    width = 2 * _MARGIN + columns * wide + (columns - 1) * _GAP
    height = 2 * _MARGIN + 0.35 + lines * (tall + _HEAD) + (lines - 1) * 0.5 * _GAP
    figure = new_figure(width, height)
    figure.set_layout_engine("none")
    first = comparison.first
    head = f"Why {say_label(first)}?  {first.origin.image}"
    figure.text(_MARGIN / width, 1 - _MARGIN / height, printable(head, 90), fontsize=13, color=INK, va="top",
                weight="bold", parse_math=False)  # fmt: skip
    for number in range(cards):
        line, column = divmod(number, columns)
        left = _MARGIN + column * (wide + _GAP)
        top = _MARGIN + 0.35 + line * (tall + _HEAD + 0.5 * _GAP)  # from above
        place = (left, height - top - _HEAD, height - top - _HEAD - tall)
        if number == 0:
            _draw_picture(figure, comparison, sheet, place, tall)
        else:
            _draw_card(figure, comparison.rows[number - 1], place, tall)
    return figure


def _draw_picture(
    figure: Figure, comparison: Comparison, sheet: Sheet, place: tuple[float, float, float], tall: float
) -> None:
    left, above, below = place
    _title(figure, left, above, "the image", say_shared(comparison))
    _image(figure, left, below, tall, paint_picture(sheet))
    if comparison.truth is not None:
        _image(figure, left + _SIDE + 0.05, below, tall, paint_truth(comparison, sheet))
        return
    axes = figure.add_axes(_box(figure, left + _SIDE + 0.05, below, tall))
    axes.set_axis_off()
    key = "left: the map\nright: the explanation,\nenough for the label"
    axes.text(0.06, 0.5, key, fontsize=8, color=SOFT, va="center")


def _draw_card(figure: Figure, row: Row, place: tuple[float, float, float], tall: float) -> None:
    left, above, below = place
    if row.explanation is None:
        _title(figure, left, above, row.method, "did not run")
        axes = figure.add_axes(_box(figure, left, below, tall, width=2 * _SIDE + 0.05))
        axes.set_facecolor("#f3f1ed")
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set_visible(False)
        axes.text(0.04, 0.92, _wrapped(row.error or "", 46, 8), fontsize=7.5, color=SOFT, va="top", parse_math=False)
        return
    cells = table_of(row)
    words = [cells["size"], f"{cells['calls']} calls", f"{cells['seconds']} s"]
    if row.overlap is not None:
        words.insert(1, f"{cells['overlap']} on it")
    if row.curves is not None:
        words.insert(-2, f"ins {row.curves.insertion_area:.2f}")
    _title(figure, left, above, row.method, "  ·  ".join(words))
    sheet = lay_out(clipped(row.explanation))
    _image(figure, left, below, tall, paint_map(sheet))
    _image(figure, left + _SIDE + 0.05, below, tall, paint_explanation(sheet))


def clipped(explanation: ExplanationRecord) -> ExplanationRecord:
    """The explanation with its map between a low percentile (or 0) and a high one, for the eye only."""
    values = explanation.responsibility
    low, high = max(0.0, float(np.percentile(values, 100 - CLIPPED))), float(np.percentile(values, CLIPPED))
    if high <= low:
        return explanation
    return replace(explanation, responsibility=np.clip(values, low, high) - low)


def paint_truth(comparison: Comparison, sheet: Sheet) -> Painted:
    """The image, dimmed, with the photobomber outlined."""
    out = (paint_picture(sheet) * 0.45 + 120).astype(np.uint8)
    if comparison.truth is not None and comparison.truth.ndim == 2:
        inside = enlarge(comparison.truth, sheet.scale)
        line = grow(inside, max(2, max(inside.shape) // 150)) & ~inside
        out[inside] = paint_picture(sheet)[inside]
        out[line] = _TRUTH
    return out


def _title(figure: Figure, left: float, above: float, name: str, said: str) -> None:
    width, height = figure.get_size_inches()
    figure.text(left / width, (above + 0.21) / height, name, fontsize=10.5, color=INK, weight="bold", parse_math=False)
    figure.text(left / width, (above + 0.06) / height, said, fontsize=7.5, color=SOFT, parse_math=False)


def _image(figure: Figure, left: float, below: float, tall: float, painted: Painted) -> None:
    axes = figure.add_axes(_box(figure, left, below, tall))
    axes.imshow(painted, interpolation="antialiased", aspect="auto")
    axes.set_axis_off()


def _box(figure: Figure, left: float, below: float, tall: float, width: float = _SIDE) -> tuple[float, float, float, float]:
    across, up = figure.get_size_inches()
    return (left / across, below / up, width / across, tall / up)


def say_shared(comparison: Comparison) -> str:
    origin = comparison.first.origin
    grain = "" if origin.grain is None else f"  ·  minimised to {origin.grain} px"
    truth = "" if comparison.truth is None else "  ·  in orange: the photobomber"
    return f"fill {', '.join(origin.fills)}{grain}{truth}"


def _wrapped(text: str, width: int, lines: int) -> str:
    from textwrap import wrap

    found = wrap(printable(text, 400), width)
    return "\n".join(found[:lines]) + (" …" if len(found) > lines else "")


def _plot_signals(comparison: Comparison) -> Figure:
    """A row per method that ran: the signal with its explanation, and the map."""
    ran = [row for row in comparison.rows if row.explanation is not None]
    figure = new_figure(10.0, 1.7 * len(ran) + 0.6)
    panels = figure.subplots(len(ran), 2, squeeze=False, width_ratios=(3, 2))
    for row, (left, right) in zip(ran, panels, strict=True):
        if (found := row.explanation) is not None:
            draw_curve(left, found)
            draw_level(right, found)
            left.set_title(f"{row.method}: {say_share(found.size)}", loc="left", fontsize=9, color=INK)
    return figure
