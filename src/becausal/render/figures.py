"""Figures: the overview of an explanation, for notebooks and as heatmap.png, and explanation.png.

They are drawn with matplotlib objects on the Agg canvas, never through pyplot: no global state, no window, any thread.
"""

from collections.abc import Sequence
from functools import lru_cache
from io import BytesIO
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from becausal.core.checks import CheckedSet
from becausal.core.explanation import ExplanationRecord
from becausal.render.painting import (
    COLORMAP,
    COLOURS,
    COMPRESSION,
    Painted,
    as_png,
    line_of,
    paint_explanation,
    paint_image,
    paint_map,
    stack_pngs,
)
from becausal.render.sheets import MIN_WIDTH, Sheet, lay_out, lay_out_original
from becausal.render.signals import SHADE, SHADES, draw_curve, draw_map, shade_of
from becausal.render.wording import describe_purpose, format_count, format_share, headline, list_claims, unit_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#1d2228"
SOFT = "#68717c"
DPI = 144


def explanation_png(explanation: ExplanationRecord) -> bytes:
    """The explanation on the original image, or on the view, with its levels as contour lines and a legend below.

    A small figure for a signal or a volume.
    """
    match explanation.visible.ndim:
        case 1:
            figure = new_figure(7.2, 2.6 + _legend_height(explanation))
            draw_curve(figure.add_subplot(), explanation)
            _add_legend(figure, explanation)
            return png_bytes(figure)
        case 2:
            sheet = lay_out_original(explanation)
            return stack_pngs(as_png(paint_explanation(sheet), sheet), _legend_png(explanation, sheet))
        case _:
            sheet = lay_out(explanation)
            figure = new_figure(5.0, 5.0 * _aspect_ratio(sheet) + 0.4 + _legend_height(explanation))
            show_sheet(figure.add_subplot(), paint_explanation(sheet), sheet)
            _add_legend(figure, explanation)
            return png_bytes(figure)


def plot(explanation: ExplanationRecord) -> "Figure":
    """The image, the map and the explanation side by side; for a signal its curve above the map. Notes are below."""
    notes = [line for note in explanation.notes for line in wrap(printable(f"Note: {note}", 400), 150)]
    height = _legend_height(explanation, notes)
    if explanation.visible.ndim == 1:
        figure = new_figure(8.4, 4.4 + height)
        _draw_signal(figure, explanation)
    else:
        sheet = lay_out_original(explanation)
        figure = new_figure(10.8, 3.5 * min(_aspect_ratio(sheet), 2.5) + 1.1 + height)
        panels = figure.subplots(1, 3)
        pad = 16 if sheet.tiles[0].caption else 6
        for axes, painted, title in zip(
            panels,
            (paint_image(sheet), paint_map(sheet), paint_explanation(sheet)),
            ("model input" if explanation.original is None else "image", "responsibility",
             "explanations" if explanation.others else "explanation"),
            strict=True,
        ):  # fmt: skip
            show_sheet(axes, painted, sheet)
            set_title(axes, title, size=9, colour=SOFT, pad=pad)
        _add_colour_bar(figure, panels[1], sheet)
    figure.suptitle("\n".join(_title_lines(explanation)), fontsize=10.5, color=INK, parse_math=False)
    _add_legend(figure, explanation, notes)
    return figure


def signal_png(explanation: ExplanationRecord) -> bytes:
    """A signal with its levels shaded, and the map below."""
    figure = new_figure(7.2, 3.6 + _legend_height(explanation))
    _draw_signal(figure, explanation)
    _add_legend(figure, explanation)
    return png_bytes(figure)


def png_bytes(figure: "Figure") -> bytes:
    """The figure as the content of a PNG file; the same figure gives the same bytes."""
    buffer = BytesIO()
    options = {"compress_level": COMPRESSION}
    figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None}, pil_kwargs=options)
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
    axes.imshow(painted, interpolation="auto")
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

    low = min(0.0, float(sheet.heat.min()))
    below = axes.inset_axes((0.0, -0.045, 1.0, 0.022))  # inside the panel, so that the three stay aligned
    bar = figure.colorbar(ScalarMappable(Normalize(low, 1.0), COLORMAP), cax=below, orientation="horizontal")
    bar.outline.set_visible(False)
    bar.set_ticks([low, 0.5, 1.0] if low < 0 else [0.0, 0.5, 1.0])
    bar.ax.tick_params(length=0, labelsize=7, labelcolor=SOFT, pad=1)


def _draw_signal(figure: "Figure", explanation: ExplanationRecord) -> None:
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    draw_curve(upper, explanation)
    draw_map(lower, explanation)
    upper.tick_params(labelbottom=False)


def _title_lines(explanation: ExplanationRecord) -> list[str]:
    """The headline, long labels shortened, and below it what was checked and what it cost."""
    sentence = "".join(printable(span.text, 40) if span.is_label else span.text for span in headline(explanation))
    claims = [claim for claim in list_claims(explanation) if not claim.startswith("confidence")]  # that is in the headline
    facts = [] if explanation.others else [", ".join(claims)]  # else they are in the legend
    facts.append(format_count(explanation.calls, "model call"))
    if explanation.stopped_by != "finished":
        facts.append(f"stopped by {explanation.stopped_by}")
    width = 95 if explanation.visible.ndim == 1 else 130
    return [*wrap(sentence, width), "  ·  ".join(facts)]


def _legend_texts(explanation: ExplanationRecord, separator: str) -> list[str]:
    """The sets of the legend with their numbers: several explanations, or the levels, the largest first."""
    if explanation.others:
        return [f"{i}:  {_describe_short(found, separator)}" for i, found in enumerate(explanation.sets, start=1)]
    texts = []
    for level in reversed(explanation.levels):
        claims = [claim for claim in list_claims(level) if claim.startswith(("confidence", "NOT"))]
        texts.append(f"{describe_purpose(level, explanation)}:{separator}{', '.join([_describe_size(level), *claims])}")
    return texts


def _legend_height(explanation: ExplanationRecord, notes: Sequence[str] = (), *, lines: int = 1) -> float:
    """In inches; `lines` for each set."""
    count = len(explanation.sets) if explanation.others else len(explanation.levels)
    return 0.19 * (len(notes) + lines * count) + 0.15


def _add_legend(
    figure: "Figure", explanation: ExplanationRecord, notes: Sequence[str] = (), *, separator: str = " "
) -> None:
    """Below a figure: the line or colour of each set with its numbers, then the notes."""
    from matplotlib.patches import Patch

    handles = [*_legend_handles(explanation), *(Patch(alpha=0.0) for _ in notes)]
    texts = [*_legend_texts(explanation, separator), *notes]
    legend = figure.legend(handles, texts, loc="outside lower left", fontsize=8, labelcolor=INK, frameon=False,
                           labelspacing=0.35, handlelength=1.6, handletextpad=0.7)  # fmt: skip
    for text in legend.get_texts():
        text.set_parse_math(False)


def _legend_handles(explanation: ExplanationRecord) -> list[Any]:
    """Patches in the colours of several explanations and of the levels of a signal; contour lines for other levels."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.patheffects import Normal, Stroke

    count = len(explanation.levels)
    if explanation.others or explanation.visible.ndim == 1:
        colours = SHADES if explanation.visible.ndim == 1 else COLOURS
        faces: list[Any] = [colours[i % len(colours)] for i in range(len(explanation.sets))]
        if not explanation.others:
            faces = [shade_of(number, count) for number in reversed(range(count))]
        alpha = SHADE if explanation.visible.ndim == 1 else None
        return [Patch(facecolor=face, edgecolor=INK, linewidth=0.7, alpha=alpha) for face in faces]
    lines = [line_of(number, count) for number in reversed(range(count))]
    return [
        Line2D([], [], color=line.colour, linewidth=1.6 * line.width,
               path_effects=[Stroke(linewidth=1.6 * line.width + 2.2, foreground=INK), Normal()])
        for line in lines
    ]  # fmt: skip


def _describe_short(found: CheckedSet, separator: str) -> str:
    first, *claims = list_claims(found)
    return f"{_describe_size(found)}, {first}" + (f",{separator}{', '.join(claims)}" if claims else "")


def _describe_size(found: CheckedSet) -> str:
    return f"{format_share(found.size)} of the {unit_name(found)}s ({found.pixels:,})"


def _legend_png(explanation: ExplanationRecord, sheet: Sheet) -> bytes:
    """The legend alone, as wide as the sheet; on two lines for each set where that is narrow."""
    width = max(sheet.visible.shape[1] * sheet.scale, MIN_WIDTH)
    lines = 1 if width >= (800 if explanation.others else 640) else 2
    figure = new_figure(width / DPI, _legend_height(explanation, lines=lines))
    _add_legend(figure, explanation, separator=" " if lines == 1 else "\n    ")
    return png_bytes(figure)


def _aspect_ratio(sheet: Sheet) -> float:
    h, w = sheet.visible.shape
    return float(min(max(h / w, 0.15), 4.0))
