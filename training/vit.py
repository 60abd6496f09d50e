"""Train the bundled vision transformer, with the bundled convolutional network as a teacher, and export it to ONNX.

    PYTHONPATH=src python training/vit.py train --out OUT
    PYTHONPATH=src python training/vit.py export --weights OUT/vit.npz --out OUT

Training takes --minutes of wall time. Scenes are rendered block by block beside the training, and kept in --scenes.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import multiprocessing
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import common
import numpy as np
from render import Rendered, RenderPlan, render

from becausal.scenes import LABELS, NOTHING

#: Scenes rendered together, and how much of the training set must be there to begin.
BLOCK, BEGIN = 10_000, 0.15
#: The temperature of the probabilities that the student learns from the teacher.
SOFT = 2.0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    train = commands.add_parser("train")
    train.add_argument("--out", type=Path, required=True, help="output folder")
    train.add_argument("--train", type=int, default=130_000, help="number of training scenes")
    train.add_argument("--test", type=int, default=5_000, help="number of scenes in each test set")
    train.add_argument("--minutes", type=float, default=8.3, help="wall time in total")
    train.add_argument("--batch", type=int, default=1024)
    train.add_argument("--rate", type=float, default=1.5e-3, help="highest learning rate")
    train.add_argument("--seed", type=int, default=7)
    train.add_argument("--patch", type=int, default=16, help="side of a patch in pixels")
    train.add_argument("--start", type=Path, help="weights to start from, from an earlier run")
    train.add_argument("--scenes", type=Path, help="folder for rendered scenes, used again by later runs")
    train.add_argument("--device", default="cuda")
    train.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 1) - 1))
    export = commands.add_parser("export")
    export.add_argument("--weights", type=Path, required=True, help="vit.npz of a training run")
    export.add_argument("--out", type=Path, required=True, help="output folder")
    return parser.parse_args()


def main() -> None:
    """Run a command."""
    options = _arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.command == "export":
        _export(options)
        return
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as spare:
        folder = options.scenes or Path(spare)
        folder.mkdir(parents=True, exist_ok=True)
        # Forked before torch is imported: the workers must not inherit its threads.
        renderer = multiprocessing.get_context("fork").Process(target=_render_all, args=(options, folder))
        renderer.start()
        try:
            _train(options, folder, start)
        finally:
            renderer.join(timeout=1)
            renderer.kill()


def _export(options: argparse.Namespace) -> None:
    """Write vit.onnx and compare it with the torch module."""
    plan = RenderPlan(first=common.TEST_SEED, count=200, cover=(0.1, 0.4))
    scenes = render(plan, workers=os.cpu_count() or 1, seconds=math.inf, name="scenes to compare on")
    from export import onnx_difference
    from export_vit import write_vit

    file = options.out / "vit.onnx"
    difference = onnx_difference(write_vit(options.weights, file), scenes, file)
    print(f"{file}: {file.stat().st_size:,} bytes; largest difference of logits to torch: {difference}")


def _file_name(name: str, plan: RenderPlan) -> str:
    return f"{name.replace(' ', '-')}-{plan.count}"


def _plan_all(options: argparse.Namespace) -> dict[str, RenderPlan]:
    """Everything to render by file name: held-out scenes, blocks of training scenes, test sets."""
    sets = common.plan_evaluation(options.test)
    blocks = {
        f"train-{first}-{min(BLOCK, options.train - first)}": RenderPlan(
            first=common.TRAIN_SEED + first, count=min(BLOCK, options.train - first)
        )
        for first in range(0, options.train, BLOCK)
    }
    named = {_file_name(name, plan): plan for name, plan in sets.items()}
    first_set = next(iter(named))
    return {first_set: named.pop(first_set)} | blocks | named


def _render_all(options: argparse.Namespace, folder: Path) -> None:
    """Render what is not in the folder yet; a file appears when it is complete."""
    for name, plan in _plan_all(options).items():
        if (folder / f"{name}.npz").exists():
            continue
        scenes = render(plan, workers=options.workers, seconds=math.inf, name=name)
        half = folder / f"{name}.half.npz"
        np.savez(half, **vars(scenes))
        half.rename(folder / f"{name}.npz")


def _wait(folder: Path, name: str) -> Path:
    """The file with the rendered scenes of that name, once it is there."""
    file = folder / f"{name}.npz"
    while not file.exists():
        if not multiprocessing.active_children() and not file.exists():
            raise RuntimeError(f"rendering ended before {name} was written")
        time.sleep(0.1)
    return file


def _read(folder: Path, name: str) -> Rendered:
    """Rendered scenes of that name, once they are there."""
    with np.load(_wait(folder, name)) as arrays:
        return Rendered(**{key: arrays[key] for key in arrays.files})


def _train(options: argparse.Namespace, folder: Path, start: float) -> None:
    """Train, fit the temperature, write the weights, then evaluate them."""
    names = _plan_all(options)
    held = _read(folder, next(iter(names)))
    blocks = [name for name in names if name.startswith("train-")]
    _wait(folder, blocks[math.ceil(BEGIN * len(blocks)) - 1])
    waited = time.monotonic() - start
    import torch

    torch.manual_seed(options.seed)
    budget = options.minutes * 60
    scenes = TrainingScenes(options, folder, blocks)
    network, rows = _fit(options, scenes, held, max(5.0, budget - waited - max(6.0, min(30.0, budget * 0.12))))
    trained = time.monotonic() - start
    torch.backends.cudnn.allow_tf32 = False  # evaluated in full float32, like the files that are written
    heat = common.temperature(common.logits_of(network, held), held.labels)
    with torch.no_grad():
        network.head.weight.div_(heat)
        network.head.bias.div_(heat)
        for value in network.parameters():
            value.copy_(value.half().float())
    np.savez(options.out / "vit.npz", **{name: value.half().cpu().numpy() for name, value in network.state_dict().items()})
    common.write_curves(rows, options.out / "curves.csv")
    print(f"temperature {heat:.3f}; weights written at {time.monotonic() - start:.0f} s", flush=True)
    sets = common.plan_evaluation(options.test)
    metrics = common.evaluate(network, {name: _read(folder, _file_name(name, sets[name])) for name in sets}, options.out)
    metrics |= {
        "temperature": heat,
        "parameters": sum(value.numel() for value in network.parameters()),
        "scenes": {"train": scenes.count, "held out": len(held), "per test set": options.test},
        "first_seeds": {"train": common.TRAIN_SEED, "held out": common.HELD_SEED, "test": common.TEST_SEED},
        "seconds": {"before training": waited, "training": trained - waited, "all": time.monotonic() - start},
        "steps": rows[-1]["step"],
        "pictures_seen": rows[-1]["pictures"],
        "options": {name: str(value) for name, value in vars(options).items() if name not in ("out", "scenes", "start")},
    }
    (options.out / "metrics.json").write_text(json.dumps(metrics, indent=1) + "\n")
    print(json.dumps({name: value for name, value in metrics.items() if name != "options"}), flush=True)


class TrainingScenes:
    """Training scenes on the device; blocks are added as they are rendered."""

    def __init__(self, options: argparse.Namespace, folder: Path, blocks: list[str]) -> None:
        import torch

        self._folder, self._blocks = folder, list(blocks)
        device = torch.device(options.device)
        self.images = torch.empty((options.train, 128, 128, 3), dtype=torch.uint8, device=device)
        self.visible = torch.empty((options.train, 128, 128), dtype=torch.uint8, device=device)
        self.labels = torch.empty(options.train, dtype=torch.int64, device=device)
        self.empties = self.images[:0]
        self.count = 0
        while self.grow():
            pass

    def grow(self) -> bool:
        """Add the next block if it is there."""
        import torch

        if not self._blocks or not (self._folder / f"{self._blocks[0]}.npz").exists():
            return False
        block = _read(self._folder, self._blocks.pop(0))
        stop = self.count + len(block)
        for ours, new in ((self.images, block.images), (self.visible, block.visible), (self.labels, block.labels)):
            ours[self.count : stop] = torch.from_numpy(new).to(ours.device)
        self.count = stop
        self.empties = self.images[:stop][self.labels[:stop] == LABELS.index(NOTHING)]
        return True

    def draw(self, count: int) -> tuple[Any, Any, Any]:
        """Augmented images in -1..1, labels and weights."""
        import torch
        from augment import augment

        chosen = torch.randint(self.count, (count,), device=self.labels.device)
        with torch.no_grad():
            return augment(
                self.images[chosen], self.visible[chosen], self.labels[chosen], self.empties, LABELS.index(NOTHING)
            )


def _fit(options, scenes, held, seconds):  # type: ignore[no-untyped-def]
    """Train for the given time; returns the averaged network and the rows of the training curve."""
    import torch

    from becausal.models.bundled.network import SceneTransformer, load_network

    device = torch.device(options.device)
    cuda = device.type == "cuda"
    network = common.read_network(options.start) if options.start else _initialise(SceneTransformer(patch=options.patch))
    network = network.to(device)
    average = copy.deepcopy(network).eval()
    teacher = load_network().to(device, torch.bfloat16 if cuda else torch.float32, memory_format=torch.channels_last)
    torch.backends.cudnn.benchmark = True
    optimiser = common.make_optimiser(network, options.rate)
    print(f"training on {device} for {seconds:.0f} s, beginning with {scenes.count} scenes", flush=True)
    start = reported = time.monotonic()
    rows: list[dict[str, float]] = []
    step, mean_loss, counted, share = 0, 0.0, 0, 0.0
    loss_sum = torch.zeros((), device=device)
    while share < 1.0:
        rate = options.rate * min(1.0, share / 0.03 + 1e-3) * 0.5 * (1 + math.cos(math.pi * min(1.0, share)))
        loss_sum += _take_step(network, teacher, optimiser, scenes.draw(options.batch), rate)
        step += 1
        counted += 1
        common.update_average(average, network, min(0.999, (1 + step) / (10 + step)))
        if step % 10 == 0 or not cuda:
            scenes.grow()
            if cuda:
                torch.cuda.synchronize()
            now = time.monotonic()
            share = (now - start) / seconds
            if now - reported > max(3.0, seconds / 25) or share >= 1.0:
                reported = now
                mean_loss, counted = float(loss_sum) / counted, 0
                loss_sum.zero_()
                accuracy = common.held_accuracy(average, held)
                rows.append(common.curve_row(now - start, step, options.batch, rate, mean_loss, accuracy))
    return average, rows


def _initialise(network):  # type: ignore[no-untyped-def]
    """Small weights, and positions that begin as sines and cosines of the row and the column."""
    import torch

    dim, count = network.positions.shape[2], network.positions.shape[1]
    with torch.no_grad():
        for name, value in network.named_parameters():
            if value.ndim == 2:
                torch.nn.init.xavier_uniform_(value)
                # The blocks begin with small changes of the tokens, the head with even probabilities.
                value.mul_(1 / math.sqrt(2 * len(network.blocks)) if "out." in name or "narrow." in name else 1.0)
                value.mul_(0.1 if "head." in name else 1.0)
            elif name.endswith("bias"):
                value.zero_()
        side = math.isqrt(count)
        at = torch.arange(count)
        speeds = 100.0 ** -(torch.arange(dim // 4) / (dim // 4))
        angles = [where[:, None] * speeds for where in (at // side, at % side)]
        network.positions[0] = torch.cat([turn(angle) for angle in angles for turn in (torch.sin, torch.cos)], 1) * 0.5
    return network


def _take_step(network, teacher, optimiser, batch, rate):  # type: ignore[no-untyped-def]
    """One optimisation step on inputs, labels and weights; returns the loss."""
    import torch
    import torch.nn.functional as F

    x, y, weight = batch
    kind = next(teacher.parameters()).dtype
    x = x.to(kind)
    with torch.no_grad():
        known = F.softmax(teacher(x.contiguous(memory_format=torch.channels_last)).float() / SOFT, 1)
    for group in optimiser.param_groups:
        group["lr"] = rate
    logits = fast_logits(network, x, kind)
    from_labels = (F.cross_entropy(logits, y, label_smoothing=0.02, reduction="none") * weight).mean()
    from_teacher = F.kl_div(F.log_softmax(logits / SOFT, 1), known, reduction="batchmean") * SOFT**2
    loss = 0.5 * from_labels + 0.5 * from_teacher
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    optimiser.step()
    return loss.detach()


def fast_logits(network, x, kind):  # type: ignore[no-untyped-def]
    """The logits of the network in the precision `kind`, with fused attention and patches as rows of a matrix."""
    import torch.nn.functional as F

    w = {name: value.to(kind) for name, value in network.named_parameters()}
    dim, _, patch, _ = network.patches.weight.shape
    heads = network.blocks[0].attention.heads

    def linear(tokens, name):  # type: ignore[no-untyped-def]
        return F.linear(tokens, w[f"{name}.weight"].flatten(1), w[f"{name}.bias"])

    def norm(tokens, name):  # type: ignore[no-untyped-def]
        return F.layer_norm(tokens, (dim,), w[f"{name}.weight"], w[f"{name}.bias"], network.norm.eps)

    side = x.shape[2] // patch
    rows = x.unflatten(3, (side, patch)).unflatten(2, (side, patch)).permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
    tokens = linear(rows, "patches") + w["positions"]
    for k in range(len(network.blocks)):
        at = f"blocks.{k}"
        qkv = linear(norm(tokens, f"{at}.norm1"), f"{at}.attention.qkv").unflatten(2, (3, heads, dim // heads))
        mixed = F.scaled_dot_product_attention(*qkv.permute(2, 0, 3, 1, 4).unbind(0)).transpose(1, 2).flatten(2)
        tokens = tokens + linear(mixed, f"{at}.attention.out")
        tokens = tokens + linear(F.gelu(linear(norm(tokens, f"{at}.norm2"), f"{at}.wide")), f"{at}.narrow")
    pooled = norm(tokens, "norm").float().mean(1)
    return F.linear(pooled, network.head.weight, network.head.bias)


if __name__ == "__main__":
    main()
