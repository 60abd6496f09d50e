"""Signals: one curve per channel with the explanation shaded, and the map below."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from becausal.core.explanation import ExplanationRecord
from becausal.render.sheets import as_heat

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_CURVES = ("#3b4754", "#7b5ea7", "#2f7f79", "#9a6a2f")  # more channels than this are averaged
SHADES = ("#f4a340", "#2f9fd0", "#d9559a", "#4fa832", "#8b64d8", "#b08d00")  # the first explanation first
SHADE = 0.35  # opacity
_INNER = ("#b3341c", "#dd6b20", "#e98a33")  # of inner levels, the smallest first
_MAP = "#b5367a"
_SOFT = "#68717c"
_FAINT = "#c3c9d0"


def draw_curve(axes: "Axes", explanation: ExplanationRecord) -> None:
    """The signal: shaded and bold in each explanation, darker in its inner levels, pale elsewhere."""
    values = explanation.view.astype(np.float64)  # (n, channels)
    if values.shape[1] > len(_CURVES):
        values = values.mean(axis=1, keepdims=True)
    position = np.arange(len(values))
    shaded = [(found.visible, SHADES[number % len(SHADES)]) for number, found in enumerate(explanation.sets)]
    if not explanation.others:
        sets = [np.zeros(len(values), bool), *(level.visible for level in explanation.levels)]
        count = len(explanation.levels)
        shaded = [(sets[i + 1] & ~sets[i], shade_of(i, count)) for i in range(count)]  # what each level adds
    for within, colour in reversed(shaded):
        for start, stop in find_intervals(within):
            axes.axvspan(start - 0.5, stop - 0.5, facecolor=colour, alpha=SHADE, linewidth=0)
    visible = np.any([found.visible for found in explanation.sets], axis=0)
    intervals = find_intervals(visible)
    single = [start for start, stop in intervals if stop - start == 1]  # no line to draw, so a dot
    for channel, colour in zip(values.T, _CURVES, strict=False):
        axes.plot(position, channel, color=colour, alpha=0.4, linewidth=0.9)
        axes.plot(position, np.where(visible, channel, np.nan), color=colour, linewidth=1.8)
        axes.plot(single, channel[single], "o", color=colour, markersize=3)
    _style_axes(axes, len(values))


def shade_of(number: int, count: int) -> str:
    """The colour of a level's spans, from 0 for the innermost of `count` levels: the one of the explanation for the last."""
    return SHADES[0] if number == count - 1 else _INNER[min(number, len(_INNER) - 1)]


def draw_map(axes: "Axes", explanation: ExplanationRecord) -> None:
    """The map relative to its largest value, filled down to 0."""
    heat = as_heat(explanation.responsibility)
    axes.fill_between(np.arange(len(heat)), heat, step="mid", color=_MAP, alpha=0.75, linewidth=0)
    axes.set_ylim(min(0.0, float(heat.min())), 1.05)
    axes.set_yticks([0, 1])
    axes.set_ylabel("responsibility", fontsize=8, color=_SOFT)
    axes.set_xlabel("sample", fontsize=8, color=_SOFT)
    _style_axes(axes, len(heat))


def find_intervals(visible: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """The runs of True, each as a half-open interval (start, stop)."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], visible.astype(np.int8), [0]))))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _style_axes(axes: "Axes", length: int) -> None:
    axes.set_xlim(-0.5, length - 0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_FAINT)
    axes.tick_params(labelsize=8, labelcolor=_SOFT, color=_FAINT)
