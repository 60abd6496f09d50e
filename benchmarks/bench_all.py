"""The runs behind docs/results.md, one after another; finished runs are skipped, interrupted ones are resumed.

    python benchmarks/bench_all.py --models DIR --data DIR --out DIR --device cuda --half --jobs 4
    python benchmarks/bench_all.py --models DIR --data DIR --out DIR --only exact-bundled,scenes-bundled
    python benchmarks/bench_all.py --list

--models is a folder with mobilenet_v2.onnx, squeezenet.onnx, efficientnet_lite0.onnx and as_torch.py, whose build(FILE)
returns them as torch modules; --data is a folder with photobombing/, roaming-panda/ and imagenet-samples/. Rows are flushed
to OUT/NAME/rows.jsonl one by one. With --jobs 4, four runs at a time keep a GPU busy while one of them reads images or ends;
what they print is in OUT/NAME.log. Runs whose names end in -published have the settings of the papers. A finished run is
stored with `python benchmarks/results_tables.py --add OUT/NAME NAME`.
"""

import argparse
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from becausal import Request, load_model
from becausal.core.errors import BecausalError
from becausal.lab import BenchProgress, run

MODELS: dict[str, dict[str, Any]] = {
    "bundled": {"model": "bundled"},
    "mobilenet": {"model": "torch:{models}/as_torch.py:build:mobilenet_v2.onnx", "preprocess": "tf"},
    "squeezenet": {
        "model": "torch:{models}/as_torch.py:build:squeezenet.onnx",
        "preprocess": "caffe",
        "resize": "squash:256/227",
    },
    "efficientnet": {"model": "torch:{models}/as_torch.py:build:efficientnet_lite0.onnx", "preprocess": "tf"},
}
#: 500 to 1,000 model calls each: close to what `causal` takes.
BLACK_BOX = (
    "causal,dc-causal:partitions=5,sbfl:mutants=500,rise:masks=500,occlusion,lime:samples=500,shap:evaluations=500,"
    "greedy:patches=22,phasewin,hsic:samples=500,sobol:designs=16"
)
GRADIENTS = "ig,gbp,deeplift,grad-cam,lrp,rap,extremal"
ALL = f"{BLACK_BOX},{GRADIENTS},random,centre"
#: The partitions, mutants, masks, samples and steps of the papers or of the authors' programs.
PUBLISHED = (
    "causal,dc-causal,sbfl,rise:masks=8000,occlusion,lime,shap:evaluations=500,greedy,phasewin,hsic,sobol,"
    "ig,gbp,deeplift,grad-cam,lrp,rap,extremal:steps=800,random,centre"
)
PASTED = "causal,rise:masks=500,lime:samples=500,phasewin,greedy:patches=22,centre"
NETWORKS = ("mobilenet", "squeezenet", "efficientnet")
DATA = {"photobombing": "photobombing", "roaming-panda": "roaming-panda", "occlusion": "imagenet-samples"}
Run = tuple[str, str, dict[str, Any]]
#: By name, which starts with the bench and the model: bench, model, and arguments of `run`. Without `methods`, those of the
#: bench: for `exact`, `fills`, `convergence` and `misclassified` that is `causal`, and `dc-causal` with its 50 partitions.
RUNS: dict[str, Run] = {
    "exact-bundled": ("exact", "bundled", {"limit": 100}),
    "scenes-bundled": ("scenes", "bundled", {"limit": 100}),
    "scenes-bundled-published": ("scenes", "bundled", {"limit": 100, "methods": PUBLISHED}),
    "misclassified-bundled": ("misclassified", "bundled", {"limit": 100}),
    "convergence-bundled": ("convergence", "bundled", {"limit": 100}),
    "fills-bundled": ("fills", "bundled", {"limit": 100}),
    "faithfulness-bundled": ("faithfulness", "bundled", {"limit": 100}),
    "sanity-bundled": ("sanity", "bundled", {"limit": 10}),
    "photobombing-mobilenet-black": (
        "photobombing",
        "mobilenet",
        {"data": "photobombing", "limit": 100, "request": Request(fills=("black",)), "methods": BLACK_BOX},
    ),
    "photobombing-mobilenet-grain4": (
        "photobombing",
        "mobilenet",
        {"data": "photobombing", "limit": 100, "request": Request(grain=4), "methods": BLACK_BOX},
    ),
    **{
        f"{bench}-{network}{ending}": (bench, network, {"data": data, "limit": 100, "methods": methods})
        for bench, data in DATA.items()
        for ending, methods in (("", ALL), ("-published", PUBLISHED))
        for network in NETWORKS
    },
    **{f"fills-{network}": ("fills", network, {"data": "photobombing", "limit": 100}) for network in NETWORKS},
    **{
        f"misclassified-{network}": ("misclassified", network, {"data": "photobombing", "limit": 200})
        for network in NETWORKS
    },
    **{f"convergence-{network}": ("convergence", network, {"data": "photobombing", "limit": 20}) for network in NETWORKS},
    "paste-bundled": ("paste", "bundled", {"limit": 50, "methods": PASTED}),
    **{
        f"paste-{network}": ("paste", network, {"data": "imagenet-samples", "limit": 50, "methods": PASTED})
        for network in NETWORKS
    },
    "faithfulness-mobilenet": ("faithfulness", "mobilenet", {"data": "photobombing", "limit": 50, "methods": ALL}),
}


def measure(name: str, options: argparse.Namespace) -> None:
    """Start or resume a run."""
    bench, which, changes = RUNS[name]
    given = dict(changes)
    loading = dict(MODELS[which])
    model = loading.pop("model").format(models=options.models)
    if which != "bundled":
        loading |= {"device": options.device, "half": options.half}
    if "data" in given:
        given["data"] = options.data / given["data"]
    if options.limit:
        given["limit"] = options.limit
    if options.methods:
        given["methods"] = options.methods
    start = last = time.time()

    def report(progress: BenchProgress) -> None:
        nonlocal last
        if time.time() - last > 30:
            last = time.time()
            print(f"  {name} {progress.done}/{progress.total} {progress.method}", flush=True)

    classifier = load_model(model, **loading)
    run(bench, classifier, out=options.out / name, resume=True, width=options.width, progress=report, **given)
    print(f"{name}: finished in {time.time() - start:.0f} s", flush=True)


def run_apart(name: str, options: argparse.Namespace) -> None:
    """The same for one run, in a process of its own."""
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / f"{name}.log").open("a", encoding="utf-8") as log:
        command = [
            sys.executable,
            __file__,
            *sys.argv[1:],
            "--only",
            name,
            "--jobs",
            "1",
        ]  # the last one of an option counts
        status = subprocess.run(command, stdout=log, stderr=log, check=False).returncode
    print(f"{name}: {'ended' if status == 0 else f'failed with status {status}'}, see {log.name}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, default=Path("models"))
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--out", type=Path, default=Path("becausal-out/bench"))
    parser.add_argument("--only", help="names of runs, separated by commas")
    parser.add_argument("--methods", help="overrides that of each run")
    parser.add_argument("--limit", type=int, help="overrides that of each run")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--half", action="store_true")
    parser.add_argument("--width", type=int, help="number of images explained in parallel")
    parser.add_argument("--jobs", type=int, default=1, help="number of runs at a time")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.list:
        print("\n".join(RUNS))
        return
    names = options.only.split(",") if options.only else list(RUNS)
    if unknown := set(names) - set(RUNS):
        parser.error(f"unknown runs: {', '.join(sorted(unknown))}; --list has them all")
    if options.jobs > 1:
        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(lambda name: run_apart(name, options), names))
        return
    for name in names:
        if (options.out / name / "report.html").exists():
            print(f"{name}: already finished", flush=True)
            continue
        try:
            measure(name, options)
        except BecausalError as error:
            print(f"{name}: {error}", flush=True)


if __name__ == "__main__":
    main()
