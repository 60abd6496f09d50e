"""An image with the boxes of an object detector, numbered."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from becausal.core.boxes import Box
from becausal.core.contracts import Pixels
from becausal.render.figures import DPI, INK, new_figure, png_bytes, printable
from becausal.render.painting import COLOURS
from becausal.render.sheets import as_rgb, value_range

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 7.2  # inches


def draw_boxes(image: Pixels, boxes: Sequence[tuple[Box, str]], *, scale: float = 1.0) -> bytes:
    """The image with each box and its text, as the content of a PNG file. scale: of lines and texts."""
    h, w = image.shape[:2]
    figure = new_figure(WIDTH, WIDTH * min(max(h / w, 0.2), 3.0))
    axes = figure.add_subplot()
    axes.imshow(as_rgb(image, *value_range(image)), interpolation="auto")
    axes.set_axis_off()
    axes.set_xlim(-0.5, w - 0.5)
    axes.set_ylim(h - 0.5, -0.5)
    for number, (box, text) in enumerate(boxes):
        _draw(axes, box, text, COLOURS[1:][number % (len(COLOURS) - 1)], scale)
    return png_bytes(figure)


def _draw(axes: "Axes", box: Box, text: str, colour: str, scale: float) -> None:
    """One box with its text above the upper left corner."""
    from matplotlib.patches import Rectangle
    from matplotlib.patheffects import Normal, Stroke

    left, top, right, bottom = (float(side) for side in np.asarray(box) - 0.5)
    casing = [Stroke(linewidth=scale * 4.5 * 72 / DPI, foreground=INK), Normal()]
    axes.add_patch(
        Rectangle(
            (left, top), right - left, bottom - top, fill=False, edgecolor=colour, linewidth=1.6 * scale, path_effects=casing
        )
    )
    axes.text(
        left, top, printable(text, 40), fontsize=8 * scale, color=INK, va="bottom", clip_on=False, parse_math=False,
        bbox={"facecolor": colour, "edgecolor": INK, "linewidth": 0.6, "boxstyle": "square,pad=0.2"},
    )  # fmt: skip
