"""Figures: explanation.png, the overview (heatmap.png, and for notebooks), signals, boxes, samples of backgrounds.

They are drawn with matplotlib objects on the Agg canvas, never through pyplot: no global state, no window, any thread.
"""

from collections.abc import Sequence
from functools import lru_cache
from io import BytesIO
from math import ceil, sqrt
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from becausal.core.boxes import Box
from becausal.core.contracts import Pixels
from becausal.core.explanation import ExplanationRecord
from becausal.render import wording
from becausal.render.colours import (
    AGAINST,
    COLORMAP,
    COLOURS,
    CURVES,
    FAINT,
    INK,
    MAP,
    SHADE,
    SHADES,
    SOFT,
    ZONES,
    line_of,
    shade_of,
)
from becausal.render.likeness import name_score
from becausal.render.numbers import format_count
from becausal.render.painting import COMPRESSION, Painted, as_png, paint_explanation, paint_image, paint_map, stack_pngs
from becausal.render.sheets import MIN_WIDTH, Sheet, as_heat, as_rgb, lay_out, lay_out_original, value_range

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 144
BOXES_WIDTH = 7.2  # inches
SAMPLE_SIDE = 1.35  # inches
LONGEST_CAPTION = 24  # characters
CHARACTER = 0.0605  # inches, of a legend
NARROW = "\N{NO-BREAK SPACE}%"  # while a line is wrapped


def explanation_png(explanation: ExplanationRecord) -> bytes:
    """The explanation on the original image, or on the view, its sets as contour lines, with a legend below.

    A small figure for a signal or a volume.
    """
    match explanation.visible.ndim:
        case 1:
            texts = _list_texts(explanation, 7.2)
            figure = new_figure(7.2, 2.6 + _height_of(texts))
            draw_curve(figure.add_subplot(), explanation)
            _add_legend(figure, explanation, texts)
            return png_bytes(figure)
        case 2:
            sheet = lay_out_original(explanation)
            width = max(sheet.visible.shape[1] * sheet.scale, MIN_WIDTH) / DPI
            texts = _list_texts(explanation, width)
            figure = new_figure(width, _height_of(texts))
            _add_legend(figure, explanation, texts)
            return stack_pngs(as_png(paint_explanation(sheet), sheet), png_bytes(figure))
        case _:
            sheet, texts = lay_out(explanation), _list_texts(explanation, 5.0)
            figure = new_figure(5.0, 5.0 * _aspect_ratio(sheet) + 0.4 + _height_of(texts))
            show_sheet(figure.add_subplot(), paint_explanation(sheet), sheet)
            _add_legend(figure, explanation, texts)
            return png_bytes(figure)


def plot(explanation: ExplanationRecord) -> "Figure":
    """The image, the map and the explanation side by side; for a signal its curve above the map. Notes are below."""
    is_signal = explanation.visible.ndim == 1
    width = 8.4 if is_signal else 10.8
    texts = _list_texts(explanation, width, [f"Note: {note}" for note in explanation.notes])
    if is_signal:
        figure = new_figure(width, 4.6 + _height_of(texts))
        _draw_signal(figure, explanation)
    else:
        sheet = lay_out_original(explanation)
        figure = new_figure(width, 3.5 * min(_aspect_ratio(sheet), 2.5) + 1.1 + _height_of(texts))
        panels = figure.subplots(1, 3)
        pad = 16 if sheet.tiles[0].caption else 6
        for axes, painted, title in zip(
            panels,
            (paint_image(sheet), paint_map(sheet), paint_explanation(sheet)),
            ("model input" if explanation.original is None else "image", "map",
             "explanations" if explanation.others else "explanation"),
            strict=True,
        ):  # fmt: skip
            show_sheet(axes, painted, sheet)
            set_title(axes, title, size=9, colour=SOFT, pad=pad)
        _add_scale(figure, panels[1], explanation)
    sentence = "".join(printable(s.text, 40) if s.is_label else s.text for s in wording.headline(explanation))
    facts = [f"stopped by {explanation.stopped_by}"] if explanation.stopped_by != "finished" else []
    facts.insert(0, format_count(explanation.calls, "model call"))
    head = [*wrap(sentence.replace(" %", NARROW), 95 if is_signal else 130), "  ·  ".join(facts)]
    figure.suptitle("\n".join(head).replace(NARROW, " %"), fontsize=10.5, color=INK, parse_math=False)
    _add_legend(figure, explanation, texts)
    return figure


def plot_together(explanations: Sequence[ExplanationRecord], title: str) -> "Figure":
    """The figures `explanation_png` of several explanations side by side, each below the name of its image."""
    from matplotlib.image import imread

    images = [imread(BytesIO(explanation_png(found))) for found in explanations]
    tallest = max(image.shape[0] / image.shape[1] for image in images)
    figure = new_figure(5.2 * len(images), 5.2 * min(tallest, 3.0) + 0.6)
    figure.suptitle(printable(title, 100), fontsize=11, color=INK, parse_math=False)
    for number, (image, found) in enumerate(zip(images, explanations, strict=True), start=1):
        axes = figure.add_subplot(1, len(images), number, anchor="N")
        axes.imshow(image, interpolation="antialiased")
        axes.set_axis_off()
        set_title(axes, found.origin.image, size=9, colour=SOFT, pad=4)
    return figure


def _add_scale(figure: "Figure", axes: "Axes", explanation: ExplanationRecord) -> None:
    """Below a map: the names of its zones with their colours, or its scale, inside the panel, so that all stay aligned."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    if explanation.zones is not None:
        handles, names = _zone_patches(explanation)
        legend = axes.legend(handles, names, loc="upper left", bbox_to_anchor=(-0.02, 0.0), ncols=len(names), fontsize=6.8,
                             labelcolor=INK, frameon=False, handlelength=1.0, handletextpad=0.35, columnspacing=0.7,
                             borderpad=0.2)  # fmt: skip
        legend.set_in_layout(False)
        return
    bar = figure.colorbar(ScalarMappable(Normalize(0.0, 1.0), COLORMAP), cax=axes.inset_axes((0.0, -0.045, 1.0, 0.022)),
                          orientation="horizontal")  # fmt: skip
    bar.outline.set_visible(False)
    bar.set_ticks([0.0, 1.0], labels=["lowest", "highest"])
    first, last = bar.ax.get_xticklabels()
    first.set_horizontalalignment("left")
    last.set_horizontalalignment("right")
    bar.ax.tick_params(length=0, labelsize=7, labelcolor=SOFT, pad=1)


def _zone_patches(explanation: ExplanationRecord) -> tuple[list[Any], list[str]]:
    from matplotlib.patches import Patch

    zones = wording.list_zones(explanation)
    return [Patch(facecolor=ZONES[zone][0], alpha=0.8) for zone, _, _ in zones], [name for _, name, _ in zones]


def signal_png(explanation: ExplanationRecord) -> bytes:
    """A signal with its sets shaded, and the map below."""
    texts = _list_texts(explanation, 7.2)
    figure = new_figure(7.2, 3.8 + _height_of(texts))
    _draw_signal(figure, explanation)
    _add_legend(figure, explanation, texts)
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


def _draw_signal(figure: "Figure", explanation: ExplanationRecord) -> None:
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    draw_curve(upper, explanation)
    draw_map(lower, explanation)
    upper.tick_params(labelbottom=False)


def _aspect_ratio(sheet: Sheet) -> float:
    h, w = sheet.visible.shape
    return float(min(max(h / w, 0.15), 4.0))


def _list_texts(explanation: ExplanationRecord, width: float, notes: Sequence[str] = ()) -> list[str]:
    """The texts of the legend, wrapped to a width in inches: each set, the largest first, what is against, and notes."""
    if explanation.others:
        noun, sets = name_score(explanation), enumerate(explanation.sets, start=1)
        texts = [f"{number}: {wording.describe_set(found, noun)}" for number, found in sets]
    else:
        texts = [wording.describe_line(level, explanation) for level in reversed(explanation.levels)]
    if against := wording.describe_against(explanation, "masking these {}"):
        texts.append(f"against: {against}")
    columns = max(20, int((width - 0.5) / CHARACTER))
    return ["\n".join(wrap(printable(text, 400), columns)) for text in (*texts, *notes)]


def _height_of(texts: Sequence[str]) -> float:
    """Of a legend, in inches."""
    return 0.16 * sum(1 + text.count("\n") for text in texts) + 0.03 * len(texts) + 0.15


def _add_legend(figure: "Figure", explanation: ExplanationRecord, texts: Sequence[str]) -> None:
    """Below a figure: the line or colour of each set, and of what is against, with its text; then the notes."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.patheffects import Normal, Stroke

    count, is_signal = len(explanation.levels), explanation.visible.ndim == 1
    handles: list[Any] = []
    if explanation.others or is_signal:
        colours: Sequence[str] = SHADES if is_signal else COLOURS
        if not explanation.others:
            colours = [shade_of(number, count) for number in reversed(range(count))]
        handles = [
            Patch(facecolor=colours[i % len(colours)], edgecolor=INK, linewidth=0.7, alpha=SHADE if is_signal else None)
            for i in range(len(explanation.sets) if explanation.others else count)
        ]
    else:
        for line in [line_of(number, count) for number in reversed(range(count))]:
            width = 1.6 * line.width
            dark = [Stroke(linewidth=width + 2.2, foreground=INK), Normal()]
            handles.append(Line2D([], [], color=line.colour, linewidth=width, path_effects=dark))
    if explanation.against is not None:
        handles.append(Patch(facecolor="white", edgecolor=AGAINST, hatch="/////", linewidth=0.6))
    handles += [Patch(alpha=0.0) for _ in texts[len(handles) :]]
    legend = figure.legend(handles, texts, loc="outside lower left", fontsize=8, labelcolor=INK, frameon=False,
                           labelspacing=0.35, handlelength=1.6, handletextpad=0.7)  # fmt: skip
    for text in legend.get_texts():
        text.set_parse_math(False)


def draw_curve(axes: "Axes", explanation: ExplanationRecord) -> None:
    """The signal: shaded and bold in each explanation, darker in its core, pale elsewhere; hatched where it is against."""
    values = explanation.view.astype(np.float64)  # (n, channels)
    if values.shape[1] > len(CURVES):
        values = values.mean(axis=1, keepdims=True)
    position = np.arange(len(values))
    shaded = [(found.visible, SHADES[number % len(SHADES)]) for number, found in enumerate(explanation.sets)]
    if not explanation.others:
        sets = [np.zeros(len(values), bool), *(level.visible for level in explanation.levels)]
        count = len(explanation.levels)
        shaded = [(sets[i + 1] & ~sets[i], shade_of(i, count)) for i in range(count)]  # what each one adds
    for within, colour in reversed(shaded):
        for start, stop in find_intervals(within):
            axes.axvspan(start - 0.5, stop - 0.5, facecolor=colour, alpha=SHADE, linewidth=0)
    if explanation.against is not None:
        for start, stop in find_intervals(explanation.against.visible):
            axes.axvspan(start - 0.5, stop - 0.5, facecolor="none", edgecolor=AGAINST, hatch="////", linewidth=0)
    visible = np.any([found.visible for found in explanation.sets], axis=0)
    intervals = find_intervals(visible)
    single = [start for start, stop in intervals if stop - start == 1]  # no line to draw, so a dot
    for channel, colour in zip(values.T, CURVES, strict=False):
        axes.plot(position, channel, color=colour, alpha=0.4, linewidth=0.9)
        axes.plot(position, np.where(visible, channel, np.nan), color=colour, linewidth=1.8)
        axes.plot(single, channel[single], "o", color=colour, markersize=3)
    _style_axes(axes, len(values))


def draw_map(axes: "Axes", explanation: ExplanationRecord) -> None:
    """The map relative to its largest value, filled down to 0, with a colour for each zone."""
    heat, zones = as_heat(explanation.responsibility), explanation.zones
    parts = [(np.ones(len(heat), bool), MAP)] if zones is None else [(zones == zone, ZONES[zone][0]) for zone in ZONES]
    for own, colour in parts:
        values = np.where(own, heat, 0.0)
        axes.fill_between(np.arange(len(heat)), values, step="mid", color=colour, alpha=0.8, linewidth=0)
    axes.set_ylim(min(0.0, float(heat.min())), 1.05)
    axes.set_yticks([0, 1])
    axes.set_ylabel("map", fontsize=8, color=SOFT)
    axes.set_xlabel("sample", fontsize=8, color=SOFT)
    _style_axes(axes, len(heat))
    if zones is not None:
        handles, names = _zone_patches(explanation)
        axes.legend(handles, names, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=len(names), fontsize=6.8,
                    labelcolor=INK, frameon=False, handlelength=1.0, handletextpad=0.35, columnspacing=0.8,
                    borderpad=0.1)  # fmt: skip


def _style_axes(axes: "Axes", length: int) -> None:
    axes.set_xlim(-0.5, length - 0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(labelsize=8, labelcolor=SOFT, color=FAINT)


def find_intervals(visible: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """The runs of True, each as a half-open interval (start, stop)."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], visible.astype(np.int8), [0]))))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def draw_boxes(image: Pixels, boxes: Sequence[tuple[Box, str]], *, scale: float = 1.0) -> bytes:
    """The image with each box and its text, as the content of a PNG file. scale: of lines and texts."""
    from matplotlib.patches import Rectangle
    from matplotlib.patheffects import Normal, Stroke

    h, w = image.shape[:2]
    figure = new_figure(BOXES_WIDTH, BOXES_WIDTH * min(max(h / w, 0.2), 3.0))
    axes = figure.add_subplot()
    axes.imshow(as_rgb(image, *value_range(image)), interpolation="auto")
    axes.set_axis_off()
    axes.set_xlim(-0.5, w - 0.5)
    axes.set_ylim(h - 0.5, -0.5)
    casing = [Stroke(linewidth=scale * 4.5 * 72 / DPI, foreground=INK), Normal()]
    for number, (box, text) in enumerate(boxes):
        colour = COLOURS[1:][number % (len(COLOURS) - 1)]
        left, top, right, bottom = (float(side) for side in np.asarray(box) - 0.5)
        axes.add_patch(Rectangle((left, top), right - left, bottom - top, fill=False, edgecolor=colour,
                                 linewidth=1.6 * scale, path_effects=casing))  # fmt: skip
        axes.text(left, top, printable(text, 40), fontsize=8 * scale, color=INK, va="bottom", clip_on=False,
                  parse_math=False, bbox={"facecolor": colour, "edgecolor": INK, "linewidth": 0.6,
                                          "boxstyle": "square,pad=0.2"})  # fmt: skip
    return png_bytes(figure)


def backgrounds_png(view: Pixels, samples: Sequence[tuple[str, Pixels]]) -> bytes:
    """The view and samples of backgrounds, each with its caption, as the content of a PNG file.

    A signal is drawn as curves, a volume as its middle slice.

    Args:
        view: (*grid, channels).
        samples: Captions and backgrounds, each of the view's shape.
    """
    tiles = [("view", view), *samples]
    columns = ceil(sqrt(len(tiles)))
    rows = ceil(len(tiles) / columns)
    is_signal = view.ndim == 2
    h, w = (1, 2) if is_signal else view.shape[-3:-1]
    ratio = min(max(h / w, 0.25), 4.0)
    figure = new_figure(SAMPLE_SIDE * columns * min(1.0, 1 / ratio), rows * (SAMPLE_SIDE * min(1.0, ratio) + 0.2))
    grid = figure.subplots(rows, columns, squeeze=False, sharex=is_signal, sharey=is_signal)
    low, high = value_range(view)
    for axes in grid.flat:
        axes.set_axis_off()
    for number, (axes, (caption, pixels)) in enumerate(zip(grid.flat, tiles, strict=False)):
        if is_signal:
            axes.plot(pixels.astype(np.float64), linewidth=0.8)
        else:
            axes.imshow(as_rgb(pixels[len(pixels) // 2] if pixels.ndim == 4 else pixels, low, high), interpolation="auto")
        text = caption if len(caption) <= LONGEST_CAPTION else f"…{caption[1 - LONGEST_CAPTION :]}"
        set_title(axes, text, size=7, colour=SOFT if number else INK, pad=2)
    return png_bytes(figure)
