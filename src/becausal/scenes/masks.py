"""Connected pieces of a mask."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from becausal.scenes.sketch import BoolArray


def pieces(mask: BoolArray) -> tuple[npt.NDArray[np.int32], list[int]]:
    """Number the connected pieces of a mask (n, m), largest first.

    Pixels that touch at a corner are connected. Returns the piece of every pixel (0 is outside, 1 the largest)
    and the pieces' sizes in pixels.
    """
    height, width = mask.shape
    padded = np.zeros((height, width + 2), dtype=np.int8)
    padded[:, 1:-1] = mask
    step = np.diff(padded, axis=1)
    rows, starts = np.nonzero(step == 1)
    stops = np.nonzero(step == -1)[1]
    parent = list(range(len(rows)))

    def root(run: int) -> int:
        while parent[run] != run:
            parent[run] = parent[parent[run]]
            run = parent[run]
        return run

    first_of_row = np.searchsorted(rows, np.arange(height + 1)).tolist()
    start_list, stop_list = starts.tolist(), stops.tolist()
    for row in range(1, height):
        above, here = first_of_row[row - 1], first_of_row[row]
        end_above, end_here = here, first_of_row[row + 1]
        while above < end_above and here < end_here:
            if start_list[above] <= stop_list[here] and start_list[here] <= stop_list[above]:
                parent[root(here)] = root(above)
            if stop_list[above] < stop_list[here]:
                above += 1
            else:
                here += 1
    roots = [root(run) for run in range(len(rows))]
    sizes: dict[int, int] = {}
    for run, key in enumerate(roots):
        sizes[key] = sizes.get(key, 0) + stop_list[run] - start_list[run]
    order = sorted(sizes, key=lambda key: -sizes[key])
    number = {key: k + 1 for k, key in enumerate(order)}
    numbered = np.zeros(mask.shape, dtype=np.int32)
    for run, key in enumerate(roots):
        numbered[rows[run], start_list[run] : stop_list[run]] = number[key]
    return numbered, [sizes[key] for key in order]
