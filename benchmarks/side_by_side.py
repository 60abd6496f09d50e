"""Default answers beside those of --smallest and the maps of other methods: a picture of each photograph, to be looked at.

    python benchmarks/side_by_side.py --data DIR --model FILE.onnx --preprocess tf --out DIR

Each picture has the image, with what speaks against the label outlined; the sets `core` and `enough` in the plain fill; the
map; the set of --smallest; and the maps of `rise`, `lime` and `phasewin` with as many model calls as the default answer
took, or with --calls. Photographs are evenly spaced among those of the folder, or those whose names contain --names.
"""

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import becausal
from becausal.core.contracts import Classifier
from becausal.images.loading import list_images
from becausal.lab.selection import take_evenly
from becausal.render.painting import paint_image, paint_map, paint_mutant
from becausal.render.sheets import enlarge, lay_out

OTHERS = ("rise", "lime", "phasewin")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of photographs")
    parser.add_argument("--model", required=True)
    parser.add_argument("--preprocess")
    parser.add_argument("--labels", help="file with the names of the labels")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--count", type=int, default=25)
    parser.add_argument("--names", nargs="+", help="parts of the names of files")
    parser.add_argument("--calls", type=int, help="most model calls of each other method")
    parser.add_argument("--out", type=Path, default=Path("side-by-side"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    given = {name: getattr(options, name) for name in ("preprocess", "labels", "threads") if getattr(options, name)}
    model = becausal.load_model(options.model, **given)
    paths = [Path(path) for path in list_images(options.data)]
    if options.names:
        paths = [path for path in paths if any(name in path.name for name in options.names)]
    for path in take_evenly(paths, options.count):
        figure = draw(path, model, options.calls)
        figure.savefig(options.out / f"{path.stem}.png", dpi=70)
        plt.close(figure)


def draw(path: Path, model: Classifier, calls: int | None) -> plt.Figure:
    """The picture of one photograph; what was found is printed."""
    ours = becausal.explain(path, model)
    sheet = lay_out(ours)
    against = "" if ours.against is None else f", against +{ours.against.gain:.2f}"
    cells = [(f"{ours.label.split(',')[0]} {ours.confidence:.2f}{against}", paint_image(sheet))]
    for level in ours.levels:
        kept = "" if level.checks.transfer is None else f", holds {level.checks.transfer.share:.0%}"
        cells.append((f"{level.name} {level.size:.1%}, {level.pieces} pieces{kept}", paint_mutant(sheet, level.visible)))
    cells += [("enough: none", paint_mutant(sheet, ~ours.visible & ours.visible))] * (2 - len(ours.levels))
    cells.append((f"map, {ours.calls:,} calls", paint_map(sheet)))
    smallest = becausal.explain(path, model, smallest=True)
    title = f"--smallest {smallest.size:.1%}, {smallest.pieces} pieces, {smallest.calls:,} calls"
    cells.append((title, paint_mutant(lay_out(smallest), smallest.visible)))
    for name in OTHERS:
        asked = {"method": name, "target": ours.label_id, "max_calls": calls or ours.calls}
        other = becausal.explain(path, model, smallest=True, **asked)  # one set: most calls are for the map
        cells.append((f"{name}, {other.calls:,} calls", paint_map(lay_out(other))))
    print(path.stem, *(title for title, _ in cells), *ours.notes, sep="\n  ", flush=True)
    figure, axes = plt.subplots(2, 4, figsize=(16, 8.6))
    for axis, (title, painted) in zip(axes.flat, cells, strict=True):
        axis.imshow(painted)
        axis.set_title(title, fontsize=10)
        axis.axis("off")
    if ours.against is not None:
        axes[0, 0].contour(enlarge(ours.against.visible, sheet.scale), [0.5], colors="red", linewidths=2)
    figure.tight_layout()
    return figure


if __name__ == "__main__":
    main()
