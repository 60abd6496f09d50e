"""ReX on the images of benchmarks/search.py, in an environment of its own with rex-xai and onnx.

    REX_PYTHON benchmarks/rex.py --data DIR --model mobilenet_v2.onnx --names search-rex.csv --settings default --out rex.csv

--names is a file with a column `name`, which determines the images and their order. --settings are names of `SETTINGS`:
what differs from the defaults of ReX 0.4.1. The model gets x / 127.5 - 1, and ReX applies a softmax to its logits. Masked
pixels are 0 after this normalisation, which is grey. One row for each image and setting: all calls of the model (also those
whose result is known from another setting of the same image and seed, and is not computed again), the share of the view in
the explanation, its pixels on the occluder, its share of the confidence, and whether it keeps the label under the grey of
becausal (128). --masks also writes the explanations, for benchmarks/rex_compare.py.
"""

import argparse
import csv
import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnxruntime import InferenceSession, SessionOptions
from photobombing import Photobomb, read_photobombs
from rex_xai.explanation.rex import _explanation
from rex_xai.input.config import CausalArgs
from rex_xai.input.input_data import Setup
from rex_xai.input.onnx import OnnxRunner
from rex_xai.utils._utils import ResponsibilityStyle, Strategy

ADDITIVE = {"responsibility_style": ResponsibilityStyle.Additive}
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "additive": ADDITIVE,  # the map of all versions before 0.4: responsibilities are added, not multiplied
    "concentrate": {"concentrate": True},  # multiplied, and weighted by the depth of the box
    "spatial": {**ADDITIVE, "strategy": Strategy.Spatial},  # the extraction that was the default of the first public version
    "additive-50": {**ADDITIVE, "iters": 50},
    "spatial-50": {**ADDITIVE, "strategy": Strategy.Spatial, "iters": 50},
    "iccv2021": {**ADDITIVE, "iters": 50, "min_box_size": 22 * 22},  # boxes down to a tenth of the sides
}
COLUMNS = ["model", "settings", "seed", "name", "calls", "size", "overlap", "confidence", "sufficient"]


def open_model(model: Path, threads: int) -> InferenceSession:
    """The model with its logits as the only output: ReX applies a softmax to the first one."""
    graph = onnx.load(model)
    for output in [o for o in graph.graph.output if o.name != "logits"]:
        graph.graph.output.remove(output)
    options = SessionOptions()
    options.intra_op_num_threads = threads
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / model.name
        onnx.save(graph, path)
        return InferenceSession(path, options, providers=["CPUExecutionProvider"])


class Counted:
    """ReX's prediction function: counts every image, and computes each different one once."""

    def __init__(self, predict: Callable[..., Any], known: dict[bytes, Any]) -> None:
        self.predict, self.known, self.calls = predict, known, 0

    def __call__(self, images: Any, target: Any = None, **named: Any) -> Any:
        found = []
        for image in images:
            self.calls += 1
            key = hashlib.blake2b(image.numpy().tobytes()).digest() + bytes([target is None])
            if key not in self.known:
                self.known[key] = self.predict(image[None], target, **named)[0]
            found.append(self.known[key])
        return found


def softmax_of(session: InferenceSession, photo: Photobomb, visible: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The probabilities of the image with everything else grey, as becausal computes them."""
    pixels = np.where(visible[..., None], photo.pixels, 128).astype(np.float32) / 127.5 - 1
    logits = session.run(None, {session.get_inputs()[0].name: pixels.transpose(2, 0, 1)[None]})[0][0].astype(float)
    powers = np.exp(logits - logits.max())
    return np.asarray(powers / powers.sum())


def explain(options: argparse.Namespace, session: InferenceSession, photo: Photobomb, settings: str, known: dict[bytes, Any]
            ) -> tuple[dict[str, Any], NDArray[np.bool_]]:  # fmt: skip
    """One row, and the explanation."""
    arguments = CausalArgs()
    arguments.path = str(options.data / "photobombing_imgs" / photo.name)
    arguments.means, arguments.stds, arguments.norm = [1.0] * 3, [1.0] * 3, 127.5
    arguments.progress_bar, arguments.gpu, arguments.seed = False, False, options.seed
    for key, value in SETTINGS[settings].items():
        setattr(arguments, key, value)
    predict, shape = OnnxRunner(session, Setup.PYTORCH, "cpu").gen_prediction_function()
    counted = Counted(predict, known)
    found = _explanation(arguments, shape, counted, torch.device("cpu"))
    visible = np.asarray(found.sufficiency_mask.cpu()).squeeze().astype(bool)
    visible = visible if visible.ndim == 2 else visible.any(axis=0)
    whole, kept = softmax_of(session, photo, np.ones_like(visible)), softmax_of(session, photo, visible)
    label = int(whole.argmax())
    row = {
        "model": options.model.stem, "settings": settings, "seed": options.seed, "name": photo.name, "calls": counted.calls,
        "size": round(float(visible.mean()), 6), "overlap": int((visible & photo.occluder).sum()),
        "confidence": round(float(kept[label] / whole[label]), 4), "sufficient": int(kept.argmax() == label),
    }  # fmt: skip
    return row, visible


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--names", type=Path, required=True)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--settings", default="default", help=f"one or more of {', '.join(SETTINGS)}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--masks", type=Path, help="folder for the explanations")
    parser.add_argument("--out", type=Path, default=Path("rex.csv"), help="rows are appended")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    photos = {p.name: p for p in read_photobombs(options.data)}
    with options.names.open() as file:
        names = list(dict.fromkeys(row["name"] for row in csv.DictReader(file)))[: options.count]
    session = open_model(options.model, options.threads)
    with options.out.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if not file.tell():
            writer.writeheader()
        for name in names:
            known: dict[bytes, Any] = {}
            for settings in options.settings.split(","):
                row, visible = explain(options, session, photos[name], settings, known)
                writer.writerow(row)
                file.flush()
                print(row, flush=True)
                if options.masks is not None:
                    options.masks.mkdir(parents=True, exist_ok=True)
                    path = options.masks / f"{options.model.stem}-{settings}-{options.seed}-{Path(name).stem}.npy"
                    np.save(path, np.packbits(visible))


if __name__ == "__main__":
    main()
