"""Train the bundled detector on generated scenes with several objects: render, train, fold, calibrate, evaluate.

    PYTHONPATH=src python training/detector.py train --out OUT
    PYTHONPATH=src python training/detector.py export --weights OUT/detector.npz --out src/becausal/models/bundled

Training takes --minutes of wall time in all; the learning rate depends on the time, not on the number of steps.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import time
from pathlib import Path
from typing import Any

import common
import numpy as np
from render import GROUP_SIDE, GroupPlan, RenderedGroups, RenderPlan, render, render_groups

from becausal.scenes import NOTHING

#: First seeds of the scenes for training, for the threshold, and for evaluation.
TRAIN_SEED, HELD_SEED, TEST_SEED = 110_000_000, 120_000_000, 130_000_000
THRESHOLD = 0.3


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    train = commands.add_parser("train", help="render scenes, train, evaluate")
    train.add_argument("--out", type=Path, required=True, help="output folder")
    train.add_argument("--train", type=int, default=48_000, help="number of training scenes")
    train.add_argument("--test", type=int, default=2_000, help="number of scenes in each test set")
    train.add_argument("--minutes", type=float, default=8.3, help="wall time in total")
    train.add_argument("--batch", type=int, default=256)
    train.add_argument("--rate", type=float, default=3e-3, help="highest learning rate")
    train.add_argument("--seed", type=int, default=7)
    train.add_argument("--device", default="cuda")
    train.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    export = commands.add_parser("export", help="write detector.onnx from trained weights")
    export.add_argument("--weights", type=Path, required=True, help="detector.npz")
    export.add_argument("--out", type=Path, required=True, help="output folder")
    return parser.parse_args()


def main() -> None:
    """Train or export."""
    options = _arguments()
    if options.command == "train":
        _train(options)
        return
    import detector_export

    detector_export.export(options.weights, options.out)


def _train(options: argparse.Namespace) -> None:
    start = time.monotonic()
    options.out.mkdir(parents=True, exist_ok=True)
    budget = options.minutes * 60.0
    train, empties, held, tests, test_empties = _render(options, budget)
    rendered = time.monotonic() - start
    # torch is imported after the scenes are rendered: forked workers must not inherit its threads.
    import detector_eval
    import torch
    from detector_net import fold, parameters_of

    closing = max(8.0, min(45.0, budget * 0.12))
    torch.manual_seed(options.seed)
    network, rows = _fit(options, train, empties, held, max(5.0, budget - rendered - closing))
    trained = time.monotonic() - start
    # Evaluated in full float32, like the file that is written.
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    plain = fold(network)
    _save(plain, options.out)
    common.write_curves(rows, options.out / "curves.csv")
    bias = detector_eval.best_bias(plain, held, THRESHOLD)
    with torch.no_grad():
        plain.convolutions["heat"].bias.add_(bias)
    _save(plain, options.out)
    print(f"bias {bias:.3f}; weights written at {time.monotonic() - start:.0f} s", flush=True)
    metrics: dict[str, Any] = detector_eval.evaluate(plain, tests, test_empties, THRESHOLD)
    metrics["bias"] = bias
    metrics["threshold"] = THRESHOLD
    metrics["parameters"] = parameters_of(plain)
    metrics["scenes"] = {"train": len(train), "without objects": len(empties), "held out": len(held)}
    metrics["scenes"] |= {name: len(scenes) for name, scenes in tests.items()}
    metrics["first_seeds"] = {"train": TRAIN_SEED, "held out": HELD_SEED, "test": TEST_SEED}
    metrics["seconds"] = {"rendering": rendered, "training": trained - rendered, "all": time.monotonic() - start}
    metrics["steps"], metrics["images_seen"] = rows[-1]["step"], rows[-1]["images"]
    metrics["options"] = {name: str(value) for name, value in vars(options).items() if name != "out"}
    (options.out / "metrics.json").write_text(json.dumps(metrics, indent=1) + "\n")
    print(f"finished in {time.monotonic() - start:.0f} s", flush=True)


def _save(network: Any, out: Path) -> None:
    np.savez(
        out / "detector.npz", **{name: value.detach().cpu().float().numpy() for name, value in network.state_dict().items()}
    )


def _render(options: argparse.Namespace, budget: float) -> tuple[Any, ...]:
    """Render the scenes: for training, without objects, held out, for tests, and without objects for tests."""

    def groups(name: str, plan: GroupPlan, share: float) -> RenderedGroups:
        return render_groups(plan, workers=options.workers, seconds=budget * share, name=name)

    def without(name: str, first: int, count: int, share: float) -> Any:
        plan = RenderPlan(first=first, count=count, label=NOTHING, size=GROUP_SIDE)
        return render(plan, workers=options.workers, seconds=budget * share, name=name).images

    count = options.test
    held = groups("held-out set", GroupPlan(first=HELD_SEED, count=max(50, count // 2)), 0.06)
    tests = {
        "clean": groups("clean test set", GroupPlan(first=TEST_SEED, count=count, occluded=False), 0.06),
        "occluded": groups("occluded test set", GroupPlan(first=TEST_SEED, count=count, occluded=True), 0.06),
    }
    test_empties = without("test scenes without objects", TEST_SEED, min(500, count), 0.03)
    empties = without("training scenes without objects", TRAIN_SEED, max(50, options.train // 10), 0.06)
    train = groups("training set", GroupPlan(first=TRAIN_SEED, count=options.train), 0.4)
    return train, empties, held, tests, test_empties


def _fit(options, train, empties, held, seconds):  # type: ignore[no-untyped-def]
    """Train for the given time; returns the averaged network and the rows of the training curve."""
    import torch
    from detector_augment import augment
    from detector_net import DetectorNet

    start = reported = time.monotonic()
    device = torch.device(options.device)
    cuda = device.type == "cuda"
    network = DetectorNet(normalised=True).to(device)
    if cuda:
        network = network.to(memory_format=torch.channels_last)
        torch.backends.cudnn.benchmark = True
    average = copy.deepcopy(network).eval()
    optimiser = common.make_optimiser(network, options.rate)
    images, owners, boxes, labels = (
        torch.from_numpy(np.ascontiguousarray(each)).to(device)
        for each in (train.images, train.owners, train.boxes, train.labels)
    )
    nothing = torch.from_numpy(np.ascontiguousarray(empties)).to(device)
    print(f"training on {device} for {seconds:.0f} s, {len(labels)} scenes", flush=True)
    batch = min(options.batch, len(labels))
    rows: list[dict[str, float]] = []
    step, counted = 0, 0
    loss_sum = torch.zeros((), device=device)
    for rate, chosen in common.draw_batches(len(labels), batch, options.rate, seconds, device, start):
        with torch.no_grad():
            x, moved, states = augment(images[chosen], owners[chosen], boxes[chosen], labels[chosen], nothing)
            # Some scenes have no object at all.
            x, states = _mix_in_nothing(x, states, nothing)
        loss_sum += _take_step(network, optimiser, x, (moved, labels[chosen], states), rate)
        step += 1
        counted += 1
        common.update_average(average, network, min(0.998, (1 + step) / (10 + step)))
        now = time.monotonic()
        if now - reported > max(3.0, seconds / 20):
            reported = now
            rows.append(_curve_row(now - start, step, batch, rate, float(loss_sum) / counted, average, held))
            loss_sum.zero_()
            counted = 0
    mean = float(loss_sum) / max(1, counted) if counted or not rows else rows[-1]["loss"]
    rows.append(_curve_row(time.monotonic() - start, step, batch, 0.0, mean, average, held))
    return average.to(memory_format=torch.contiguous_format), rows


def _mix_in_nothing(x, states, nothing):  # type: ignore[no-untyped-def]
    """Replace 4 % of a batch by scenes without objects."""
    import torch

    count, device = len(x), x.device
    number = max(1, count // 25)
    place = torch.randint(len(nothing), (number,), device=device)
    x, states = x.clone(), states.clone()
    x[:number] = nothing[place].permute(0, 3, 1, 2).float() / 127.5 - 1
    states[:number] = 0
    return x, states


def _take_step(network, optimiser, x, truth, rate):  # type: ignore[no-untyped-def]
    """One optimisation step on inputs and (boxes, labels, states); returns the loss."""
    import torch
    from detector_net import loss, targets

    cuda = x.device.type == "cuda"
    if cuda:
        x = x.contiguous(memory_format=torch.channels_last)
    for group in optimiser.param_groups:
        group["lr"] = rate
    network.train()
    with torch.no_grad():
        wanted = targets(*truth)
    with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=cuda):
        heat, box = network(x)
    value = loss(heat, box, wanted)
    optimiser.zero_grad(set_to_none=True)
    value.backward()
    torch.nn.utils.clip_grad_norm_(network.parameters(), 5.0)
    optimiser.step()
    return value.detach()


def _curve_row(seconds, step, batch, rate, loss, network, held):  # type: ignore[no-untyped-def]
    """Print the progress of the training and return it as a row of the training curve."""
    import detector_eval

    count = min(300, len(held))
    some = RenderedGroups(**{name: value[:count] for name, value in vars(held).items()})
    precision = detector_eval.precision_table(detector_eval.Detections(network, some.images), some)["mean"]
    print(f"  {seconds:5.0f} s  step {step}  rate {rate:.5f}  loss {loss:.4f}  held-out mAP {precision:.4f}", flush=True)
    curve = {"seconds": round(seconds, 1), "step": step, "images": step * batch}
    return curve | {"rate": rate, "loss": loss, "held_map": precision}


if __name__ == "__main__":
    main()
