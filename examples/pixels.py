"""Explain why a pixel has its class, and why an object has its segment, with a network that gives every pixel a class.

    python examples/pixels.py

The scene is generated, so the ground truth is known: how much of what the network needs is on the object itself?
"""

import numpy as np

import becausal
from becausal.scenes import make_group


def main() -> None:
    scene = make_group(1055)
    model = becausal.load_model("bundled:segmenter")
    for _, name, share in becausal.classify(scene.image, model):
        print(f"{name}: {share:.1%} of the image")

    lamp = next(one for one in scene.objects if one.label == "traffic light")
    rows, columns = np.nonzero(lamp.visible)
    middle = np.argmin(np.hypot(rows - rows.mean(), columns - columns.mean()))
    at = int(columns[middle]), int(rows[middle])

    pixel = becausal.explain(scene.image, model, at=at)
    segment = becausal.explain(scene.image, model, target=lamp.label)
    for explanation in (pixel, segment):
        print()
        print(explanation)
        visible = explanation.on_original(explanation.levels[0].visible)
        on_object = np.count_nonzero(visible & lamp.visible) / np.count_nonzero(visible)
        print(f"the core: {explanation.levels[0].size:.1%} of the view, {on_object:.0%} of it on the {lamp.label}")
        assert explanation.checks.sufficient
    assert pixel.label == segment.label == lamp.label


if __name__ == "__main__":
    main()
