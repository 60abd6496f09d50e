"""ResNet-50 trained on generated scenes, for benchmarks/gpu.py: a large network whose predictions are not near ties.

    PYTHONPATH=src python benchmarks/gpu_resnet.py --out resnet50.pt
    python benchmarks/gpu.py --name "ResNet-50" --model torch:benchmarks/gpu_resnet.py:build:resnet50.pt --out gpu.json

The architecture is that of ResNet-50 with 13 classes, 23.5 million weights, on images of 224 × 224 px. Training takes
--minutes, of which rendering the scenes takes about one with 16 cores; it starts with smaller images, which is faster.
Scenes and augmentation are those of training/.
"""

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent / "training"))

SIDE = 224
#: Side of the images in the first part of the training, and the share of that part.
FIRST_SIDE, FIRST_SHARE = 112, 0.7
CLASSES = 13


def make_resnet50() -> Any:
    """The layers of ResNet-50, not trained."""
    from torch import nn

    def conv(inside: int, outside: int, side: int, stride: int = 1) -> Any:
        return nn.Sequential(
            nn.Conv2d(inside, outside, side, stride=stride, padding=side // 2, bias=False), nn.BatchNorm2d(outside)
        )

    class Bottleneck(nn.Module):
        def __init__(self, inside: int, width: int, stride: int) -> None:
            super().__init__()
            self.body = nn.Sequential(
                conv(inside, width, 1),
                nn.ReLU(True),
                conv(width, width, 3, stride),
                nn.ReLU(True),
                conv(width, 4 * width, 1),
            )
            nn.init.zeros_(self.body[-1][1].weight)  # blocks start as identities, which trains faster
            same = inside == 4 * width and stride == 1
            self.short = nn.Identity() if same else conv(inside, 4 * width, 1, stride)
            self.last = nn.ReLU(True)

        def forward(self, x: Any) -> Any:
            return self.last(self.body(x) + self.short(x))

    blocks: list[Any] = [conv(3, 64, 7, 2), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)]
    inside = 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for i in range(count):
            blocks.append(Bottleneck(inside, width, stride if i == 0 else 1))
            inside = 4 * width
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, CLASSES))


def build(file: str) -> Any:
    """The trained network, as `--model torch:FILE.py:build:WEIGHTS` loads it."""
    import torch

    network = make_resnet50()
    network.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    return network.eval()


def train(options: argparse.Namespace) -> None:
    """Render scenes, train for the rest of the time, evaluate and write the weights."""
    import common
    from render import RenderPlan, render

    start, budget = time.monotonic(), options.minutes * 60
    # Scenes are rendered before torch is imported: forked workers must not inherit its threads.
    scenes = render(
        RenderPlan(first=common.TRAIN_SEED, count=options.scenes),
        workers=options.workers,
        seconds=budget * 0.6,
        name="training",
    )
    held = render(RenderPlan(first=common.HELD_SEED, count=500), workers=options.workers, seconds=30, name="held-out")
    import torch
    import torch.nn.functional as F
    from augment import augment

    from becausal.scenes import LABELS, NOTHING

    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    device, nothing = torch.device(options.device), LABELS.index(NOTHING)
    images, visible = (torch.from_numpy(array.copy()).to(device) for array in (scenes.images, scenes.visible))
    labels = torch.from_numpy(scenes.labels).to(device)
    empties = images[labels == nothing]
    network = make_resnet50().to(device, memory_format=torch.channels_last).train()
    optimiser = common.make_optimiser(network, options.rate)
    begun, pictures = time.monotonic(), 0
    seconds = budget - (begun - start)
    for rate, chosen in common.draw_batches(len(labels), options.batch, options.rate, seconds, device, begun):
        with torch.no_grad():
            x, y, weights = augment(images[chosen], visible[chosen], labels[chosen], empties, nothing)
            side = FIRST_SIDE if time.monotonic() - begun < FIRST_SHARE * seconds else SIDE
            x = F.interpolate(x, (side, side), mode="bilinear").contiguous(memory_format=torch.channels_last)
        for group in optimiser.param_groups:
            group["lr"] = rate
        with torch.autocast(device.type, torch.bfloat16):
            loss = (F.cross_entropy(network(x), y, reduction="none", label_smoothing=0.05) * weights).mean()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        pictures += len(chosen)
    network.eval()
    with torch.no_grad():
        x = torch.from_numpy(held.images.copy()).to(device).permute(0, 3, 1, 2).float() / 127.5 - 1
        right = network(F.interpolate(x, (SIDE, SIDE), mode="bilinear")).argmax(1).cpu().numpy() == held.labels
    print(
        f"{len(labels)} scenes, {pictures} images seen, loss {loss.item():.3f}, accuracy on {len(held)} held-out scenes "
        f"{right.mean():.3f}, {time.monotonic() - start:.0f} s",
        flush=True,
    )
    torch.save(network.to("cpu").state_dict(), options.out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenes", type=int, default=40_000, help="number of training scenes")
    parser.add_argument("--minutes", type=float, default=4.0, help="wall time in total")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--rate", type=float, default=2e-3, help="highest learning rate")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=Path("resnet50.pt"))
    train(parser.parse_args())


if __name__ == "__main__":
    main()
