"""Signals: one curve per channel with the explanation shaded, and the map below."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from becausal.core.explanation import ExplanationRecord
from becausal.render.sheets import as_level

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_CURVES = ("#3b4754", "#7b5ea7", "#2f7f79", "#9a6a2f")  # more channels than this are averaged
SHADES = ("#f4a340", "#2f9fd0", "#d9559a", "#4fa832", "#8b64d8", "#b08d00")  # the first explanation first
_MAP = "#b5367a"
_SOFT = "#68717c"
_FAINT = "#c3c9d0"


def draw_curve(axes: "Axes", explanation: ExplanationRecord) -> None:
    """The signal: shaded and bold in each explanation, pale elsewhere."""
    values = explanation.view.astype(np.float64)  # (n, channels)
    if values.shape[1] > len(_CURVES):
        values = values.mean(axis=1, keepdims=True)
    position = np.arange(len(values))
    for number, found in enumerate(explanation.sets):
        for start, stop in find_intervals(found.visible):
            axes.axvspan(start - 0.5, stop - 0.5, color=SHADES[number % len(SHADES)], alpha=0.28, linewidth=0)
    visible = np.any([found.visible for found in explanation.sets], axis=0)
    intervals = find_intervals(visible)
    single = [start for start, stop in intervals if stop - start == 1]  # no line to draw, so a dot
    for channel, colour in zip(values.T, _CURVES, strict=False):
        axes.plot(position, channel, color=colour, alpha=0.4, linewidth=0.9)
        axes.plot(position, np.where(visible, channel, np.nan), color=colour, linewidth=1.8)
        axes.plot(single, channel[single], "o", color=colour, markersize=3)
    _style_axes(axes, len(values))


def draw_level(axes: "Axes", explanation: ExplanationRecord) -> None:
    """The map relative to its largest value, filled down to 0."""
    level = as_level(explanation.responsibility)
    axes.fill_between(np.arange(len(level)), level, step="mid", color=_MAP, alpha=0.75, linewidth=0)
    axes.set_ylim(min(0.0, float(level.min())), 1.05)
    axes.set_yticks([0, 1])
    axes.set_ylabel("responsibility", fontsize=8, color=_SOFT)
    axes.set_xlabel("sample", fontsize=8, color=_SOFT)
    _style_axes(axes, len(level))


def find_intervals(visible: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """The runs of True, each as a half-open interval (start, stop)."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], visible.astype(np.int8), [0]))))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _style_axes(axes: "Axes", length: int) -> None:
    axes.set_xlim(-0.5, length - 0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_FAINT)
    axes.tick_params(labelsize=8, labelcolor=_SOFT, color=_FAINT)
