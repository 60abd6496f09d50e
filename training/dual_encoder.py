"""Train the bundled dual encoder of images and captions: render, train, write, evaluate.

    PYTHONPATH=src python training/dual_encoder.py --out OUT

The image tower starts from the weights of the bundled classifier. Everything takes --minutes of wall time and is made for a
CPU; the learning rate depends on the time, not on the number of steps.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import time
from itertools import chain
from pathlib import Path

import captions
import common
import numpy as np
import numpy.typing as npt
from captions import COLOURS, OPEN, UNCLAIMED, Facts
from render import Rendered, RenderPlan, render

from becausal.scenes import BACKGROUNDS, LABELS, NOTHING, OCCLUDERS
from becausal.scenes.scene import stream

#: First seeds of the scenes for training, for the curve, and for the evaluation; the tests use those from 190,000,000 on.
TRAIN_SEED, HELD_SEED, TEST_SEED = 160_000_000, 170_000_000, 180_000_000
EMPTY = LABELS.index(NOTHING)
PROMPTS = [*(captions.phrase([label, *[UNCLAIMED] * 3], opening="a photo of ") for label in range(EMPTY)), "an empty scene"]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="output folder")
    parser.add_argument("--train", type=int, default=5_000, help="number of training scenes")
    parser.add_argument("--test", type=int, default=500, help="number of scenes in each test set")
    parser.add_argument("--minutes", type=float, default=22.0, help="wall time in total")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rate", type=float, default=1.5e-3, help="highest learning rate")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    parser.add_argument("--workers", type=int, default=1, help="processes for rendering")
    return parser.parse_args()


def main() -> None:
    """Run the whole training."""
    options = _arguments()
    start = time.monotonic()
    options.out.mkdir(parents=True, exist_ok=True)
    budget = options.minutes * 60.0

    # Scenes are rendered before torch is imported: forked workers must not inherit its threads.
    def scenes(name: str, plan: RenderPlan, share: float) -> tuple[Rendered, Facts]:
        found = render(plan, workers=options.workers, seconds=budget * share, name=name)
        return found, _facts(found, plan)

    train = scenes("training set", RenderPlan(first=TRAIN_SEED, count=options.train), 0.4)
    held = scenes("held-out", RenderPlan(first=HELD_SEED, count=200), 0.2)
    plans = {
        "clean": RenderPlan(first=TEST_SEED, count=options.test, occluder="none"),
        "cover 10-40": RenderPlan(first=TEST_SEED, count=options.test, cover=(0.1, 0.4)),
        "cover 40-60": RenderPlan(first=TEST_SEED, count=options.test, cover=(0.4, 0.6)),
    }
    tests = {name: scenes(name, plan, 0.2) for name, plan in plans.items()}
    rendered = time.monotonic() - start
    import torch
    from dual_encoder_net import write_files

    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    network, rows = _fit(options, train, held, max(5.0, budget * 0.97 - rendered))
    trained = time.monotonic() - start
    write_files(network, captions.make_vocabulary(), options.out)
    common.write_curves(rows, options.out / "curves.csv")
    metrics = _evaluate(options.out, tests, network)
    metrics["parameters"] = {
        name: sum(value.numel() for value in tower.parameters()) for name, tower in network.named_children()
    }
    metrics["scenes"] = {"train": len(train[1]), "held out": len(held[1]), "per test set": options.test}
    metrics["first_seeds"] = {"train": TRAIN_SEED, "held out": HELD_SEED, "test": TEST_SEED}
    metrics["seconds"] = {"rendering": rendered, "training": trained - rendered, "all": time.monotonic() - start}
    metrics["steps"], metrics["images_seen"] = rows[-1]["step"], rows[-1]["pictures"]
    metrics["options"] = {name: str(value) for name, value in vars(options).items() if name != "out"}
    (options.out / "metrics.json").write_text(json.dumps(metrics, indent=1) + "\n")
    print(json.dumps(metrics, indent=1), flush=True)


def _facts(scenes: Rendered, plan: RenderPlan) -> Facts:
    """The truth about scenes, (n, 4), with the colour left open."""
    if len(scenes) < plan.count:
        raise SystemExit(f"{len(scenes)} of {plan.count} scenes were rendered in time; give more --minutes or fewer scenes")
    # The kind of background is the first draw of its stream of random numbers.
    grounds = [BACKGROUNDS.index(stream(plan.first + k, 2).pick(BACKGROUNDS)) for k in range(plan.count)]
    return np.stack([scenes.labels, np.full(plan.count, OPEN), scenes.kinds, grounds], axis=1)


def _fit(options, train, held, seconds):  # type: ignore[no-untyped-def]
    """Train for the given time; returns the averaged network and the rows of the training curve."""
    import torch
    from dual_encoder_net import DualEncoder, augment, contrast, question

    device = torch.device(options.device)
    scenes, known = train
    vocabulary = captions.make_vocabulary()
    network = DualEncoder(len(vocabulary)).to(device)
    average = copy.deepcopy(network).eval()
    optimiser = common.make_optimiser(network, options.rate)
    images, visible, facts = (torch.from_numpy(each).to(device) for each in (scenes.images, scenes.visible, known))
    empty = facts[:, 0] == EMPTY
    empties, grounds = images[empty], facts[empty, 3]
    print(f"training on {device} for {seconds:.0f} s, {len(facts)} scenes", flush=True)
    hand = random.Random(options.seed)
    start = reported = time.monotonic()
    rows: list[dict[str, float]] = []
    step, losses = 0, []
    for rate, chosen in common.draw_batches(len(facts), options.batch, options.rate, seconds, device, start):
        with torch.no_grad():
            x, truth, usable = augment(images[chosen], visible[chosen], facts[chosen], empties, grounds)
            x, truth = x[usable], truth[usable].cpu().numpy()
        texts, claims = captions.draw_captions(truth, hand)
        held_true = torch.from_numpy(captions.compare(truth, claims)).to(device)
        asked = [captions.draw_questions(part, hand) for part in (1, 2, 3)]
        words = torch.from_numpy(captions.encode([*texts, *chain(*asked)], vocabulary)).to(device)
        for group in optimiser.param_groups:
            group["lr"] = rate
        logits = network(x, words)
        own, *others = logits.split([len(texts), *map(len, asked)], dim=1)
        loss = contrast(own, held_true)
        for part, each in enumerate(others, start=1):
            loss = loss + question(each, truth, part)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 2.0)
        optimiser.step()
        losses.append(float(loss.detach()))
        step += 1
        common.update_average(average, network, min(0.995, (1 + step) / (10 + step)))
        now = time.monotonic()
        if now - reported > max(3.0, seconds / 25):
            reported, mean, losses = now, float(np.mean(losses)), []
            right = _held_accuracy(average, held, vocabulary)
            rows.append(common.curve_row(now - start, step, options.batch, rate, mean, right))
    mean = float(np.mean(losses)) if losses else rows[-1]["loss"]
    right = _held_accuracy(average, held, vocabulary)
    rows.append(common.curve_row(time.monotonic() - start, step, options.batch, 0.0, mean, right))
    return average, rows


def _held_accuracy(network, held, vocabulary):  # type: ignore[no-untyped-def]
    """The share of held-out scenes whose label fits best among `PROMPTS`."""
    import torch

    device = next(network.parameters()).device
    words = torch.from_numpy(captions.encode(PROMPTS, vocabulary)).to(device)
    images = torch.from_numpy(held[0].images).permute(0, 3, 1, 2)
    with torch.no_grad():
        best = [network(x.to(device).float() / 127.5 - 1, words).argmax(1).cpu().numpy() for x in images.split(100)]
    return float((np.concatenate(best) == held[1][:, 0]).mean())


class _Files:
    """The written files in onnxruntime."""

    def __init__(self, folder: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._image, self._text = (
            onnxruntime.InferenceSession(str(folder / f"clip_{name}.onnx"), options, providers=["CPUExecutionProvider"])
            for name in ("image", "text")
        )
        about = self._text.get_modelmeta().custom_metadata_map
        self.vocabulary, self.scale = json.loads(about["vocabulary"]), float(about["scale"])

    def images(self, images: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        parts = []
        for start in range(0, len(images), 100):
            x = images[start : start + 100].astype(np.float32).transpose(0, 3, 1, 2) / np.float32(127.5) - np.float32(1)
            parts.append(self._image.run(None, {"input": np.ascontiguousarray(x)})[0])
        return np.concatenate(parts)

    def texts(self, texts: list[str]) -> npt.NDArray[np.float32]:
        return np.asarray(self._text.run(None, {"words": captions.encode(texts, self.vocabulary)})[0])


def _evaluate(folder, tests, network):  # type: ignore[no-untyped-def]
    """The evaluation of the written files on the test sets."""
    import torch
    from dual_encoder_net import name_colours

    files = _Files(folder)
    metrics = {"scale": files.scale, "vocabulary": len(files.vocabulary), "sets": {}}
    for name, (scenes, facts) in tests.items():
        facts = facts.copy()
        for start in range(0, len(facts), 200):
            x = torch.from_numpy(scenes.images[start : start + 200]).permute(0, 3, 1, 2).float() / 255
            m = torch.from_numpy(scenes.visible[start : start + 200])[:, None].float()
            facts[start : start + 200, 1] = name_colours(x, m).numpy()
        facts[facts[:, 0] == EMPTY, 1] = OPEN
        embedded = files.images(scenes.images)
        found = _questions(files, embedded, facts) | _masked(files, scenes, facts)
        metrics["sets"][name] = found
        print(f"  {name}: {json.dumps(found)}", flush=True)
    some = tests["clean"][0].images[:200]
    with torch.no_grad():
        ours = network.cpu().images(torch.from_numpy(some).permute(0, 3, 1, 2).float() / 127.5 - 1).numpy()
    metrics["onnx_difference"] = float(np.abs(files.images(some) - ours).max())
    return metrics


def _questions(files: _Files, embedded: npt.NDArray[np.float32], facts: Facts) -> dict[str, object]:
    """Which label, which colour, which occluder, which of 100 captions: the share of right answers, and of each label."""
    label, colour, occluder, _ = facts.T
    scores = embedded @ files.texts(PROMPTS).T
    best = scores.argmax(1)
    raised = np.exp(files.scale * (scores - scores.max(1, keepdims=True)))
    probs = raised / raised.sum(1, keepdims=True)
    has = label != EMPTY
    found: dict[str, object] = {
        "label": float((best == label).mean()),
        "label of objects": float((best == label)[has].mean()),
        "calibration error": common.calibration_error(probs, label),
        "by label": {name: float((best == label)[label == k].mean()) for k, name in enumerate(LABELS)},
    }
    coloured = np.flatnonzero(has & (colour != OPEN))
    guesses = []
    for k in coloured:
        texts = files.texts([captions.phrase([label[k], each, UNCLAIMED, UNCLAIMED]) for each in range(len(COLOURS))])
        guesses.append(int((texts @ embedded[k]).argmax()))
    found["colour"] = float((np.array(guesses) == colour[coloured]).mean())
    found["with a colour"] = float(len(coloured) / has.sum())
    guesses = []
    for k in np.flatnonzero(has):
        texts = files.texts([captions.phrase([label[k], UNCLAIMED, each, UNCLAIMED]) for each in range(len(OCCLUDERS))])
        guesses.append(int((texts @ embedded[k]).argmax()))
    right = np.array(guesses) == occluder[has]
    found["occluder"] = float(right.mean())
    kinds = [(k, kind) for k, kind in enumerate(OCCLUDERS) if (occluder[has] == k).any()]
    found["by occluder"] = {kind: float(right[occluder[has] == k].mean()) for k, kind in kinds}
    return found | _retrieval(files, embedded, facts)


def _retrieval(files: _Files, embedded: npt.NDArray[np.float32], facts: Facts) -> dict[str, object]:
    """Whether the fullest caption of a scene fits best among 100: its own, and 99 of other scenes, not true of it."""
    spoken = facts.copy()
    spoken[spoken == OPEN] = UNCLAIMED
    spoken[[not captions.BEHIND[BACKGROUNDS[k]] for k in facts[:, 3]], 3] = UNCLAIMED
    texts = files.texts([captions.phrase(claims) for claims in spoken.tolist()])
    held = captions.compare(facts, spoken)
    rng = np.random.default_rng(0)
    first, ten, chances = 0, 0, min(len(facts), 500)
    for k in range(chances):
        others = rng.choice(np.flatnonzero(held[k] == 0), 99, replace=False)
        rank = int((texts[others] @ embedded[k] >= texts[k] @ embedded[k]).sum())
        first, ten = first + (rank == 0), ten + (rank < 10)
    return {"caption among 100": first / chances, "caption among 100, first ten": ten / chances}


def _masked(files: _Files, scenes: Rendered, facts: Facts) -> dict[str, object]:
    """What is answered if only the visible object is shown on grey, and if it is masked in grey."""
    has = facts[:, 0] != EMPTY
    images, m = scenes.images[has], scenes.visible[has][:, :, :, None] > 0
    grey = np.uint8(128)
    prompts = files.texts(PROMPTS).T
    alone = (files.images(np.where(m, images, grey)) @ prompts).argmax(1)
    without = (files.images(np.where(m, grey, images)) @ prompts).argmax(1)
    return {
        "object alone": float((alone == facts[has, 0]).mean()),
        "object masked: an empty scene": float((without == EMPTY).mean()),
        "object masked: its label": float((without == facts[has, 0]).mean()),
    }


if __name__ == "__main__":
    main()
