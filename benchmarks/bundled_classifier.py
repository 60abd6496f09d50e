"""Measure the bundled classifier and the scene generator on scenes that no training has seen.

    PYTHONPATH=src python benchmarks/bundled_classifier.py

Prints tables and writes benchmarks/results/bundled_classifier.json. The model card quotes that file.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from becausal.scenes import LABELS, NOTHING, OCCLUDERS, Scene, make_scene

Pictures = npt.NDArray[np.uint8]
Scores = npt.NDArray[np.float32]
Ask = Callable[[Pictures], Scores]

#: Training, held-out and test scenes have seeds from 10, 20 and 30 million on; these are none of them.
FIRST_SEED = 40_000_000
#: Added to a scene's seed to redraw only its background or only its occluder.
OTHER = 7_000_000

BINS = 15
SETS: dict[str, dict[str, Any]] = {
    "clean": {"occluder": "none"},
    "cover 10-40 %": {"cover": (0.1, 0.4)},
    "cover 40-60 %": {"cover": (0.4, 0.6)},
    "as it comes": {},
}
LEVELS = ((0.1, 0.2), (0.2, 0.3), (0.3, 0.4), (0.4, 0.5), (0.5, 0.6))
#: An outline is seen by what lies on both sides of it: pixels so near the object count as its rim.
RIM = 4
FILLS = {"grey": 128, "black": 0, "white": 255}
EMPTY = LABELS.index(NOTHING)

MODEL = Path(__file__).parents[1] / "src" / "becausal" / "scenes" / "bundled" / "scenes.onnx"
RESULT = Path(__file__).parent / "results" / "bundled_classifier.json"


@dataclass
class Answered:
    """Scenes and the classifier's answers, one entry per scene."""

    labels: list[int] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    covers: list[float] = field(default_factory=list)
    scores: list[Scores] = field(default_factory=list)

    def arrays(self) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.str_], npt.NDArray[np.float64], Scores]:
        """Return labels (n,), kinds of occluder (n,), covers (n,) and probabilities (n, 13)."""
        return np.array(self.labels), np.array(self.kinds), np.array(self.covers), np.concatenate(self.scores)


def main() -> None:
    """Run every measurement, or only the explanations and keep the rest of an earlier file."""
    options = _arguments()
    ask = load()
    result = json.loads(options.out.read_text(encoding="utf-8")) if options.only_explain else measure(options, ask)
    if options.explain:
        explanations = result.setdefault("explanations", {})
        for method in options.methods:
            explanations[method] = measure_explanations(ask, options.explain, method)
    report(result)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def measure(options: argparse.Namespace, ask: Ask) -> dict[str, Any]:
    """Measure everything that needs no explanation."""
    result: dict[str, Any] = {
        "count": options.count,
        "first_seed": FIRST_SEED,
        "model_bytes": MODEL.stat().st_size,
        "versions": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "onnxruntime": onnxruntime.__version__,
            "machine": platform.machine(),
        },
        "speed": measure_speed(ask, min(1000, options.count)),
        "sets": {},
    }
    with ProcessPoolExecutor(options.workers) as pool:
        draw = partial(_draw, pool)
        for name, wanted in SETS.items():
            result["sets"][name] = judge(answer(draw(wanted, options.count), ask))
            print(f"{name}: done", file=sys.stderr, flush=True)
        some = max(50, options.count // 5)
        result["swaps"] = measure_swaps(draw, ask, some)
        result["object"] = measure_object(draw, ask, some)
        result["fragments"] = measure_fragments(draw, ask, some)
    result["flat"] = measure_flat(ask)
    return result


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=5_000, help="scenes per set (default 5,000)")
    parser.add_argument("--explain", type=int, default=100, help="scenes to explain, 0 for none (default 100)")
    parser.add_argument("--methods", nargs="+", default=["causal"], help="methods to explain with (default causal)")
    parser.add_argument("--only-explain", action="store_true", help="explain anew, keep the other figures of the file")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes that draw scenes")
    parser.add_argument("--out", type=Path, default=RESULT, help="the file to write")
    options = parser.parse_args()
    if options.count < 50:
        parser.error(f"--count is {options.count}, expected 50 or more: a label would have no scene")
    return options


def load() -> Ask:
    """Return the classifier, on one thread: images (n, 128, 128, 3) of bytes to probabilities (n, 13)."""
    if not MODEL.is_file():
        sys.exit(f"no {MODEL.name} in becausal.scenes.bundled: train it first, see training/README.md")
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(MODEL), settings, providers=["CPUExecutionProvider"])

    def ask(pictures: Pictures) -> Scores:
        scores: Scores = session.run(["probs"], {"input": to_input(pictures)})[0]
        return scores

    return ask


def to_input(pictures: Pictures) -> npt.NDArray[np.float32]:
    """Turn images (n, h, w, 3) of bytes into the input (n, 3, h, w) in -1..1."""
    return np.ascontiguousarray(pictures.transpose(0, 3, 1, 2)).astype(np.float32) / np.float32(127.5) - np.float32(1)


def _draw(pool: ProcessPoolExecutor, wanted: dict[str, Any], count: int, *, moved: str = "") -> Iterator[Scene]:
    """Draw scenes with many processes, in the order of their seeds; moved names a seed to draw anew."""
    work = partial(_freeze, wanted, moved)
    return (Scene(**frozen) for frozen in pool.map(work, range(FIRST_SEED, FIRST_SEED + count), chunksize=25))


def _freeze(wanted: dict[str, Any], moved: str, seed: int) -> dict[str, Any]:
    other: dict[str, Any] = {moved: seed + OTHER} if moved else {}
    scene = make_scene(seed, **wanted, **other)
    # A mapping proxy cannot be sent between processes; a dict can.
    return {**vars(scene), "parts": dict(scene.parts)}


def _batches(pictures: Iterator[Pictures], size: int = 50) -> Iterator[Pictures]:
    waiting = []
    for picture in pictures:
        waiting.append(picture)
        if len(waiting) == size:
            yield np.stack(waiting)
            waiting = []
    if waiting:
        yield np.stack(waiting)


def answer(scenes: Iterator[Scene], ask: Ask) -> Answered:
    """Classify scenes in batches."""
    found = Answered()

    def pictures() -> Iterator[Pictures]:
        for scene in scenes:
            found.labels.append(scene.label_index)
            found.kinds.append(scene.occluder_kind)
            found.covers.append(scene.cover)
            yield scene.picture

    for batch in _batches(pictures()):
        found.scores.append(ask(batch))
    return found


def judge(answered: Answered) -> dict[str, Any]:
    """Compare answers with the truth: accuracy, confusion, calibration."""
    labels, kinds, covers, scores = answered.arrays()
    chosen = scores.argmax(axis=1)
    right = chosen == labels
    thing = labels != EMPTY
    levels = {f"{low:.0%}-{high:.0%}": thing & (covers >= low) & (covers < high) for low, high in LEVELS}
    confusion = np.zeros((len(LABELS), len(LABELS)), dtype=int)
    np.add.at(confusion, (labels, chosen), 1)
    error, table = calibrate(scores, labels)
    return {
        "scenes": len(labels),
        "accuracy": share(right),
        "accuracy_of_objects": share(right[thing]),
        "by_occluder": {
            kind: share(right[thing & (kinds == kind)]) for kind in OCCLUDERS if (thing & (kinds == kind)).any()
        },
        "by_cover": {level: share(right[own]) for level, own in levels.items() if own.any()},
        "by_label": {label: share(right[labels == k]) for k, label in enumerate(LABELS) if (labels == k).any()},
        "calibration_error": error,
        "reliability": table,
        "confusion": confusion.tolist(),
    }


def share(flags: npt.NDArray[np.bool_]) -> dict[str, float]:
    """Return a share with its 95 % interval (Wilson) and the count it rests on, 1 or more."""
    n, z = len(flags), 1.96
    p = float(flags.mean())
    middle, half = p + z * z / (2 * n), z * (p * (1 - p) / n + z * z / (4 * n * n)) ** 0.5
    scale = 1 + z * z / n
    low, high = max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)
    return {"share": round(p, 5), "low": round(low, 5), "high": round(high, 5), "of": n}


def calibrate(scores: Scores, labels: npt.NDArray[np.intp]) -> tuple[float, list[dict[str, float]]]:
    """Measure the expected calibration error over equal bins of confidence; also returns the bins."""
    sure = scores.max(axis=1).astype(np.float64)
    right = scores.argmax(axis=1) == labels
    place = np.minimum((sure * BINS).astype(int), BINS - 1)
    table: list[dict[str, float]] = []
    for k in range(BINS):
        own = place == k
        if own.any():
            confidence, accuracy = float(sure[own].mean()), float(right[own].mean())
            row = {"from": round(k / BINS, 4), "to": round((k + 1) / BINS, 4), "scenes": int(own.sum())}
            table.append({**row, "confidence": round(confidence, 5), "accuracy": round(accuracy, 5)})
    error = sum(abs(row["confidence"] - row["accuracy"]) * row["scenes"] for row in table) / len(labels)
    return round(float(error), 5), table


def measure_speed(ask: Ask, count: int) -> dict[str, Any]:
    """Time the generator and the classifier, each on one thread of this process."""
    began = time.perf_counter()
    scenes = [make_scene(FIRST_SEED + OTHER + k) for k in range(count)]
    drawn = count / (time.perf_counter() - began)
    pictures = np.stack([scene.picture for scene in scenes[:256]])
    rates = {}
    for batch in (1, 16, 64):
        batch = min(batch, len(pictures))
        starts = range(0, len(pictures) - batch + 1, batch)
        seconds = []
        for _ in range(5):
            began = time.perf_counter()
            for start in starts:
                ask(pictures[start : start + batch])
            seconds.append(time.perf_counter() - began)
        rates[str(batch)] = round(len(starts) * batch / float(np.median(seconds)), 1)
    return {"scenes_per_second": round(drawn, 1), "scenes_drawn": count, "pictures_per_second_by_batch": rates}


def measure_swaps(draw: Callable[..., Iterator[Scene]], ask: Ask, count: int) -> dict[str, Any]:
    """Redraw only the background, or only the occluder, and see whether the answer stays."""
    found: dict[str, Any] = {}
    changes: tuple[tuple[str, dict[str, Any], str], ...] = (
        ("background", {"occluder": "none"}, "background_seed"),
        ("background, 10-40 % covered", {"cover": (0.1, 0.4)}, "background_seed"),
        ("occluder, 10-40 % covered", {"cover": (0.1, 0.4)}, "occluder_seed"),
    )
    for name, wanted, moved in changes:
        before = answer(draw(wanted, count), ask).arrays()
        after = answer(draw(wanted, count, moved=moved), ask).arrays()
        thing = before[0] != EMPTY
        one, two = before[3].argmax(axis=1)[thing], after[3].argmax(axis=1)[thing]
        right = one == before[0][thing]
        found[name] = {"same_answer": share(one == two), "still_right": share(one[right] == two[right])}
    return found


def measure_object(draw: Callable[..., Iterator[Scene]], ask: Ask, count: int) -> dict[str, Any]:
    """Show only the visible object, or hide just it, or draw none at all, and see what the classifier says."""
    scenes = [scene for scene in draw({"cover": (0.1, 0.4)}, count) if scene.label != NOTHING]
    labels = np.array([scene.label_index for scene in scenes])

    def choose(level: int, *, hide: bool) -> npt.NDArray[np.intp]:
        shown = (np.where((scene.visible ^ hide)[:, :, None], scene.picture, np.uint8(level)) for scene in scenes)
        return np.concatenate([ask(batch).argmax(axis=1) for batch in _batches(shown)])

    alone = {name: choose(level, hide=False) for name, level in FILLS.items()}
    hidden = {name: choose(level, hide=True) for name, level in FILLS.items()}
    _, kinds, _, scores = answer(draw({"label": NOTHING}, count), ask).arrays()
    silent = scores.argmax(axis=1) == EMPTY
    return {
        "alone, label": {name: share(chosen == labels) for name, chosen in alone.items()},
        "hidden, label": {name: share(chosen == labels) for name, chosen in hidden.items()},
        "hidden, nothing": {name: share(chosen == EMPTY) for name, chosen in hidden.items()},
        "absent, nothing": {kind: share(silent[kinds == kind]) for kind in OCCLUDERS if (kinds == kind).any()},
    }


def measure_fragments(draw: Callable[..., Iterator[Scene]], ask: Ask, count: int) -> dict[str, Any]:
    """Show only random square cells of clean objects on grey: how little is enough, and does too little say nothing?"""
    scenes = [scene for scene in draw({"occluder": "none"}, count) if scene.label != NOTHING]
    labels = np.array([scene.label_index for scene in scenes])
    rng = np.random.default_rng(FIRST_SEED)
    found: dict[str, Any] = {}
    for side in (2, 4, 8):
        for part in (0.02, 0.05, 0.1, 0.2, 0.4):
            shown = (
                np.where((scatter(rng, side, part) & scene.object)[:, :, None], scene.picture, np.uint8(FILLS["grey"]))
                for scene in scenes
            )
            chosen = np.concatenate([ask(batch).argmax(axis=1) for batch in _batches(shown)])
            case = f"{part:.0%} in cells of {side} px"
            found[case] = {"label": share(chosen == labels), "nothing": share(chosen == EMPTY)}
    return found


def scatter(rng: np.random.Generator, side: int, part: float) -> npt.NDArray[np.bool_]:
    """Draw square cells of a side at random over (128, 128), each with a probability."""
    cells = rng.random((128 // side, 128 // side)) < part
    return np.repeat(np.repeat(cells, side, axis=0), side, axis=1)


def measure_flat(ask: Ask) -> dict[str, Any]:
    """Ask for flat images of 216 colours and of every fourth grey."""
    steps = np.arange(0, 256, 51)
    colours = np.array([(r, g, b) for r in steps for g in steps for b in steps], dtype=np.uint8)
    greys = np.repeat(np.arange(0, 256, 4, dtype=np.uint8)[:, None], 3, axis=1)
    found = {}
    for name, flat in (("colours", colours), ("greys", greys)):
        scores = ask(np.tile(flat[:, None, None, :], (1, 128, 128, 1)))
        least = float(scores[:, EMPTY].min())
        found[name] = {"nothing": share(scores.argmax(axis=1) == EMPTY), "least_confidence": round(least, 5)}
    return found


def measure_explanations(ask: Ask, count: int, method: str) -> dict[str, Any]:
    """Explain scenes with 10 to 40 % covered that are labelled right, and see where the explanations lie."""
    from becausal import BecausalError, explain, load_model

    classifier = load_model("bundled")
    rows: list[dict[str, float]] = []
    seed, tried = FIRST_SEED, 0
    while tried < count:
        scene = make_scene(seed, cover=(0.1, 0.4))
        seed += 1
        if scene.label == NOTHING or int(ask(scene.picture[None]).argmax()) != scene.label_index:
            continue
        tried += 1
        try:
            explanation = explain(scene.picture, classifier, method=method)
        except BecausalError as problem:
            print(f"seed {scene.seed}: {problem}", file=sys.stderr, flush=True)
            continue
        shown = explanation.visible
        rows.append(
            {
                "on_object": float(scene.visible[shown].mean()),
                "on_object_or_rim": float(widen(scene.visible, RIM)[shown].mean()),
                "on_occluder": float(scene.occluder[shown].mean()),
                "clear_of_occluder": float(not scene.occluder[shown].any()),
                "size": float(shown.mean()),
                "calls": float(explanation.calls),
                "object_in_picture": float(scene.visible.mean()),
                "object_or_rim_in_picture": float(widen(scene.visible, RIM).mean()),
                "occluder_in_picture": float(scene.occluder.mean()),
            }
        )
    means = {name: round(float(np.mean([row[name] for row in rows])), 4) for name in rows[0]} if rows else {}
    return {"explained": len(rows), "failed": count - len(rows), "fill": "grey", "means": means}


def widen(mask: npt.NDArray[np.bool_], reach: int) -> npt.NDArray[np.bool_]:
    """Grow a mask (h, w) by so many pixels to all sides, corners included."""
    for axis in (0, 1):
        padded = np.pad(mask, [(reach, reach) if k == axis else (0, 0) for k in (0, 1)])
        mask = np.asarray(np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1, axis=axis).any(axis=-1))
    return mask


def report(result: dict[str, Any]) -> None:
    """Print the figures as tables."""
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
        print(f"\nconfusion, {case} (rows are true, columns are answers in the same order):")
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
