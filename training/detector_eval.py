"""Evaluate the detector: average precision, objects shown alone, and images without an object."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from detector_net import CLASSES, PEAK, DetectorNet, decode
from render import RenderedGroups

Boxes = npt.NDArray[np.float64]
GREY = 128


class Detections:
    """Boxes (n, 32, 4), scores (n, 32) and classes (n, 32) of n images."""

    def __init__(self, network: DetectorNet, images: npt.NDArray[np.uint8], peak: int = PEAK) -> None:
        """Run the network in full precision."""
        device = next(network.parameters()).device
        found = []
        network.eval()
        with torch.no_grad():
            for start in range(0, len(images), 250):
                batch = torch.from_numpy(np.ascontiguousarray(images[start : start + 250])).to(device)
                x = batch.permute(0, 3, 1, 2).float().contiguous() / 127.5 - 1
                found.append([value.cpu().numpy() for value in decode(*network(x), peak)])
        self.boxes, self.scores, self.classes = (np.concatenate(each) for each in zip(*found, strict=True))


def overlaps(boxes: Any, truths: Any) -> Any:
    """Intersection over union of boxes (..., k, 4) with truths (..., t, 4): (..., k, t)."""
    one, two = boxes[..., :, None, :], truths[..., None, :, :]
    low, high = np.maximum(one[..., :2], two[..., :2]), np.minimum(one[..., 2:], two[..., 2:])
    both = np.clip(high - low, 0, None).prod(-1)
    areas = [np.clip(each[..., 2:] - each[..., :2], 0, None).prod(-1) for each in (one, two)]
    return both / np.maximum(areas[0] + areas[1] - both, 1e-9)


def match(found: Detections, scenes: RenderedGroups, least: float = 0.5) -> npt.NDArray[np.int64]:
    """The number of the object that each detection finds, (n, 32), and -1 for a false one.

    In the order of their scores, detections take the object of their class with the largest overlap, if that is at least
    `least` and the object is not taken yet.
    """
    right = np.full(found.scores.shape, -1, dtype=np.int64)
    every = overlaps(found.boxes, scenes.boxes)
    for n in range(len(scenes)):
        free = scenes.labels[n] >= 0
        for k in range(found.scores.shape[1]):
            shares = np.where(free & (scenes.labels[n] == found.classes[n, k]), every[n, k], 0.0)
            best = int(shares.argmax())
            if shares[best] >= least:
                right[n, k] = best
                free[best] = False
    return right


def average_precision(right: npt.NDArray[np.bool_], scores: Any, truths: int) -> float:
    """Area under the curve of precision over recall, with precision made monotone."""
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(right[order])
    recall = np.concatenate([[0.0], hits / max(1, truths)])
    precision = hits / np.arange(1, len(hits) + 1)
    precision = np.maximum.accumulate(precision[::-1])[::-1]
    return float((np.diff(recall) * precision).sum())


def precision_table(found: Detections, scenes: RenderedGroups, least: float = 0.5) -> dict[str, float]:
    """Average precision by class, and its mean."""
    right = match(found, scenes, least) >= 0
    table = {}
    for k, label in enumerate(CLASSES):
        chosen = (found.classes == k) & (found.scores > 0.01)
        truths = int((scenes.labels == k).sum())
        if truths:
            table[label] = average_precision(right[chosen], found.scores[chosen], truths)
    return {"mean": float(np.mean(list(table.values()))), **table}


def at_threshold(found: Detections, scenes: RenderedGroups, threshold: float) -> dict[str, float]:
    """Precision, recall and F1 of the detections with at least this score, and their mean overlap with the objects."""
    numbers = match(found, scenes)
    kept = found.scores >= threshold
    right = int(((numbers >= 0) & kept).sum())
    precision, recall = right / max(1, int(kept.sum())), right / max(1, int((scenes.labels >= 0).sum()))
    every = overlaps(found.boxes, scenes.boxes)
    n, k = np.nonzero((numbers >= 0) & kept)
    mean = float(every[n, k, numbers[n, k]].mean()) if right else 0.0
    f1 = 2 * precision * recall / max(1e-9, precision + recall)
    return {"precision": precision, "recall": recall, "f1": f1, "mean_iou": mean}


def alone(scenes: RenderedGroups, most: int, fill: int = GREY) -> RenderedGroups:
    """One image for each object: its visible pixels, everything else in one colour."""
    where = np.argwhere(scenes.labels >= 0)[:most]
    own = np.stack([scenes.owners[n] == k + 1 for n, k in where])
    images = np.where(own[..., None], scenes.images[where[:, 0]], np.uint8(fill))
    labels, boxes = np.full((len(where), scenes.labels.shape[1]), -1), np.zeros((len(where), *scenes.boxes.shape[1:]))
    labels[:, 0], boxes[:, 0] = scenes.labels[tuple(where.T)], scenes.boxes[tuple(where.T)]
    return RenderedGroups(
        images=images, owners=own.astype(np.uint8), boxes=boxes.astype(np.float32), labels=labels,
        covers=scenes.covers[tuple(where.T)][:, None],
    )  # fmt: skip


def best_bias(network: DetectorNet, scenes: RenderedGroups, threshold: float) -> float:
    """What to add to all class logits so that `threshold` has the best mean F1 on scenes and on objects shown alone."""
    grid = np.linspace(-3.0, 3.0, 121)
    total = np.zeros(len(grid))
    for each in (scenes, alone(scenes, 2 * len(scenes))):
        found = Detections(network, each.images)
        right = match(found, each) >= 0
        logits = np.log(np.clip(found.scores, 1e-9, 1 - 1e-7)) - np.log1p(-np.clip(found.scores, 1e-9, 1 - 1e-7))
        truths = int((each.labels >= 0).sum())
        for k, bias in enumerate(grid):
            kept = logits + bias >= np.log(threshold / (1 - threshold))
            total[k] += 2 * int((right & kept).sum()) / max(1, int(kept.sum()) + truths)
    return float(grid[int(total.argmax())])


def without_objects(scenes: RenderedGroups, empties: npt.NDArray[np.uint8]) -> dict[str, npt.NDArray[np.uint8]]:
    """Sets of images in which nothing is to be found."""
    count = min(500, len(scenes))
    side = scenes.images.shape[1]
    rng = np.random.default_rng(5)
    levels = np.concatenate(
        [np.full((1, 3), GREY), np.repeat(np.arange(0, 256, 5)[:, None], 3, 1), rng.integers(0, 256, (48, 3))]
    )
    gone = scenes.owners[:count, :, :, None] > 0
    return {
        "one colour": np.broadcast_to(levels[:, None, None, :], (len(levels), side, side, 3)).astype(np.uint8),
        "objects masked in grey": np.where(gone, np.uint8(GREY), scenes.images[:count]),
        "background and occluder": empties[:count],
    }


def evaluate(
    network: DetectorNet, tests: dict[str, RenderedGroups], empties: npt.NDArray[np.uint8], threshold: float
) -> dict[str, Any]:
    """All results, by set of scenes."""
    metrics: dict[str, Any] = {}
    for name, scenes in tests.items():
        found = Detections(network, scenes.images)
        wide = precision_table(Detections(network, scenes.images, 5), scenes)
        metrics[name] = {
            "average_precision_50": precision_table(found, scenes),
            "average_precision_75": precision_table(found, scenes, 0.75)["mean"],
            "average_precision_50_peaks_5x5": wide["mean"],
            "at_threshold": at_threshold(found, scenes, threshold),
        }
        print(f"  {name}: {metrics[name]}", flush=True)
    occluded = tests["occluded"]
    metrics["objects alone"] = {}
    for label, fill in (("grey", GREY), ("black", 0), ("white", 255)):
        single = alone(occluded, 2000, fill)
        metrics["objects alone"][label] = at_threshold(Detections(network, single.images), single, threshold)
    print(f"  objects alone: {metrics['objects alone']}", flush=True)
    metrics["images with a false box"] = {
        name: float((Detections(network, images).scores.max(axis=1) >= threshold).mean())
        for name, images in without_objects(occluded, empties).items()
    }
    print(f"  images with a false box: {metrics['images with a false box']}", flush=True)
    return metrics
