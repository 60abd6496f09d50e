"""The tools that overhead.py measures: each explains one image with one network."""

import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import becausal
from becausal.core.text import one_line
from becausal.models import load_model
from becausal.models.torch_module import TorchClassifier

BATCH = 16
GREY = 128


@dataclass
class Meter:
    """Number of rows passed to a function, and the time spent in it: wall time and processor time."""

    seconds: float = 0.0
    processor: float = 0.0
    rows: int = 0

    def measure(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function with its rows and times added to this meter."""

        def measured(batch: Any, *rest: Any) -> Any:
            start, processor = time.perf_counter(), time.process_time()
            result = function(batch, *rest)
            self.seconds += time.perf_counter() - start
            self.processor += time.process_time() - processor
            self.rows += len(batch)
            return result

        return measured


@dataclass
class Case:
    """An image and a network, in the forms that the tools take."""

    pixels: Any  # (h, w, 3) uint8
    classifier: TorchClassifier
    onnx: Path
    preprocess: str
    resize: str
    label_id: int
    threads: int
    samples: int  # number of mutants for tools that take one

    def forward(self, meter: Meter) -> Callable[[Any], Any]:
        """The network as a function from normalised tensors to probabilities, measured."""
        import torch

        module = self.classifier.module
        measured = meter.measure(module.forward)

        def run(batch: Any) -> Any:
            with torch.no_grad():
                return torch.softmax(measured(batch), 1)

        return run

    def tensor(self, pixels: Any) -> Any:
        """Pixels, (n, h, w, 3), as input of the network."""
        return self.classifier.torch_form()[1](np.asarray(pixels, np.float32))


def run_becausal(case: Case, meter: Meter) -> None:
    module = case.classifier.module
    plain = module.forward
    module.forward = meter.measure(plain)
    try:
        becausal.explain(case.pixels, case.classifier)
    finally:
        module.forward = plain


def run_becausal_onnx(case: Case, meter: Meter) -> None:
    classifier: Any = load_model(f"onnx:{case.onnx}", preprocess=case.preprocess, resize=case.resize, threads=case.threads)
    classifier._run = meter.measure(classifier._run)
    start, processor = time.perf_counter(), time.process_time()
    becausal.explain(case.pixels, classifier)
    raise Elapsed(time.perf_counter() - start, time.process_time() - processor)


class Elapsed(Exception):
    """Raised by a tool that measures its time itself, to exclude the time for loading."""

    def __init__(self, seconds: float, processor: float) -> None:
        super().__init__(seconds, processor)
        self.seconds = seconds
        self.processor = processor


def captum_options(case: Case) -> dict[str, Any]:
    return {
        "inputs": case.tensor(case.pixels[None]),
        "target": case.label_id,
        "baselines": case.tensor(np.full_like(case.pixels[None], GREY)),
        "perturbations_per_eval": BATCH,
    }


def run_occlusion(case: Case, meter: Meter) -> None:
    from captum.attr import Occlusion

    side = max(2, case.pixels.shape[0] // 12)
    window = {"sliding_window_shapes": (3, side, side), "strides": (3, side // 2, side // 2)}
    Occlusion(case.forward(meter)).attribute(**captum_options(case), **window)


def squares(shape: tuple[int, ...]) -> Any:
    """A mask of 64 square features, (1, 1, h, w)."""
    import torch

    rows, columns = (torch.arange(side) * 8 // side for side in shape)
    return (rows[:, None] * 8 + columns)[None, None]


def run_kernel_shap(case: Case, meter: Meter) -> None:
    from captum.attr import KernelShap

    features = {"feature_mask": squares(case.pixels.shape[:2]), "n_samples": case.samples}
    KernelShap(case.forward(meter)).attribute(**captum_options(case), **features)


def run_captum_lime(case: Case, meter: Meter) -> None:
    from captum.attr import Lime

    features = {"feature_mask": squares(case.pixels.shape[:2]), "n_samples": case.samples}
    Lime(case.forward(meter)).attribute(**captum_options(case), **features)


def run_lime(case: Case, meter: Meter) -> None:
    from lime.lime_image import LimeImageExplainer

    forward = case.forward(meter)
    LimeImageExplainer(random_state=0).explain_instance(
        case.pixels,
        lambda batch: forward(case.tensor(batch)).numpy(),
        labels=(case.label_id,),
        top_labels=None,
        hide_color=GREY,
        num_samples=case.samples,
        batch_size=BATCH,
    )


def run_shap(case: Case, meter: Meter) -> None:
    import shap

    forward = case.forward(meter)
    masker = shap.maskers.Image(np.full(case.pixels.shape, GREY).reshape(-1), case.pixels.shape)
    explainer = shap.Explainer(lambda batch: forward(case.tensor(batch)).numpy(), masker)
    explainer(
        case.pixels[None].astype(float),
        max_evals=case.samples,
        batch_size=BATCH,
        outputs=[case.label_id],
        silent=True,
    )


def run_rise(case: Case, meter: Meter) -> None:
    """RISE as in its paper: random 8 x 8 grids, each cell visible with probability 1/2, upsampled and shifted."""
    import torch

    rng = np.random.default_rng(0)
    h, w = case.pixels.shape[:2]
    cells, samples = 8, case.samples
    up = (-(-h // cells), -(-w // cells))
    grids = torch.from_numpy((rng.random((samples, 1, cells, cells)) < 0.5).astype(np.float32))
    size = ((cells + 1) * up[0], (cells + 1) * up[1])
    masks = torch.empty((samples, 1, h, w))
    for i in range(samples):
        large = torch.nn.functional.interpolate(grids[i : i + 1], size=size, mode="bilinear", align_corners=False)
        y, x = rng.integers(0, up[0]), rng.integers(0, up[1])
        masks[i] = large[0, :, y : y + h, x : x + w]
    inputs, forward = case.tensor(case.pixels[None]), case.forward(meter)
    scores = [forward(inputs * masks[i : i + BATCH])[:, case.label_id] for i in range(0, samples, BATCH)]
    torch.tensordot(torch.cat(scores), masks[:, 0], dims=1).div_(samples * 0.5)


REX = """
import json, sys, time
import onnxruntime
seconds = processor = rows = 0
plain = onnxruntime.InferenceSession.run
def run(self, names, feed, *rest):
    global seconds, processor, rows
    begun, worked = time.perf_counter(), time.process_time()
    result = plain(self, names, feed, *rest)
    seconds += time.perf_counter() - begun
    processor += time.process_time() - worked
    rows += len(next(iter(feed.values())))
    return result
onnxruntime.InferenceSession.run = run
before = onnxruntime.InferenceSession.__init__
def init(self, path, sess_options=None, **further):
    sess_options = sess_options or onnxruntime.SessionOptions()
    sess_options.intra_op_num_threads = THREADS
    before(self, path, sess_options, **further)
onnxruntime.InferenceSession.__init__ = init
import torch
torch.set_num_threads(THREADS)
from rex_xai.explanation.rex import explanation
from rex_xai.input.config import CausalArgs
from rex_xai.utils._utils import get_device
args = CausalArgs()
args.path, args.model = sys.argv[1], sys.argv[2]
args.gpu, args.progress_bar = False, False
begun, worked = time.perf_counter(), time.process_time()
explanation(args, get_device(gpu=False))
total = time.perf_counter() - begun, time.process_time() - worked
print(json.dumps({"total": total, "inside": [seconds, processor], "rows": rows}))
"""


def run_rex(python: str, case: Case, meter: Meter) -> None:
    from PIL import Image

    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder) / "image.png"
        Image.fromarray(case.pixels).save(image)
        done = subprocess.run(
            [python, "-c", REX.replace("THREADS", str(case.threads)), str(image), str(case.onnx.absolute())],
            capture_output=True,
            text=True,
            cwd=folder,
            check=False,
        )
    if done.returncode:
        raise RuntimeError("ReX failed: " + one_line(done.stderr)[-300:])
    times = json.loads(done.stdout.splitlines()[-1])
    (meter.seconds, meter.processor), meter.rows = times["inside"], times["rows"]
    raise Elapsed(*times["total"])


def list_tools(rex_python: str | None) -> dict[str, Callable[[Case, Meter], None]]:
    tools: dict[str, Callable[[Case, Meter], None]] = {
        "becausal, torch": run_becausal,
        "becausal, onnxruntime": run_becausal_onnx,
        "captum occlusion": run_occlusion,
        "captum KernelSHAP": run_kernel_shap,
        "captum LIME": run_captum_lime,
        "lime": run_lime,
        "shap": run_shap,
        "RISE, plain": run_rise,
    }
    if rex_python:
        tools["ReX"] = lambda case, meter: run_rex(rex_python, case, meter)
    return tools
