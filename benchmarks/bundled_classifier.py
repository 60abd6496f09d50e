"""Evaluate a bundled classifier and the scene generator on scenes that were not used for training.

    PYTHONPATH=src python benchmarks/bundled_classifier.py
    PYTHONPATH=src python benchmarks/bundled_classifier.py --model bundled:vit

Prints tables and writes benchmarks/results/bundled_classifier.json, or bundled_vit.json, which the model card cites.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from bundled_measures import (
    FIRST_SEED,
    SETS,
    Predict,
    classify,
    draw_scenes,
    evaluate,
    find_file,
    load,
    measure_explanations,
    measure_flat,
    measure_fragments,
    measure_object,
    measure_speed,
    measure_swaps,
)

from becausal.scenes import LABELS

RESULTS = Path(__file__).parent / "results"
#: The models, and the files with their results.
MODELS = {"bundled": "bundled_classifier.json", "bundled:vit": "bundled_vit.json"}


def main() -> None:
    """Run all measurements, or only the explanations, keeping the rest of an earlier file."""
    options = _arguments()
    predict = load(find_file(options.model))
    result = json.loads(options.out.read_text(encoding="utf-8")) if options.only_explain else measure(options, predict)
    if options.explain:
        explanations = result.setdefault("explanations", {})
        for method in options.methods:
            explanations[method] = measure_explanations(options.model, predict, options.explain, method)
    report(result)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def measure(options: argparse.Namespace, predict: Predict) -> dict[str, Any]:
    """All measurements without explanations."""
    result: dict[str, Any] = {
        "count": options.count,
        "first_seed": FIRST_SEED,
        "model": options.model,
        "model_bytes": find_file(options.model).stat().st_size,
        "versions": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "onnxruntime": onnxruntime.__version__,
            "machine": platform.machine(),
        },
        "speed": measure_speed(predict, min(1000, options.count)),
        "sets": {},
    }
    with ProcessPoolExecutor(options.workers) as pool:
        draw = partial(draw_scenes, pool)
        for name, wanted in SETS.items():
            result["sets"][name] = evaluate(classify(draw(wanted, options.count), predict))
            print(f"{name}: done", file=sys.stderr, flush=True)
        some = max(50, options.count // 5)
        result["swaps"] = measure_swaps(draw, predict, some)
        result["object"] = measure_object(draw, predict, some)
        result["fragments"] = measure_fragments(draw, predict, some)
    result["flat"] = measure_flat(predict)
    return result


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="bundled", help="the classifier (default bundled)")
    parser.add_argument("--count", type=int, default=5_000, help="scenes per set (default 5,000)")
    parser.add_argument("--explain", type=int, default=100, help="scenes to explain, 0 for none (default 100)")
    parser.add_argument("--methods", nargs="+", default=["causal"], help="methods to explain with (default causal)")
    parser.add_argument(
        "--only-explain", action="store_true", help="repeat only the explanations; keep the other results in the file"
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes that render scenes")
    parser.add_argument("--out", type=Path, help="the file to write")
    options = parser.parse_args()
    options.out = options.out or RESULTS / MODELS[options.model]
    if options.count < 50:
        parser.error(f"--count is {options.count}, expected 50 or more, so that every label has a scene")
    return options


def report(result: dict[str, Any]) -> None:
    """Print the results as tables."""
    speed = result["speed"]
    print(f"generator: {speed['scenes_per_second']} scenes/s on one core ({speed['scenes_drawn']} scenes)")
    rates = ", ".join(f"{rate:.0f}/s (batch {b})" for b, rate in speed["pictures_per_second_by_batch"].items())
    print(f"classifier: {rates}, one thread; {result['model_bytes'] / 1e6:.2f} MB\n")
    print(f"{'set':<16}{'accuracy':>10}{'95 % interval':>20}{'of objects':>12}{'calibration error':>20}")
    for name, found in result["sets"].items():
        whole, things = found["accuracy"], found["accuracy_of_objects"]
        interval = f"{whole['low']:.2%} - {whole['high']:.2%}"
        print(f"{name:<16}{whole['share']:>10.2%}{interval:>20}{things['share']:>12.2%}", end="")
        print(f"{found['calibration_error']:>20.4f}")
    for name in ("by_cover", "by_occluder", "by_label"):
        print(f"\n{name.replace('_', ' ')}:")
        for case, found in result["sets"].items():
            if found[name]:
                print(f"  {case}: " + ", ".join(f"{key} {value['share']:.1%}" for key, value in found[name].items()))
    for case in ("clean", "cover 10-40 %"):
        print(f"\nconfusion, {case} (rows: true labels, columns: predictions, in the same order):")
        for label, row in zip(LABELS, result["sets"][case]["confusion"], strict=True):
            print(f"  {label:<14}" + "".join(f"{count:>6}" for count in row))
    print("\nreliability, as it comes:")
    for row in result["sets"]["as it comes"]["reliability"]:
        print(f"  {row['from']:.2f}-{row['to']:.2f}{row['scenes']:>7} scenes", end="")
        print(f", confidence {row['confidence']:.3f}, right {row['accuracy']:.3f}")
    print()
    for name, found in result["swaps"].items():
        same, still = found["same_answer"], found["still_right"]
        print(f"another {name}: same answer {same['share']:.2%}, still right {still['share']:.2%} of {same['of']}")
    for case, found in result["object"].items():
        print(f"object {case}: " + ", ".join(f"{key} {value['share']:.2%}" for key, value in found.items()))
    for case, found in result["fragments"].items():
        print(f"{case} of the object: label {found['label']['share']:.1%}, nothing {found['nothing']['share']:.1%}")
    for name, found in result["flat"].items():
        print(f"flat {name}: nothing {found['nothing']['share']:.1%}, least {found['least_confidence']:.3f}")
    for method, found in result.get("explanations", {}).items():
        print(f"explanations by {method}, {found['explained']} scenes: {found['means']}")


if __name__ == "__main__":
    main()
