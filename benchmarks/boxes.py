"""Explanations of boxes on scenes with several objects, whose visible pixels are known.

    python benchmarks/boxes.py run --scenes 200 --out rows.csv
    python benchmarks/boxes.py print rows.csv

Every box of a detector that belongs to an object (same label, IoU of at least 0.5) is explained by `explain_boxes`, with
`causal` and with `d-rise`. Rows: one for each method and box. `inside` is the share of a set's pixels on the visible pixels
of the object; `points` whether the map's highest pixel is on them (the pointing game).
"""

import argparse
import csv
from collections.abc import Iterable, Iterator
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

import becausal
from becausal.core.boxes import overlaps
from becausal.core.contracts import Classifier
from becausal.core.metrics import points_inside
from becausal.core.targets import OVERLAP
from becausal.scenes import GroupScene, SceneObject, make_group

FIRST_SEED = 140_000_000
FIELDS = (
    "method", "seed", "box", "label", "is_first", "calls", "certified", "size", "inside", "core_size", "core_inside",
    "points", "in_box", "cover",
)  # fmt: skip
OLD = {"label_size": "core_size", "label_inside": "core_inside"}  # columns of earlier files: the smallest set had that name


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("run", "print"))
    parser.add_argument("files", type=Path, nargs="*", help="files for `print`")
    parser.add_argument("--scenes", type=int, default=200)
    parser.add_argument("--seed", type=int, default=FIRST_SEED, help="of the first scene")
    parser.add_argument("--model", default="bundled:detector")
    parser.add_argument("--masks", type=int, default=1000, help="of d-rise; 0 to leave it out")
    parser.add_argument("--workers", type=int, default=1, help="processes, each with one thread for the model")
    parser.add_argument("--out", type=Path, default=Path("boxes.csv"))
    return parser.parse_args()


def find_object(scene: GroupScene, explanation: becausal.Explanation) -> SceneObject | None:
    """The object that a box belongs to: the one of its label that overlaps it most; None where none does."""
    assert explanation.target.box is not None
    own = [one for one in scene.objects if one.label == explanation.label]
    shared = [float(overlaps(np.array(one.box), explanation.target.box)) for one in own]
    return own[int(np.argmax(shared))] if shared and max(shared) >= OVERLAP else None


def share_inside(visible: Any, truth: Any) -> float:
    """The share of a set's pixels that lie on the truth."""
    return float((visible & truth).sum() / max(1, visible.sum()))


def rows_of(seed: int, masks: int, model: Classifier) -> Iterator[dict[str, Any]]:
    """The rows of one scene."""
    scene = make_group(seed)
    requests = {"causal": becausal.Request()}
    if masks:
        requests["d-rise"] = becausal.Request(method="d-rise", options={"masks": masks})
    for method, request in requests.items():
        for place, (number, answer) in enumerate(becausal.explain_boxes(scene.image, model, request=request)):
            if isinstance(answer, becausal.Failure):
                print(f"seed {seed}, {method}, box {number}: {answer.error}", flush=True)
                continue
            truth = find_object(scene, answer)
            if truth is None:
                continue
            left, top, right, bottom = truth.box
            in_box = np.zeros_like(truth.mask)
            in_box[top:bottom, left:right] = True
            core = answer.levels[0]
            yield {
                "method": method, "seed": seed, "box": number, "label": answer.label, "is_first": int(place == 0),
                "calls": answer.calls, "certified": int(is_certified(answer, method)), "size": answer.size,
                "inside": share_inside(answer.visible, truth.visible), "core_size": core.size,
                "core_inside": share_inside(core.visible, truth.visible),
                "points": points_inside(answer.responsibility, truth.visible),
                "in_box": share_inside(answer.visible, in_box), "cover": round(truth.cover, 3),
            }  # fmt: skip


def is_certified(explanation: becausal.Explanation, method: str) -> bool:
    """Whether every level was shown to be sufficient, and minimal where the method looks for that."""
    checks = [level.checks for level in explanation.levels]
    return all(one.sufficient and (method != "causal" or one.minimal_grain is not None) for one in checks)


def work(task: tuple[list[int], int, str]) -> list[dict[str, Any]]:
    """The rows of some scenes, in a process of its own."""
    seeds, masks, spec = task
    model = becausal.load_model(spec, threads=1)
    return [row for seed in seeds for row in rows_of(seed, masks, model)]


def run(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    seeds = list(range(options.seed, options.seed + options.scenes))
    tasks = [(seeds[start : start + 5], options.masks, options.model) for start in range(0, len(seeds), 5)]
    with get_context("spawn").Pool(options.workers) as pool:
        for done, rows in enumerate(pool.imap(work, tasks), start=1):
            print(f"{min(5 * done, len(seeds))} of {len(seeds)} scenes", flush=True)
            yield from rows


def write(rows: Iterable[dict[str, Any]], path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        for row in rows:
            writer.writerow({name: f"{value:.5g}" if isinstance(value, float) else value for name, value in row.items()})
            file.flush()


def print_tables(path: Path) -> None:
    with path.open(newline="") as file:
        rows = [{OLD.get(name, name): value for name, value in row.items()} for row in csv.DictReader(file)]
    print("| method | boxes | calls, first box | further | certified | size | on the object | core | on the object "
          "| pointing game |\n|---|---|---|---|---|---|---|---|---|---|")  # fmt: skip
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method]

        def column(name: str, chosen: list[dict[str, str]] = own) -> list[float]:
            return [float(row[name]) for row in chosen]

        first, further = ([row for row in own if row["is_first"] == flag] for flag in "10")
        calls = [f"{mean(column('calls', some)):.0f}" if some else "" for some in (first, further)]
        print(
            f"| {method} | {len(own)} | {calls[0]} | {calls[1]} | {mean(column('certified')):.0%} "
            f"| {median(column('size')):.2%} | {mean(column('inside')):.1%} | {median(column('core_size')):.2%} "
            f"| {mean(column('core_inside')):.1%} | {mean(column('points')):.1%} |"
        )


def main() -> None:
    options = parse_arguments()
    if options.kind == "run":
        write(run(options), options.out)
        print_tables(options.out)
    for path in options.files:
        print_tables(path)


if __name__ == "__main__":
    main()
