"""GPU utilisation: calls per second compared with the network alone, and the time for one image.

    python benchmarks/gpu.py --name MobileNetV2 --model torch:net.py:build --preprocess tf --images DIR --out gpu.json

Measures in float32 and float16: the network alone (the better of plain calls and a CUDA graph, for several batch sizes,
only the forward pass on a batch on the device), images one by one, and many images in parallel. "of bare" compares calls
per second, not counting speculative evaluations, with the network alone at the batch size of becausal, "of best" with its
best batch size. Without --images, generated scenes with an object are used; benchmarks/gpu_resnet.py trains a large
network for these.
"""

import argparse
import itertools
import json
import platform
import re
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import becausal
from becausal.images.loading import InputImage, load_image
from becausal.models import load_model
from becausal.models.torch_module import TorchClassifier

SIDE = 224


def measure_bare(classifier: TorchClassifier, sizes: tuple[int, ...], side: int) -> dict[str, float]:
    """Images per second of the network alone, by batch size: plain calls, and as a CUDA graph."""
    import torch

    weight = next(classifier.module.parameters())
    found = {}
    for size in sizes:
        batch = torch.rand((size, 3, side, side), device=weight.device, dtype=weight.dtype)
        batch = batch.contiguous(memory_format=torch.channels_last)
        with (
            torch.inference_mode(),
            torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False),
        ):
            aside = torch.cuda.Stream()
            with torch.cuda.stream(aside):
                for _ in range(3):
                    classifier.module(batch)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                classifier.module(batch)
            for name, run in (("plain", lambda batch=batch: classifier.module(batch)), ("graph", graph.replay)):
                run()
                torch.cuda.synchronize()
                start, times = time.perf_counter(), 0
                while time.perf_counter() - start < 0.3:
                    for _ in range(4):
                        run()
                    torch.cuda.synchronize()
                    times += 4
                found[f"{name} {size}"] = size * times / (time.perf_counter() - start)
            del graph
            torch.cuda.empty_cache()
    return found


def explain_all(
    images: list[InputImage], classifier: Any, request: becausal.Request, workers: int | None = None
) -> dict[str, Any]:
    """Explain images in parallel: times, calls, and the explanations by image."""
    start = time.perf_counter()
    answers, failures, model_seconds, calls, ahead, slots = {}, [], 0.0, 0, 0, 0
    for number, answer in becausal.api.explain_numbered(images, classifier, request=request, workers=workers):
        if isinstance(answer, becausal.Failure):
            failures.append(str(answer.error))
            continue
        answers[number] = answer.visible
        model_seconds += answer.stats.model_seconds
        calls += answer.calls
        ahead += answer.stats.speculative
        slots += answer.stats.slots
    seconds = time.perf_counter() - start
    return {
        "pictures": len(answers),
        "failed": len(failures),
        "failures": failures,
        "seconds": seconds,
        "calls": calls,
        "ahead": ahead,
        "fill_rate": calls / max(1, slots),
        "calls_per_second": calls / seconds,
        "device_busy": model_seconds / seconds,
        "answers": answers,
    }


def measure_one(images: list[InputImage], classifier: Any, request: becausal.Request) -> list[dict[str, Any]]:
    """Explain images one by one."""
    found = []
    for image in images:
        start = time.perf_counter()
        try:
            answer = becausal.api.explain_many([image], classifier, request=request, width=1)
            explanation = next(answer)
        except becausal.BecausalError:
            continue
        if isinstance(explanation, becausal.Failure):
            continue
        stats = explanation.stats
        found.append(
            {
                "seconds": time.perf_counter() - start,
                "calls": stats.calls,
                "batches": stats.batches,
                "ahead": stats.speculative,
                "model_seconds": stats.model_seconds,
                "visible": explanation.visible,
                "sha256": explanation.origin.image_sha256,
            }
        )
    return found


def measure_many(
    row: dict[str, Any], classifier: Any, images: list[InputImage], one: list[dict[str, Any]], options: argparse.Namespace
) -> None:
    """Explain many images in parallel, and compare with those explained one by one; adds to the row."""
    import torch

    request = becausal.Request(max_calls=options.max_calls)
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    alone = [(min(options.counts), 0)] if options.one_process else []
    for count, workers in [*alone, *((count, None) for count in options.counts)]:
        many = explain_all(images[:count], classifier, request, workers)
        answers = many.pop("answers")
        by_hash = {images[i].sha256: visible for i, visible in answers.items()}
        alike = [bool((by_hash[o["sha256"]] == o["visible"]).all()) for o in one if o["sha256"] in by_hash]
        many["identical_to_alone"] = f"{sum(alike)} of {len(alike)}"
        many["of_bare"] = many["calls_per_second"] / row["bare_same_batch"]
        many["of_best"] = many["calls_per_second"] / row["bare_best"]
        many["peak_gigabytes_beside"] = (torch.cuda.max_memory_allocated() - held) / 1e9
        where = "one process" if workers == 0 else "processes"
        row[f"many {count}, {where}"] = many
        print(
            f"{'':12s} {where:11s} {count:4d} images {many['seconds']:5.1f} s  {many['calls_per_second']:6.0f} calls/s  "
            f"of bare {many['of_bare']:4.0%}, of best {many['of_best']:4.0%}  device busy {many['device_busy']:4.0%}  "
            f"fill {many['fill_rate']:4.0%}  failed {many['failed']}  identical to one by one {many['identical_to_alone']}",
            flush=True,
        )


def measure(name: str, classifier: Any, images: list[InputImage], options: argparse.Namespace) -> dict[str, Any]:
    """All measurements of one network in one precision."""
    request = becausal.Request(max_calls=options.max_calls)
    start = time.perf_counter()
    for _ in becausal.explain_many(images[:8], classifier, request=becausal.Request(max_calls=60)):
        pass
    warm = time.perf_counter() - start
    print(f"{name:24s} ready after {warm:.1f} s", flush=True)
    # Two more small runs for all batch sizes, and to start the worker processes.
    explain_all(images[:16], classifier, becausal.Request(max_calls=150), 0)
    explain_all(images[:64], classifier, becausal.Request(max_calls=330))
    print(f"{'':24s} warm after {time.perf_counter() - start:.1f} s", flush=True)
    bare = measure_bare(classifier, options.sizes, SIDE)
    best = max(bare.values())
    same = max(rate for name, rate in bare.items() if name.split()[1] == str(classifier.batch_size))
    one = measure_one(images[: options.singles], classifier, request)
    row: dict[str, Any] = {
        "network": name,
        "warm_up_seconds": warm,
        "bare": bare,
        "bare_best": best,
        "bare_same_batch": same,
    }
    row["one"] = {
        "pictures": len(one),
        "seconds_median": float(np.median([o["seconds"] for o in one])),
        "seconds_worst": max(o["seconds"] for o in one),
        "calls_mean": float(np.mean([o["calls"] for o in one])),
        "batches_mean": float(np.mean([o["batches"] for o in one])),
        "ahead_mean": float(np.mean([o["ahead"] for o in one])),
        "model_seconds_median": float(np.median([o["model_seconds"] for o in one])),
    }
    print(
        f"{name:24s} bare {same:7.0f}/s, at best {best:.0f}/s  one image {row['one']['seconds_median'] * 1000:4.0f} ms "
        f"(worst {row['one']['seconds_worst'] * 1000:.0f}), {row['one']['calls_mean']:.0f} calls in "
        f"{row['one']['batches_mean']:.0f} batches, {row['one']['ahead_mean']:.0f} ahead; warm-up {warm:.1f} s",
        flush=True,
    )
    measure_many(row, classifier, images, one, options)
    return row


def read_images(folder: Path | None, count: int) -> list[InputImage]:
    if folder is not None:
        paths = sorted(p for p in folder.iterdir() if p.suffix.lower() in (".jpg", ".jpeg", ".png"))[:count]
        return [load_image(path) for path in paths]
    from becausal.scenes import NOTHING, make_scene

    scenes = (make_scene(seed) for seed in itertools.count())
    return [load_image(scene.image) for scene in itertools.islice((s for s in scenes if s.label != NOTHING), count)]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a torch: spec")
    parser.add_argument("--name", default="network", help="name of the network in the results")
    parser.add_argument("--preprocess", default="tf")
    parser.add_argument("--images", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--counts", default="64,256")
    parser.add_argument("--precisions", default="float32,float16")
    parser.add_argument("--sizes", default="64,256,1024", help="batch sizes for the network alone")
    parser.add_argument("--singles", type=int, default=8, help="number of images explained one by one")
    parser.add_argument("--max-calls", type=int)
    parser.add_argument("--one-process", action="store_true", help="also measure without worker processes")
    parser.add_argument("--profile", type=Path, help="also write a profile of the first measurement to this file")
    parser.add_argument("--out", type=Path, default=Path("gpu.json"))
    options = parser.parse_args()
    options.counts = [int(c) for c in options.counts.split(",")]
    options.sizes = tuple(int(c) for c in options.sizes.split(","))
    return options


def main() -> None:
    import torch

    options = parse_arguments()
    images = read_images(options.images, max(options.counts))
    rows = []
    for precision in options.precisions.split(","):
        loading = {"resize": f"{SIDE}/{SIDE}", "device": options.device, "half": precision == "float16"}
        classifier = load_model(options.model, preprocess=options.preprocess, **loading)
        if options.profile and not rows:
            write_profile(images[: min(options.counts)], classifier, options)
        rows.append(measure(f"{options.name} {precision}", classifier, images, options))
        write_results(rows, options.out)
        del classifier
        torch.cuda.empty_cache()


def write_results(rows: list[dict[str, Any]], out: Path) -> None:
    """Write what was measured so far."""
    import torch

    about = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "becausal": becausal.__version__,
        "arguments": [re.sub(r"[^ =:]*/", "", argument) for argument in sys.argv[1:]],  # without folders
    }
    out.write_text(json.dumps({"about": about, "rows": rows}, indent=1, default=float) + "\n")


def write_profile(images: list[InputImage], classifier: Any, options: argparse.Namespace) -> None:
    """Profile the Python code while many images are explained, after a warm-up."""
    import cProfile
    import io
    import pstats

    request = becausal.Request(max_calls=options.max_calls)
    explain_all(images, classifier, request, 0)
    profile = cProfile.Profile()
    profile.enable()
    explain_all(images, classifier, request, 0)
    profile.disable()
    text = io.StringIO()
    pstats.Stats(profile, stream=text).sort_stats("tottime").print_stats(40)
    options.profile.write_text(text.getvalue())


if __name__ == "__main__":
    main()
