"""What the training of the convolutional network, the vision transformer and the detector share.

torch is imported inside the functions: scenes are rendered by forked processes, which must not inherit its threads.
"""

from __future__ import annotations

import csv
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from render import Rendered, RenderPlan

from becausal.scenes import LABELS, NOTHING, OCCLUDERS

#: First seeds of the scenes for training, for fitting the temperature, and for evaluation.
TRAIN_SEED, HELD_SEED, TEST_SEED = 10_000_000, 20_000_000, 30_000_000


def plan_evaluation(count: int) -> dict[str, RenderPlan]:
    """The scenes to evaluate a network: the held-out set, and the test sets with `count` scenes each."""
    return {
        "held-out mix": RenderPlan(first=HELD_SEED, count=max(500, min(4000, count))),
        "clean": RenderPlan(first=TEST_SEED, count=count, occluder="none"),
        "cover 10-40": RenderPlan(first=TEST_SEED, count=count, cover=(0.1, 0.4)),
        "cover 40-60": RenderPlan(first=TEST_SEED, count=count, cover=(0.4, 0.6)),
    }


def read_network(weights):  # type: ignore[no-untyped-def]
    """The vision transformer with the weights of a training run, an .npz file, in evaluation mode."""
    import torch

    from becausal.models.bundled.network import SceneTransformer

    with np.load(weights) as file:
        state = {name: torch.from_numpy(file[name].astype(np.float32)) for name in file.files}
    network = SceneTransformer(patch=state["patches.weight"].shape[2])
    network.load_state_dict(state)
    return network.eval()


def make_optimiser(network, rate):  # type: ignore[no-untyped-def]
    """AdamW with weight decay for matrices only."""
    import torch

    vectors = [value for value in network.parameters() if value.ndim < 2]
    matrices = [value for value in network.parameters() if value.ndim >= 2]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.99))


def update_average(average, network, keep):  # type: ignore[no-untyped-def]
    """Update the running average of the weights."""
    import torch

    with torch.no_grad():
        for ours, theirs in zip(average.state_dict().values(), network.state_dict().values(), strict=True):
            if ours.is_floating_point():
                ours.lerp_(theirs, 1 - keep)


def curve_row(seconds: float, step: int, batch: int, rate: float, loss: float, accuracy: float) -> dict[str, float]:
    """Print the progress of the training and return it as a row of the training curve."""
    print(f"  {seconds:5.0f} s  step {step}  rate {rate:.5f}  loss {loss:.4f}  held-out accuracy {accuracy:.4f}", flush=True)
    curve = {"seconds": round(seconds, 1), "step": step, "pictures": step * batch}
    return curve | {"rate": rate, "loss": loss, "held_accuracy": accuracy}


def write_curves(rows: list[dict[str, float]], path: Path) -> None:
    """Write the rows of the training curve."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def draw_batches(count, batch, rate, seconds, device, start):  # type: ignore[no-untyped-def]
    """The learning rate and the numbers of the scenes of each step, until the time since `start` is over.

    Every scene is drawn once before any is drawn again. The rate rises during the first 4 % of the time and then falls as a
    cosine.
    """
    import torch

    order, at, step, share = torch.randperm(count, device=device), 0, 0, 0.0
    while True:
        if step % 10 == 0 or device.type != "cuda":
            if device.type == "cuda":
                torch.cuda.synchronize()
            share = (time.monotonic() - start) / seconds
            if share >= 1.0:
                return
        if at + batch > count:
            order, at = torch.randperm(count, device=device), 0
        now = rate * min(1.0, share / 0.04 + 1e-3) * 0.5 * (1 + math.cos(math.pi * min(1.0, share)))
        yield now, order[at : at + batch]
        at += batch
        step += 1


def logits_of(network: Any, scenes: Rendered) -> npt.NDArray[np.float64]:
    """The logits, (n, 13), of scenes in full precision."""
    import torch

    device = next(network.parameters()).device
    network.eval()
    found = []
    with torch.no_grad():
        for start in range(0, len(scenes), 500):
            batch = torch.from_numpy(scenes.images[start : start + 500]).to(device)
            found.append(network(batch.permute(0, 3, 1, 2).float().contiguous() / 127.5 - 1).double().cpu().numpy())
    return np.concatenate(found)


def softmax(logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Probabilities from logits, (n, 13)."""
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=1, keepdims=True))


def temperature(logits: npt.NDArray[np.float64], labels: npt.NDArray[np.int64]) -> float:
    """The temperature with the highest likelihood of the held-out labels."""
    grid = np.exp(np.linspace(np.log(0.25), np.log(4.0), 241))
    losses = [-np.log(softmax(logits / t)[np.arange(len(labels)), labels] + 1e-12).mean() for t in grid]
    return float(grid[int(np.argmin(losses))])


def calibration_error(probs: npt.NDArray[np.float64], labels: npt.NDArray[np.int64], bins: int = 15) -> float:
    """The expected calibration error over equal bins of confidence."""
    sure, right = probs.max(axis=1), probs.argmax(axis=1) == labels
    place = np.minimum((sure * bins).astype(int), bins - 1)
    gaps = [
        abs(sure[place == k].mean() - right[place == k].mean()) * (place == k).mean()
        for k in range(bins)
        if (place == k).any()
    ]
    return float(sum(gaps))


def held_accuracy(network, held):  # type: ignore[no-untyped-def]
    """The accuracy on the held-out set."""
    return float((logits_of(network, held).argmax(axis=1) == held.labels).mean())


def evaluate(network, sets, out):  # type: ignore[no-untyped-def]
    """Accuracy and calibration on all sets; also writes the confusion matrices."""
    metrics = {"accuracy": {}, "accuracy_of_objects": {}, "calibration_error": {}, "by_occluder": {}, "by_label": {}}
    nothing = LABELS.index(NOTHING)
    for name, scenes in sets.items():
        probs = softmax(logits_of(network, scenes))
        predicted = probs.argmax(axis=1)
        right = predicted == scenes.labels
        has_object = scenes.labels != nothing
        metrics["accuracy"][name] = float(right.mean())
        metrics["accuracy_of_objects"][name] = float(right[has_object].mean())
        metrics["calibration_error"][name] = calibration_error(probs, scenes.labels)
        if name == "cover 10-40":
            metrics["by_occluder"] = {
                kind: float(right[scenes.kinds == k].mean()) for k, kind in enumerate(OCCLUDERS) if (scenes.kinds == k).any()
            }
            write_confusion(scenes.labels, predicted, out / "confusion.csv")
        if name == "clean":
            metrics["by_label"] = {
                label: float(right[scenes.labels == k].mean())
                for k, label in enumerate(LABELS)
                if (scenes.labels == k).any()
            }
            write_confusion(scenes.labels, predicted, out / "confusion-clean.csv")
        print(f"  {name}: accuracy {right.mean():.4f}, of objects {right[has_object].mean():.4f}", flush=True)
    return metrics


def write_confusion(truth: npt.NDArray[np.int64], answers: npt.NDArray[np.int64], path: Path) -> None:
    """Write the confusion matrix, with a row for each true label and a column for each prediction."""
    table = np.zeros((len(LABELS), len(LABELS)), dtype=int)
    np.add.at(table, (truth, answers), 1)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["truth", *LABELS])
        for label, row in zip(LABELS, table.tolist(), strict=True):
            writer.writerow([label, *row])
