"""How much memory a search takes, estimated before anything is allocated."""

import os
from math import prod
from pathlib import Path

from becausal.core.errors import ImageError
from becausal.engine.calls import ModelCalls
from becausal.engine.draws import PAIR_BYTES, kept_count

MAX_BYTES = 8 * 2**30
BYTES_PER_PIXEL = 128  # of a search: maps, patches, masks and backgrounds; measured with `causal` and `dc-causal`
DRAWING_PAIRS = 4  # memory to draw a random background, as so many pairs of view and background; measured


def require_memory(name: str, shape: tuple[int, ...], itemsize: int, calls: ModelCalls, *, has_draws: bool = False) -> None:
    """Refuse a view that is too large to be searched.

    Args:
        name: Of the image, for the message.
        shape: Of the view, (*grid, channels).
        itemsize: Bytes of one of its numbers.
        calls: The model; a batch on a GPU is not counted.
        has_draws: Whether the search uses random backgrounds.

    Raises:
        ImageError: The search would take more memory than MAX_BYTES, or than this machine has.
    """
    rows = 0 if calls.is_async else calls.batch_size
    needed = prod(shape[:-1]) * BYTES_PER_PIXEL + rows * prod(shape) * itemsize
    if has_draws:  # those that are kept, those in the rows of the last batch, and one that is being drawn
        kept = 0 if calls.is_async else kept_count(prod(shape)) + rows
        needed += (kept + DRAWING_PAIRS) * PAIR_BYTES * prod(shape)
    limit = min(MAX_BYTES, total_memory())
    if needed <= limit:
        return
    is_image = len(shape) == 3
    size = "x".join(str(side) for side in (reversed(shape[:-1]) if is_image else shape[:-1]))
    advice = "add --resize, e.g. --resize 512" if is_image else "make it smaller first"
    raise ImageError(
        f"{name} is seen by the model at a size of {size}: to explain it would take about {needed / 2**30:.0f} GB of memory "
        f"with a batch size of {calls.batch_size}, and the limit is {limit / 2**30:.0f} GB: {advice}"
    )


def total_memory() -> int:
    """Bytes of memory that this process may use; a very large number where that is not known."""
    found = [2**62]
    try:
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        found.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))  # of a container; "max" for no limit
    except (OSError, ValueError, AttributeError):
        pass
    return min(size for size in found if size > 0)
