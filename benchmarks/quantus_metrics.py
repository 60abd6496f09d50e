"""The metrics of Quantus (https://pypi.org/project/quantus), for the saliency maps of `causal` and other methods.

    python benchmarks/quantus_metrics.py run --scenes 50 --out benchmarks/results/quantus.csv
    python benchmarks/quantus_metrics.py run --data DIR --models DIR --photos 50 --out benchmarks/results/quantus.csv
    python benchmarks/quantus_metrics.py print benchmarks/results/quantus.csv

Scenes are classified by the bundled network, photographs (photobombing, predicted correctly, the report set) by MobileNetV2
in its torch form, `as_torch.build` of --models. Maps come from `becausal.interfaces.quantus.explain_func`, those of gradient
methods from the same methods without it, and are kept in --maps. `explain` is the map of the default answer,
`causal` that of one set, as `explain_func` gives it; a run that was killed goes on where it ended. Metrics that
explain an image again (robustness, randomisation) use the first --few images. Quantus must be installed; it is LGPL, and
nothing in the package imports it.
"""

import argparse
import csv
import hashlib
import sys
import time
import warnings
import zlib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from photobombing import choose, read_photobombs
from quantus_measures import LEFT_OUT, Measure, measures
from search import make_scenes

import becausal
from becausal.core.contracts import ModelInfo
from becausal.core.errors import BecausalError
from becausal.core.problem import Problem
from becausal.core.request import SHARE
from becausal.core.targets import Target
from becausal.engine.engine import Engine
from becausal.interfaces.maps import keep_rank
from becausal.interfaces.quantus import explain_func
from becausal.lab.sanity import NetworkClassifier
from becausal.methods import METHODS as ALL_METHODS
from becausal.methods import make_explainer
from becausal.scenes.network import load_network

METHODS = (
    "causal", "explain", "sbfl", "rise", "occlusion", "lime", "greedy", "phasewin", "hsic", "sobol",
    "ig", "gbp", "deeplift", "grad-cam", "lrp", "random",
)  # fmt: skip
CONTROL = "random"
DEFAULT = "explain"  # the default map of `becausal.explain`
COLUMNS = ("images", "metric", "method", "image", "value", "seconds")
MAPS = "model calls"  # the row that says what the maps of a method cost


def equal_calls(budget: int) -> dict[str, dict[str, Any]]:
    """Settings of the black-box methods at which each takes about this number of model calls."""
    return {
        "sbfl": {"options": {"mutants": budget}},
        "rise": {"options": {"masks": budget}},
        "occlusion": {"options": {"stride": 1.1 / budget**0.5}},
        "lime": {"options": {"samples": budget}},
        "greedy": {"max_calls": budget},
        "phasewin": {"options": {"patches": round(40 * (budget / 780) ** 0.2)}},
        "hsic": {"options": {"samples": budget}},
        "sobol": {"options": {"designs": round(budget / 34)}},
    }


class MapMaker:
    """Saliency maps of one method, as Quantus asks for them: (n, 1, h, w), each with a maximum of 1; equal inputs once."""

    def __init__(self, method: str, settings: dict[str, Any]) -> None:
        self.method = method
        self.settings = settings
        self.calls = 0
        self.kept: dict[bytes, Any] = {}

    def __call__(self, model: Any, inputs: Any, targets: Any, **unused: Any) -> Any:
        weights = hashlib.blake2b()
        for tensor in model.state_dict().values():
            weights.update(tensor.cpu().numpy().tobytes())
        maps = []
        for image, label in zip(np.asarray(inputs, np.float32), np.asarray(targets).astype(int), strict=True):
            key = hashlib.blake2b(image.tobytes() + weights.digest() + bytes([label % 256, label // 256])).digest()
            if key not in self.kept:
                self.kept[key] = self.explain(model, image, int(label), key)
            maps.append(self.kept[key])
        return np.stack(maps)

    def explain(self, model: Any, image: Any, label: int, key: bytes) -> Any:
        def count(module: Any, args: Any, output: Any) -> None:
            self.calls += len(args[0])

        hook = model.register_forward_hook(count)
        try:
            if self.method == DEFAULT:
                values = default_map(model, image, label)
            elif ALL_METHODS[self.method].needs == "gradients":
                values = gradient_map(model, image, label, self.method)
            else:
                seed = zlib.crc32(key) if self.method == CONTROL else 0  # the control knows neither image nor model
                values = explain_func(model, image[None], [label], method=self.method, seed=seed, **self.settings)[0]
        finally:
            hook.remove()
        return values / max(float(np.abs(values).max()), 1e-30)


def to_input(pixels: Any, model: Any) -> Any:
    """Pixels (n, h, w, channels) as the input of a module, on its device."""
    values = torch.from_numpy(np.ascontiguousarray(np.moveaxis(pixels, -1, 1))).float()
    return values.to(next(model.parameters()).device)


def default_map(model: Any, image: Any, label: int) -> Any:
    """The map of the default answer, for a normalised image (channels, h, w)."""

    def predict(pixels: Any) -> Any:
        with torch.no_grad():
            return model(to_input(pixels, model)).softmax(1).cpu().numpy()

    view = np.moveaxis(image, 0, -1)
    target = keep_rank(predict(view[None])[0], label)
    answer = becausal.explain(view, predict, target=label, top=target.top, fills=0.0, holds=SHARE)
    return answer.responsibility[None].astype(np.float32)


def gradient_map(model: Any, image: Any, label: int, method: str) -> Any:
    """The map of a gradient method, which `explain_func` leaves to captum, for a normalised image (channels, h, w)."""

    info = ModelInfo("module", "torch", None, None, None, "probabilities", "none")
    classifier = NetworkClassifier(info, model.eval(), lambda pixels: to_input(pixels, model), gives_probabilities=False)
    view = np.moveaxis(image, 0, -1)
    problem = Problem(view, (np.zeros_like(view),), Target(label), model=classifier)
    search = make_explainer(method, None).search(problem, np.random.default_rng(0))
    return np.asarray(Engine(classifier).run(problem, search).result.saliency, np.float32)[None]


@dataclass
class ImageSet:
    """Normalised images (n, 3, h, w), their labels, names, and the masks of their objects where these are known."""

    name: str
    model: Any
    x: Any
    y: Any
    names: list[str]
    truth: Any = None
    budget: int = 780


def load_images(options: argparse.Namespace) -> ImageSet:
    if options.scenes:
        model, found, name, budget = load_network(), make_scenes(2 * options.scenes), "scenes", 300
    else:
        sys.path.insert(0, str(options.models))
        from as_torch import build

        model, found, name, budget = build("mobilenet_v2.onnx"), read_photobombs(options.data), "photographs", 780

    def normalise(pixels: Any) -> Any:
        return np.moveaxis(pixels.astype(np.float32) / 127.5 - 1, -1, 0)

    def to_tensor(pixels: Any) -> Any:
        return torch.from_numpy(normalise(pixels))[None].to(options.device)

    model = model.to(options.device)
    with torch.no_grad():
        correct = [p for p in found if int(model(to_tensor(p.pixels)).argmax()) == p.label_id]
    if not options.scenes:
        correct = choose(correct, reported=True)
        correct = [correct[i] for i in np.linspace(0, len(correct) - 1, options.photos).round().astype(int)]
    chosen = correct[: options.scenes or options.photos]
    truth = np.stack([p.object for p in chosen])[:, None] if options.scenes else None
    labels = np.array([p.label_id for p in chosen])
    return ImageSet(
        name, model, np.stack([normalise(p.pixels) for p in chosen]), labels, [p.name for p in chosen], truth, budget
    )


def load_maps(images: ImageSet, method: str, folder: Path) -> tuple[MapMaker, Any, Any, Any]:
    """What makes the maps of a method, its maps (n, 1, h, w), and the calls and seconds of each, made once and kept."""
    maker = MapMaker(method, equal_calls(images.budget).get(method, {}))
    maps, calls, seconds = [], [], []
    for i, name in enumerate(images.names):
        file = folder / f"{images.name}-{method}-{name}.npz"
        if not file.exists():
            start, before = time.perf_counter(), maker.calls
            made = maker(images.model, images.x[i : i + 1], images.y[i : i + 1])[0]
            np.savez_compressed(file, map=made, calls=maker.calls - before, seconds=time.perf_counter() - start)
        with np.load(file) as kept:
            maps.append(kept["map"])
            calls.append(int(kept["calls"]))
            seconds.append(float(kept["seconds"]))
    return maker, np.stack(maps), calls, seconds


def score(measure: Measure, images: ImageSet, maker: MapMaker, maps: Any, chosen: list[int]) -> Any:
    """A value for each of the chosen images, or one for all."""
    import quantus

    vars(np).setdefault("trapz", np.trapezoid)  # Quantus 0.6 calls it by its name before numpy 2
    np.random.seed(0)  # noqa: NPY002 - Quantus draws from the global generator
    metric = getattr(quantus, measure.name)(**measure.options, disable_warnings=True)
    truth = images.truth[chosen] if measure.needs_truth else None
    found = metric(
        model=images.model, x_batch=images.x[chosen], y_batch=images.y[chosen], a_batch=maps[chosen], s_batch=truth,
        explain_func=maker, explain_func_kwargs={}, batch_size=len(chosen), channel_first=True,
        device=next(images.model.parameters()).device,
    )  # fmt: skip
    if isinstance(found, dict):  # ROAD: by percentage; MPRT: by layer, the unchanged network first
        curves = [values for name, values in found.items() if name != "original"]
        return np.mean(np.array(curves, float).reshape(len(curves), -1), axis=0)
    values = np.array([np.mean(np.asarray(one, float)) for one in found])
    return np.nanmean(values, keepdims=True) if measure.scope == "all" else values


def run(options: argparse.Namespace) -> None:
    images = load_images(options)
    options.maps.mkdir(parents=True, exist_ok=True)
    is_new = not options.out.exists()
    known = [] if is_new else list(csv.DictReader(options.out.open()))
    done = {(row["images"], row["metric"], row["method"]) for row in known}
    with options.out.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if is_new:
            writer.writerow(COLUMNS)
        for method in options.methods.split(","):
            start = time.perf_counter()
            for metric, values, names, seconds in score_method(options, images, method, done):
                for name, value in zip(names, values, strict=True):
                    writer.writerow([images.name, metric, method, name, f"{value:.6g}", f"{seconds:.2f}"])
                file.flush()
            print(f"{images.name} {method}: {time.perf_counter() - start:.0f} s", flush=True)


def score_method(options: argparse.Namespace, images: ImageSet, method: str, done: set[Any]) -> Any:
    """Metric, values, names of the images and seconds of every metric that is not done yet."""
    try:
        maker, maps, calls, seconds = load_maps(images, method, options.maps)
    except BecausalError as error:
        print(f"{images.name} {method}: {error}", flush=True)
        return
    if (images.name, MAPS, method) not in done:
        yield MAPS, calls, images.names, float(np.mean(seconds))
    classes = images.model(torch.from_numpy(images.x[:1]).to(options.device)).shape[1]
    for measure in measures(images.x.shape[-1], classes):
        explains_again = measure.scope == "few"
        missing = (measure.needs_truth and images.truth is None) or (explains_again and not options.few)
        missing = missing or measure.name in options.without.split(",")
        if missing or (images.name, measure.name, method) in done:
            continue
        every = list(range(min(options.few, len(maps)) if explains_again else len(maps)))
        start = time.perf_counter()
        try:
            parts = [[i] for i in every] if measure.scope == "alone" else [every]
            values = np.concatenate([score(measure, images, maker, maps, part) for part in parts])
        except Exception as error:  # of Quantus: reported, and the next metric is run
            print(f"{images.name} {method} {measure.name}: {type(error).__name__}: {error}", flush=True)
            continue
        names = ["all"] if measure.scope == "all" else [images.names[i] for i in every]
        yield measure.name, values, names, time.perf_counter() - start


def print_tables(rows: list[dict[str, str]]) -> None:
    """A table for each set of images: the mean of every metric for every method, the best in bold, `random` aside."""
    import quantus

    groups: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for row in rows:
        groups[row["images"], row["metric"], row["method"]].append(float(row["value"]))
    known = {measure.name: measure for measure in measures(128, 13)}
    for images in dict.fromkeys(key[0] for key in groups):
        methods = [m for m in METHODS if (images, MAPS, m) in groups]
        print(f"\n{images}\n\n| family | metric | n | {' | '.join(methods)} | ranks of causal, {DEFAULT} |")
        print(f"|---|---|--:|{'--:|' * len(methods)}--:|")
        wins: dict[str, int] = defaultdict(int)
        for metric in [MAPS, *known]:
            found = {m: groups[images, metric, m] for m in methods if (images, metric, m) in groups}
            if found:
                source = None if metric == MAPS else getattr(quantus, metric)
                better = "" if source is None else known[metric].direction or source.score_direction.value
                family = "" if source is None else source.evaluation_category.value
                print(f"| {family} | {metric}{ARROWS[better]} | {format_means(found, methods, better, wins)} |")
        print("\nBest or equal to the best: " + ", ".join(f"{m} {wins[m]}" for m in methods if m != CONTROL))
    print("\nNot run:\n" + "".join(f"\n- {name}: {reason}" for name, reason in LEFT_OUT.items()))


ARROWS = {"higher": " ↑", "lower": " ↓", "": ""}


def format_means(found: dict[str, list[float]], methods: list[str], better: str, wins: dict[str, int]) -> str:
    """The cells of one metric: the number of images, the means, and the ranks of `causal` and `explain`."""
    means = {m: float(np.nanmean(values)) for m, values in found.items() if not np.isnan(values).all()}
    shown = {m: f"{value:.3g}" for m, value in means.items()}
    order = sorted((value for m, value in means.items() if m != CONTROL), reverse=better == "higher")
    best = f"{order[0]:.3g}" if better and order and len(set(order)) > 1 else None
    cells = [str(max(len(values) for values in found.values()))]
    for m in methods:
        is_best = m != CONTROL and m in shown and shown[m] == best
        wins[m] += is_best
        cells.append(f"**{shown[m]}**" if is_best else shown.get(m, "–"))
    ranks = [f"{order.index(means[m]) + 1}" for m in ("causal", DEFAULT) if best is not None and m in means]
    return " | ".join([*cells, f"{', '.join(ranks)} of {len(order)}" if ranks else ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("run", "print"))
    parser.add_argument("files", type=Path, nargs="*", help="files for `print`")
    parser.add_argument("--scenes", type=int, default=0, help="use this number of generated scenes")
    parser.add_argument("--photos", type=int, default=50, help="number of photographs, evenly spaced")
    parser.add_argument("--data", type=Path, help="folder with photobombing_groundtruth.txt")
    parser.add_argument("--models", type=Path, help="folder with as_torch.py and mobilenet_v2.onnx")
    parser.add_argument("--few", type=int, default=0, help="images for metrics that explain again; 0: leave these out")
    parser.add_argument("--without", default="", help="metrics to leave out, separated by commas")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--maps", type=Path, default=Path("quantus-maps"), help="folder in which maps are kept")
    parser.add_argument("--out", type=Path, default=Path("quantus.csv"))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.kind == "print":
        print_tables([row for path in options.files for row in csv.DictReader(path.open())])
    else:
        torch.set_num_threads(1)
        run(options)


if __name__ == "__main__":
    main()
