"""Why are these two images alike? Networks of embeddings, `embed:MODEL`, and the image that others are compared with.

A score is the cosine similarity of the embeddings, not counting what an empty image has, which is grey all over: minus its
similarity, unless that one is negative. So it is 0 where nothing of what makes the images alike is shown, and never above 1.
Where a threshold is stated, the cosine similarity of the user's own system, scores are cosine similarities, or 0.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Classifier, Pixels
from becausal.core.errors import AnswerError, BecausalError, ModelError, OptionError
from becausal.core.text import one_line
from becausal.images.fills import USUAL, make_background
from becausal.images.loading import InputImage, load_image, make_view
from becausal.models.asked import AskedNetwork
from becausal.models.loading import Loading, check_threshold

EMPTY = 128  # the value of all pixels of an empty image


def unit_rows(raw: NDArray[Any]) -> NDArray[np.float32]:
    """Embeddings (n, d, …) as rows of length 1; zeros stay zeros."""
    rows = raw.reshape(len(raw), -1).astype(np.float64, copy=False)  # squares of large numbers are too large for float32
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30), np.float32)


def compare(rows: NDArray[np.float32], wanted: NDArray[np.float32]) -> NDArray[np.float32]:
    """The cosine similarities, (n, labels), of embeddings (n, d) to others (labels, d), all of length 1.

    Raises AnswerError where d differs.
    """
    if rows.shape[1] != wanted.shape[1]:
        lengths = f"of {rows.shape[1]:,} numbers for one image, and of {wanted.shape[1]:,} for what it is compared with"
        raise AnswerError(f"the model returned an embedding {lengths}; expected as many for images of every size")
    return np.asarray(rows @ wanted.T, np.float32)


def embed(network: Classifier, pixels: Pixels) -> NDArray[np.float32]:
    """The embeddings of views, as rows of length 1. Raises ModelError where the network returns none."""
    try:
        raw = np.asarray(network.classify(pixels))
    except BecausalError:
        raise
    except Exception as error:  # it may be the user's code: any error is possible
        reason = f"{type(error).__name__}: {one_line(error, 200)}"
        raise ModelError(f"{network.info.spec} cannot embed a batch of shape {pixels.shape}: {reason}") from error
    if raw.ndim < 2 or (raw.ndim > 2 and max(raw.shape[2:]) > 1):
        advice = f"expected one embedding for each, ({len(pixels)}, numbers)"
        raise ModelError(f"{network.info.spec} returned an output of shape {raw.shape} for {len(pixels)} images; {advice}")
    if not np.isfinite(raw).all():
        raise ModelError(f"{network.info.spec} returned an embedding with NaN or infinite numbers")
    return unit_rows(raw)


def embed_empty(network: Classifier) -> NDArray[np.float32]:
    """The embedding of an empty image, (1, d), of length 1."""
    info = network.info
    grid = info.geometry.grid if info.geometry is not None else (224, 224)
    return embed(network, np.full((1, *grid, info.channels or 3), EMPTY, np.uint8))


def compare_with(
    network: Classifier,
    wanted: NDArray[np.float32],
    name: str,
    blank: NDArray[np.float32],
    threshold: float | None,
    loading: Mapping[str, Any],
    *,
    spec: str | None = None,
) -> AskedNetwork:
    """A network of embeddings, asked how similar images are to what has this embedding, (1, d), and this name.

    blank: the embedding of an empty image, (1, d). threshold: the lowest cosine similarity that counts as similar; None to
    keep a share of each image's own. loading: the options, for the record. spec: of what is asked, None for the network's.
    """
    empty = float(compare(blank, wanted)[0, 0])
    base, note = max(empty, 0.0), f"scores are cosine similarities, not counting what an empty image has: {empty:.3f}"
    if empty <= 0.0:
        note = f"scores are cosine similarities; an empty image has {empty:.3f}, which counts as 0"
    if threshold is not None:
        base, note = 0.0, f"scores are cosine similarities; an empty image has {empty:.3f}"
        if not threshold > empty:
            raise OptionError(
                f"an empty image has a similarity of {empty:.3f} already: give a threshold above it, not {threshold:g}"
            )

    def read(raw: NDArray[Any]) -> NDArray[np.float32]:
        return np.asarray(np.clip(compare(unit_rows(raw), wanted) - base, 0.0, 1.0), np.float32)

    info = replace(
        network.info, output="similarity", labels=(name,), notes=(note,), threshold=threshold or 0.0, loading=loading,
        spec=spec or network.info.spec,
    )  # fmt: skip
    return AskedNetwork(network, info, read)


def ask(network: Classifier, loading: Loading) -> AskedNetwork:
    """A network of embeddings, asked how similar images are to another one. Raises OptionError where there is none."""
    if loading.like is None:
        raise OptionError("an embed: model compares two images: say which with --like IMAGE, or use `becausal similar`")
    return compare_with_image(network, load_image(loading.like), loading)


def compare_with_image(network: Classifier, other: InputImage, loading: Loading) -> AskedNetwork:
    """A network of embeddings, asked how similar images are to this one. loading: the options, for the record."""
    view, blank = embed_image(network, other)
    record = replace(loading, like=loading.like or other.path or other.name).record()
    threshold = None if loading.threshold is None else check_threshold(loading.threshold)
    return compare_with(network, view, f"like {other.name}", blank, threshold, record)


def embed_image(network: Classifier, image: InputImage) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The embeddings of an image and of an empty one of its size, (1, d) each. Raises ModelError for other models."""
    info = network.info
    if info.output in ("labels", "boxes", "similarity", "segments"):
        raise ModelError(f"{info.spec} does not return embeddings but {info.output}: give a network of embeddings")
    view = make_view(image, info.geometry, channels=info.channels).pixels
    blank = make_background(USUAL, view, rng=np.random.default_rng(0))
    return embed(network, view[None]), embed(network, blank[None])
