"""Variants of a search on photobombed photographs, on a GPU: calls, batches, sizes, and how far their sets hold.

    OMP_NUM_THREADS=1 python benchmarks/search_variants.py enough few-tries --data DIR --others DIR --network FILE --count 42

For research: a variant is a function of an image that makes a search, one row of `VARIANTS`. --network is a Python file with
`build(name)`, which returns a torch module for x / 127.5 - 1 of 224 x 224 pixels, and --weights is the name it is given.
Images that the network gets wrong are left out. Each process has a few images and asks for itself. A GPU answers many of
them quickly if CUDA's multi-process service runs (`nvidia-cuda-mps-control -d`): 42 images and 900 calls take about 12 s on
an H200 with 14 processes. Printed are means; of sizes and pieces, median and mean. "own" is the share of 200 fresh random
backgrounds.
"""

import argparse
import importlib.util
import multiprocessing
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from photobombing import read_photobombs
from PIL import Image

from becausal.core.contracts import Answers, Question, Search, Visible
from becausal.core.problem import Problem
from becausal.core.regions import count_components
from becausal.core.request import SHARE
from becausal.core.targets import Target, quantise_margin
from becausal.images.backgrounds import RandomBackgrounds
from becausal.search import enough
from becausal.search.drive import BudgetedRun, drive

FAINT = 1e-7
ROWS = 128  # of a forward pass at most: a module that keeps all its activations needs 50 MB for each row
FRESH = 5_000_000  # number of the first background that no search draws
TILE = 28  # side of a tile, in pixels


class Subject:
    """A photograph and the network's answers to masked copies of it; `answers` are those of one search."""

    def __init__(self, network: Any, view: np.ndarray, occluder: np.ndarray, others: list[np.ndarray]) -> None:
        self.network, self.view, self.occluder = network, view, occluder
        self.sampler = RandomBackgrounds(view, 0)
        self.x, self.drawn, self.answers = self.up(view), {}, {}
        scores = self.evaluate(np.ones((1, *view.shape[:2]), bool), self.x[None])[2][0]
        self.label, self.confidence = int(scores.argmax()), float(scores.max())
        rng = np.random.default_rng(7)
        self.families = {
            "flat": [np.broadcast_to(rng.integers(0, 256, 3), view.shape) for _ in range(40)],
            "noise": [rng.integers(0, 256, view.shape) for _ in range(20)],
            "tiles": [shuffled_tiles(view, rng) for _ in range(20)],
            "photographs": [others[i] for i in rng.permutation(len(others))[:40]],
        }

    def up(self, pixels: np.ndarray) -> Any:
        import torch

        return torch.from_numpy(np.array(pixels, np.float32)).to(self.network.device).permute(2, 0, 1) / 127.5 - 1

    def background(self, number: int) -> Any:
        if number not in self.drawn:
            self.drawn[number] = self.up(self.sampler.draw(number))
        return self.drawn[number]

    def evaluate(self, visible: Visible, backgrounds: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Margins, confidences and scores; backgrounds: (n, 3, h, w)."""
        import torch

        found = []
        with torch.inference_mode():
            for start in range(0, len(visible), ROWS):
                part = torch.from_numpy(np.ascontiguousarray(visible[start : start + ROWS])).to(self.x.device)[:, None]
                mixed = torch.where(part, self.x[None], backgrounds[start : start + ROWS])
                size = next(size for size in (8, 32, ROWS) if size >= len(mixed))  # few sizes: each is planned once
                padded = torch.cat([mixed, mixed[:1].expand(size - len(mixed), -1, -1, -1)])
                found.append(torch.softmax(self.network(padded).double(), 1)[: len(mixed)].cpu().numpy())
        scores = np.concatenate(found)
        label = getattr(self, "label", int(scores[0].argmax()))
        own, rest = scores[:, label], np.delete(scores, label, axis=1).max(axis=1)
        return np.log(np.maximum(own, FAINT) / np.maximum(rest, FAINT)), own, scores

    def ask(self, question: Question) -> int:
        """Evaluate what is not known of a question; the number of new answers."""
        import torch

        draws = np.full(len(question), -1) if question.draws is None else question.draws
        todo = {self.key(v, d): i for i, (v, d) in enumerate(zip(question, draws, strict=True))}
        todo = {key: i for key, i in todo.items() if key not in self.answers}
        if todo:
            rows = list(todo.values())
            grey = torch.zeros_like(self.x)
            backgrounds = torch.stack([grey if draws[i] < 0 else self.background(int(draws[i])) for i in rows])
            margins, own, _ = self.evaluate(question.visible[rows], backgrounds)
            self.answers |= dict(zip(todo, zip(margins, own, strict=True), strict=True))
        return len(todo)

    @staticmethod
    def key(visible: Visible, draw: int) -> tuple[bytes, int]:
        return np.packbits(visible).tobytes(), int(draw)

    def run(self, search: Search[Any]) -> tuple[Any, int, int]:
        """What a search returns, its calls and its batches."""
        self.answers, calls, batches, answers = {}, 1, 0, None
        try:
            while True:
                question = Question.of(next(search) if answers is None else search.send(answers))
                new = self.ask(question)
                calls, batches = calls + new, batches + (new > 0)
                draws = np.full(len(question), -1) if question.draws is None else question.draws
                known = [self.answers[self.key(v, d)] for v, d in zip(question, draws, strict=True)]
                margin, own = np.array(known).reshape(-1, 2).T
                answers = Answers(margin >= 0, quantise_margin(margin, margin >= 0), own, calls)
        except StopIteration as end:
            return end.value, calls, batches

    def shares(self, visible: Visible) -> dict[str, float]:
        """The share of backgrounds of each family, and of fresh ones of our own, on which a set keeps the label."""
        import torch

        families = {name: [self.up(pixels) for pixels in some] for name, some in self.families.items()}
        families["own"] = [self.background(FRESH + i) for i in range(200)]
        sets = {name: np.repeat(visible[None], len(some), axis=0) for name, some in families.items()}
        return {
            name: float((self.evaluate(sets[name], torch.stack(some))[0] >= 0).mean()) for name, some in families.items()
        }


def shuffled_tiles(view: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The view cut into tiles, in random order."""
    made = view.copy()
    corners = [(r, c) for r in range(0, view.shape[0], TILE) for c in range(0, view.shape[1], TILE)]
    for (r, c), place in zip(corners, rng.permutation(len(corners)), strict=True):
        row, column = corners[place]
        made[r : r + TILE, c : c + TILE] = view[row : row + TILE, column : column + TILE]
    return made


def find_enough(subject: Subject, **rules: Any) -> Search[dict[str, Any]]:
    """The search for the set `enough`, with other constants."""
    view, before = subject.view, enough.RULES
    grey = (np.full_like(view, 128),)
    floor = SHARE * subject.confidence
    problem = Problem(view, grey, Target(subject.label), floor=floor, holds=SHARE, sampler=subject.sampler)
    enough.RULES = replace(before, **rules)
    try:
        way = enough.DescentWay(problem, np.random.default_rng(2))
        found = yield from drive(enough.find_enough(way, run=BudgetedRun(view.shape[:2])), floor=floor)
    finally:
        enough.RULES = before
    return {
        "visible": found.visible,
        "certified": found.bound >= SHARE,
        "minimal": found.grain is not None,
        "asked": found.asked,
    }


#: Names, and what makes their search; the calls of each of their sets and further numbers are printed.
VARIANTS: dict[str, Callable[[Subject], Search[dict[str, Any]]]] = {
    "enough": find_enough,
    "fine-proof": partial(find_enough, proof=14),
    "few-tries": partial(find_enough, tries=2),
}


def load_network(options: argparse.Namespace) -> Any:
    import torch

    spec = importlib.util.spec_from_file_location("network", options.network)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.set_num_threads(1)
    torch.backends.cudnn.allow_tf32 = False
    network = module.build(options.weights).eval().to(options.device).to(memory_format=torch.channels_last)
    network.device = options.device
    return network


def measure(task: tuple[int, argparse.Namespace]) -> list[dict[str, Any]]:
    """The rows of every n-th image, in a process of its own."""
    number, options = task
    network = load_network(options)
    others = [np.array(Image.open(p).convert("RGB").resize((224, 224))) for p in sorted(options.others.iterdir())[:60]]
    photos, subjects, rows = read_photobombs(options.data)[: options.count], [], []
    for photo in photos[number :: options.processes]:
        subject = Subject(network, np.asarray(photo.pixels), photo.occluder, others)
        if subject.label == photo.label_id:
            subjects.append(subject)
    for name in options.variants:
        for subject in subjects:
            try:
                found, calls, batches = subject.run(VARIANTS[name](subject))
            except Exception:  # the other images go on
                traceback.print_exc()
                continue
            visible = found.pop("visible")
            row = {"variant": name, "calls": calls, "batches": batches, "size": visible.mean()}
            row |= {"clear": not (visible & subject.occluder).any(), "pieces": count_components(visible)}
            rows.append(row | found | subject.shares(visible))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variants", nargs="+", choices=VARIANTS)
    parser.add_argument("--data", type=Path, required=True, help="folder with photobombing_groundtruth.txt")
    parser.add_argument("--others", type=Path, required=True, help="folder of photographs to paste sets on")
    parser.add_argument("--network", type=Path, required=True, help="Python file with build(name)")
    parser.add_argument("--weights", default="mobilenet_v2.onnx", help="what build is given")
    parser.add_argument("--count", type=int, default=42)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--processes", type=int, default=14)
    options = parser.parse_args()
    start, tasks = time.perf_counter(), [(k, options) for k in range(options.processes)]
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        rows = [row for some in pool.map(measure, tasks, chunksize=1) for row in some]
    for name in options.variants:
        mine = [row for row in rows if row["variant"] == name]
        print(name, len(mine))
        for key in [key for key in (mine[0] if mine else {}) if key != "variant"]:
            values = np.array([row[key] for row in mine], float)
            median = f"{np.median(values):.3g} / " if key in ("size", "pieces") else ""
            print(f"  {key:<12} {median}{values.mean():.3g}")
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
