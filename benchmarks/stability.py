"""Why `causal` is last in the three relative stabilities of Quantus: its map, its set, or its seed.

    python benchmarks/stability.py run --scenes 5 --out benchmarks/results/stability.csv
    python benchmarks/stability.py run --data DIR --models DIR --photos 5 --out benchmarks/results/stability.csv
    python benchmarks/stability.py print benchmarks/results/stability.csv

All three divide the change of every pixel of the map by the value it had, or by 0.000001 where it had none, and take the
norm. That norm is written here (`relative`), with the noise of Quantus: uniform, up to 0.2 of a normalised input. The images
are the first ones of `quantus_metrics.py`. Rows: what was changed (noise, or the seed), the map (as it is, with 1 % of its
maximum added to every pixel, or the mean of five seeds), its relative change, its change as a share of its norm, the rank
correlation of the two maps, and the IoU of their highest 2 % of pixels. `print` writes their means.
"""

import argparse
import csv
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from quantus_metrics import equal_calls, load_images

from becausal.core.metrics import iou, rank_agreement
from becausal.interfaces.quantus import explain_func

COLUMNS = ("images", "image", "method", "changed", "map", "sample", "zeros", "relative", "change", "rank", "iou")
NOISE, LEAST = 0.2, 1e-6  # of a normalised input; what Quantus divides by where a map is 0
FLOOR = 0.01  # of the maximum, added to every pixel: the same order
TOP = 0.02  # share of the pixels that are compared as a set
SEEDS, SAMPLES = 5, 2
MEASURES = ("zeros", "relative", "change", "rank", "iou")


def relative(first: Any, second: Any) -> float:
    """The numerator of RelativeInputStability, RelativeOutputStability and RelativeRepresentationStability."""
    return float(np.linalg.norm((first - second) / (first + (first == 0) * LEAST)))


def compare(first: Any, second: Any) -> dict[str, float]:
    """How far two maps differ."""
    count, rng = round(TOP * first.size), np.random.default_rng(0)
    ties = rng.random(first.size)
    sets = [np.isin(np.arange(first.size), np.lexsort((ties, -each.ravel()))[:count]) for each in (first, second)]
    return {
        "zeros": float((first == 0).mean()),
        "relative": relative(first, second),
        "change": float(np.linalg.norm(first - second) / np.linalg.norm(first)),
        "rank": rank_agreement(first, second),
        "iou": iou(*sets),
    }


def rows_of(images: Any, number: int, method: str) -> Iterator[dict[str, Any]]:
    """Noise and another seed, for the map as it is, with a floor, and as the mean of seeds."""
    image, label = images.x[number : number + 1], images.y[number : number + 1]

    def explain(given: Any, seed: int) -> Any:
        settings = equal_calls(images.budget).get(method, {})
        values = explain_func(images.model, given, label, method=method, seed=seed, **settings)[0, 0].astype(float)
        return values / max(float(np.abs(values).max()), 1e-30)

    def compared(changed: str, kind: str, sample: int, first: Any, second: Any) -> dict[str, Any]:
        found = {key: f"{value:.6g}" for key, value in compare(first, second).items()}
        head = {"images": images.name, "image": images.names[number], "method": method}
        return head | {"changed": changed, "map": kind, "sample": sample} | found

    rng = np.random.default_rng(number)
    usual = [explain(image, seed) for seed in range(SEEDS if method == "causal" else 1)]
    for sample in range(SAMPLES):
        noisy = image + rng.uniform(-NOISE, NOISE, image.shape).astype(image.dtype)
        with torch.no_grad():
            if int(images.model(torch.from_numpy(noisy).to(next(images.model.parameters()).device)).argmax()) != int(
                label[0]
            ):
                continue  # as in Quantus: another label is another question
        second = [explain(noisy, seed) for seed in range(len(usual) if sample == 0 else 1)]
        yield compared("noise", "as it is", sample, usual[0], second[0])
        yield compared("noise", "with a floor", sample, usual[0] + FLOOR, second[0] + FLOOR)
        if len(second) > 1:
            yield compared("noise", "mean of seeds", sample, np.mean(usual, axis=0), np.mean(second, axis=0))
    for seed in range(1, min(SAMPLES + 1, len(usual))):
        yield compared("seed", "as it is", seed, usual[0], usual[seed])
        yield compared("seed", "with a floor", seed, usual[0] + FLOOR, usual[seed] + FLOOR)


def run(options: argparse.Namespace) -> None:
    count, options.photos = options.photos, 50  # the first of the 50 photographs that Quantus judges
    images = load_images(options)
    known = list(csv.DictReader(options.out.open())) if options.out.exists() else []
    done = {(row["images"], row["image"], row["method"]) for row in known}
    with options.out.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if not known:
            writer.writeheader()
        for number in range(options.scenes or count):
            for method in options.methods.split(","):
                if (images.name, images.names[number], method) not in done:
                    writer.writerows(list(rows_of(images, number, method)))
                    file.flush()


def write_lines(rows: list[dict[str, str]]) -> list[str]:
    """A line of a table for each method, change and map: means over the rows."""
    groups: dict[tuple[str, ...], list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        groups[row["images"], row["method"], row["changed"], row["map"]].append(row)
    lines = []
    for key, part in groups.items():
        means = {measure: float(np.nanmean([float(row[measure]) for row in part])) for measure in MEASURES}
        norm = f"{means['relative']:,.0f}" if means["relative"] >= 10 else f"{means['relative']:.1f}"
        shares = " | ".join(f"{means[measure]:.2f}" for measure in ("change", "rank", "iou"))
        count = len({row["image"] for row in part})
        lines.append(f"| {' | '.join(key)} | {count} | {100 * means['zeros']:.1f} % | {norm} | {shares} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("run", "print"))
    parser.add_argument("files", type=Path, nargs="*", help="files for `print`")
    parser.add_argument("--scenes", type=int, default=0, help="use this number of generated scenes")
    parser.add_argument("--photos", type=int, default=5)
    parser.add_argument("--data", type=Path, help="folder with photobombing_groundtruth.txt")
    parser.add_argument("--models", type=Path, help="folder with as_torch.py and mobilenet_v2.onnx")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--methods", default="causal,rise,lime,occlusion")
    parser.add_argument("--out", type=Path, default=Path("stability.csv"))
    options = parser.parse_args()
    if options.kind == "print":
        print("| images | method | changed | map | n | zeros | numerator | change | rank correlation | top |")
        print("|---|---|---|---|--:|--:|--:|--:|--:|--:|")
        print("\n".join(write_lines([row for path in options.files for row in csv.DictReader(path.open())])))
    else:
        torch.set_num_threads(1)
        run(options)


if __name__ == "__main__":
    main()
