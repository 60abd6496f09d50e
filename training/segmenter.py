"""Train the bundled segmentation network on generated scenes: render, train, evaluate, write the ONNX file.

    PYTHONPATH=src python training/segmenter.py --out OUT --device cpu --workers 1

The first layers start from the weights of the bundled detector, which has learnt such scenes already. Training takes
--minutes of wall time in all; the learning rate depends on the time, not on the number of steps.
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import common
import numpy as np
import numpy.typing as npt
import onnx
import torch
import torch.nn.functional as F
from augment import add_blanks, chance, draw_fill, draw_mask, finish, recolour
from detector_augment import _move as move
from detector_augment import _shown as shown
from detector_net import CLASSES as OBJECTS
from detector_net import LAYERS as DETECTOR_LAYERS
from detector_net import SIDE, parameters_of
from export_vit import GraphWriter
from onnx import TensorProto, helper, numpy_helper
from render import MOST_OBJECTS
from torch import nn

from becausal.scenes import NOTHING, OCCLUDERS, make_group, make_scene

#: First seeds of the scenes for training, for the curve, for evaluation, and for comparing the file with torch.
TRAIN_SEED, HELD_SEED, TEST_SEED, FILE_SEED = 210_000_000, 220_000_000, 230_000_000, 240_000_000
CLASSES = ("background", *OBJECTS, "occluder")
OCCLUDER = MOST_OBJECTS + 1  # its number among the owners of pixels
STRIDE = 4
CELLS = SIDE // STRIDE
#: An object or occluder of which a smaller share of the visible pixels is left after masking gets no loss.
FAINT = 0.1
GREY = 128
#: Chances of the kinds of masks, see `augment.MASK_CHANCES`; 45 % of the images are not masked.
CHANCES = (0.13, 0.09, 0.09, 0.06, 0.09, 0.07, 0.02)
#: Weight of background pixels in the loss, which are most of all, and the share of the learning rate for the first layers.
BACKGROUND_WEIGHT, BACKBONE_RATE = 0.5, 0.4
#: The layers of the detector up to its 24 x 24 cells, and those that lead to 48 x 48; see `detector_net.LAYERS`.
BACKBONE = tuple(layer for layer in DETECTOR_LAYERS if layer[0] not in ("heat1", "box1", "heat", "box"))
LAYERS = (
    *BACKBONE,
    ("coarse", "up8", 64, 64, 3, 1),
    ("fine", "s4b", 24, 64, 3, 1),
    ("joined", "fine+coarse", 64, 48, 3, 1),
    ("smooth", "joined", 48, 48, 3, 1),
    ("logits", "smooth", 48, len(CLASSES), 1, 1),
)
#: Layers that start from those of the detector, and the detector's names of them.
STARTS = {**{layer[0]: layer[0] for layer in BACKBONE}, "coarse": "heat1"}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="output folder")
    parser.add_argument("--start", type=Path, default=Path("src/becausal/models/bundled/detector.onnx"))
    parser.add_argument("--scenes", type=Path, help="folder in which rendered scenes are kept for later runs")
    parser.add_argument("--train", type=int, default=12_000, help="number of training scenes")
    parser.add_argument("--test", type=int, default=500, help="number of scenes in each test set")
    parser.add_argument("--minutes", type=float, default=40.0, help="wall time in total")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rate", type=float, default=2e-3, help="highest learning rate")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch on a CPU")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes for rendering")
    return parser.parse_args()


def main() -> None:
    """Render, train, evaluate, and write the files."""
    options, start = _arguments(), time.monotonic()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    train, empties, held, tests, test_empties = _render_all(options)
    rendered = time.monotonic() - start
    closing = 30.0 + 0.25 * options.test
    network, rows = _fit(options, train, empties, held, max(5.0, options.minutes * 60.0 - rendered - closing))
    trained = time.monotonic() - start
    with torch.no_grad():  # the file has half precision, so that is what is evaluated
        for value in network.parameters():
            value.copy_(value.half().float())
    common.write_curves(rows, options.out / "curves.csv")
    export(network, options.out / "segmenter.onnx")
    metrics: dict[str, Any] = {
        name: scores(confusion(network, scenes.images, scenes.truth)) for name, scenes in tests.items()
    }
    metrics |= where_it_fails(network, tests["occluded"])
    metrics |= masked_results(network, tests["occluded"], test_empties)
    metrics["parameters"] = parameters_of(network)
    metrics["scenes"] = {"train": len(train), "without objects": len(empties), "held out": len(held)}
    metrics["scenes"] |= {name: len(scenes) for name, scenes in tests.items()}
    metrics["first_seeds"] = {"train": TRAIN_SEED, "held out": HELD_SEED, "test": TEST_SEED}
    metrics["seconds"] = {"rendering": rendered, "training": trained - rendered, "all": time.monotonic() - start}
    metrics["steps"], metrics["images_seen"] = rows[-1]["step"], rows[-1]["images"]
    metrics["options"] = {name: str(value) for name, value in vars(options).items() if name not in ("out", "scenes")}
    (options.out / "metrics.json").write_text(json.dumps(metrics, indent=1) + "\n")
    print(f"finished in {time.monotonic() - start:.0f} s", flush=True)


# Scenes


@dataclass(frozen=True, kw_only=True)
class Scenes:
    """Scenes as arrays.

    Images (n, 192, 192, 3); the number of what is visible at each pixel, 0 for the background, 1 to 4 for an object, 5 for
    the occluder (n, 192, 192); the class of each number (n, 6).
    """

    images: npt.NDArray[np.uint8]
    owners: npt.NDArray[np.uint8]
    classes: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.images)

    @property
    def truth(self) -> npt.NDArray[np.uint8]:
        """The class of each pixel, (n, 192, 192)."""
        return np.stack([own[owner] for own, owner in zip(self.classes, self.owners, strict=True)])


def _draw(job: tuple[str, int]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8], list[int]]:
    """The arrays of one scene of a set: "mix" (every fifth with one object or none), "clean", "occluded" or "nothing"."""
    kind, seed = job
    owners = np.zeros((SIDE, SIDE), np.uint8)
    if kind == "nothing" or (kind == "mix" and seed % 5 == 4):
        is_empty = kind == "nothing"
        scene = make_scene(seed, size=SIDE, label=NOTHING if is_empty else None, occluder="none" if is_empty else None)
        owners[scene.visible] = 1
        labels, occluder, image = [scene.label], scene.occluder, scene.image
    else:
        wanted = {"mix": None, "clean": "none"}.get(kind, OCCLUDERS[1 + seed % (len(OCCLUDERS) - 1)])
        try:
            group = make_group(seed, occluder=wanted, size=SIDE)
        except ValueError as problem:
            print(f"  seed {seed}: {problem}; drawn without an occluder", flush=True)
            group = make_group(seed, occluder="none", size=SIDE)
        for number, each in enumerate(group.objects, start=1):
            owners[each.visible] = number
        labels, occluder, image = [each.label for each in group.objects], group.occluder, group.image
    owners[occluder] = OCCLUDER
    found = [CLASSES.index(label) if label != NOTHING else 0 for label in labels]
    return image, owners, [0, *found, *[0] * (MOST_OBJECTS - len(found)), CLASSES.index("occluder")]


def _render(options: argparse.Namespace, name: str, kind: str, first: int, count: int) -> Scenes:
    """Render a set of scenes in several processes, or read it from the folder in which it was kept."""
    kept = options.scenes / f"{name.replace(' ', '-')}-{first}-{count}.npz" if options.scenes else None
    if kept is not None and kept.is_file():
        with np.load(kept) as file:
            return Scenes(**{key: file[key] for key in file.files})
    start = time.monotonic()
    images, owners = np.zeros((count, SIDE, SIDE, 3), np.uint8), np.zeros((count, SIDE, SIDE), np.uint8)
    classes = np.zeros((count, MOST_OBJECTS + 2), np.uint8)
    # New processes, because forked ones would inherit the threads of torch.
    with multiprocessing.get_context("spawn").Pool(options.workers) as pool:
        jobs = [(kind, first + k) for k in range(count)]
        for k, drawn in enumerate(pool.imap(_draw, jobs, chunksize=20)):
            images[k], owners[k], classes[k] = drawn
    print(f"rendered {name}: {count} scenes in {time.monotonic() - start:.1f} s", flush=True)
    scenes = Scenes(images=images, owners=owners, classes=classes)
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        np.savez(kept, **vars(scenes))
    return scenes


def _render_all(options: argparse.Namespace) -> tuple[Any, ...]:
    """The scenes: for training, images without objects, held out, for tests, and images without objects for tests."""
    tests = {kind: _render(options, f"{kind} test set", kind, TEST_SEED, options.test) for kind in ("clean", "occluded")}
    held = _render(options, "held-out set", "mix", HELD_SEED, min(100, options.test))
    empties = _render(options, "scenes without objects", "nothing", TRAIN_SEED, max(20, options.train // 30))
    train = _render(options, "training set", "mix", TRAIN_SEED, options.train)
    test_empties = _render(options, "test scenes without objects", "nothing", TEST_SEED, min(200, options.test))
    return train, empties.images, held, tests, test_empties.images


# The network


class SegmenterNet(nn.Module):  # type: ignore[misc]
    """Plain convolutions: images (n, 3, 192, 192) in -1..1 to class logits (n, 14, 48, 48)."""

    def __init__(self, start: dict[str, npt.NDArray[np.float32]] | None = None) -> None:
        """Build the network; `start` has weights of the detector by name, for the layers in `STARTS`."""
        super().__init__()
        self.convolutions = nn.ModuleDict()
        for name, _, wide, out, side, stride in LAYERS:
            layer = nn.Conv2d(wide, out, side, stride, side // 2)
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
            if start is not None and name in STARTS:
                given = {kind: torch.from_numpy(start[f"{STARTS[name]}.{kind}"].copy()) for kind in ("weight", "bias")}
                layer.load_state_dict(given)
            self.convolutions[name] = layer
        with torch.no_grad():
            self.convolutions["logits"].weight.mul_(0.1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Class logits."""
        flow = {"input": images}
        for name, source, *_ in LAYERS:
            first, _, second = source.partition("+")
            x = flow[first]
            if second:
                x = x + F.interpolate(flow[second], scale_factor=2.0, mode="nearest")
            x = self.convolutions[name](x)
            flow[name] = x if name == "logits" else F.relu(x)
        return flow["logits"]


def read_weights(path: Path) -> dict[str, npt.NDArray[np.float32]]:
    """The weights in the ONNX file of the detector, by name."""
    return {each.name: numpy_helper.to_array(each) for each in onnx.load(str(path)).graph.initializer}


def loss(logits: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of each cell with all of its 4 x 4 pixels, truth (n, 192, 192), in which -1 is ignored."""
    pixels = truth.view(-1, CELLS, STRIDE, CELLS, STRIDE).permute(0, 2, 4, 1, 3).flatten(1, 2)  # (n, 16, 48, 48)
    picked = F.log_softmax(logits.float(), dim=1).gather(1, pixels.clamp(min=0))
    weight = torch.where(pixels > 0, 1.0, torch.where(pixels == 0, BACKGROUND_WEIGHT, 0.0))
    return -(picked * weight).sum() / weight.sum().clamp(min=1.0)


def augment(
    images: torch.Tensor, owners: torch.Tensor, classes: torch.Tensor, empties: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Augment a batch of scenes, see `Scenes`; `empties` (m, 192, 192, 3) are images without object and occluder.

    Returns inputs (n, 3, 192, 192) in -1..1 and the class of each pixel (n, 192, 192): masked pixels are background, and
    pixels of a thing of which almost nothing is left are -1.
    """
    count, device = len(images), images.device
    x = images.permute(0, 3, 1, 2).float() / 255.0
    numbers = torch.arange(1, OCCLUDER + 1, device=device, dtype=owners.dtype)
    area = torch.stack([(owners == k).sum((1, 2)) for k in numbers], 1).clamp(min=1)
    other = empties[torch.randint(len(empties), (count,), device=device)].permute(0, 3, 1, 2).float() / 255.0
    anything = (owners > 0)[:, None].float()
    x = torch.where(chance(count, 0.2, device), x * anything + other * (1 - anything), x)
    x, owners, _, zoom = move(x, owners, torch.zeros(count, 1, 4, device=device), other)
    x = recolour(x)
    masked = draw_mask(shown(owners, OCCLUDER), CHANCES)
    fill, _ = draw_fill(x, other)
    x = torch.where(masked > 0.5, fill, x)
    rest = torch.where(masked[:, 0] > 0.5, 0, owners)
    x, blank = add_blanks(x, 0.04)
    rest = torch.where(blank[:, None, None], 0, rest)
    left = torch.stack([(rest == k).sum((1, 2)) for k in numbers], 1) * zoom[:, None] / area
    known = classes.long()
    known[:, 1:] = torch.where(left < FAINT, -1, known[:, 1:])
    return finish(x), known.gather(1, rest.flatten(1).long()).view(rest.shape)


def _fit(options, train, empties, held, seconds):  # type: ignore[no-untyped-def]
    """Train for the given time; returns the averaged network and the rows of the training curve."""
    start = reported = time.monotonic()
    device = torch.device(options.device)
    network = SegmenterNet(read_weights(options.start)).to(device)
    average = copy.deepcopy(network).eval()
    layers = network.convolutions.items()
    groups = [
        {"params": [value for name, layer in layers if (name in STARTS) == old for value in layer.parameters()]}
        for old in (True, False)
    ]
    optimiser = torch.optim.AdamW(groups, lr=options.rate, betas=(0.9, 0.99), weight_decay=0.01)
    images, owners, classes = (torch.from_numpy(each) for each in (train.images, train.owners, train.classes))
    nothing = torch.from_numpy(empties).to(device)
    print(f"training on {device} for {seconds:.0f} s, {len(train)} scenes", flush=True)
    rows: list[dict[str, float]] = []
    losses: list[float] = []
    step, batch = 0, min(options.batch, len(train))
    for rate, drawn in common.draw_batches(len(train), batch, options.rate, seconds, device, start):
        chosen = drawn.cpu()
        with torch.no_grad():
            x, truth = augment(*(each[chosen].to(device) for each in (images, owners, classes)), nothing)
        for group, share in zip(optimiser.param_groups, (BACKBONE_RATE, 1.0), strict=True):
            group["lr"] = rate * share
        value = loss(network(x), truth)
        optimiser.zero_grad(set_to_none=True)
        value.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 5.0)
        optimiser.step()
        losses.append(float(value.detach()))
        step += 1
        common.update_average(average, network, min(0.998, (1 + step) / (10 + step)))
        now = time.monotonic()
        if now - reported > max(3.0, seconds / 20):
            reported = now
            rows.append(_curve_row(now - start, step, batch, rate, losses, average, held))
            losses = []
    rows.append(_curve_row(time.monotonic() - start, step, batch, 0.0, losses or [rows[-1]["loss"]], average, held))
    return average.cpu().eval(), rows


def _curve_row(seconds, step, batch, rate, losses, network, held):  # type: ignore[no-untyped-def]
    """Print the progress of the training and return it as a row of the training curve."""
    found, mean = scores(confusion(network, held.images, held.truth)), float(np.mean(losses))
    accuracy, overlap = found["pixel_accuracy"], found["mean_iou"]
    print(
        f"  {seconds:5.0f} s  step {step}  rate {rate:.5f}  loss {mean:.4f}  "
        f"held-out pixel accuracy {accuracy:.4f}, mean IoU {overlap:.4f}",
        flush=True,
    )
    curve = {"seconds": round(seconds, 1), "step": step, "images": step * batch, "rate": rate, "loss": mean}
    return curve | {"held_pixel_accuracy": accuracy, "held_mean_iou": overlap}


# Evaluation


def predict(network: nn.Module, images: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """The class of each pixel, (n, 192, 192), from logits enlarged bilinearly."""
    device = next(network.parameters()).device
    found = []
    with torch.no_grad():
        for start in range(0, len(images), 10):
            batch = torch.from_numpy(np.ascontiguousarray(images[start : start + 10])).to(device)
            logits = network(batch.permute(0, 3, 1, 2).float().contiguous() / 127.5 - 1)
            whole = F.interpolate(logits, (SIDE, SIDE), mode="bilinear", align_corners=False)
            found.append(whole.argmax(1).byte().cpu().numpy())
    return np.concatenate(found)


def confusion(network: nn.Module, images: npt.NDArray[np.uint8], truth: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Numbers of pixels, (14, 14): a row for each true class, a column for each predicted one."""
    count = len(CLASSES)
    pairs = truth.astype(np.int64) * count + predict(network, images)
    return np.bincount(pairs.ravel(), minlength=count * count).reshape(count, count)


def scores(table: npt.NDArray[np.int64]) -> dict[str, Any]:
    """Pixel accuracy, and intersection over union of each class that is there, over the pixels of all images."""
    shared = np.diag(table)
    either = table.sum(0) + table.sum(1) - shared
    own = {name: float(shared[k] / either[k]) for k, name in enumerate(CLASSES) if table[k].any()}
    return {"pixel_accuracy": float(shared.sum() / table.sum()), "mean_iou": float(np.mean(list(own.values()))), "iou": own}


def where_it_fails(network: nn.Module, scenes: Scenes) -> dict[str, Any]:
    """IoU of each kind of occluder in the test scenes with one, and the share of wrong pixels that are near an edge."""
    found, truth = predict(network, scenes.images), scenes.truth
    ours, theirs = (each == CLASSES.index("occluder") for each in (found, truth))
    kinds = (TEST_SEED + np.arange(len(scenes))) % (len(OCCLUDERS) - 1)  # as in `_draw`
    by_kind = {
        kind: float((ours & theirs)[kinds == k].sum() / (ours | theirs)[kinds == k].sum())
        for k, kind in enumerate(OCCLUDERS[1:])
    }
    classes = torch.from_numpy(truth)[:, None].float()
    high, low = (sign * F.max_pool2d(sign * classes, 2 * STRIDE + 1, 1, STRIDE) for sign in (1, -1))
    near = (high != low)[:, 0].numpy()
    edges = {"share_of_pixels": float(near.mean()), "share_of_wrong_pixels": float(near[found != truth].mean())}
    return {"iou_of_occluders": by_kind, f"within {STRIDE} px of an edge": edges}


def masked_results(network: nn.Module, scenes: Scenes, empties: npt.NDArray[np.uint8]) -> dict[str, Any]:
    """What the network makes of masked images: one object alone, all objects masked, one colour, no object."""
    where = np.argwhere([[(own == k).any() for k in range(1, OCCLUDER)] for own in scenes.owners])
    own = np.stack([scenes.owners[n] == k + 1 for n, k in where])
    truth = np.where(own, scenes.classes[where[:, 0], where[:, 1] + 1][:, None, None], np.uint8(0))
    alone = {}
    for label, fill in (("grey", GREY), ("black", 0), ("white", 255)):
        images = np.where(own[..., None], scenes.images[where[:, 0]], np.uint8(fill))
        found = predict(network, images)
        called = found == truth.max((1, 2))[:, None, None]
        overlaps = (called & own).sum((1, 2)) / (called | own).sum((1, 2))
        alone[label] = {
            "objects": len(own),
            "mean_iou_of_objects": float(overlaps.mean()),
            "object_pixels_right": float((called & own).sum() / own.sum()),
            "masked_pixels_called_background": float((found[~own] == 0).mean()),
            "masked_pixels_called_occluder": float((found[~own] == CLASSES.index("occluder")).mean()),
        }
    whole = scenes.truth
    is_object = (scenes.owners > 0) & (scenes.owners < OCCLUDER)
    found = predict(network, np.where(is_object[..., None], np.uint8(GREY), scenes.images))
    gone = {
        "masked_pixels_with_the_class_of_the_object": float((found[is_object] == whole[is_object]).mean()),
        "masked_pixels_called_background": float((found[is_object] == 0).mean()),
        "masked_pixels_called_occluder": float((found[is_object] == CLASSES.index("occluder")).mean()),
    }
    levels = np.repeat(np.arange(0, 256, 5, dtype=np.uint8)[:, None], 3, 1)[:, None, None]  # (52, 1, 1, 3)
    flat = predict(network, np.broadcast_to(levels, (len(levels), SIDE, SIDE, 3)))
    return {
        "objects alone": alone,
        "objects masked in grey": gone,
        "pixels not called background": {
            "one level of grey": float((flat > 0).mean()),
            "no object, no occluder": float((predict(network, empties) > 0).mean()),
        },
    }


# The file


def export(network: SegmenterNet, path: Path) -> None:
    """Write the ONNX file, weights in half precision, and compare it with torch on generated scenes."""
    writer = GraphWriter()
    double = writer.constant("double", [1, 1, 2, 2])
    for name, source, _, _, side, stride in LAYERS:
        flow, _, second = source.partition("+")
        if second:
            larger = writer.add(
                "Resize", second, "", double, name=f"{name}.up", mode="nearest",
                coordinate_transformation_mode="asymmetric", nearest_mode="floor",
            )  # fmt: skip
            flow = writer.add("Add", flow, larger, name=f"{name}.sum")
        layer = network.convolutions[name]
        values = [
            writer.weight(f"{name}.{kind}", getattr(layer, kind).detach().cpu().numpy()) for kind in ("weight", "bias")
        ]
        is_last = name == "logits"
        found = writer.add(
            "Conv", flow, *values, name=name if is_last else f"{name}.conv",
            kernel_shape=[side, side], strides=[stride, stride], pads=[side // 2] * 4,
        )  # fmt: skip
        if not is_last:
            writer.add("Relu", found, name=name)
    graph = helper.make_graph(
        writer.nodes,
        "segmenter",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 3, SIDE, SIDE])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", len(CLASSES), CELLS, CELLS])],
        writer.weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], producer_name="becausal")
    # The oldest format that this operator set allows, for old versions of onnxruntime.
    model.ir_version = 8
    helper.set_model_props(model, {"labels": json.dumps(CLASSES), "license": "Apache-2.0", "input": "RGB, x / 127.5 - 1"})
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, str(path))
    _compare(network, path)


def _compare(network: SegmenterNet, path: Path) -> None:
    """Print how far the file is from torch, and how fast it is."""
    import onnxruntime

    images = np.stack([make_group(FILE_SEED + k).image for k in range(20)])
    inputs = np.ascontiguousarray(images.transpose(0, 3, 1, 2).astype(np.float32) / np.float32(127.5) - np.float32(1))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    with torch.no_grad():
        gap = np.abs(session.run(["logits"], {"input": inputs})[0] - network(torch.from_numpy(inputs)).numpy()).max()
    times = []
    for k in range(len(inputs)):
        start = time.perf_counter()
        session.run(["logits"], {"input": inputs[k : k + 1]})
        times.append(time.perf_counter() - start)
    print(f"{path}: {path.stat().st_size / 1e6:.2f} MB, {parameters_of(network):,} parameters", flush=True)
    print(f"difference from torch: {gap:.2e}; one thread: {np.median(times) * 1000:.2f} ms per image", flush=True)


if __name__ == "__main__":
    main()
