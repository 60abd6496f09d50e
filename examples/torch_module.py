"""Explain a torch module in memory, and show the proof for one pixel.

    pip install ".[torch]"
    python examples/torch_module.py

The network is the torch version of the bundled classifier. The image is a generated scene, so the ground truth is known:
where the object is visible, and where it is occluded.
"""

import numpy as np

import becausal
from becausal.models import as_classifier
from becausal.scenes import LABELS, make_scene
from becausal.scenes.network import load_network


def main() -> None:
    scene = make_scene(107)  # a sailboat behind strips
    network = load_network()  # any nn.Module
    model = as_classifier(network, preprocess="tf", resize=128, labels=LABELS)

    explanation = becausal.explain(scene.image, model)

    core, enough = explanation.levels  # enough holds on random backgrounds, core inside it on a plain colour
    print(f"{explanation.label} ({explanation.confidence:.3f}), {explanation.calls} calls")
    for level in (enough, core):
        on_object = np.count_nonzero(level.visible & scene.visible) / level.pixels
        on_strips = np.count_nonzero(level.visible & scene.occluder) / level.pixels
        print(
            f"{level.name}: {level.size:.1%} of the view, {on_object:.0%} of it on the object, {on_strips:.0%} on the strips"
        )
        print(f"  keeps the label on {level.checks.transfer.kept} of {level.checks.transfer.asked} fresh random backgrounds")

    row, column = np.argwhere(core.visible)[0]
    why = explanation.why(int(row), int(column))
    print(f"pixel ({row}, {column}): {why.text}")
    before, after = (model.classify(image[None])[0, scene.label_index] for image in (why.shown, why.without))
    print(f"confidence with its cell {before:.3f}, without it {after:.3f}, required {explanation.target.floor:.3f}")
    assert explanation.label == scene.label
    assert after < explanation.target.floor <= before


if __name__ == "__main__":
    main()
