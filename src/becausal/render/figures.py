"""Figures: the notebook view and the two PNG files that are saved with an explanation.

They are drawn with matplotlib objects on the Agg canvas, never through pyplot: no global state, no window, any thread.
"""

from collections.abc import Sequence
from functools import lru_cache
from io import BytesIO
from textwrap import wrap
from typing import TYPE_CHECKING

from becausal.core.checks import CheckedSet
from becausal.core.explanation import ExplanationRecord
from becausal.render.painting import (
    COLORMAP,
    COLOURS,
    Painted,
    as_png,
    paint_explanation,
    paint_image,
    paint_map,
    stack_pngs,
)
from becausal.render.sheets import MIN_WIDTH, Sheet, lay_out
from becausal.render.signals import SHADES, draw_curve, draw_level
from becausal.render.wording import format_count, format_label, format_share, headline, list_claims, unit_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#1d2228"
SOFT = "#68717c"
DPI = 144


def explanation_png(explanation: ExplanationRecord) -> bytes:
    """The explanation as PNG: only the (enlarged) pixels for an image, a small figure for a signal or a volume.

    Several explanations have a legend below, with the numbers of each.
    """
    match explanation.visible.ndim:
        case 1:
            figure = new_figure(7.2, 2.6 + _legend_height(explanation))
            draw_curve(figure.add_subplot(), explanation)
            _add_legend(figure, explanation)
            return png_bytes(figure)
        case 2:
            sheet = lay_out(explanation)
            png = as_png(paint_explanation(sheet), sheet)
            return stack_pngs(png, _legend_png(explanation, sheet)) if explanation.others else png
        case _:
            sheet = lay_out(explanation)
            figure = new_figure(5.0, 5.0 * _aspect_ratio(sheet) + 0.4 + _legend_height(explanation))
            show_sheet(figure.add_subplot(), paint_explanation(sheet), sheet)
            _add_legend(figure, explanation)
            return png_bytes(figure)


def plot_map(explanation: ExplanationRecord) -> "Figure":
    """The map over the image, with a colour bar and a title."""
    title = f"{format_label(explanation)} by {explanation.origin.method}"
    if explanation.visible.ndim == 1:
        figure = new_figure(7.2, 3.6 + _legend_height(explanation))
        _draw_signal(figure, explanation)
        set_title(figure.axes[0], title, size=10)
        _add_legend(figure, explanation)
        return figure
    sheet = lay_out(explanation)
    figure = new_figure(5.4, 4.6 * _aspect_ratio(sheet) + 0.5 + _legend_height(explanation))
    axes = figure.add_subplot()
    show_sheet(axes, paint_map(sheet), sheet)
    set_title(axes, title, size=10, pad=18 if sheet.tiles[0].caption else 8)
    _add_colour_bar(figure, axes, sheet)
    _add_legend(figure, explanation)
    return figure


def plot(explanation: ExplanationRecord) -> "Figure":
    """The image, the map and the explanation side by side; for a signal its curve above the map. Notes are below."""
    notes = [line for note in explanation.notes for line in wrap(printable(f"Note: {note}", 400), 150)]
    height = _legend_height(explanation, notes)
    if explanation.visible.ndim == 1:
        figure = new_figure(8.4, 4.4 + height)
        _draw_signal(figure, explanation)
    else:
        sheet = lay_out(explanation)
        figure = new_figure(10.8, 3.5 * min(_aspect_ratio(sheet), 2.5) + 0.95 + height)
        panels = figure.subplots(1, 3)
        pad = 16 if sheet.tiles[0].caption else 6
        for axes, painted, title in zip(
            panels,
            (paint_image(sheet), paint_map(sheet), paint_explanation(sheet)),
            ("model input", "responsibility", "explanations" if explanation.others else "explanation"),
            strict=True,
        ):
            show_sheet(axes, painted, sheet)
            set_title(axes, title, size=9, colour=SOFT, pad=pad)
    figure.suptitle("\n".join(_title_lines(explanation)), fontsize=11, color=INK, parse_math=False)
    _add_legend(figure, explanation, notes)
    return figure


def png_bytes(figure: "Figure") -> bytes:
    """The figure as the content of a PNG file; the same figure gives the same bytes."""
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return buffer.getvalue()


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure, size in inches, that any thread may draw on."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def show_sheet(axes: "Axes", painted: Painted, sheet: Sheet) -> None:
    """Show painted pixels on axes without ticks, with captions above the slices of a volume."""
    axes.imshow(painted, interpolation="none")
    axes.set_axis_off()
    for tile in sheet.tiles:
        if tile.caption:
            corner = (tile.left * sheet.scale, tile.top * sheet.scale)
            axes.annotate(tile.caption, corner, (1, 2), textcoords="offset points", fontsize=6.5, color=SOFT, va="bottom")


def set_title(axes: "Axes", text: str, *, size: float, colour: str = INK, pad: float = 8) -> None:
    """Set a title as plain text; dollar signs in a label do not start a formula."""
    axes.set_title(printable(text), loc="left", fontsize=size, color=colour, pad=pad, parse_math=False)


def printable(text: str, length: int = 72) -> str:
    """The text on one line, cut to a length, with a question mark for each character the font lacks."""
    known = _font_characters()
    line = "".join(c if ord(c) in known else "?" for c in " ".join(text.split()))
    return line if len(line) <= length else line[: length - 1] + "…"


@lru_cache(maxsize=1)
def _font_characters() -> frozenset[int]:
    from matplotlib.font_manager import FontProperties, findfont, get_font

    return frozenset(get_font(findfont(FontProperties())).get_charmap())


def _add_colour_bar(figure: "Figure", axes: "Axes", sheet: Sheet) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    low = min(0.0, float(sheet.level.min()))
    bar = figure.colorbar(ScalarMappable(Normalize(low, 1.0), COLORMAP), ax=axes, fraction=0.045, pad=0.02)
    bar.outline.set_visible(False)
    bar.set_ticks([low, 0.5, 1.0] if low < 0 else [0.0, 0.5, 1.0])
    bar.ax.tick_params(length=0, labelsize=8, labelcolor=SOFT)
    bar.set_label("responsibility (relative to the maximum)", fontsize=8, color=SOFT)


def _draw_signal(figure: "Figure", explanation: ExplanationRecord) -> None:
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    draw_curve(upper, explanation)
    draw_level(lower, explanation)
    upper.tick_params(labelbottom=False)


def _title_lines(explanation: ExplanationRecord) -> list[str]:
    """The headline, long labels shortened, and below it what was checked and what it cost."""
    sentence = "".join(printable(span.text, 40) if span.is_label else span.text for span in headline(explanation))
    facts = [] if explanation.others else [", ".join(list_claims(explanation))]  # else they are in the legend
    facts.append(format_count(explanation.calls, "model call"))
    if explanation.stopped_by != "finished":
        facts.append(f"stopped by {explanation.stopped_by}")
    width = 95 if explanation.visible.ndim == 1 else 130
    return [*wrap(sentence, width), "  ·  ".join(facts)]


def _legend_height(explanation: ExplanationRecord, notes: Sequence[str] = (), *, lines: int = 1) -> float:
    """In inches; `lines` for each explanation."""
    count = len(notes) + (lines * len(explanation.sets) if explanation.others else 0)
    return 0.19 * count + 0.15 if count else 0.0


def _add_legend(
    figure: "Figure", explanation: ExplanationRecord, notes: Sequence[str] = (), *, separator: str = ", "
) -> None:
    """Below a figure: the colour and the numbers of each of several explanations, then the notes."""
    from matplotlib.patches import Patch

    sets = explanation.sets if explanation.others else ()
    colours = SHADES if explanation.visible.ndim == 1 else COLOURS
    handles = [Patch(facecolor=colours[i % len(colours)], edgecolor=INK, linewidth=0.7) for i in range(len(sets))]
    texts = [f"{number}  {_describe_short(found, separator)}" for number, found in enumerate(sets, start=1)]
    handles += [Patch(alpha=0.0) for _ in notes]
    if not handles:
        return
    length = 1.2 if sets else 0.0
    legend = figure.legend(handles, [*texts, *notes], loc="outside lower left", fontsize=8, labelcolor=INK, frameon=False,
                           labelspacing=0.35, handlelength=length, handletextpad=0.7 if sets else 0.0)  # fmt: skip
    for text in legend.get_texts():
        text.set_parse_math(False)


def _describe_short(found: CheckedSet, separator: str) -> str:
    size, alone, *claims = [f"{format_share(found.size)} of the {unit_name(found)}s", *list_claims(found)]
    return f"{size}, {alone}{separator}{', '.join(claims)}" if claims else f"{size}, {alone}"


def _legend_png(explanation: ExplanationRecord, sheet: Sheet) -> bytes:
    """The legend alone, as wide as the sheet, on two lines for each explanation."""
    width = max(sheet.visible.shape[1] * sheet.scale, MIN_WIDTH)
    figure = new_figure(width / DPI, _legend_height(explanation, lines=2) + 0.1)
    _add_legend(figure, explanation, separator="\n    ")
    return png_bytes(figure)


def _aspect_ratio(sheet: Sheet) -> float:
    h, w = sheet.visible.shape
    return float(min(max(h / w, 0.15), 4.0))
