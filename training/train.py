"""Train the bundled classifier on generated scenes: render, train, fold, calibrate, measure, write.

    PYTHONPATH=src python training/train.py --out OUT

Everything happens within --minutes of wall time: the learning rate follows the clock, not the step count.
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
from render import Plan, Rendered, describe, render

from becausal.scenes import LABELS, NOTHING, OCCLUDERS

#: First seeds of the scenes used for training, for choosing the temperature, and for measuring.
TRAIN_SEED, HELD_SEED, TEST_SEED = 10_000_000, 20_000_000, 30_000_000


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for everything written")
    parser.add_argument("--train", type=int, default=130_000, help="scenes to train on")
    parser.add_argument("--test", type=int, default=5_000, help="scenes per test set")
    parser.add_argument("--minutes", type=float, default=8.0, help="wall time for all of it")
    parser.add_argument("--batch", type=int, default=768)
    parser.add_argument("--rate", type=float, default=3e-3, help="highest learning rate")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    return parser.parse_args()


def main() -> None:
    """Run the whole training."""
    options = _arguments()
    began = time.monotonic()
    options.out.mkdir(parents=True, exist_ok=True)
    budget = options.minutes * 60.0

    # Rendering comes before torch is imported: forked workers must not inherit its threads.
    def scenes(name: str, plan: Plan, share: float) -> Rendered:
        return render(plan, workers=options.workers, seconds=budget * share, name=name)

    count = options.test
    train = scenes("training set", Plan(first=TRAIN_SEED, count=options.train), 0.4)
    print("labels:", describe(train), flush=True)
    held = scenes("held-out set", Plan(first=HELD_SEED, count=max(500, min(4000, count))), 0.1)
    tests = {
        "clean": scenes("clean test set", Plan(first=TEST_SEED, count=count, occluder="none"), 0.1),
        "cover 10-40": scenes("covered test set", Plan(first=TEST_SEED, count=count, cover=(0.1, 0.4)), 0.1),
        "cover 40-60": scenes("hidden test set", Plan(first=TEST_SEED, count=count, cover=(0.4, 0.6)), 0.1),
    }
    rendered = time.monotonic() - began
    import export
    import torch

    closing = max(6.0, min(40.0, budget * 0.12))
    torch.manual_seed(options.seed)
    network, rows = _fit(options, train, held, max(5.0, budget - rendered - closing))
    trained = time.monotonic() - began
    # Measured in full float32: the files are.
    torch.backends.cudnn.allow_tf32 = False
    plain = export.fold(network)
    logits = export.logits_of(plain, held)
    heat = export.temperature(logits, held.labels)
    with torch.no_grad():
        plain.head.weight.div_(heat)
        plain.head.bias.div_(heat)
    export.write_weights(plain, options.out)
    _write_curves(rows, options.out / "curves.csv")
    print(f"temperature {heat:.3f}; weights written at {time.monotonic() - began:.0f} s", flush=True)
    metrics = _measure(plain, tests, held, options.out)
    metrics["temperature"] = heat
    metrics["onnx_difference"] = export.onnx_difference(plain, tests["clean"], options.out)
    metrics["parameters"] = sum(value.numel() for value in plain.parameters())
    metrics["scenes"] = {"train": len(train), "held out": len(held), "per test set": count}
    metrics["first_seeds"] = {"train": TRAIN_SEED, "held out": HELD_SEED, "test": TEST_SEED}
    metrics["seconds"] = {"rendering": rendered, "training": trained - rendered, "all": time.monotonic() - began}
    metrics["steps"] = rows[-1]["step"]
    metrics["pictures_seen"] = rows[-1]["pictures"]
    metrics["options"] = {name: str(value) for name, value in vars(options).items() if name != "out"}
    (options.out / "metrics.json").write_text(json.dumps(metrics, indent=1) + "\n")
    print(json.dumps({name: value for name, value in metrics.items() if name not in ("options",)}), flush=True)
    print(f"done in {time.monotonic() - began:.0f} s", flush=True)


def _fit(options, train, held, seconds):  # type: ignore[no-untyped-def]
    """Train for so many seconds; returns the averaged network and the rows of the training curve."""
    import export
    import torch
    import torch.nn.functional as F
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
    plain = [value for value in network.parameters() if value.ndim < 2]
    heavy = [value for value in network.parameters() if value.ndim >= 2]
    groups = [{"params": heavy, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=options.rate, betas=(0.9, 0.99))
    pictures = torch.from_numpy(np.ascontiguousarray(train.pictures)).to(device)
    visible = torch.from_numpy(np.ascontiguousarray(train.visible)).to(device)
    labels = torch.from_numpy(train.labels).to(device)
    empties = pictures[labels == nothing]
    print(f"training on {device} for {seconds:.0f} s, {len(labels)} scenes, {len(empties)} without object", flush=True)
    batch = min(options.batch, len(labels))
    began = told = time.monotonic()
    rows: list[dict[str, float]] = []
    step, total, counted, share = 0, 0.0, 0, 0.0
    order, at = torch.randperm(len(labels), device=device), 0
    loss_sum = torch.zeros((), device=device)
    while True:
        if step % 10 == 0 or not cuda:
            if cuda:
                torch.cuda.synchronize()
            share = (time.monotonic() - began) / seconds
            if share >= 1.0:
                break
        rate = options.rate * min(1.0, share / 0.04 + 1e-3) * 0.5 * (1 + math.cos(math.pi * min(1.0, share)))
        for group in optimiser.param_groups:
            group["lr"] = rate
        if at + batch > len(labels):
            order, at = torch.randperm(len(labels), device=device), 0
        chosen = order[at : at + batch]
        at += batch
        with torch.no_grad():
            x, y, weight = augment(pictures[chosen], visible[chosen], labels[chosen], empties, nothing)
            if cuda:
                x = x.contiguous(memory_format=torch.channels_last)
        network.train()
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=cuda):
            logits = network(x)
        losses = F.cross_entropy(logits.float(), y, label_smoothing=0.02, reduction="none")
        loss = (losses * weight).sum() / weight.sum().clamp(min=1.0)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 2.0)
        optimiser.step()
        step += 1
        loss_sum += loss.detach()
        counted += 1
        keep = min(0.998, (1 + step) / (10 + step))
        with torch.no_grad():
            for ours, theirs in zip(average.state_dict().values(), network.state_dict().values(), strict=True):
                if ours.is_floating_point():
                    ours.lerp_(theirs, 1 - keep)
        now = time.monotonic()
        if now - told > max(3.0, seconds / 25):
            told = now
            total = float(loss_sum) / counted
            loss_sum.zero_()
            counted = 0
            right = float((export.logits_of(average, held).argmax(axis=1) == held.labels).mean())
            rows.append(
                {
                    "seconds": round(now - began, 1),
                    "step": step,
                    "pictures": step * batch,
                    "rate": rate,
                    "loss": total,
                    "held_accuracy": right,
                }
            )
            print(
                f"  {now - began:5.0f} s  step {step}  rate {rate:.5f}  loss {total:.4f}  held-out {right:.4f}",
                flush=True,
            )
    right = float((export.logits_of(average, held).argmax(axis=1) == held.labels).mean())
    rows.append(
        {
            "seconds": round(time.monotonic() - began, 1),
            "step": step,
            "pictures": step * batch,
            "rate": 0.0,
            "loss": total,
            "held_accuracy": right,
        }
    )
    print(f"trained: {step} steps, held-out accuracy {right:.4f}", flush=True)
    return average.to(memory_format=torch.contiguous_format), rows


def _measure(network, tests, held, out):  # type: ignore[no-untyped-def]
    import export

    metrics = {"accuracy": {}, "accuracy_of_objects": {}, "calibration_error": {}, "by_occluder": {}, "by_label": {}}
    nothing = LABELS.index(NOTHING)
    for name, scenes in {"held-out mix": held, **tests}.items():
        probs = export.softmax(export.logits_of(network, scenes))
        answers = probs.argmax(axis=1)
        right = answers == scenes.labels
        thing = scenes.labels != nothing
        metrics["accuracy"][name] = float(right.mean())
        metrics["accuracy_of_objects"][name] = float(right[thing].mean())
        metrics["calibration_error"][name] = export.calibration_error(probs, scenes.labels)
        if name == "cover 10-40":
            metrics["by_occluder"] = {
                kind: float(right[scenes.kinds == k].mean()) for k, kind in enumerate(OCCLUDERS) if (scenes.kinds == k).any()
            }
            export.write_confusion(scenes.labels, answers, out / "confusion.csv")
        if name == "clean":
            metrics["by_label"] = {
                label: float(right[scenes.labels == k].mean())
                for k, label in enumerate(LABELS)
                if (scenes.labels == k).any()
            }
            export.write_confusion(scenes.labels, answers, out / "confusion-clean.csv")
        print(f"  {name}: accuracy {right.mean():.4f}, of objects {right[thing].mean():.4f}", flush=True)
    return metrics


def _write_curves(rows: list[dict[str, float]], path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
