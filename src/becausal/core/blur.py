"""Box blur along one axis."""

import numpy as np
from numpy.typing import NDArray


def box_blur(values: NDArray[np.float64], radius: int, axis: int) -> NDArray[np.float64]:
    """The mean over the 2·radius + 1 nearest values along an axis; border values are repeated outside."""
    padding = [(0, 0)] * values.ndim
    padding[axis] = (radius + 1, radius)
    sums = np.moveaxis(np.cumsum(np.pad(values, padding, mode="edge"), axis=axis), axis, 0)
    width = 2 * radius + 1
    return np.asarray(np.moveaxis((sums[width:] - sums[:-width]) / width, 0, axis), np.float64)
