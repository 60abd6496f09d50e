"""ReX on the images of benchmarks/search.py, in an environment with rex-xai and onnx.

    REX_PYTHON benchmarks/rex.py --data DIR --model mobilenet_v2.onnx --names search.csv --count 20 --out rex.csv

Default settings, on the CPU, with the logits of the model; masked pixels are 0 in the normalised image, which is grey
here. --names is a file written by search.py, which determines the images and their order. Each row has the calls, the
share of the view in the explanation, and the number of its pixels on the occluder.
"""

import argparse
import csv
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from photobombing import read_photobombs
from rex_xai.explanation.rex import _explanation, get_prediction_func_from_args
from rex_xai.input.config import CausalArgs


def only_logits(model: Path, folder: Path) -> Path:
    """A copy of the model with the logits as its only output: ReX applies a softmax to the first output."""
    graph = onnx.load(model)
    for output in [o for o in graph.graph.output if o.name != "logits"]:
        graph.graph.output.remove(output)
    path = folder / model.name
    onnx.save(graph, path)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--names", type=Path, required=True)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("rex.csv"))
    options = parser.parse_args()
    photos = {p.name: p for p in read_photobombs(options.data)}
    with options.names.open() as file:
        names = list(dict.fromkeys(row["name"] for row in csv.DictReader(file)))[: options.count]
    with tempfile.TemporaryDirectory() as folder, options.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["name", "calls", "size", "overlap"])
        writer.writeheader()
        arguments = CausalArgs()
        arguments.model = str(only_logits(options.model, Path(folder)))
        arguments.means, arguments.stds, arguments.norm = [1.0] * 3, [1.0] * 3, 127.5
        arguments.progress_bar = False
        arguments.gpu = False
        for name in names:
            arguments.path = str(options.data / "photobombing_imgs" / name)
            predict, shape = get_prediction_func_from_args(arguments)
            calls = 0

            def counted(images: Any, target: Any = None, *more: Any, predict: Any = predict, **named: Any) -> Any:
                nonlocal calls
                calls += images.shape[0] if hasattr(images, "shape") else len(images)
                return predict(images, target, *more, **named)

            found = _explanation(arguments, shape, counted, torch.device("cpu"))
            visible = np.asarray(found.sufficiency_mask.cpu()).squeeze().astype(bool)
            visible = visible if visible.ndim == 2 else visible.any(axis=0)
            overlap = int((visible & photos[name].occluder).sum())
            row = {"name": name, "calls": calls, "size": round(float(visible.mean()), 6), "overlap": overlap}
            writer.writerow(row)
            file.flush()
            print(row, flush=True)


if __name__ == "__main__":
    main()
