"""Explain a one-dimensional signal: which samples are enough for the label "beat"?

    python examples/signals.py

The detector finds a heartbeat-like spike by correlation with a template. One spike is added to noise at a known position, so
the explanation must lie there. becausal is not limited to images: a grid may have any number of axes.
"""

import numpy as np
from numpy.typing import NDArray

import becausal

START, LENGTH = 150, 21
SPIKE = 2.0 * np.exp(-0.5 * (np.linspace(-3, 3, LENGTH) / 0.7) ** 2)
LABELS = ("quiet", "beat")


def predict(signals: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n, 256) samples to (n, 2) probabilities; any function like this is a model."""
    windows = np.lib.stride_tricks.sliding_window_view(signals, LENGTH, axis=1)  # (n, 236, 21)
    match = (windows @ SPIKE / (SPIKE @ SPIKE)).max(axis=1)  # 1 where the whole spike is present
    beat = 1 / (1 + np.exp(-12 * (match - 0.6)))
    return np.stack([1 - beat, beat], axis=1)


def main() -> None:
    signal = np.random.default_rng(0).normal(0.0, 0.1, 256)
    signal[START : START + LENGTH] += SPIKE
    predict.labels = LABELS  # type: ignore[attr-defined]

    explanation = becausal.explain(signal, predict, fills="mean", grain=1)

    found = np.flatnonzero(explanation.visible)
    inside = np.mean((found >= START) & (found < START + LENGTH))
    print(f"{explanation.label} ({explanation.confidence:.3f}), {explanation.calls} calls")
    print(f"sufficient: {len(found)} of 256 samples, from {found.min()} to {found.max()}")
    print(f"the spike is at {START} to {START + LENGTH - 1}: {inside:.0%} of the explanation lies in it")
    assert inside == 1.0


if __name__ == "__main__":
    main()
