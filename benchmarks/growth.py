"""Growth of the cost: calls, time and memory by the side of the image, the number of images, and of partitions.

    python benchmarks/growth.py --out benchmarks/results/growth.json --plot docs/images/performance-growth.png

The images are scenes, enlarged by repeating pixels. The model downsamples an image to 128 pixels for the bundled
classifier, so that its cost does not depend on the side, and the growth is that of becausal. The grain is 1/56 of the
side, the default.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import becausal
from becausal.scenes import make_scene

SIDES = (64, 128, 256, 512, 1024)


class ResizingModel:
    """The bundled classifier for images of any side, which are resized to 128 pixels by repeating or averaging."""

    def __init__(self) -> None:
        self.inner = becausal.load_model("bundled", threads=1)
        self.seconds = 0.0

    def __call__(self, batch: Any) -> Any:
        start = time.process_time()
        side = batch.shape[1]
        if side < 128:
            small = np.repeat(np.repeat(batch, 128 // side, axis=1), 128 // side, axis=2)
        else:
            step = side // 128
            small = batch.reshape(len(batch), 128, step, 128, step, 3).mean(axis=(2, 4)).round().astype(np.uint8)
        scores = self.inner.classify(small)
        self.seconds += time.process_time() - start
        return scores


def draw_image(seed: int, side: int) -> Any:
    image = make_scene(seed).image
    if side < 128:
        return image[:: 128 // side, :: 128 // side]
    return np.repeat(np.repeat(image, side // 128, axis=0), side // 128, axis=1)


def choose(count: int) -> list[int]:
    """The first scenes from seed 100 on that are classified correctly at the smallest side."""
    model = ResizingModel()
    labels = model.inner.info.labels or ()
    found: list[int] = []
    seed = 100
    while len(found) < count:
        scene = make_scene(seed)
        predicted = labels[int(model(draw_image(seed, min(SIDES))[None])[0].argmax())]
        if predicted == scene.label != "nothing":
            found.append(seed)
        seed += 1
    return found


def measure_cost(image: Any, method: str, options: dict[str, Any]) -> dict[str, Any]:
    model = ResizingModel()
    start = time.process_time()
    explanation = becausal.explain(image, model, method=method, options=options)
    seconds = time.process_time() - start
    return {
        "calls": explanation.calls,
        "seconds": seconds,
        "beyond": seconds - model.seconds,
        "beyond_per_call": (seconds - model.seconds) / explanation.calls,
    }


def by_side(seeds: list[int]) -> list[dict[str, Any]]:
    rows = []
    measure_cost(draw_image(seeds[0], 128), "causal", {})  # warm-up
    for method, options in (("causal", {}), ("dc-causal", {"partitions": 5})):
        for side in SIDES:
            found = [measure_cost(draw_image(seed, side), method, options) for seed in seeds]
            mean = {key: float(np.mean([one[key] for one in found])) for key in found[0]}
            rows.append({"method": method, "side": side} | mean)
            print(
                f"{method:10s} {side:5d} px  calls {mean['calls']:6.0f}  becausal {mean['beyond'] * 1000:7.0f} ms, "
                f"{mean['beyond_per_call'] * 1e6:6.0f} us/call, {mean['beyond_per_call'] / side**2 * 1e9:5.1f} ns/pixel",
                flush=True,
            )
    return rows


def by_partitions(seed: int) -> list[dict[str, Any]]:
    rows = []
    for partitions in (5, 10, 20, 40):
        found = measure_cost(draw_image(seed, 128), "dc-causal", {"partitions": partitions})
        rows.append({"partitions": partitions} | found)
        print(f"partitions {partitions:3d}  calls {found['calls']:6d}  {found['seconds']:6.2f} s", flush=True)
    return rows


COUNTING = """
import sys
import numpy as np
import becausal
count = int(sys.argv[1])
rng = np.random.default_rng(0)
shared = rng.integers(0, 200, (64, 32, 32, 3)).astype(np.uint8)
shared[:, 8:24, 8:24] = 255
def bright(batch):
    share = batch[:, 8:24, 8:24].mean(axis=(1, 2, 3)) / 255
    return np.stack([1 - share, share], axis=1)
request = becausal.Request(fills=("black",), max_calls=20)
done = sum(1 for _ in becausal.explain_many((shared[i % 64] for i in range(count)), bright, request=request, width=8))
held = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(done, held.split()[1])
"""


def by_number(counts: list[int]) -> list[dict[str, Any]]:
    """Peak memory (Linux only) and time of a new process, for these numbers of small images."""
    rows = []
    for count in counts:
        start = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", COUNTING, str(count)], capture_output=True, text=True, check=True)
        number, kilobytes = done.stdout.split()
        rows.append({"pictures": int(number), "megabytes": int(kilobytes) / 1024, "seconds": time.perf_counter() - start})
        print(f"images {count:6d}  memory {rows[-1]['megabytes']:6.1f} MB  {rows[-1]['seconds']:6.1f} s", flush=True)
    return rows


def draw(found: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(10.5, 3.2), layout="constrained")
    for method, colour in (("causal", "#0b5cad"), ("dc-causal", "#c2571a")):
        rows = [row for row in found["sides"] if row["method"] == method]
        sides = [row["side"] for row in rows]
        axes[0].plot(sides, [row["calls"] for row in rows], "o-", color=colour, label=method)
        axes[1].plot(sides, [row["beyond_per_call"] * 1e3 for row in rows], "o-", color=colour, label=method)
    sides = np.array(SIDES, float)
    last = [row for row in found["sides"] if row["method"] == "causal"][-1]
    axes[1].plot(
        sides, last["beyond_per_call"] * 1e3 * (sides / sides[-1]) ** 2, ":", color="#777777", label="linear in the pixels"
    )
    axes[0].set(xscale="log", ylim=0, xlabel="side of the image", title="calls")
    axes[1].set(xscale="log", yscale="log", xlabel="side of the image", title="time of becausal, ms per call")
    rows = found["numbers"]
    axes[2].plot([row["pictures"] for row in rows], [row["megabytes"] for row in rows], "o-", color="#3a7d44")
    axes[2].set(xscale="log", xlabel="images", title="peak memory, MB")
    axes[2].set_ylim(0, 1.4 * max(row["megabytes"] for row in rows))
    for axis in axes[:2]:
        axis.set_xticks(SIDES, [str(side) for side in SIDES])
        axis.minorticks_off()
        axis.legend(frameon=False, fontsize=8)
    for axis in axes:
        axis.grid(True, color="#e4e4e4", linewidth=0.6)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenes", type=int, default=2, help="number of scenes to average")
    parser.add_argument("--images", default="100,1000,10000", help="numbers of images")
    parser.add_argument("--out", type=Path, default=Path("growth.json"))
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    seeds = choose(options.scenes)
    found = {
        "sides": by_side(seeds),
        "partitions": by_partitions(seeds[0]),
        "numbers": by_number([int(count) for count in options.images.split(",")]),
        "about": {
            "python": platform.python_version(),
            "becausal": becausal.__version__,
            "load_average": os.getloadavg(),
        },
    }
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    if options.plot:
        draw(found, options.plot)


if __name__ == "__main__":
    main()
