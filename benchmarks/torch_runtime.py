"""What an explanation with a torch module on a CPU costs, compared with the same weights in an ONNX file.

    python benchmarks/torch_runtime.py --model net.py:build --onnx net.onnx --preprocess tf --image photo.jpg
    python benchmarks/torch_runtime.py --vit --image photo.jpg      a small vision transformer with random weights

Three ways to run the network take turns in every round: the ONNX file, the module with `runtime="auto"`, and the module
with `runtime="torch"`. Each round starts with a new copy of the module, so that it is exported anew. Reported are the
times for loading, for exporting (with all comparisons, up to the choice) and for one explanation, and ratios to the
ONNX file: of the explanation, of the explanation with exporting, and of loading and explaining. Ratios are taken within
a round; the table has their median, minimum and maximum, in wall time and in processor time, which is reliable on a busy
machine too.
"""

import argparse
import copy
import json
import os
import platform
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from becausal.models.torch_runtime import ModuleRuntime

import becausal
from becausal.models import as_classifier, load_model
from becausal.models.user_code import call, load_function


def timed(function: Callable[[], Any]) -> tuple[Any, Any]:
    """Wall time and processor time of a call, as an array, and its result."""
    start, processor = time.perf_counter(), time.process_time()
    result = function()
    return np.array([time.perf_counter() - start, time.process_time() - processor]), result


def measure(load: Callable[[], Any], image: Path, calls: int) -> dict[str, Any]:
    """Load a classifier and explain an image."""
    choosing = [np.zeros(2)]
    choose = ModuleRuntime.choose
    ModuleRuntime.choose = lambda *given: choosing.append(timed(lambda: choose(*given))[0])
    loading, classifier = timed(load)
    ModuleRuntime.choose = choose
    explaining, explanation = timed(lambda: becausal.explain(image, classifier, max_calls=calls))
    return {
        "load": loading,
        "export": choosing[-1],
        "explain": explaining,
        "calls": explanation.stats.calls,
        "set": explanation.visible.tobytes().hex(),
        "notes": [note for note in classifier.info.notes if "runtime" in note],
    }


def run_round(module: Any, onnx: Path, options: argparse.Namespace) -> dict[str, Any]:
    """One explanation in each way, and what it took compared with the ONNX file."""
    settings = {"preprocess": options.preprocess, "resize": options.resize, "threads": options.threads}
    found = {"onnx": measure(lambda: load_model(onnx, **settings), options.image, options.calls)}
    for runtime in ("auto", "torch"):
        new = copy.deepcopy(module)
        how = {**settings, "runtime": runtime, "returns": "logits"}
        found[runtime] = measure(lambda new=new, how=how: as_classifier(new, **how), options.image, options.calls)
    base, auto = found["onnx"], found["auto"]
    ratios = {
        "auto": auto["explain"] / base["explain"],
        "auto with exporting": (auto["explain"] + auto["export"]) / base["explain"],
        "auto with loading": (auto["explain"] + auto["load"]) / (base["explain"] + base["load"]),
        "torch": found["torch"]["explain"] / base["explain"],
    }
    same = len({row.pop("set") for row in found.values()}) == 1
    return {"ratios": ratios, "same_set": same, "load_average": os.getloadavg()[0], **found}


def plain(value: Any) -> Any:
    """An array of two times as JSON."""
    return {"wall": round(float(value[0]), 4), "processor": round(float(value[1]), 4)}


def build(options: argparse.Namespace) -> Any:
    """The module that the options name."""
    if not options.vit:
        path, _, function = options.model.partition(".py:")
        name, _, argument = function.partition(":")
        code = Path(path + ".py")
        return call(load_function(code, name)[0], code, *([argument] if argument else []))
    import torch
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    sizes = {"hidden_size": 192, "num_hidden_layers": 12, "num_attention_heads": 3, "intermediate_size": 768}
    return ViTForImageClassification(ViTConfig(**sizes, num_labels=1000, initializer_range=0.1)).eval()


def write_onnx(module: Any, path: Path) -> None:
    """The module as an ONNX file, by torch's default exporter if its package is installed, else by the older one."""
    import importlib.util

    import torch

    is_new = importlib.util.find_spec("onnxscript") is not None
    how: dict[str, Any] = {"dynamo": is_new, "input_names": ["input"], "output_names": ["logits"]}
    if is_new:
        how |= {"dynamic_shapes": ({0: torch.export.Dim("n")},), "external_data": False}
    else:
        how["dynamic_axes"] = {"input": {0: "n"}, "logits": {0: "n"}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (torch.zeros(2, 3, 224, 224),), str(path), **how)
    print(f"ONNX file written by the {'default' if is_new else 'older'} exporter of torch")


def report(rounds: list[dict[str, Any]]) -> None:
    print(f"{'':22s} wall time              processor time")
    for name in rounds[0]["ratios"]:
        columns = np.array([row["ratios"][name] for row in rounds]).T
        print(f"{name:22s}", *(f"{np.median(own):5.2f}  ({own.min():.2f} to {own.max():.2f})" for own in columns))
    for kind in ("onnx", "auto", "torch"):
        rows, calls = [row[kind] for row in rounds], rounds[0][kind]["calls"]
        medians = {key: np.median([row[key] for row in rows], axis=0)[1] for key in rows[0] if key not in ("notes", "calls")}
        times = ", ".join(f"{key} {value:.2f} s" for key, value in medians.items())
        print(f"{kind:6s} {calls} calls, processor time: {times}; {1e3 * medians['explain'] / calls:.1f} ms per call")
    print("same explanation:", all(row["same_set"] for row in rounds), *rounds[0]["auto"]["notes"], sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="FILE.py:BUILD or FILE.py:BUILD:ARGUMENT, a function that returns a torch module")
    parser.add_argument("--vit", action="store_true", help="a vision transformer with random weights")
    parser.add_argument("--onnx", type=Path, help="the same network as an ONNX file; default: written by torch")
    parser.add_argument("--image", type=Path, required=True)
    parser.add_argument("--preprocess", default="tf")
    parser.add_argument("--resize", default="224/224")
    parser.add_argument("--calls", type=int, default=300, help="maximum number of model calls")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("torch_runtime.json"))
    options = parser.parse_args()
    module = build(options)
    with TemporaryDirectory() as folder:
        onnx = options.onnx or Path(folder) / "net.onnx"
        if options.onnx is None:
            write_onnx(module, onnx)
        run_round(module, onnx, argparse.Namespace(**{**vars(options), "calls": 20}))  # imports and warm-up
        rounds = [run_round(module, onnx, options) for _ in range(options.rounds)]
    report(rounds)
    about: dict[str, Any] = {"python": platform.python_version(), "cores": os.cpu_count()}
    about["model"] = Path(options.model).name if options.model else "vit"
    about["versions"] = {name: version(name) for name in ("becausal", "torch", "onnxruntime")}
    options.out.write_text(json.dumps({"about": about, "rounds": rounds}, indent=1, default=plain) + "\n")


if __name__ == "__main__":
    main()
