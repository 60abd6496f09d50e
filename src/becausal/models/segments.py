"""Why is this pixel road? Networks that give every pixel a class, `segment:MODEL`: (n, classes, h, w) logits.

The answers are these maps. What of them is asked about, one place or the segment of a class, is the target's, see
`core.segments`.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Classifier
from becausal.core.errors import AnswerError, ModelError
from becausal.core.segments import KEPT
from becausal.models.asked import AskedNetwork
from becausal.models.loading import Loading, check_threshold
from becausal.models.outputs import make_probe_images

MOST_BYTES = 2**28  # of the maps of one batch


def read_maps(raw: NDArray[Any]) -> NDArray[np.float32]:
    """The maps of logits as float32; one map becomes two classes. Raises AnswerError for another shape."""
    if raw.ndim != 4 or 0 in raw.shape[1:]:
        raise AnswerError(f"the model returned an output of shape {raw.shape}; expected (n, classes, h, w)")
    maps = raw.astype(np.float32, copy=False)
    return np.concatenate([np.zeros_like(maps), maps], axis=1) if maps.shape[1] == 1 else maps


def ask(network: Classifier, loading: Loading) -> AskedNetwork:
    """A network that gives every pixel a class, asked about segments. Raises ModelError if it is none."""
    info, labels, largest = network.info, network.info.labels, network.batch_size
    if info.geometry is not None:
        try:
            raw = network.classify(make_probe_images(info.geometry.grid, info.channels or 3))
            if raw.ndim == 2:
                raise ModelError(f"{info.spec} returns scores per class, not maps of classes: load it without segment:")
            maps = read_maps(raw)
        except AnswerError as error:
            raise ModelError(f"{info.spec}: {error}") from None
        h, w, last = maps.shape[1:]
        if last < min(h, w) and h * info.geometry.grid[1] == w * info.geometry.grid[0]:
            raise ModelError(f"{info.spec} returns {raw.shape}, with classes last; expected (n, classes, h, w)")
        is_one = raw.shape[1] == 1 and raw.max() <= 1.0
        if raw.min() >= 0.0 and (is_one or np.allclose(raw.sum(axis=1), 1.0, atol=1e-3)):
            raise ModelError(f"{info.spec} returns probabilities; expected logits, as before softmax or sigmoid")
        largest = max(1, min(largest, MOST_BYTES // maps[0].nbytes))
    if labels is not None and len(labels) == 1:
        labels = (f"not {labels[0]}", labels[0])
    threshold = info.threshold or KEPT if loading.threshold is None else check_threshold(loading.threshold)
    info = replace(info, output="segments", labels=labels, threshold=threshold, loading=loading.record(), notes=())
    return AskedNetwork(network, info, read_maps, batch_size=largest)
