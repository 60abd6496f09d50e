"""How often `dc-causal` finds a smallest explanation where every subset can be evaluated, and where it does not, why.

    python benchmarks/optimal.py run --limit 100 --scenes 8     write results/optimal.csv
    python benchmarks/optimal.py print                          tables from it
    python benchmarks/optimal.py observe --limit 100            observation 2 of the paper, on the tiny networks

The classifiers are those of `becausal bench exact`, 4 x 4 pixels: random networks, trained networks, and the bundled
classifier on 4 x 4 blocks of scenes, more of them than the bench has (65,536 calls each). A variant is a ranking of the 16
pixels: that of `dc-causal` with some options, that of the exact degrees of responsibility, or a random one. From each
ranking, the prefix that restores the label is taken, and minimised to single pixels. Answers are read from the table of all
subsets, so 200 classifiers and 15 variants take ten minutes.
"""

import argparse
import csv
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal import load_model
from becausal.core.contracts import Answers, Done, Search, step
from becausal.core.metrics import ranking
from becausal.core.problem import Problem
from becausal.core.regions import Region, cut, whole
from becausal.core.targets import Target
from becausal.engine.engine import Engine
from becausal.images.fills import make_background
from becausal.images.loading import InputImage, make_view
from becausal.lab.exact import exact_responsibilities, label_table, random_scores, trained_scores
from becausal.methods.causal import refinement
from becausal.methods.causal.exact import all_visible, is_explanation, smallest_size
from becausal.methods.causal.refinement import DcCausal, degrees, masked_table
from becausal.scenes import make_scene
from becausal.search.minimise import minimise

KEPT = Path(__file__).parent / "results" / "optimal.csv"
SIDE = 4
GRID = (SIDE, SIDE)
BITS = 1 << np.arange(SIDE * SIDE)
TOGETHER = 10  # images per trained network, as in the bench
ORDERS = 20  # random orders of equal values

Table = NDArray[np.bool_]
Map = NDArray[np.float64]
OPTIONS: dict[str, dict[str, Any]] = {
    "as in the paper": {},
    "literal": {"literal": True},
    "cut through one point": {},
    "5 partitions": {"partitions": 5},
    "200 partitions": {"partitions": 200},
    "2 parts": {"parts": 2},
    "3 parts": {"parts": 3},
    "6 parts": {"parts": 6},
    "9 parts": {"parts": 9},
    "12 parts": {"parts": 12},
    "redraw 10 times": {"redraw": 10},
    "strict": {"strict": True},
    "no refinement": {"smallest": 1.0},
}
RANKINGS = (*OPTIONS, "exact responsibility", "random")


def cut_cross(region: Region, parts: int, rng: np.random.Generator) -> tuple[Region, ...]:
    """Four boxes, or fewer, from one random point through which both axes are cut, as in the authors' program."""
    boxes = [region]
    for axis, side in enumerate(region.shape):
        if side >= 2:
            at = int(rng.integers(region.start[axis] + 1, region.stop[axis]))
            boxes = [half for box in boxes for half in cut(box, axis, at)]
    return tuple(boxes)


def answer(search: Search[Any], holds: Table) -> Any:
    """What a search returns whose questions are answered from the table."""
    state = step(search, None)
    while not isinstance(state, Done):
        shown = np.asarray(getattr(state, "visible", state))
        kept = holds[(shown.reshape(len(shown), -1) * BITS).sum(axis=1)]
        state = step(search, Answers(kept, np.where(kept, 1.0, -1.0), np.full(len(kept), np.nan), 0))
    return state.result


def find_map(name: str, holds: Table, seed: int) -> Map:
    """The map of a variant, (4, 4)."""
    if name == "exact responsibility":
        return exact_responsibilities(holds).reshape(GRID)
    if name == "random":
        return np.random.default_rng([seed, 7]).random(GRID)
    blank = np.zeros((*GRID, 1), np.uint8)
    problem, usual = Problem(blank, (blank,), Target(0)), refinement.split
    try:
        if name == "cut through one point":
            refinement.split = cut_cross
        search = DcCausal(**OPTIONS[name]).search(problem, np.random.default_rng(seed).spawn(2)[0])
        return np.asarray(answer(search, holds).saliency)
    finally:
        refinement.split = usual


def read_prefix(order: Iterable[int], holds: Table) -> int:
    """Algorithm 3, lines 10 to 17: pixels are added in order until the label is back; the set, as bits."""
    shown = 0
    for pixel in order:
        shown |= 1 << int(pixel)
        if holds[shown]:
            break
    return shown


def shrink(shown: int, saliency: Map, holds: Table) -> int:
    """The set minimised to single pixels, as bits."""
    visible = (shown >> np.arange(SIDE * SIDE) & 1).astype(bool).reshape(GRID)
    return int((answer(minimise(visible, saliency, finest=1), holds).visible.ravel() * BITS).sum())


def share_of_equal(holds: Table, seed: int) -> float:
    """The share of the 50 partitions of the whole image whose four boxes are equally responsible: they are not refined."""
    equal = 0
    own = np.random.default_rng(seed).spawn(2)[0].spawn(50)
    for rng in own:
        parts = refinement.split(whole(GRID), 4, rng)
        found = degrees(answers_of(parts, holds), 4)
        equal += bool((found == found[0]).all())
    return equal / len(own)


def observe(limit: int) -> None:
    """Observation 2: do the pixels with the highest responsibility lie in the boxes with the highest responsibility?

    Printed for 50 partitions of each network: how often one of the most responsible pixels is in one of the most responsible
    boxes, how often all of them are, and the share of the image that these boxes have.
    """
    for kind in ("random", "trained"):
        some, every, area = [], [], []
        for _, own, holds in tables_of(limit, 0):
            if own != kind:
                continue
            exact = exact_responsibilities(holds).reshape(GRID)
            highest = exact == exact.max()
            for rng in np.random.default_rng(0).spawn(2)[0].spawn(50):
                parts = refinement.split(whole(GRID), 4, rng)
                found = degrees(answers_of(parts, holds), 4)
                inside = np.zeros(GRID, bool)
                for part, degree in zip(parts, found, strict=True):
                    inside[part.slices] = degree == found.max()
                some.append((highest & inside).any())
                every.append(not (highest & ~inside).any())
                area.append(inside.mean())
        print(f"{kind}: some {np.mean(some):.3f}, all {np.mean(every):.3f}, share of the image {np.mean(area):.3f}")


def answers_of(parts: Sequence[Region], holds: Table) -> Table:
    """Whether each mutant of a partition keeps the label, (2^parts,)."""
    masked = np.array([int(BITS.reshape(GRID)[part.slices].sum()) for part in parts])
    return np.asarray(holds[len(holds) - 1 - masked_table(len(parts)) @ masked])


def measure(name: str, kind: str, holds: Table, seed: int) -> list[dict[str, Any]]:
    """A row for each variant."""
    best, rows = smallest_size(holds), []
    equal = round(share_of_equal(holds, seed), 2)
    for variant in RANKINGS:
        saliency = find_map(variant, holds, seed)
        first = ranking(saliency, np.random.default_rng(seed).spawn(2)[1])
        shown = read_prefix(first, holds)
        small = shrink(shown, saliency, holds)
        orders = [ranking(saliency, np.random.default_rng([seed, 3, k])) for k in range(ORDERS)]
        rows.append({
            "name": name, "kind": kind, "variant": variant, "smallest": best, "equal": equal,
            "greedy": shown.bit_count(), "greedy_minimal": int(is_explanation(holds, shown)),
            "minimised": small.bit_count(), "minimal": int(is_explanation(holds, small)),
            "least_greedy": min(read_prefix(order, holds).bit_count() for order in orders),
            "values": len(np.unique(np.round(saliency, 12))),
        })  # fmt: skip
    return rows


def tables_of(limit: int, scenes: int) -> Iterable[tuple[str, str, Table]]:
    """Names, kinds and tables of classifiers: those of the bench, whose fully masked image has another label."""

    def draw(kind: str, number: int) -> Table:
        own = np.random.default_rng([0, SIDE, ("random", "trained").index(kind), number])
        if kind == "random":
            return label_table(random_scores(SIDE, own))
        return label_table(trained_scores(SIDE, np.random.default_rng([0, SIDE, number // TOGETHER]), own))

    for kind in ("random", "trained"):
        found, number = 0, 0
        while found < limit:
            holds = draw(kind, number)
            if not holds[0]:
                yield f"{kind}-{number}", kind, holds
                found += 1
            number += 1
    classifier = load_model("bundled", threads=1)
    for seed in range(scenes):
        pixels = make_scene(seed, cover=(0.1, 0.4)).image
        view = make_view(InputImage(pixels, str(seed), "", ()), classifier.info.geometry, channels=3).pixels
        h, w = view.shape[:2]
        down, across = np.arange(h) * SIDE // h, np.arange(w) * SIDE // w
        engine, subsets = Engine(classifier), all_visible(GRID)
        background = make_background("grey", view, rng=np.random.default_rng(0))
        parts = (subsets[start : start + 1024][:, down][:, :, across] for start in range(0, len(subsets), 1024))
        holds = label_table(np.concatenate([engine.evaluate(view, background, shown) for shown in parts]))
        if not holds[0]:
            yield f"scene-{seed}", "bundled", holds


def write(limit: int, scenes: int) -> None:
    start = time.perf_counter()
    with KEPT.open("w", newline="", encoding="utf-8") as file:
        writer = None
        for number, (name, kind, holds) in enumerate(tables_of(limit, scenes)):
            for row in measure(name, kind, holds, 0):
                writer = writer or csv.DictWriter(file, list(row), lineterminator="\n")
                if not file.tell():
                    writer.writeheader()
                writer.writerow(row)
            if number % 20 == 0:
                print(f"{name} {time.perf_counter() - start:.0f} s", flush=True)


def share(rows: Sequence[dict[str, str]], is_true: Callable[[dict[str, str]], bool]) -> str:
    return f"{100 * np.mean([is_true(row) for row in rows]):5.1f} %" if rows else "    –  "


def print_tables() -> None:
    with KEPT.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    groups: dict[tuple[str, str], list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        groups[row["variant"], row["kind"]].append(row)
        groups[row["variant"], "all"].append(row)
    for title, is_true in (
        ("smallest, after minimisation", lambda row: row["minimised"] == row["smallest"]),
        ("smallest, greedy prefix alone", lambda row: row["greedy"] == row["smallest"]),
        ("smallest, greedy prefix, best of 20 orders of equal values", lambda row: row["least_greedy"] == row["smallest"]),
        ("no subset is enough, greedy prefix alone", lambda row: row["greedy_minimal"] == "1"),
        ("no subset is enough, after minimisation", lambda row: row["minimal"] == "1"),
    ):
        print(f"\n{title}")
        for variant in RANKINGS:
            cells = (f"{kind} {share(groups[variant, kind], is_true)}" for kind in ("random", "trained", "bundled", "all"))
            print(f"  {variant:<24}", "  ".join(cells))
    own = [row for row in rows if row["variant"] == "as in the paper"]
    print("\nby size of the smallest set: images, smallest after minimisation; share of partitions that are not refined")
    for kind in ("random", "trained", "bundled"):
        for size in sorted({int(row["smallest"]) for row in own if row["kind"] == kind}):
            some = [row for row in own if row["kind"] == kind and int(row["smallest"]) == size]
            equal = np.mean([float(row["equal"]) for row in some])
            found = share(some, lambda row: row["minimised"] == row["smallest"])
            gap = np.mean([int(row["minimised"]) - size for row in some])
            print(
                f"  {kind:<8} {size:>2} pixels: {len(some):>3} images, {found}, {gap:+.2f} pixels, {equal:.2f} not refined"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("run", "print", "observe"))
    parser.add_argument("--limit", type=int, default=100, help="classifiers of each kind")
    parser.add_argument("--scenes", type=int, default=8)
    options = parser.parse_args()
    if options.action == "observe":
        observe(options.limit)
        return
    if options.action == "run":
        write(options.limit, options.scenes)
    print_tables()


if __name__ == "__main__":
    main()
