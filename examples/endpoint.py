"""Explain a service that returns only a label: no scores, no gradients, and every request is counted.

    python examples/endpoint.py

This is for a service with its own protocol. One with the Open Inference Protocol needs no code: `--model oip:URL`.

`call_service` stands for a request to a server. It takes a batch of images and returns labels; replace its body by yours.
`max_calls` limits the calls: when the limit is reached, the best explanation so far is returned, and `stopped_by` says so.
At the start, four more images are sent to detect what the function returns.
"""

import numpy as np
from numpy.typing import NDArray

import becausal
from becausal.scenes import make_scene

BUDGET = 1000
bundled = becausal.load_model("bundled")
sent = {"requests": 0, "images": 0}


def call_service(images: NDArray[np.uint8]) -> list[str]:
    """(n, 128, 128, 3) pixels to n labels."""
    sent["requests"] += 1
    sent["images"] += len(images)
    names = bundled.info.labels or ()
    return [names[i] for i in bundled.classify(images).argmax(axis=1)]


def main() -> None:
    scene = make_scene(112)  # a house behind a black bar
    explanation = becausal.explain(scene.image, call_service, grain=4, max_calls=BUDGET)

    print(f"{explanation.label}, {explanation.calls} calls, stopped by {explanation.stopped_by}")
    print(f"{sent['images']} images in {sent['requests']} requests")
    for level in explanation.levels:
        on_house = np.count_nonzero(level.visible & scene.visible) / level.pixels
        grain = level.checks.minimal_grain
        print(f"{level.name}: {level.size:.1%} of the view, minimal at {grain} px, {on_house:.0%} of it on the house")
    for note in explanation.notes:
        print(f"note: {note}")
    assert explanation.label == scene.label
    assert explanation.checks.sufficient
    assert explanation.calls <= BUDGET


if __name__ == "__main__":
    main()
