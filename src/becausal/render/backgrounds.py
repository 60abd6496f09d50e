"""Samples of backgrounds on one sheet."""

from collections.abc import Sequence
from math import ceil, sqrt

import numpy as np

from becausal.core.contracts import Pixels
from becausal.render.figures import INK, SOFT, new_figure, png_bytes, set_title
from becausal.render.sheets import as_rgb, value_range

_SIDE = 1.35  # inches of a tile
_LONGEST = 24  # characters of a caption


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
    figure = new_figure(_SIDE * columns * min(1.0, 1 / ratio), rows * (_SIDE * min(1.0, ratio) + 0.2))
    grid = figure.subplots(rows, columns, squeeze=False, sharex=is_signal, sharey=is_signal)
    low, high = value_range(view)
    for axes in grid.flat:
        axes.set_axis_off()
    for number, (axes, (caption, pixels)) in enumerate(zip(grid.flat, tiles, strict=False)):
        if is_signal:
            axes.plot(pixels.astype(np.float64), linewidth=0.8)
        else:
            axes.imshow(as_rgb(pixels[len(pixels) // 2] if pixels.ndim == 4 else pixels, low, high), interpolation="auto")
        text = caption if len(caption) <= _LONGEST else f"…{caption[1 - _LONGEST :]}"
        set_title(axes, text, size=7, colour=SOFT if number else INK, pad=2)
    return png_bytes(figure)
