"""Train the bundled classifier on generated scenes: render, train, fold, calibrate, evaluate, write.

    PYTHONPATH=src python training/train.py --out OUT

Everything takes --minutes of wall time; the learning rate depends on the time, not on the number of steps.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import time
from pathlib import Path

import common
import numpy as np
from common import HELD_SEED, TEST_SEED, TRAIN_SEED
from render import Rendered, RenderPlan, describe, render

from becausal.scenes import LABELS, NOTHING


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

    train = scenes("training set", RenderPlan(first=TRAIN_SEED, count=options.train), 0.4)
    print("labels:", describe(train), flush=True)
    sets = {name: scenes(name, plan, 0.1) for name, plan in common.plan_evaluation(options.test).items()}
    held = sets["held-out mix"]
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
    logits = common.logits_of(plain, held)
    heat = common.temperature(logits, held.labels)
    with torch.no_grad():
        plain.head.weight.div_(heat)
        plain.head.bias.div_(heat)
    export.write_weights(plain, options.out)
    common.write_curves(rows, options.out / "curves.csv")
    print(f"temperature {heat:.3f}; weights written at {time.monotonic() - start:.0f} s", flush=True)
    metrics = common.evaluate(plain, sets, options.out)
    metrics["temperature"] = heat
    metrics["onnx_difference"] = export.onnx_difference(plain, sets["clean"], options.out / "scenes.onnx")
    metrics["parameters"] = sum(value.numel() for value in plain.parameters())
    metrics["scenes"] = {"train": len(train), "held out": len(held), "per test set": options.test}
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

    from becausal.models.bundled.network import SceneNet

    device = torch.device(options.device)
    cuda = device.type == "cuda"
    nothing = LABELS.index(NOTHING)
    network = SceneNet(normalised=True).to(device)
    if cuda:
        network = network.to(memory_format=torch.channels_last)
        torch.backends.cudnn.benchmark = True
    average = copy.deepcopy(network).eval()
    optimiser = common.make_optimiser(network, options.rate)
    images = torch.from_numpy(np.ascontiguousarray(train.images)).to(device)
    visible = torch.from_numpy(np.ascontiguousarray(train.visible)).to(device)
    labels = torch.from_numpy(train.labels).to(device)
    empties = images[labels == nothing]
    print(f"training on {device} for {seconds:.0f} s, {len(labels)} scenes, {len(empties)} without object", flush=True)
    batch = min(options.batch, len(labels))
    start = reported = time.monotonic()
    rows: list[dict[str, float]] = []
    step, mean_loss, counted = 0, 0.0, 0
    loss_sum = torch.zeros((), device=device)
    for rate, chosen in common.draw_batches(len(labels), batch, options.rate, seconds, device, start):
        with torch.no_grad():
            changed = augment(images[chosen], visible[chosen], labels[chosen], empties, nothing)
        loss_sum += _take_step(network, optimiser, changed, rate)
        step += 1
        counted += 1
        common.update_average(average, network, min(0.998, (1 + step) / (10 + step)))
        now = time.monotonic()
        if now - reported > max(3.0, seconds / 25):
            reported = now
            mean_loss = float(loss_sum) / counted
            loss_sum.zero_()
            counted = 0
            rows.append(common.curve_row(now - start, step, batch, rate, mean_loss, common.held_accuracy(average, held)))
    rows.append(common.curve_row(time.monotonic() - start, step, batch, 0.0, mean_loss, common.held_accuracy(average, held)))
    return average.to(memory_format=torch.contiguous_format), rows


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


if __name__ == "__main__":
    main()
