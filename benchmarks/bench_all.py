"""The runs behind docs/results.md, one after the other; those that are done are skipped, those that were stopped go on.

    python benchmarks/bench_all.py --models DIR --data DIR --out DIR --device cuda
    python benchmarks/bench_all.py --models DIR --data DIR --out DIR --only exact-bundled,scenes-bundled
    python benchmarks/bench_all.py --list

--models: a folder with mobilenet_v2.onnx, squeezenet.onnx and as_torch.py, whose build(FILE) gives them as torch modules.
--data: a folder with photobombing/, roaming-panda/ and imagenet-samples/. Needs no command-line library. A run that is done
is kept with `python benchmarks/results_tables.py --add OUT/NAME NAME`.
"""

import argparse
import time
from pathlib import Path
from typing import Any

from becausal.bench import Progress, run
from becausal.core.errors import BecausalError

MODELS: dict[str, dict[str, Any]] = {
    "bundled": {"model": "bundled"},
    "mobilenet": {"model": "torch:{models}/as_torch.py:build:mobilenet_v2.onnx", "preprocess": "tf"},
    "squeezenet": {
        "model": "torch:{models}/as_torch.py:build:squeezenet.onnx",
        "preprocess": "caffe",
        "resize": "squash:256/227",
    },
}
ASKING = "causal,dc-causal,sbfl,rise,occlusion,lime,shap,random,centre"  # those that need no gradients
#: name: bench, model, and what differs from the defaults. The name begins with the bench and goes on with the model.
RUNS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "exact-bundled": ("exact", "bundled", {"limit": 100}),
    "scenes-bundled": ("scenes", "bundled", {"limit": 100}),
    "misclassified-bundled": ("misclassified", "bundled", {"limit": 100}),
    "convergence-bundled": ("convergence", "bundled", {"limit": 100}),
    "fills-bundled": ("fills", "bundled", {"limit": 100}),
    "faithfulness-bundled": ("faithfulness", "bundled", {"limit": 100}),
    "photobombing-mobilenet": ("photobombing", "mobilenet", {"data": "photobombing", "limit": 100}),
    "photobombing-mobilenet-black": (
        "photobombing",
        "mobilenet",
        {"data": "photobombing", "limit": 100, "fill": "black", "methods": ASKING},
    ),
    "photobombing-mobilenet-grain4": (
        "photobombing",
        "mobilenet",
        {"data": "photobombing", "limit": 100, "grain": 4, "methods": ASKING},
    ),
    "photobombing-squeezenet": ("photobombing", "squeezenet", {"data": "photobombing", "limit": 100}),
    "roaming-panda-mobilenet": ("roaming-panda", "mobilenet", {"data": "roaming-panda", "limit": 100}),
    "roaming-panda-squeezenet": ("roaming-panda", "squeezenet", {"data": "roaming-panda", "limit": 100}),
    "occlusion-mobilenet": ("occlusion", "mobilenet", {"data": "imagenet-samples", "limit": 100}),
    "occlusion-squeezenet": ("occlusion", "squeezenet", {"data": "imagenet-samples", "limit": 100}),
    "fills-mobilenet": ("fills", "mobilenet", {"data": "photobombing", "limit": 100}),
    "misclassified-mobilenet": ("misclassified", "mobilenet", {"data": "photobombing", "limit": 200}),
    "convergence-mobilenet": ("convergence", "mobilenet", {"data": "photobombing", "limit": 20}),
    "faithfulness-mobilenet": ("faithfulness", "mobilenet", {"data": "photobombing", "limit": 100}),
}


def measure(name: str, options: argparse.Namespace) -> None:
    """One run, begun or gone on with."""
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
    begun = last = time.time()

    def tell(progress: Progress) -> None:
        nonlocal last
        if time.time() - last > 30:
            last = time.time()
            print(f"  {name} {progress.done}/{progress.total} {progress.method}", flush=True)

    run(bench, model, out=options.out / name, resume=True, width=options.width, progress=tell, **loading, **given)
    print(f"{name}: done in {time.time() - begun:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, default=Path("models"))
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--out", type=Path, default=Path("becausal-out/bench"))
    parser.add_argument("--only", help="names with commas between")
    parser.add_argument("--methods", help="instead of each run's own")
    parser.add_argument("--limit", type=int, help="instead of each run's own")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--half", action="store_true")
    parser.add_argument("--width", type=int, help="images side by side")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.list:
        print("\n".join(RUNS))
        return
    for name in options.only.split(",") if options.only else RUNS:
        if (options.out / name / "report.html").exists():
            print(f"{name}: done before", flush=True)
            continue
        try:
            measure(name, options)
        except BecausalError as error:
            print(f"{name}: {error}", flush=True)


if __name__ == "__main__":
    main()
