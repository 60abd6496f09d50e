"""The default answer measured image by image: nested levels, their map, and how both change with the seed.

    python benchmarks/levels.py run --data DIR --model FILE --preprocess tf --out rows.csv
    python benchmarks/levels.py print rows.csv

Rows: one for each image, seed and level. Images are those of `benchmarks/search.py` (photobombing, predicted correctly, the
report set or the tuning set), or generated scenes.
"""

import argparse
import csv
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from photobombing import Photobomb, choose, read_photobombs
from search import correct_ones, make_scenes

import becausal
from becausal.core.contracts import Classifier
from becausal.core.errors import BecausalError
from becausal.core.metrics import iou, rank_agreement
from becausal.core.problem import Problem
from becausal.engine.engine import Engine
from becausal.search.extract import trace_curves


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("run", "print"))
    parser.add_argument("files", type=Path, nargs="*", help="files for `print`")
    parser.add_argument("--data", type=Path, help="folder with photobombing_groundtruth.txt")
    parser.add_argument("--scenes", type=int, default=0, help="use this number of generated scenes instead")
    parser.add_argument("--model", default="bundled")
    parser.add_argument("--preprocess")
    parser.add_argument("--resize")
    parser.add_argument("--set", default="report", choices=("report", "tune"))
    parser.add_argument("--count", type=int, default=100, help="number of images, evenly spaced")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--smallest", action="store_true")
    parser.add_argument("--grain", type=int)
    parser.add_argument("--method", default="causal", help="name or name:key=value")
    parser.add_argument("--out", type=Path, default=Path("levels.csv"))
    return parser.parse_args()


def select(options: argparse.Namespace, model: Classifier) -> list[Photobomb]:
    if options.scenes:
        return correct_ones(make_scenes(options.scenes), model)
    photos = choose(correct_ones(read_photobombs(options.data), model), reported=options.set == "report", count=128)
    return [photos[i] for i in np.linspace(0, len(photos) - 1, min(options.count, len(photos))).round().astype(int)]


def measure(options: argparse.Namespace, photo: Photobomb, model: Classifier) -> list[dict[str, Any]]:
    """The rows of one image."""
    name, _, pair = options.method.partition(":")
    found: list[becausal.Explanation] = []
    rows = []
    for seed in range(options.seeds):
        answer = becausal.explain(
            photo.pixels, model, method=name, options=dict([pair.split("=")]) if pair else None, seed=seed,
            smallest=options.smallest, grain="default" if options.grain is None else options.grain,
        )  # fmt: skip
        found.append(answer)
        occluder = answer.frame.from_original(photo.occluder)
        problem = Problem(answer.view, answer.backgrounds, answer.target)
        measured = Engine(model).run(problem, trace_curves(answer.responsibility, np.random.default_rng(0))).result
        common = {
            "model": Path(options.model).stem, "method": options.method, "image": photo.name, "seed": seed,
            "calls": answer.calls, "insertion": measured.insertion_area, "deletion": measured.deletion_area,
            "iou": "", "correlation": "",
        }  # fmt: skip
        if seed == 1:
            common["iou"] = iou(found[0].visible, found[1].visible)
            common["correlation"] = rank_agreement(found[0].responsibility, found[1].responsibility)
        for level in answer.levels:
            rows.append(common | {
                "level": level.name, "size": level.size, "pieces": level.pieces, "holes": level.holes,
                "confidence": level.checks.confidence / answer.confidence, "sufficient": int(level.checks.sufficient),
                "minimal": level.checks.minimal_grain or "", "clear": int(not (level.visible & occluder).any()),
                "inside": "" if photo.object is None
                else float((level.visible & answer.frame.from_original(photo.object)).sum() / max(level.pixels, 1)),
            })  # fmt: skip
    return rows


def print_summary(rows: list[dict[str, Any]]) -> None:
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["model"], row["method"], row["level"]].append(row)
    print(
        "model | method | level | images | calls | median size | clear | pieces | holes | insertion | deletion | IoU | ranks"
    )
    for key, own in groups.items():

        def mean(name: str, own: list[dict[str, Any]] = own) -> float:
            values = [float(row[name]) for row in own if row[name] != ""]
            return float(np.mean(values)) if values else float("nan")

        sizes, pieces = (float(np.median([float(row[name]) for row in own])) for name in ("size", "pieces"))
        print(
            " | ".join(key), len({row["image"] for row in own}), f"{mean('calls'):.0f}", f"{sizes:.2%}",
            f"{mean('clear'):.0%}", f"{pieces:.0f}", f"{mean('holes'):.2f}", f"{mean('insertion'):.3f}",
            f"{mean('deletion'):.4f}", f"{mean('iou'):.2f}", f"{mean('correlation'):.2f}", sep=" | ",
        )  # fmt: skip


def main() -> None:
    options = parse_arguments()
    if options.kind == "print":
        print_summary([row for path in options.files for row in csv.DictReader(path.open())])
        return
    extra = {name: value for name in ("preprocess", "resize") if (value := getattr(options, name)) is not None}
    model = becausal.load_model(options.model, **extra)
    writer = None
    with options.out.open("w", newline="") as file:
        for photo in select(options, model):
            try:
                rows = measure(options, photo, model)
            except BecausalError as error:
                print(f"{photo.name}: {error}", flush=True)
                continue
            writer = writer or csv.DictWriter(file, list(rows[0]))
            if file.tell() == 0:
                writer.writeheader()
            writer.writerows(rows)
            file.flush()
    print_summary(list(csv.DictReader(options.out.open())))


if __name__ == "__main__":
    main()
