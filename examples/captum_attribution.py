"""Causal attribution with the interface of captum: a torch module, tensors in, a tensor of the same shape out.

pip install ".[torch]"
python examples/captum_attribution.py
"""

import torch

from becausal.interfaces.captum import CausalAttribution
from becausal.scenes import make_scene
from becausal.scenes.network import load_network, to_input


def main() -> None:
    scene = make_scene(50_000_017, cut=True)
    network = load_network()  # any nn.Module, or any function from a batch to logits
    inputs = to_input(scene.image[None])  # (1, 3, 128, 128), normalised for the network

    attribution = CausalAttribution(network, method="causal")
    maps = attribution.attribute(inputs, target=scene.label_index, baselines=0.0)  # like captum's FeatureAblation

    assert maps.shape == inputs.shape
    level = maps[0, 0]
    on_object = level[torch.from_numpy(scene.visible.copy())].sum() / level.sum()
    print(f"{scene.label}: {on_object:.0%} of the responsibility is on its visible part")


if __name__ == "__main__":
    main()
