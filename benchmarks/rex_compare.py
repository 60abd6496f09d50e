"""What becausal finds on the images of benchmarks/rex.py, and what its minimisation leaves of ReX's explanations.

    python benchmarks/rex_compare.py run --data DIR --model mobilenet_v2.onnx --names search-rex.csv --masks DIR
    python benchmarks/rex_compare.py print search-rex.csv ours.csv

Rows have the columns of rex.py. `core` and `enough` are the sets of the default answer, `smallest` the answer with
--smallest --grain 4. With --masks, a folder written by rex.py, each explanation there that keeps the label is minimised
down to 4 px; the calls of these rows are those of the minimisation alone.
"""

import argparse
import csv
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from photobombing import SIDE, Photobomb, read_photobombs

import becausal
from becausal.core.contracts import Classifier
from becausal.core.problem import Problem
from becausal.engine.engine import Engine
from becausal.search.minimise import minimise

COLUMNS = ["model", "settings", "seed", "name", "calls", "size", "overlap", "confidence", "sufficient"]


def rows_of(photo: Photobomb, model: Classifier, stem: str, masks: Path | None) -> Iterator[dict[str, Any]]:
    def row(settings: str, calls: int, visible: NDArray[np.bool_], share: float | str, sufficient: bool) -> dict[str, Any]:
        return {
            "model": stem, "settings": settings, "seed": 0, "name": photo.name, "calls": calls,
            "size": round(float(visible.mean()), 6), "overlap": int((visible & photo.occluder).sum()),
            "confidence": share, "sufficient": int(sufficient),
        }  # fmt: skip

    answer = becausal.explain(photo.pixels, model, seed=0, smallest=True, grain=4)
    default = becausal.explain(photo.pixels, model, seed=0)
    found = [(level.name, default, level) for level in default.levels] + [("smallest", answer, answer.level)]
    for settings, whole, level in found:
        share = round(level.checks.confidence / whole.confidence, 4)
        yield row(settings, whole.calls, level.visible, share, level.checks.sufficient)
    for path in sorted(masks.glob(f"{stem}-*-0-{Path(photo.name).stem}.npy")) if masks is not None else ():
        visible = np.unpackbits(np.load(path)).reshape(SIDE, SIDE).astype(bool)
        grey = np.where(visible[..., None], photo.pixels, 128).astype(np.uint8)
        if becausal.classify(grey, model, top=1)[0][0] != answer.label_id:
            continue  # its margin was so small that it does not keep the label under this grey
        problem = Problem(answer.view, answer.backgrounds, answer.target)
        run = Engine(model).run(problem, minimise(visible, np.ones(visible.shape), finest=4))
        settings = path.name.removeprefix(f"{stem}-").removesuffix(f"-0-{Path(photo.name).stem}.npy")
        yield row(f"{settings}, minimised", run.stats.calls, run.result.visible, "", True)


def print_summary(files: list[Path]) -> None:
    groups: dict[tuple[str, str, str], list[dict[str, str]]] = defaultdict(list)
    for path in files:
        with path.open() as file:
            for row in csv.DictReader(file):
                groups[row["model"], row["settings"], row["seed"]].append(row)
    for key, rows in groups.items():
        sizes = [float(row["size"]) for row in rows]
        calls = np.mean([int(row["calls"]) for row in rows])
        clear = np.mean([row["overlap"] == "0" for row in rows])
        print(
            *key, len(rows), f"{calls:,.0f} calls", f"{np.mean(sizes):.2%} / {np.median(sizes):.2%}", f"{clear:.0%} clear",
            f"{sum(row['sufficient'] == '1' for row in rows)} sufficient", sep=" | ",
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("run", "print"))
    parser.add_argument("files", type=Path, nargs="*", help="files for `print`")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--names", type=Path)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--masks", type=Path)
    parser.add_argument("--out", type=Path, default=Path("ours.csv"), help="rows are appended")
    options = parser.parse_args()
    if options.kind == "print":
        print_summary(options.files)
        return
    model = becausal.load_model(options.model, preprocess="tf", threads=1)
    photos = {p.name: p for p in read_photobombs(options.data)}
    with options.names.open() as file:
        names = list(dict.fromkeys(row["name"] for row in csv.DictReader(file)))[: options.count]
    with options.out.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if not file.tell():
            writer.writeheader()
        for name in names:
            for row in rows_of(photos[name], model, options.model.stem, options.masks):
                writer.writerow(row)
                file.flush()
                print(row, flush=True)


if __name__ == "__main__":
    main()
