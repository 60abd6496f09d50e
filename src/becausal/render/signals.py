"""Signals: one curve per channel with the explanation shaded, and the map beneath."""

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from becausal.core.explanation import ExplanationRecord
from becausal.render.sheets import as_level

_LINES = ("#3b4754", "#7b5ea7", "#2f7f79", "#9a6a2f")
_LIGHT = "#f4a340"
_MAP = "#b5367a"
_SOFT = "#68717c"
MOST_CURVES = 4  # more channels than this are averaged


def draw_curve(axes: Axes, explanation: ExplanationRecord) -> None:
    """The signal, pale where it may be hidden, strong and shaded where it is part of the explanation."""
    values = explanation.view.astype(np.float64)  # (n, channels)
    if values.shape[1] > MOST_CURVES:
        values = values.mean(axis=1, keepdims=True)
    place = np.arange(len(values))
    for start, stop in runs(explanation.visible):
        axes.axvspan(start - 0.5, stop - 0.5, color=_LIGHT, alpha=0.28, linewidth=0)
    for channel, colour in zip(values.T, _LINES, strict=False):
        axes.plot(place, channel, color=colour, alpha=0.4, linewidth=0.9)
        axes.plot(place, np.where(explanation.visible, channel, np.nan), color=colour, linewidth=1.8)
        _mark_single(axes, explanation.visible, channel, colour)
    _tidy(axes, len(values))


def draw_level(axes: Axes, explanation: ExplanationRecord) -> None:
    """The map as a share of its largest value, filled down to 0."""
    level = as_level(explanation.responsibility)
    axes.fill_between(np.arange(len(level)), level, step="mid", color=_MAP, alpha=0.75, linewidth=0)
    axes.set_ylim(min(0.0, float(level.min())), 1.05)
    axes.set_yticks([0, 1])
    axes.set_ylabel("responsibility", fontsize=8, color=_SOFT)
    axes.set_xlabel("sample", fontsize=8, color=_SOFT)
    _tidy(axes, len(level))


def runs(visible: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """The stretches of True in a row, each as (first, one past the last)."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], visible.astype(np.int8), [0]))))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _mark_single(axes: Axes, visible: NDArray[np.bool_], channel: NDArray[np.float64], colour: str) -> None:
    """A stretch of one sample has no line to draw, so it gets a dot."""
    alone = [start for start, stop in runs(visible) if stop - start == 1]
    axes.plot(alone, channel[alone], "o", color=colour, markersize=3)


def _tidy(axes: Axes, length: int) -> None:
    axes.set_xlim(-0.5, length - 0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#c3c9d0")
    axes.tick_params(labelsize=8, labelcolor=_SOFT, color="#c3c9d0")
