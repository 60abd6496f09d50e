"""Figures: what a notebook shows, and the two images among the saved files.

Drawn with matplotlib's objects on the Agg canvas, never through pyplot: no global state, no window, any thread.
"""

from functools import lru_cache
from io import BytesIO

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font

from becausal.core.explanation import ExplanationRecord
from becausal.render.painting import (
    COLOURS,
    Painted,
    as_png,
    paint_explanation,
    paint_map,
    paint_picture,
)
from becausal.render.sheets import Sheet, lay_out
from becausal.render.signals import draw_curve, draw_level
from becausal.render.wording import name_points, say_count, say_label, say_share

INK = "#1d2228"
SOFT = "#68717c"
DPI = 144


def explanation_png(explanation: ExplanationRecord) -> bytes:
    """The sufficient pixels as PNG: for an image nothing but its pixels, enlarged; else a small figure."""
    match explanation.visible.ndim:
        case 1:
            figure = new_figure(7.2, 2.6)
            draw_curve(figure.add_subplot(), explanation)
            return png_bytes(figure)
        case 2:
            sheet = lay_out(explanation)
            return as_png(paint_explanation(sheet), sheet)
        case _:
            sheet = lay_out(explanation)
            figure = new_figure(5.0, 5.0 * _aspect(sheet) + 0.4)
            show(figure.add_subplot(), paint_explanation(sheet), sheet)
            return png_bytes(figure)


def plot_map(explanation: ExplanationRecord) -> Figure:
    """The map over the image, with a colour bar and a title."""
    title = f"{say_label(explanation)} by {explanation.origin.method}"
    if explanation.visible.ndim == 1:
        figure = new_figure(7.2, 3.6)
        _draw_signal(figure, explanation)
        write(figure.axes[0], title, size=10)
        return figure
    sheet = lay_out(explanation)
    figure = new_figure(5.4, 4.6 * _aspect(sheet) + 0.5)
    axes = figure.add_subplot()
    show(axes, paint_map(sheet), sheet)
    write(axes, title, size=10, pad=18 if sheet.tiles[0].caption else 8)
    add_colour_bar(figure, axes, sheet)
    return figure


def plot(explanation: ExplanationRecord) -> Figure:
    """The image, the map and the explanation side by side; a curve over its map for a signal."""
    if explanation.visible.ndim == 1:
        figure = new_figure(8.4, 4.2)
        _draw_signal(figure, explanation)
    else:
        sheet = lay_out(explanation)
        figure = new_figure(10.8, 3.5 * min(_aspect(sheet), 2.5) + 0.75)
        panels = figure.subplots(1, 3)
        pad = 16 if sheet.tiles[0].caption else 6
        for axes, painted, title in zip(
            panels,
            (paint_picture(sheet), paint_map(sheet), paint_explanation(sheet)),
            ("what the classifier sees", "responsibility", f"enough for {printable(explanation.label, 28)}"),
            strict=True,
        ):
            show(axes, painted, sheet)
            write(axes, title, size=9, colour=SOFT, pad=pad)
    figure.suptitle(_headline(explanation), fontsize=11, color=INK, parse_math=False)
    return figure


def png_bytes(figure: Figure) -> bytes:
    """The figure as the bytes of a PNG file, the same for the same figure."""
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return buffer.getvalue()


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, inches, that any thread may draw on."""
    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def show(axes: Axes, painted: Painted, sheet: Sheet) -> None:
    """Put finished pixels on axes without ticks, with the captions of slices above them."""
    axes.imshow(painted, interpolation="none")
    axes.set_axis_off()
    for tile in sheet.tiles:
        if tile.caption:
            place = (tile.left * sheet.scale, tile.top * sheet.scale)
            axes.annotate(tile.caption, place, (1, 2), textcoords="offset points", fontsize=6.5, color=SOFT, va="bottom")


def add_colour_bar(figure: Figure, axes: Axes, sheet: Sheet) -> None:
    """A slim bar that reads the colours as shares of the map's largest value."""
    low = min(0.0, float(sheet.level.min()))
    bar = figure.colorbar(ScalarMappable(Normalize(low, 1.0), COLOURS), ax=axes, fraction=0.045, pad=0.02)
    bar.outline.set_visible(False)
    bar.set_ticks([low, 0.5, 1.0] if low < 0 else [0.0, 0.5, 1.0])
    bar.ax.tick_params(length=0, labelsize=8, labelcolor=SOFT)
    bar.set_label("responsibility, 1 = the largest", fontsize=8, color=SOFT)


def write(axes: Axes, text: str, *, size: float, colour: str = INK, pad: float = 8) -> None:
    """Set a title as plain text: a dollar sign in a label is no formula."""
    axes.set_title(printable(text), loc="left", fontsize=size, color=colour, pad=pad, parse_math=False)


def printable(text: str, length: int = 72) -> str:
    """The text on one line, cut to a length, with a question mark for what the font cannot write."""
    line = " ".join(text.split())
    known = _known_characters()
    line = "".join(c if ord(c) in known else "?" for c in line)
    return line if len(line) <= length else line[: length - 1] + "…"


@lru_cache(maxsize=1)
def _known_characters() -> frozenset[int]:
    return frozenset(get_font(findfont(FontProperties())).get_charmap())


def _draw_signal(figure: Figure, explanation: ExplanationRecord) -> None:
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    draw_curve(above, explanation)
    draw_level(below, explanation)
    above.tick_params(labelbottom=False)


def _headline(explanation: ExplanationRecord) -> str:
    checks = explanation.checks
    claims = ["sufficient" if checks.sufficient else "NOT sufficient"]
    if checks.minimal_grain is not None:
        claims.append(f"minimal at {checks.minimal_grain} px")
    if checks.necessary is not None:
        claims.append("necessary" if checks.necessary else "not necessary")
    parts = [
        printable(say_label(explanation), 48),
        f"{say_share(explanation.size)} of the {name_points(explanation)}s",
        ", ".join(claims),
        say_count(explanation.calls, "call"),
    ]
    if explanation.stopped_by != "finished":
        parts.append(f"stopped by {explanation.stopped_by}")
    return "  ·  ".join(parts)


def _aspect(sheet: Sheet) -> float:
    h, w = sheet.visible.shape
    return float(min(max(h / w, 0.15), 4.0))
