"""Default answers beside the maps of other methods, on sheets to look at.

    python benchmarks/side_by_side.py --images DIR --model FILE.onnx --torch torch:as_torch.py:build:FILE.onnx

Columns: the image; the levels of `causal`; its map; the maps of `lime` and `rise` with as many model calls; the map of
`grad-cam`, for which --torch names the same network as a torch module. Images are evenly spaced among those of the folder.
"""

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import becausal
from becausal.core.contracts import Classifier
from becausal.images.folders import list_images
from becausal.render.painting import paint_explanation, paint_image, paint_map
from becausal.render.sheets import lay_out

ROWS = 5  # images on a sheet


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--torch", required=True, help="the same network as a torch module")
    parser.add_argument("--preprocess", default="tf")
    parser.add_argument("--labels", help="file with the names of the labels")
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--out", type=Path, default=Path("side-by-side"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    model, module = (
        becausal.load_model(spec, preprocess=options.preprocess, labels=options.labels)
        for spec in (options.model, options.torch)
    )
    paths = list(list_images(options.images))
    chosen = [Path(paths[i]) for i in np.linspace(0, len(paths) - 1, min(options.count, len(paths))).round().astype(int)]
    for first in range(0, len(chosen), ROWS):
        figure, axes = plt.subplots(ROWS, 6, figsize=(18, 3.2 * ROWS), squeeze=False)
        for row, path in zip(axes, chosen[first : first + ROWS], strict=False):
            draw_row(row, path, model, module)
        for axis in axes.flat:
            axis.axis("off")
        figure.tight_layout()
        figure.savefig(options.out / f"sheet-{first // ROWS + 1}.png", dpi=70)
        plt.close(figure)


def draw_row(axes: np.ndarray, path: Path, model: Classifier, module: Classifier) -> None:
    ours = becausal.explain(path, model)
    sheet = lay_out(ours)
    sizes = " / ".join(f"{100 * level.size:.1f}" for level in ours.levels)
    cells = [
        (f"{ours.label} {ours.confidence:.2f}", paint_image(sheet)),
        (f"causal: {sizes} %", paint_explanation(sheet)),
        (f"map, {ours.calls} calls", paint_map(sheet)),
    ]
    for name, asked in (("lime", model), ("rise", model), ("grad-cam", module)):
        limit = None if name == "grad-cam" else ours.calls
        other = becausal.explain(path, asked, method=name, target=ours.label_id, max_calls=limit)
        cells.append((name, paint_map(lay_out(other))))
    for axis, (title, painted) in zip(axes, cells, strict=True):
        axis.imshow(painted)
        axis.set_title(title, fontsize=9)


if __name__ == "__main__":
    main()
