"""Every colour of figures and images; those of pages are in static/page.css, those of plots of benches in `lab.page`."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Zone

# Text and frames of figures.
INK = "#1d2228"
SOFT = "#68717c"
FAINT = "#c3c9d0"
FLAG = "#9c2b1f"  # a warning
BLANK = "#f3f1ed"  # a method that did not run

# Sets on images: the outline of each explanation, the first one first, and of the sets inside it, the innermost first.
COLOURS = ("#ffffff", "#00d5ff", "#ff4fd8", "#7dff4f", "#ffb000", "#b09bff")
INNER_COLOURS = ("#ff2d3f", "#ffe14d", "#00d5ff")
DARK = np.array([12.0, 14.0, 18.0])  # beside lines, so that they are legible on any background
BOX_COLOUR = "#ffb000"  # of the box of a detector
GROUND_TRUTH = "#ffb020"
UNSEEN_EDGE = np.array([128.0, 128.0, 128.0])  # around the part of an image that the model sees
VEIL, UNSEEN = 0.5, 0.64  # how much white covers what is not in the explanation, and what the model does not see
AGAINST, TINT, STRIPE = "#6b3df5", 0.3, 0.8  # what speaks against the label: its colour, opacity of the area and of stripes

# The same on signals: spans of each explanation, and of the sets inside the first one.
SHADES = ("#f4a340", "#2f9fd0", "#d9559a", "#4fa832", "#8b64d8", "#b08d00")
INNER_SHADES = ("#d7263d", "#dd6b20", "#e98a33")
SHADE = 0.35  # opacity
CURVES = ("#3b4754", "#7b5ea7", "#2f7f79", "#9a6a2f")  # more channels than this are averaged

# Maps. Of each zone the colour, and the opacity over the image where it is lowest and highest.
ZONES: dict[Zone, tuple[str, float, float]] = {
    Zone.CORE: ("#f01d3c", 0.55, 0.75),
    Zone.ENOUGH: ("#ff9d00", 0.45, 0.6),
    Zone.BACKUP: ("#12b5a6", 0.3, 0.45),
    Zone.CONTEXT: ("#cfe8f0", 0.0, 0.15),
    Zone.AGAINST: ("#2b62c9", 0.4, 0.5),
}
COLORMAP = "YlOrRd"  # of maps without zones: the hot colours of those with zones, darker where they are higher
MOST, BEND = 0.8, 0.7  # opacity where such a map is highest, and how fast it rises to that
MAP = "#d7263d"  # of a signal
LUMA = np.array([0.299, 0.587, 0.114])  # of an image in grey


@dataclass(frozen=True)
class ContourLine:
    """How the contour line of a level is drawn. width: relative to the outer line."""

    colour: str
    width: float


def line_of(number: int, count: int) -> ContourLine:
    """The line of a level, from 0 for the innermost, of `count` levels."""
    if number == count - 1:
        return ContourLine(COLOURS[0], 1.0)
    return ContourLine(INNER_COLOURS[min(number, len(INNER_COLOURS) - 1)], 1.5 if number == 0 else 1.0)


def shade_of(number: int, count: int) -> str:
    """The colour of a level's spans, from 0 for the innermost of `count` levels: the one of the explanation for the last."""
    return SHADES[0] if number == count - 1 else INNER_SHADES[min(number, len(INNER_SHADES) - 1)]


def rgb_of(colour: str) -> NDArray[np.float64]:
    """A colour such as #00d5ff as RGB in 0..255."""
    return np.array(list(bytes.fromhex(colour[1:])), np.float64)
