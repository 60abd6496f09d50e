"""Train the bundled classifier on generated scenes: render, train, fold, calibrate, evaluate, write.

    PYTHONPATH=src python training/train.py --out OUT

Everything takes --minutes of wall time; the learning rate depends on the time, not on the number of steps.
"""

from __future__ import annotations

import argparse
import copy
import csv
import json
import math
import os
import time
from pathlib import Path

import numpy as np
from render import Rendered, RenderPlan, describe, render

from becausal.scenes import LABELS, NOTHING, OCCLUDERS

#: First seeds of the scenes for training, for fitting the temperature, and for evaluation.
TRAIN_SEED, HELD_SEED, TEST_SEED = 10_000_000, 20_000_000, 30_000_000


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="output folder")
    parser.add_argument("--train", type=int, default=130_000, help="number of training scenes")
    parser.add_argument("--test", type=int, default=5_000, help="number of scenes in each test set")
    parser.add_argument("--minutes", type=float, default=8.0, help="wall time in total")
    parser.add_argument("--batch", type=int, default=768)
    parser.add_argument("--rate", type=float, default=3e-3, help="highest learning rate")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    return parser.parse_args()


def main() -> None:
    """Run the whole training."""
    options = _arguments()
    start = time.monotonic()
    options.out.mkdir(parents=True, exist_ok=True)
    budget = options.minutes * 60.0

    # Scenes are rendered before torch is imported: forked workers must not inherit its threads.
    def scenes(name: str, plan: RenderPlan, share: float) -> Rendered:
        return render(plan, workers=options.workers, seconds=budget * share, name=name)

    count = options.test
    train = scenes("training set", RenderPlan(first=TRAIN_SEED, count=options.train), 0.4)
    print("labels:", describe(train), flush=True)
    held = scenes("held-out set", RenderPlan(first=HELD_SEED, count=max(500, min(4000, count))), 0.1)
    tests = {
        "clean": scenes("clean test set", RenderPlan(first=TEST_SEED, count=count, occluder="none"), 0.1),
        "cover 10-40": scenes("covered test set", RenderPlan(first=TEST_SEED, count=count, cover=(0.1, 0.4)), 0.1),
        "cover 40-60": scenes("heavily covered test set", RenderPlan(first=TEST_SEED, count=count, cover=(0.4, 0.6)), 0.1),
    }
    rendered = time.monotonic() - start
    import export
    import torch

    closing = max(6.0, min(40.0, budget * 0.12))
    torch.manual_seed(options.seed)
    network, rows = _fit(options, train, held, max(5.0, budget - rendered - closing))
    trained = time.monotonic() - start
    # Evaluated in full float32, like the files that are written.
    torch.backends.cudnn.allow_tf32 = False
    plain = export.fold(network)
    logits = export.logits_of(plain, held)
    heat = export.temperature(logits, held.labels)
    with torch.no_grad():
        plain.head.weight.div_(heat)
        plain.head.bias.div_(heat)
    export.write_weights(plain, options.out)
    _write_curves(rows, options.out / "curves.csv")
    print(f"temperature {heat:.3f}; weights written at {time.monotonic() - start:.0f} s", flush=True)
    metrics = _evaluate(plain, tests, held, options.out)
    metrics["temperature"] = heat
    metrics["onnx_difference"] = export.onnx_difference(plain, tests["clean"], options.out)
    metrics["parameters"] = sum(value.numel() for value in plain.parameters())
    metrics["scenes"] = {"train": len(train), "held out": len(held), "per test set": count}
    metrics["first_seeds"] = {"train": TRAIN_SEED, "held out": HELD_SEED, "test": TEST_SEED}
    metrics["seconds"] = {"rendering": rendered, "training": trained - rendered, "all": time.monotonic() - start}
    metrics["steps"] = rows[-1]["step"]
    metrics["pictures_seen"] = rows[-1]["pictures"]
    metrics["options"] = {name: str(value) for name, value in vars(options).items() if name != "out"}
    (options.out / "metrics.json").write_text(json.dumps(metrics, indent=1) + "\n")
    print(json.dumps({name: value for name, value in metrics.items() if name not in ("options",)}), flush=True)
    print(f"finished in {time.monotonic() - start:.0f} s", flush=True)


def _fit(options, train, held, seconds):  # type: ignore[no-untyped-def]
    """Train for the given time; returns the averaged network and the rows of the training curve."""
    import torch
    from augment import augment

    from becausal.scenes.network import SceneNet

    device = torch.device(options.device)
    cuda = device.type == "cuda"
    nothing = LABELS.index(NOTHING)
    network = SceneNet(normalised=True).to(device)
    if cuda:
        network = network.to(memory_format=torch.channels_last)
        torch.backends.cudnn.benchmark = True
    average = copy.deepcopy(network).eval()
    optimiser = _make_optimiser(network, options.rate)
    images = torch.from_numpy(np.ascontiguousarray(train.images)).to(device)
    visible = torch.from_numpy(np.ascontiguousarray(train.visible)).to(device)
    labels = torch.from_numpy(train.labels).to(device)
    empties = images[labels == nothing]
    print(f"training on {device} for {seconds:.0f} s, {len(labels)} scenes, {len(empties)} without object", flush=True)
    batch = min(options.batch, len(labels))
    start = reported = time.monotonic()
    rows: list[dict[str, float]] = []
    step, mean_loss, counted, share = 0, 0.0, 0, 0.0
    order, at = torch.randperm(len(labels), device=device), 0
    loss_sum = torch.zeros((), device=device)
    while True:
        if step % 10 == 0 or not cuda:
            if cuda:
                torch.cuda.synchronize()
            share = (time.monotonic() - start) / seconds
            if share >= 1.0:
                break
        rate = options.rate * min(1.0, share / 0.04 + 1e-3) * 0.5 * (1 + math.cos(math.pi * min(1.0, share)))
        if at + batch > len(labels):
            order, at = torch.randperm(len(labels), device=device), 0
        chosen = order[at : at + batch]
        at += batch
        with torch.no_grad():
            changed = augment(images[chosen], visible[chosen], labels[chosen], empties, nothing)
        loss_sum += _take_step(network, optimiser, changed, rate)
        step += 1
        counted += 1
        _update_average(average, network, min(0.998, (1 + step) / (10 + step)))
        now = time.monotonic()
        if now - reported > max(3.0, seconds / 25):
            reported = now
            mean_loss = float(loss_sum) / counted
            loss_sum.zero_()
            counted = 0
            rows.append(_curve_row(now - start, step, batch, rate, mean_loss, _held_accuracy(average, held)))
    rows.append(_curve_row(time.monotonic() - start, step, batch, 0.0, mean_loss, _held_accuracy(average, held)))
    return average.to(memory_format=torch.contiguous_format), rows


def _make_optimiser(network, rate):  # type: ignore[no-untyped-def]
    """AdamW with weight decay for matrices only."""
    import torch

    vectors = [value for value in network.parameters() if value.ndim < 2]
    matrices = [value for value in network.parameters() if value.ndim >= 2]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.99))


def _take_step(network, optimiser, batch, rate):  # type: ignore[no-untyped-def]
    """One optimisation step on inputs, labels and weights; returns the loss."""
    import torch
    import torch.nn.functional as F

    x, y, weight = batch
    cuda = x.device.type == "cuda"
    if cuda:
        x = x.contiguous(memory_format=torch.channels_last)
    for group in optimiser.param_groups:
        group["lr"] = rate
    network.train()
    with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=cuda):
        logits = network(x)
    losses = F.cross_entropy(logits.float(), y, label_smoothing=0.02, reduction="none")
    loss = (losses * weight).sum() / weight.sum().clamp(min=1.0)
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(network.parameters(), 2.0)
    optimiser.step()
    return loss.detach()


def _update_average(average, network, keep):  # type: ignore[no-untyped-def]
    """Update the running average of the weights."""
    import torch

    with torch.no_grad():
        for ours, theirs in zip(average.state_dict().values(), network.state_dict().values(), strict=True):
            if ours.is_floating_point():
                ours.lerp_(theirs, 1 - keep)


def _held_accuracy(network, held):  # type: ignore[no-untyped-def]
    import export

    return float((export.logits_of(network, held).argmax(axis=1) == held.labels).mean())


def _curve_row(seconds: float, step: int, batch: int, rate: float, loss: float, accuracy: float) -> dict[str, float]:
    """Print the progress of the training and return it as a row of the training curve."""
    print(f"  {seconds:5.0f} s  step {step}  rate {rate:.5f}  loss {loss:.4f}  held-out accuracy {accuracy:.4f}", flush=True)
    curve = {"seconds": round(seconds, 1), "step": step, "pictures": step * batch}
    return curve | {"rate": rate, "loss": loss, "held_accuracy": accuracy}


def _evaluate(network, tests, held, out):  # type: ignore[no-untyped-def]
    """Accuracy and calibration on all sets; also writes the confusion matrices."""
    import export

    metrics = {"accuracy": {}, "accuracy_of_objects": {}, "calibration_error": {}, "by_occluder": {}, "by_label": {}}
    nothing = LABELS.index(NOTHING)
    for name, scenes in {"held-out mix": held, **tests}.items():
        probs = export.softmax(export.logits_of(network, scenes))
        predicted = probs.argmax(axis=1)
        right = predicted == scenes.labels
        has_object = scenes.labels != nothing
        metrics["accuracy"][name] = float(right.mean())
        metrics["accuracy_of_objects"][name] = float(right[has_object].mean())
        metrics["calibration_error"][name] = export.calibration_error(probs, scenes.labels)
        if name == "cover 10-40":
            metrics["by_occluder"] = {
                kind: float(right[scenes.kinds == k].mean()) for k, kind in enumerate(OCCLUDERS) if (scenes.kinds == k).any()
            }
            export.write_confusion(scenes.labels, predicted, out / "confusion.csv")
        if name == "clean":
            metrics["by_label"] = {
                label: float(right[scenes.labels == k].mean())
                for k, label in enumerate(LABELS)
                if (scenes.labels == k).any()
            }
            export.write_confusion(scenes.labels, predicted, out / "confusion-clean.csv")
        print(f"  {name}: accuracy {right.mean():.4f}, of objects {right[has_object].mean():.4f}", flush=True)
    return metrics


def _write_curves(rows: list[dict[str, float]], path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
