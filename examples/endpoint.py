"""Explain a service that says nothing but a name: no scores, no gradients, every request counted.

    python examples/endpoint.py

For a service with a protocol of its own; one that speaks the Open Inference Protocol needs no code: `--model oip:URL`.

`ask_service` stands for a request to somebody's server. It gets a batch of images and returns names; replace its body by
yours. `max_calls` limits the calls: when it is spent, the best explanation so far comes back, marked so. Four images more
are sent at the very start, to find out what kind of answer the function gives.
"""

import numpy as np
from numpy.typing import NDArray

import becausal
from becausal.scenes import make_scene

BUDGET = 400
bundled = becausal.load_model("bundled")
sent = {"requests": 0, "pictures": 0}


def ask_service(pictures: NDArray[np.uint8]) -> list[str]:
    """(n, 128, 128, 3) pixels to n names."""
    sent["requests"] += 1
    sent["pictures"] += len(pictures)
    names = bundled.info.labels or ()
    return [names[i] for i in bundled.classify(pictures).argmax(axis=1)]


def main() -> None:
    scene = make_scene(112)  # a house behind a black bar
    explanation = becausal.explain(scene.picture, ask_service, grain=4, max_calls=BUDGET)

    inside = np.count_nonzero(explanation.visible & scene.visible) / explanation.pixels
    covered = np.count_nonzero(explanation.visible & scene.occluder) / explanation.pixels
    print(f"{explanation.label}, {explanation.calls} calls, stopped by {explanation.stopped_by}")
    print(f"{sent['pictures']} images in {sent['requests']} requests")
    print(f"enough for it: {explanation.size:.1%} of the view, minimal at {explanation.checks.minimal_grain} px")
    print(f"{inside:.0%} of it on the house, {covered:.0%} on the bar")
    assert explanation.label == scene.label
    assert explanation.checks.sufficient
    assert explanation.calls <= BUDGET


if __name__ == "__main__":
    main()
