"""What explaining costs beyond the model, on a CPU, for becausal and for the tools people use: one network, one run.

    python benchmarks/overhead.py --model net.py:build --onnx net.onnx --preprocess tf --picture photo.jpg
    python benchmarks/overhead.py                          the bundled classifier and a scene

Each tool explains the same image with the same weights. The time inside the network's forward pass is taken out;
what is left, as a share of it, is the tool's own cost: making mutants, thinking, drawing maps. Rounds are interleaved, so
that whatever else the machine does falls on all alike, and the median of the rounds is printed: by the clock, and of the
processor's time, which says the same on a quiet machine and is not disturbed on a busy one. Everything runs on one
thread, then on two. becausal is measured with the network in torch, as the others, and through onnxruntime. ReX lives in
an environment of its own (it wants an old numpy): give its python by --rex-python, or it is left out, and said so.

    python benchmarks/overhead.py --profile where.txt      only where becausal's own time goes, function by function
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

import becausal
from becausal.images.loading import load_image, make_view
from becausal.models import as_classifier, load_model
from becausal.models.torch_module import TorchClassifier
from becausal.models.user_code import call, load_function

BATCH = 16
GREY = 128


@dataclass
class Meter:
    """Counts what goes through a function, and the time inside it: by the clock, and of the processor."""

    seconds: float = 0.0
    processor: float = 0.0
    rows: int = 0

    def watch(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(batch: Any, *rest: Any) -> Any:
            begun, worked = time.perf_counter(), time.process_time()
            result = function(batch, *rest)
            self.seconds += time.perf_counter() - begun
            self.processor += time.process_time() - worked
            self.rows += len(batch)
            return result

        return watched


@dataclass
class Subject:
    """The image and the network, in the forms tools take them."""

    pixels: Any  # (h, w, 3) uint8
    classifier: TorchClassifier
    onnx: Path
    preprocess: str
    resize: str
    label_id: int
    threads: int
    samples: int  # mutants for the tools that want to be told a number

    def forward(self, meter: Meter) -> Callable[[Any], Any]:
        """Normalised tensors to probabilities, measured."""
        import torch

        module = self.classifier.module
        watched = meter.watch(module.forward)

        def run(batch: Any) -> Any:
            with torch.no_grad():
                return torch.softmax(watched(batch), 1)

        return run

    def tensor(self, pixels: Any) -> Any:
        """Pixels (n, h, w, 3) as the network takes them."""
        import torch

        values = torch.from_numpy(np.ascontiguousarray(np.moveaxis(np.asarray(pixels, np.float32), -1, 1)))
        return self.classifier.normalise(values)


def run_becausal(subject: Subject, meter: Meter) -> None:
    module = subject.classifier.module
    plain = module.forward
    module.forward = meter.watch(plain)
    try:
        becausal.explain(subject.pixels, subject.classifier)
    finally:
        module.forward = plain


def run_becausal_onnx(subject: Subject, meter: Meter) -> None:
    classifier: Any = load_model(
        f"onnx:{subject.onnx}", preprocess=subject.preprocess, resize=subject.resize, threads=subject.threads
    )
    classifier._run = meter.watch(classifier._run)
    begun, worked = time.perf_counter(), time.process_time()
    becausal.explain(subject.pixels, classifier)
    raise Elapsed(time.perf_counter() - begun, time.process_time() - worked)


class Elapsed(Exception):
    """A tool measured its own time, without what it took to load it."""

    def __init__(self, seconds: float, processor: float) -> None:
        super().__init__(seconds, processor)
        self.seconds = seconds
        self.processor = processor


def run_occlusion(subject: Subject, meter: Meter) -> None:
    from captum.attr import Occlusion

    side = max(2, subject.pixels.shape[0] // 12)
    entry = subject.tensor(subject.pixels[None])
    grey = subject.tensor(np.full_like(subject.pixels[None], GREY))
    Occlusion(subject.forward(meter)).attribute(
        entry,
        target=subject.label_id,
        sliding_window_shapes=(3, side, side),
        strides=(3, side // 2, side // 2),
        baselines=grey,
        perturbations_per_eval=BATCH,
    )


def squares(shape: tuple[int, ...]) -> Any:
    """64 squares as features, (1, 1, h, w)."""
    import torch

    rows, columns = (torch.arange(side) * 8 // side for side in shape)
    return (rows[:, None] * 8 + columns)[None, None]


def run_kernel_shap(subject: Subject, meter: Meter) -> None:
    from captum.attr import KernelShap

    KernelShap(subject.forward(meter)).attribute(
        subject.tensor(subject.pixels[None]),
        target=subject.label_id,
        baselines=subject.tensor(np.full_like(subject.pixels[None], GREY)),
        feature_mask=squares(subject.pixels.shape[:2]),
        n_samples=subject.samples,
        perturbations_per_eval=BATCH,
    )


def run_captum_lime(subject: Subject, meter: Meter) -> None:
    from captum.attr import Lime

    Lime(subject.forward(meter)).attribute(
        subject.tensor(subject.pixels[None]),
        target=subject.label_id,
        baselines=subject.tensor(np.full_like(subject.pixels[None], GREY)),
        feature_mask=squares(subject.pixels.shape[:2]),
        n_samples=subject.samples,
        perturbations_per_eval=BATCH,
    )


def run_lime(subject: Subject, meter: Meter) -> None:
    from lime.lime_image import LimeImageExplainer

    forward = subject.forward(meter)
    LimeImageExplainer(random_state=0).explain_instance(
        subject.pixels,
        lambda batch: forward(subject.tensor(batch)).numpy(),
        labels=(subject.label_id,),
        top_labels=None,
        hide_color=GREY,
        num_samples=subject.samples,
        batch_size=BATCH,
    )


def run_shap(subject: Subject, meter: Meter) -> None:
    import shap

    forward = subject.forward(meter)
    masker = shap.maskers.Image(np.full(subject.pixels.shape, GREY).reshape(-1), subject.pixels.shape)
    explainer = shap.Explainer(lambda batch: forward(subject.tensor(batch)).numpy(), masker)
    explainer(
        subject.pixels[None].astype(float),
        max_evals=subject.samples,
        batch_size=BATCH,
        outputs=[subject.label_id],
        silent=True,
    )


def run_rise(subject: Subject, meter: Meter) -> None:
    """RISE as its paper has it: random 8 x 8 grids, each cell kept with probability 1/2, enlarged and shifted."""
    import torch

    rng = np.random.default_rng(0)
    h, w = subject.pixels.shape[:2]
    cells, samples = 8, subject.samples
    up = (-(-h // cells), -(-w // cells))
    grids = torch.from_numpy((rng.random((samples, 1, cells, cells)) < 0.5).astype(np.float32))
    size = ((cells + 1) * up[0], (cells + 1) * up[1])
    masks = torch.empty((samples, 1, h, w))
    for i in range(samples):
        large = torch.nn.functional.interpolate(grids[i : i + 1], size=size, mode="bilinear", align_corners=False)
        y, x = rng.integers(0, up[0]), rng.integers(0, up[1])
        masks[i] = large[0, :, y : y + h, x : x + w]
    entry, forward = subject.tensor(subject.pixels[None]), subject.forward(meter)
    found = [forward(entry * masks[i : i + BATCH])[:, subject.label_id] for i in range(0, samples, BATCH)]
    torch.tensordot(torch.cat(found), masks[:, 0], dims=1).div_(samples * 0.5)


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


def run_rex(python: str, subject: Subject, meter: Meter) -> None:
    from PIL import Image

    with tempfile.TemporaryDirectory() as folder:
        picture = Path(folder) / "picture.png"
        Image.fromarray(subject.pixels).save(picture)
        done = subprocess.run(
            [python, "-c", REX.replace("THREADS", str(subject.threads)), str(picture), str(subject.onnx.absolute())],
            capture_output=True,
            text=True,
            cwd=folder,
            check=False,
        )
    if done.returncode:
        raise RuntimeError("ReX failed: " + " ".join(done.stderr.split())[-300:])
    said = json.loads(done.stdout.splitlines()[-1])
    (meter.seconds, meter.processor), meter.rows = said["inside"], said["rows"]
    raise Elapsed(*said["total"])


def tools(rex_python: str | None) -> dict[str, Callable[[Subject, Meter], None]]:
    found: dict[str, Callable[[Subject, Meter], None]] = {
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
        found["ReX"] = lambda subject, meter: run_rex(rex_python, subject, meter)
    return found


def measure(name: str, tool: Callable[[Subject, Meter], None], subject: Subject) -> dict[str, Any]:
    meter = Meter()
    begun, worked = time.perf_counter(), time.process_time()
    try:
        tool(subject, meter)
        seconds, processor = time.perf_counter() - begun, time.process_time() - worked
    except Elapsed as own:
        seconds, processor = own.seconds, own.processor
    return {
        "tool": name,
        "threads": subject.threads,
        "calls": meter.rows,
        "seconds": seconds,
        "inside": meter.seconds,
        "beyond": seconds / meter.seconds - 1,
        "beyond_processor": processor / meter.processor - 1,
        "microseconds_per_call": (processor - meter.processor) / meter.rows * 1e6,
    }


def write_profile(subject: Subject, path: Path, times: int = 8) -> None:
    """Where the time beside the network goes, of several explanations through onnxruntime; its own line is first."""
    import cProfile
    import io
    import pstats

    classifier: Any = load_model(f"onnx:{subject.onnx}", preprocess=subject.preprocess, resize=subject.resize, threads=1)
    becausal.explain(subject.pixels, classifier)
    profile = cProfile.Profile()
    profile.enable()
    for _ in range(times):
        becausal.explain(subject.pixels, classifier)
    profile.disable()
    text = io.StringIO()
    pstats.Stats(profile, stream=text).strip_dirs().sort_stats("tottime").print_stats(40)
    path.write_text(text.getvalue())
    print(f"{times} explanations, in {path}")


def prepare(options: argparse.Namespace, threads: int) -> Subject:
    if options.model is None:
        from becausal.scenes import make_scene
        from becausal.scenes.network import load_network

        folder = Path(becausal.__file__).parent / "scenes" / "bundled"
        onnx, module, preprocess, resize = folder / "scenes.onnx", load_network(), "tf", "128/128"
        picture: Any = make_scene(options.scene).picture
    else:
        path, _, function = options.model.partition(".py:")
        name, _, argument = function.partition(":")
        module = call(load_function(Path(path + ".py"), name)[0], Path(path + ".py"), *([argument] if argument else []))
        onnx, preprocess, resize = options.onnx, options.preprocess, options.resize
        picture = options.picture
    made = as_classifier(module, preprocess=preprocess, resize=resize, threads=threads)
    view = make_view(load_image(picture), made.info.geometry, channels=3).pixels
    label_id = int(made.classify(view[None])[0].argmax())
    return Subject(view, made, onnx, preprocess, resize, label_id, threads, options.samples)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="FILE.py:BUILD or FILE.py:BUILD:ARGUMENT, a function that returns a torch module")
    parser.add_argument("--onnx", type=Path, help="the same network as an ONNX file")
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--preprocess", default="tf")
    parser.add_argument("--resize", default="224/224")
    parser.add_argument("--scene", type=int, default=100, help="of the bundled classifier")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=500, help="mutants for the tools that want to be told a number")
    parser.add_argument("--rex-python", help="the python of an environment with rex-xai in it")
    parser.add_argument("--only", help="tools whose name holds one of these words, with commas")
    parser.add_argument("--profile", type=Path, help="write where our own time goes to this file, and measure nothing")
    parser.add_argument("--out", type=Path, default=Path("overhead.json"))
    options = parser.parse_args()
    if options.profile:
        write_profile(prepare(options, 1), options.profile)
        return
    rows: list[dict[str, Any]] = []
    chosen = tools(options.rex_python)
    if options.only:
        words = options.only.lower().split(",")
        chosen = {name: tool for name, tool in chosen.items() if any(word in name.lower() for word in words)}
    for threads in (int(t) for t in options.threads.split(",")):
        subject = prepare(options, threads)
        for number in range(-1, options.rounds):  # the first round is not counted: it imports and warms up
            for name, tool in chosen.items():
                try:
                    row = measure(name, tool, subject)
                except (ImportError, RuntimeError) as error:
                    if number < 0:
                        print(f"{name} is left out: {error}", file=sys.stderr)
                    continue
                if number >= 0:
                    rows.append(row | {"round": number, "load": os.getloadavg()[0]})
                    print(f"  {name}, round {number + 1}: {row['beyond_processor']:.1%}", file=sys.stderr, flush=True)
    if options.rex_python is None:
        print("ReX is left out: no --rex-python", file=sys.stderr)
    table = summarise(rows)
    show(table, options.model or "the bundled classifier")
    about = {
        "python": platform.python_version(),
        "load_average": os.getloadavg(),
        "cores": os.cpu_count(),
        "samples": options.samples,
        "versions": {name: installed(name) for name in ("becausal", "torch", "onnxruntime", "captum", "lime", "shap")},
    }
    options.out.write_text(json.dumps({"about": about, "table": table, "rows": rows}, indent=1) + "\n")


def installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def summarise(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per tool and number of threads the medians over the rounds."""
    table = []
    for threads in dict.fromkeys(row["threads"] for row in rows):
        for tool in dict.fromkeys(row["tool"] for row in rows):
            mine = [row for row in rows if (row["tool"], row["threads"]) == (tool, threads)]
            if not mine:
                continue
            medians = {key: float(np.median([row[key] for row in mine])) for key in mine[0] if key not in ("tool", "round")}
            worst = max(row["beyond"] for row in mine)
            table.append({"tool": tool} | medians | {"rounds": len(mine), "beyond_worst": worst})
    return table


def show(table: list[dict[str, Any]], network: str) -> None:
    print(f"cost beyond the model, {network}")
    print(
        f"{'tool':24s} {'threads':>7s} {'calls':>6s} {'seconds':>8s} {'in model':>8s} {'beyond':>7s} {'worst':>7s} "
        f"{'processor':>9s} {'us/call':>8s}"
    )
    for row in table:
        print(
            f"{row['tool']:24s} {row['threads']:7.0f} {row['calls']:6.0f} {row['seconds']:8.2f} {row['inside']:8.2f} "
            f"{row['beyond']:7.1%} {row['beyond_worst']:7.1%} {row['beyond_processor']:9.1%} "
            f"{row['microseconds_per_call']:8.0f}"
        )


if __name__ == "__main__":
    main()
