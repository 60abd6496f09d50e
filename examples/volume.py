"""Explain a volume: which voxels are enough for the label "lesion"?

    python examples/volume.py

A noisy volume contains a bright ball of known position and size. The detector counts bright voxels in the densest
neighbourhood. Nothing else in the volume matters, so the explanation must lie in the ball.
"""

import numpy as np
from numpy.typing import NDArray

import becausal

SHAPE, CENTRE, RADIUS = (20, 28, 28), (8, 17, 10), 4
SIDE = 7  # side of the neighbourhood, in voxels


def predict(volumes: NDArray[np.float32]) -> NDArray[np.float64]:
    """(n, 20, 28, 28) voxels to (n, 2) probabilities of healthy and lesion."""
    counts = (volumes > 0.5).astype(np.float64)
    for axis in (1, 2, 3):
        counts = np.lib.stride_tricks.sliding_window_view(counts, SIDE, axis=axis).sum(axis=-1)
    lesion = 1 / (1 + np.exp(-0.2 * (counts.max(axis=(1, 2, 3)) - 60)))
    return np.stack([1 - lesion, lesion], axis=1)


def main() -> None:
    positions = np.indices(SHAPE)
    ball = sum((p - c) ** 2 for p, c in zip(positions, CENTRE, strict=True)) <= RADIUS**2
    volume = np.random.default_rng(0).normal(0.1, 0.1, SHAPE).astype(np.float32)
    volume[ball] += 0.8
    predict.labels = ("healthy", "lesion")  # type: ignore[attr-defined]

    explanation = becausal.explain(volume, predict, fills="black", grain=2)

    inside = np.count_nonzero(explanation.visible & ball) / explanation.pixels
    print(f"{explanation.label} ({explanation.confidence:.3f}), {explanation.calls} calls")
    print(f"sufficient: {explanation.pixels} of {ball.size:,} voxels, in {explanation.pieces} piece(s)")
    print(f"the ball has {np.count_nonzero(ball)} voxels: {inside:.0%} of the explanation lies in it")
    assert inside > 0.8


if __name__ == "__main__":
    main()
