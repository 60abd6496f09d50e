"""What explanations with a torch module on a CPU cost, compared with the same weights in an ONNX file.

    python benchmarks/torch_twin.py --model net.py:build --onnx net.onnx --preprocess tf --images *.jpg

Three ways take turns in every round, each in a process of its own: the ONNX file, the module with its twin
(`runtime="auto"`) and the module alone (`runtime="torch"`). Reported is the wall time from loading the model to the last
explanation, exporting and certifying included, as a multiple of the ONNX file's: for the first image, and for all.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

WAYS = ("onnx", "auto", "torch")


def measure(way: str, options: argparse.Namespace) -> dict[str, Any]:
    """Load the model in one way and explain the images, one after the other."""
    import becausal
    from becausal.models import as_classifier, load_model
    from becausal.models.user_code import call, load_function

    settings = {"preprocess": options.preprocess, "resize": options.resize, "threads": options.threads}
    module = None
    if way != "onnx":
        path, _, function = options.model.partition(".py:")
        name, _, argument = function.partition(":")
        code = Path(path + ".py")
        module = call(load_function(code, name)[0], code, *([argument] if argument else []))
    load_model("bundled")  # libraries are loaded before the clock starts
    start = time.perf_counter()
    if module is None:
        classifier = load_model(options.onnx, **settings)
    else:
        classifier = as_classifier(module, runtime=way, returns="logits", **settings)
    times, calls, sets, notes = [], [], [], []
    for image in options.images:
        explanation = becausal.explain(image, classifier)
        times.append(round(time.perf_counter() - start, 3))
        calls.append(explanation.stats.calls)
        sets.append(int(explanation.pixels))
        notes += [note for note in explanation.notes if "guided" in note or "stand-in" in note]
    return {"seconds": times, "calls": calls, "pixels": sets, "notes": sorted(set(notes))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="FILE.py:BUILD or FILE.py:BUILD:ARGUMENT, returns a torch module")
    parser.add_argument("--onnx", type=Path, required=True, help="the same network as an ONNX file")
    parser.add_argument("--images", type=Path, nargs="+", required=True)
    parser.add_argument("--preprocess", default="tf")
    parser.add_argument("--resize", default="256/224x224")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        print(json.dumps(measure(options.way, options)))
        return
    rounds = []
    for _ in range(options.rounds):
        command = [sys.executable, *sys.argv, "--way"]
        done = {way: subprocess.run([*command, way], capture_output=True, text=True, check=True) for way in WAYS}
        rounds.append({way: json.loads(run.stdout.splitlines()[-1]) for way, run in done.items()})
    for way in WAYS[1:]:
        ratios = np.array([[row[way]["seconds"][i] / row["onnx"]["seconds"][i] for i in (0, -1)] for row in rounds])
        middle, low, high = np.median(ratios, 0), ratios.min(0), ratios.max(0)
        for i, what in enumerate(("one image", f"{len(options.images)} images")):
            print(f"{way:6s} {what:10s} {middle[i]:.2f} ({low[i]:.2f} to {high[i]:.2f})")
    same = all(row[way]["pixels"] == row["onnx"]["pixels"] for row in rounds for way in WAYS)
    print("calls:", {way: sum(rounds[0][way]["calls"]) for way in WAYS}, "the same sizes:", same)
    if options.out:
        options.out.write_text(json.dumps(rounds, indent=1))


if __name__ == "__main__":
    main()
