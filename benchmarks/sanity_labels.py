"""The second check of Adebayo et al. (2018): do maps and explanations change if the labels in training were permuted?

    python benchmarks/sanity_labels.py [--out FILE.csv] [--images 20] [--methods A,B]

Trains three small networks on the same 400 scenes of 32 px, until each has learned at least 99 % of its labels: with the
true labels, with the true labels from other initial weights, and with permuted labels. Images that all three have learned
are explained with each, for the label that the network has learned. Maps and explanations are compared with those of the
first network. What chance alone changes is measured twice: by another seed of the method, and by other initial weights.
"""

import argparse
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from becausal import Request
from becausal.api.jobs import prepare
from becausal.core.errors import BecausalError
from becausal.engine.engine import Engine
from becausal.lab.base import BenchSettings, make_request
from becausal.lab.datasets import draw_scenes
from becausal.lab.rows import Row, group_rows, rounded, table_text
from becausal.lab.sanity import RANK, SETS, EdgeMap, compare_with_trained, default_methods, explain_label, take_network
from becausal.lab.tables import Measure, format_cell
from becausal.models import as_classifier
from becausal.scenes import LABELS

OUT = Path(__file__).parent / "results" / "sanity-labels.csv"
SCENES, HELD_OUT, SIDE, EPOCHS, LEARNED = 400, 200, 32, 200, 0.99
NETWORKS = {"trained": "trained", "seed": "another seed", "weights": "other initial weights", "labels": "permuted labels"}


def draw(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Scenes without occluders, (n, 32, 32, 3) uint8, and the ids of their labels."""
    samples = list(islice(draw_scenes(seed, plain=True), count))
    images = [Image.fromarray(s.read().pixels).resize((SIDE, SIDE), Image.Resampling.BOX) for s in samples]
    return np.stack([np.asarray(image) for image in images]), np.array([LABELS.index(str(s.label)) for s in samples])


def to_tensor(images: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(images.transpose(0, 3, 1, 2).astype(np.float32) / 127.5 - 1)


def train(images: np.ndarray, labels: np.ndarray, seed: int) -> nn.Module:
    """A small network that has learned the labels by heart."""
    torch.manual_seed(seed)
    network = nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(), nn.Conv2d(64, 64, 3, 1, 1), nn.ReLU(),
        nn.Flatten(), nn.Linear(64 * 64, len(LABELS)),
    )  # fmt: skip
    inputs, targets = to_tensor(images), torch.from_numpy(labels)
    adam = torch.optim.Adam(network.parameters(), lr=1e-3)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(inputs)).split(40):
            adam.zero_grad()
            nn.functional.cross_entropy(network(inputs[rows]), targets[rows]).backward()
            adam.step()
        if share_right(network, images, labels) >= LEARNED:
            return network.eval()
    raise SystemExit(f"the network has not learned its labels within {EPOCHS} epochs")


def share_right(network: nn.Module, images: np.ndarray, labels: np.ndarray) -> float:
    return float((predict(network, images) == labels).mean())


def predict(network: nn.Module, images: np.ndarray) -> np.ndarray:
    with torch.inference_mode():
        return network(to_tensor(images)).argmax(1).numpy()


def explain_all(networks: dict[str, nn.Module], images: np.ndarray, names: list[str], methods: list[str]) -> list[Row]:
    """A row for each method, network and image."""
    settings = BenchSettings(bench="sanity", methods=tuple(methods))
    requests: dict[str, Request] = {method: make_request(settings, method) for method in methods}
    requests["edges"] = replace(make_request(settings, "random"), method=EdgeMap())
    rows: list[Row] = []
    for by, network in networks.items():
        classifier = take_network(as_classifier(network, preprocess="tf", resize=SIDE, labels=list(LABELS)))
        for method, request in requests.items():
            asked = request if by == "trained" else replace(request, seed=1)
            for name, image in zip(names, images, strict=True):
                job = prepare(image, Engine(classifier), asked)
                label = int(np.argmax(classifier.classify(job.view.pixels[None])[0]))
                try:
                    row = rounded(explain_label(job, label))
                except BecausalError as error:
                    row = {"error": f"{type(error).__name__}: {error}"}
                rows.append({"name": name, "method": method, "by": by, **row})
    return compare_with_trained(rows)


def print_table(rows: list[Row]) -> None:
    """Mean agreement with the first network, by method, as Markdown."""
    stages = list(NETWORKS)[1:]
    print("| method |" + "".join(f" {what}, {NETWORKS[by]} |" for what in ("correlation", "IoU") for by in stages))
    print("|---|" + "---:|" * 2 * len(stages))
    for (method,), part in group_rows(rows, "method").items():
        cells = [_cell(measure, [row for row in part if row["by"] == by]) for measure in (RANK, SETS) for by in stages]
        print(f"| {method} | " + " | ".join(cells) + " |")


def _cell(measure: Measure, rows: list[Row]) -> str:
    return format_cell(measure.estimate(rows), measure.column)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--images", type=int, default=20)
    parser.add_argument("--methods", default=default_methods())
    options = parser.parse_args()
    images, labels = draw(SCENES, 1)
    unseen, truth = draw(HELD_OUT, 2)
    permuted = np.random.default_rng(0).permutation(labels)
    start = time.process_time()
    first = train(images, labels, 0)
    networks = {"trained": first, "seed": first, "weights": train(images, labels, 1), "labels": train(images, permuted, 0)}
    print(f"trained in {time.process_time() - start:.0f} s; correct on {HELD_OUT} unseen scenes:")
    known: Any = np.ones(len(images), bool)
    for by, network in networks.items():
        own = permuted if by == "labels" else labels
        known &= (predict(network, images) == own) & (permuted != labels)
        print(
            f"  {NETWORKS[by]}: {share_right(network, unseen, truth):.0%}, learned {share_right(network, images, own):.1%}"
        )
    chosen = np.flatnonzero(known)[: options.images]
    rows = explain_all(networks, images[chosen], [f"scene-{i}" for i in chosen], options.methods.split(","))
    options.out.write_text(table_text(rows), encoding="utf-8")
    print_table(rows)


if __name__ == "__main__":
    main()
