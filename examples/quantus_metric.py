"""A Quantus metric for two methods of becausal, with `explain_func`.

pip install ".[torch]" quantus
python examples/quantus_metric.py
"""

import numpy as np
import quantus

from becausal.interfaces.quantus import explain_func
from becausal.scenes import make_scene
from becausal.scenes.network import load_network, to_input


def main() -> None:
    scenes = [make_scene(seed, cut=True) for seed in (50_000_012, 50_000_017)]
    network = load_network()
    images = to_input(np.stack([scene.image for scene in scenes])).numpy()
    labels = np.array([scene.label_index for scene in scenes])
    objects = np.stack([scene.visible for scene in scenes])[:, None]  # (2, 1, 128, 128), where each object is visible

    metric = quantus.RelevanceRankAccuracy(disable_warnings=True)
    for method in ("causal", "rise"):
        scores = metric(
            model=network,
            x_batch=images,
            y_batch=labels,
            s_batch=objects,
            explain_func=explain_func,
            explain_func_kwargs={"method": method, "options": {"masks": 500} if method == "rise" else None},
        )
        print(f"{method}: relevance rank accuracy {np.mean(scores):.2f}")


if __name__ == "__main__":
    main()
