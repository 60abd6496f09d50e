"""`dc-causal` in its readings, with two ways to draw a partition, and with other settings, on the same images.

    python benchmarks/readings.py run --scenes 20 --out benchmarks/results/readings.csv
    python benchmarks/readings.py run --data DIR --model FILE.onnx --preprocess tf --count 12 --out readings.csv
    python benchmarks/readings.py print benchmarks/results/readings.csv

Images are generated scenes, or those of a photobombing folder, evenly spaced; labels are predicted correctly. The fill is
grey, but for the variant with that of the authors' program. Nothing is minimised. A row for each variant and image; a run
that was killed goes on where it ended. Printed for each variant: model calls, size of the explanation (median and mean),
share of explanations without a pixel of the occluder, and mean share of the explanation on the occluder.
"""

import argparse
import csv
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from optimal import cut_cross
from photobombing import Photobomb, read_photobombs
from search import correct_ones, make_scenes, resized

import becausal
from becausal.api import explain_numbered
from becausal.core.contracts import Finding
from becausal.methods.causal import refinement

CROSS, SMOOTHED, BRIGHT = "cut through one point", "map smoothed over 6 px", "fill=#eaeaea"
SMOOTHING = 6  # px, of the authors' program
#: Options by name; those that are not given are the paper's: 50 partitions, s = 4, a tenth, no other partition.
VARIANTS: dict[str, dict[str, Any]] = {
    "distributed": {},
    "literal": {"literal": True},
    f"distributed, {CROSS}": {},
    f"literal, {CROSS}": {"literal": True},
    **{f"parts={s}": {"parts": s} for s in (2, 3, 5)},
    **{f"smallest={share}": {"smallest": share} for share in (0.05, 0.2, 0.4)},
    **{f"redraw={times}": {"redraw": times} for times in (1, 3)},
    BRIGHT: {},  # 234, the masking colour of the authors' program
    SMOOTHED: {},
}
COLUMNS = ("model", "partitions", "variant", "name", "calls", "size", "overlap")


def smooth(saliency: Any, **others: Any) -> Finding:
    """A finding with the mean of the map over 6 x 6 pixels, as in the authors' program."""
    from scipy.ndimage import uniform_filter

    return Finding(uniform_filter(saliency, SMOOTHING), **others)


def explain(photos: list[Photobomb], model: Any, variant: str, partitions: int) -> Iterator[dict[str, Any]]:
    """A row for each image."""
    fill = BRIGHT.removeprefix("fill=") if variant == BRIGHT else "grey"
    options = {"partitions": partitions} | VARIANTS[variant]
    request = becausal.Request(method="dc-causal", smallest=True, options=options, fills=(fill,))
    with ExitStack() as changed:
        if CROSS in variant:
            changed.enter_context(patch.object(refinement, "split", cut_cross))
        if variant == SMOOTHED:
            changed.enter_context(patch.object(refinement, "Finding", smooth))
        for number, answer in explain_numbered([p.pixels for p in photos], model, request=request, workers=0):
            photo = photos[number]
            if isinstance(answer, becausal.Failure):
                print("failed:", photo.name, answer.error)
                continue
            on = int((answer.visible & resized(photo.occluder, answer.visible.shape)).sum())
            found = {"calls": answer.calls, "size": f"{answer.size:.6f}", "overlap": f"{on / answer.pixels:.6f}"}
            yield {"variant": variant, "name": photo.name} | found


def run(options: argparse.Namespace) -> None:
    model = becausal.load_model(options.model, preprocess=options.preprocess, device=options.device, threads=1)
    if options.scenes:
        photos = correct_ones(make_scenes(2 * options.scenes), model)[: options.scenes]
    else:
        photos = read_photobombs(options.data)
        photos = [photos[i] for i in np.linspace(0, len(photos) - 1, 2 * options.count).round().astype(int)]
        photos = correct_ones(photos, model)[: options.count]
    head = {"model": Path(options.model.split(":")[-1]).stem, "partitions": options.partitions}
    known = list(csv.DictReader(options.out.open())) if options.out.exists() else []
    done = {(row["model"], row["partitions"], row["variant"], row["name"]) for row in known}
    with options.out.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if not known:
            writer.writeheader()
        for variant in options.variants.split(";"):
            own = (*map(str, head.values()), variant)
            for row in explain([p for p in photos if (*own, p.name) not in done], model, variant, options.partitions):
                writer.writerow(head | row)
                file.flush()


def write_lines(rows: list[dict[str, str]]) -> list[str]:
    """A line of a table for each variant."""
    groups: dict[tuple[str, ...], list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        groups[row["model"], row["partitions"], row["variant"]].append(row)
    lines = []
    for key, part in groups.items():
        calls, size, overlap = (np.array([float(row[name]) for row in part]) for name in ("calls", "size", "overlap"))
        sizes = f"{100 * np.median(size):.1f} / {100 * size.mean():.1f} %"
        clear = f"{100 * (overlap == 0).mean():.0f} %"
        head = f"| {' | '.join(key)} | {len(part)} | {calls.mean():,.0f} |"
        lines.append(f"{head} {sizes} | {clear} | {100 * overlap.mean():.1f} % |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("run", "print"))
    parser.add_argument("files", type=Path, nargs="*", help="files for `print`")
    parser.add_argument("--scenes", type=int, default=0, help="use this number of generated scenes")
    parser.add_argument("--data", type=Path, help="folder with photobombing_groundtruth.txt")
    parser.add_argument("--model", default="bundled")
    parser.add_argument("--preprocess")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--count", type=int, default=12, help="photographs, evenly spaced")
    parser.add_argument("--partitions", type=int, default=50)
    parser.add_argument("--variants", default=";".join(VARIANTS), help="names, separated by semicolons")
    parser.add_argument("--out", type=Path, default=Path("readings.csv"))
    options = parser.parse_args()
    if options.kind == "run":
        run(options)
        return
    print("| model | N | variant | images | calls | size, median / mean | clear | on occluder |")
    print("|---|--:|---|--:|--:|--:|--:|--:|")
    print("\n".join(write_lines([row for path in options.files for row in csv.DictReader(path.open())])))


if __name__ == "__main__":
    main()
