"""The cost of explaining beyond the model on a CPU, for becausal and other tools, with the same network and image.

    python benchmarks/overhead.py --model net.py:build --onnx net.onnx --preprocess tf --image photo.jpg
    python benchmarks/overhead.py                          the bundled classifier and a scene
    python benchmarks/overhead.py --profile profile.txt    only a profile of becausal, by function

The time in the forward pass of the network is subtracted; the rest, as a share of it, is the cost of the tool itself:
making mutants, searching, making maps. Rounds are interleaved, so that other load on the machine affects all tools
alike. The table has medians over the rounds, in wall time and in processor time, which is reliable on a busy machine too.
Everything runs on one thread, then on two. becausal is measured with the network in torch, as the other tools, and in
onnxruntime. ReX needs an environment of its own with an old numpy: give its Python with --rex-python, or it is left out.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from overhead_tools import Case, Elapsed, Meter, list_tools

import becausal
from becausal.images.loading import load_image, make_view
from becausal.models import as_classifier, load_model
from becausal.models.user_code import call, load_function


def measure(name: str, tool: Callable[[Case, Meter], None], case: Case) -> dict[str, Any]:
    """One explanation by a tool: calls and times."""
    meter = Meter()
    start, start_processor = time.perf_counter(), time.process_time()
    try:
        tool(case, meter)
        seconds, processor = time.perf_counter() - start, time.process_time() - start_processor
    except Elapsed as own:
        seconds, processor = own.seconds, own.processor
    return {
        "tool": name,
        "threads": case.threads,
        "calls": meter.rows,
        "seconds": seconds,
        "inside": meter.seconds,
        "beyond": seconds / meter.seconds - 1,
        "beyond_processor": processor / meter.processor - 1,
        "microseconds_per_call": (processor - meter.processor) / meter.rows * 1e6,
    }


def write_profile(case: Case, path: Path, times: int = 8) -> None:
    """Profile several explanations in onnxruntime; the network itself is the first line."""
    import cProfile
    import io
    import pstats

    classifier: Any = load_model(f"onnx:{case.onnx}", preprocess=case.preprocess, resize=case.resize, threads=1)
    becausal.explain(case.pixels, classifier)
    profile = cProfile.Profile()
    profile.enable()
    for _ in range(times):
        becausal.explain(case.pixels, classifier)
    profile.disable()
    text = io.StringIO()
    pstats.Stats(profile, stream=text).strip_dirs().sort_stats("tottime").print_stats(40)
    path.write_text(text.getvalue())
    print(f"profile of {times} explanations: {path}")


def prepare(options: argparse.Namespace, threads: int) -> Case:
    """The image and the network that the options name."""
    if options.model is None:
        from becausal.scenes import make_scene
        from becausal.scenes.network import load_network

        folder = Path(becausal.__file__).parent / "models" / "bundled"
        onnx, module, preprocess, resize = folder / "scenes.onnx", load_network(), "tf", "128/128"
        image: Any = make_scene(options.scene).image
    else:
        path, _, function = options.model.partition(".py:")
        name, _, argument = function.partition(":")
        module = call(load_function(Path(path + ".py"), name)[0], Path(path + ".py"), *([argument] if argument else []))
        onnx, preprocess, resize = options.onnx, options.preprocess, options.resize
        image = options.image
    classifier = as_classifier(module, preprocess=preprocess, resize=resize, threads=threads)
    view = make_view(load_image(image), classifier.info.geometry, channels=3).pixels
    label_id = int(classifier.classify(view[None])[0].argmax())
    return Case(view, classifier, onnx, preprocess, resize, label_id, threads, options.samples)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="FILE.py:BUILD or FILE.py:BUILD:ARGUMENT, a function that returns a torch module")
    parser.add_argument("--onnx", type=Path, help="the same network as an ONNX file")
    parser.add_argument("--image", type=Path)
    parser.add_argument("--preprocess", default="tf")
    parser.add_argument("--resize", default="224/224")
    parser.add_argument("--scene", type=int, default=100, help="seed of the scene for the bundled classifier")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=500, help="number of mutants for tools that take one")
    parser.add_argument("--rex-python", help="Python of an environment with rex-xai")
    parser.add_argument("--only", help="only tools whose names contain one of these words, separated by commas")
    parser.add_argument("--profile", type=Path, help="only write a profile of becausal to this file")
    parser.add_argument("--out", type=Path, default=Path("overhead.json"))
    return parser.parse_args()


def run_rounds(options: argparse.Namespace, threads: int) -> list[dict[str, Any]]:
    """The rows of all rounds with this number of threads; a first round for imports and warm-up is not counted."""
    tools = list_tools(options.rex_python)
    if options.only:
        words = options.only.lower().split(",")
        tools = {name: tool for name, tool in tools.items() if any(word in name.lower() for word in words)}
    case = prepare(options, threads)
    rows = []
    for number in range(-1, options.rounds):
        for name, tool in tools.items():
            try:
                row = measure(name, tool, case)
            except (ImportError, RuntimeError) as error:
                if number < 0:
                    print(f"{name} is left out: {error}", file=sys.stderr)
                continue
            if number >= 0:
                rows.append(row | {"round": number, "load": os.getloadavg()[0]})
                print(f"  {name}, round {number + 1}: {row['beyond_processor']:.1%}", file=sys.stderr, flush=True)
    return rows


def main() -> None:
    options = parse_arguments()
    if options.profile:
        write_profile(prepare(options, 1), options.profile)
        return
    rows = [row for threads in options.threads.split(",") for row in run_rounds(options, int(threads))]
    if options.rex_python is None:
        print("ReX is left out: no --rex-python", file=sys.stderr)
    table = summarise(rows)
    print_table(table, options.model or "the bundled classifier")
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
    """The medians over the rounds, for each tool and number of threads."""
    table = []
    for threads in dict.fromkeys(row["threads"] for row in rows):
        for tool in dict.fromkeys(row["tool"] for row in rows):
            own = [row for row in rows if (row["tool"], row["threads"]) == (tool, threads)]
            if not own:
                continue
            medians = {key: float(np.median([row[key] for row in own])) for key in own[0] if key not in ("tool", "round")}
            worst = max(row["beyond"] for row in own)
            table.append({"tool": tool} | medians | {"rounds": len(own), "beyond_worst": worst})
    return table


def print_table(table: list[dict[str, Any]], network: str) -> None:
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
