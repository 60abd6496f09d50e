"""The measurements of bundled_classifier.py."""

from __future__ import annotations

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

from becausal.core.intervals import wilson_interval
from becausal.models.bundled import VARIANTS
from becausal.scenes import LABELS, NOTHING, OCCLUDERS, Scene, make_scene

Images = npt.NDArray[np.uint8]
Scores = npt.NDArray[np.float32]
Predict = Callable[[Images], Scores]

#: Training, held-out and test scenes have seeds from 10, 20 and 30 million on.
FIRST_SEED = 40_000_000
#: Added to the seed of a scene to redraw only its background or only its occluder.
OTHER = 7_000_000

BINS = 15
SETS: dict[str, dict[str, Any]] = {
    "clean": {"occluder": "none"},
    "cover 10-40 %": {"cover": (0.1, 0.4)},
    "cover 40-60 %": {"cover": (0.4, 0.6)},
    "as it comes": {},
}
LEVELS = ((0.1, 0.2), (0.2, 0.3), (0.3, 0.4), (0.4, 0.5), (0.5, 0.6))
#: Pixels up to this distance from the object count as its rim, since an outline depends on the pixels on both sides.
RIM = 4
FILLS = {"grey": 128, "black": 0, "white": 255}
NO_OBJECT = LABELS.index(NOTHING)

FOLDER = Path(__file__).parents[1] / "src" / "becausal" / "models" / "bundled"


@dataclass
class Predictions:
    """Labels of scenes, and the predictions for them, one entry for each scene."""

    labels: list[int] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    covers: list[float] = field(default_factory=list)
    scores: list[Scores] = field(default_factory=list)

    def arrays(self) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.str_], npt.NDArray[np.float64], Scores]:
        """Labels (n,), kinds of occluder (n,), covers (n,) and probabilities (n, 13)."""
        return np.array(self.labels), np.array(self.kinds), np.array(self.covers), np.concatenate(self.scores)


def find_file(spec: str) -> Path:
    """The ONNX file of a bundled classifier."""
    file = FOLDER / VARIANTS[spec.partition(":")[2]].file
    if not file.is_file():
        sys.exit(f"there is no {file.name} in becausal.models.bundled: train it first, see training/README.md")
    return file


def load(file: Path) -> Predict:
    """The classifier on one thread: from images (n, 128, 128, 3) uint8 to probabilities (n, 13)."""
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(file), settings, providers=["CPUExecutionProvider"])

    def predict(images: Images) -> Scores:
        scores: Scores = session.run(["probs"], {"input": to_input(images)})[0]
        return scores

    return predict


def to_input(images: Images) -> npt.NDArray[np.float32]:
    """The input (n, 3, h, w) in -1..1 for images (n, h, w, 3) uint8."""
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2)).astype(np.float32) / np.float32(127.5) - np.float32(1)


def draw_scenes(pool: ProcessPoolExecutor, wanted: dict[str, Any], count: int, *, moved: str = "") -> Iterator[Scene]:
    """Render scenes in several processes, in the order of their seeds; `moved` is the name of a seed to change."""
    work = partial(_freeze, wanted, moved)
    return (Scene(**frozen) for frozen in pool.map(work, range(FIRST_SEED, FIRST_SEED + count), chunksize=25))


def _freeze(wanted: dict[str, Any], moved: str, seed: int) -> dict[str, Any]:
    other: dict[str, Any] = {moved: seed + OTHER} if moved else {}
    scene = make_scene(seed, **wanted, **other)
    # A mapping proxy cannot be sent between processes.
    return {**vars(scene), "parts": dict(scene.parts)}


def _batches(images: Iterator[Images], size: int = 50) -> Iterator[Images]:
    waiting = []
    for image in images:
        waiting.append(image)
        if len(waiting) == size:
            yield np.stack(waiting)
            waiting = []
    if waiting:
        yield np.stack(waiting)


def classify(scenes: Iterator[Scene], predict: Predict) -> Predictions:
    """Classify scenes in batches."""
    found = Predictions()

    def images() -> Iterator[Images]:
        for scene in scenes:
            found.labels.append(scene.label_index)
            found.kinds.append(scene.occluder_kind)
            found.covers.append(scene.cover)
            yield scene.image

    for batch in _batches(images()):
        found.scores.append(predict(batch))
    return found


def evaluate(predictions: Predictions) -> dict[str, Any]:
    """Accuracy, confusion matrix and calibration of predictions."""
    labels, kinds, covers, scores = predictions.arrays()
    chosen = scores.argmax(axis=1)
    right = chosen == labels
    thing = labels != NO_OBJECT
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
    """The share of flags that are True, with its 95 % Wilson interval and the number of flags, 1 or more."""
    low, high = wilson_interval(int(flags.sum()), len(flags))
    return {"share": round(float(flags.mean()), 5), "low": round(low, 5), "high": round(high, 5), "of": len(flags)}


def calibrate(scores: Scores, labels: npt.NDArray[np.intp]) -> tuple[float, list[dict[str, float]]]:
    """The expected calibration error over equal bins of confidence, and the bins."""
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


def measure_speed(predict: Predict, count: int) -> dict[str, Any]:
    """Speed of the generator and of the classifier, each on one thread of this process."""
    began = time.perf_counter()
    scenes = [make_scene(FIRST_SEED + OTHER + k) for k in range(count)]
    drawn = count / (time.perf_counter() - began)
    images = np.stack([scene.image for scene in scenes[:256]])
    rates = {}
    for batch in (1, 16, 64):
        batch = min(batch, len(images))
        starts = range(0, len(images) - batch + 1, batch)
        seconds = []
        for _ in range(5):
            began = time.perf_counter()
            for start in starts:
                predict(images[start : start + batch])
            seconds.append(time.perf_counter() - began)
        rates[str(batch)] = round(len(starts) * batch / float(np.median(seconds)), 1)
    return {"scenes_per_second": round(drawn, 1), "scenes_drawn": count, "pictures_per_second_by_batch": rates}


def measure_swaps(draw: Callable[..., Iterator[Scene]], predict: Predict, count: int) -> dict[str, Any]:
    """How often the prediction stays the same when only the background, or only the occluder, is redrawn."""
    found: dict[str, Any] = {}
    changes: tuple[tuple[str, dict[str, Any], str], ...] = (
        ("background", {"occluder": "none"}, "background_seed"),
        ("background, 10-40 % covered", {"cover": (0.1, 0.4)}, "background_seed"),
        ("occluder, 10-40 % covered", {"cover": (0.1, 0.4)}, "occluder_seed"),
    )
    for name, wanted, moved in changes:
        before = classify(draw(wanted, count), predict).arrays()
        after = classify(draw(wanted, count, moved=moved), predict).arrays()
        thing = before[0] != NO_OBJECT
        one, two = before[3].argmax(axis=1)[thing], after[3].argmax(axis=1)[thing]
        right = one == before[0][thing]
        found[name] = {"same_answer": share(one == two), "still_right": share(one[right] == two[right])}
    return found


def measure_object(draw: Callable[..., Iterator[Scene]], predict: Predict, count: int) -> dict[str, Any]:
    """Predictions for the visible object alone, for the image without it, and for scenes without an object."""
    scenes = [scene for scene in draw({"cover": (0.1, 0.4)}, count) if scene.label != NOTHING]
    labels = np.array([scene.label_index for scene in scenes])

    def predict_masked(level: int, *, inverse: bool) -> npt.NDArray[np.intp]:
        shown = (np.where((scene.visible ^ inverse)[:, :, None], scene.image, np.uint8(level)) for scene in scenes)
        return np.concatenate([predict(batch).argmax(axis=1) for batch in _batches(shown)])

    alone = {name: predict_masked(level, inverse=False) for name, level in FILLS.items()}
    hidden = {name: predict_masked(level, inverse=True) for name, level in FILLS.items()}
    _, kinds, _, scores = classify(draw({"label": NOTHING}, count), predict).arrays()
    silent = scores.argmax(axis=1) == NO_OBJECT
    return {
        "alone, label": {name: share(chosen == labels) for name, chosen in alone.items()},
        "hidden, label": {name: share(chosen == labels) for name, chosen in hidden.items()},
        "hidden, nothing": {name: share(chosen == NO_OBJECT) for name, chosen in hidden.items()},
        "absent, nothing": {kind: share(silent[kinds == kind]) for kind in OCCLUDERS if (kinds == kind).any()},
    }


def measure_fragments(draw: Callable[..., Iterator[Scene]], predict: Predict, count: int) -> dict[str, Any]:
    """Predictions for random square cells of clean objects on grey."""
    scenes = [scene for scene in draw({"occluder": "none"}, count) if scene.label != NOTHING]
    labels = np.array([scene.label_index for scene in scenes])
    rng = np.random.default_rng(FIRST_SEED)
    found: dict[str, Any] = {}
    for side in (2, 4, 8):
        for part in (0.02, 0.05, 0.1, 0.2, 0.4):
            shown = (
                np.where((scatter(rng, side, part) & scene.object)[:, :, None], scene.image, np.uint8(FILLS["grey"]))
                for scene in scenes
            )
            chosen = np.concatenate([predict(batch).argmax(axis=1) for batch in _batches(shown)])
            case = f"{part:.0%} in cells of {side} px"
            found[case] = {"label": share(chosen == labels), "nothing": share(chosen == NO_OBJECT)}
    return found


def scatter(rng: np.random.Generator, side: int, part: float) -> npt.NDArray[np.bool_]:
    """A random mask, (128, 128), of square cells, each visible with probability `part`."""
    cells = rng.random((128 // side, 128 // side)) < part
    return np.repeat(np.repeat(cells, side, axis=0), side, axis=1)


def measure_flat(predict: Predict) -> dict[str, Any]:
    """Predictions for flat images in 216 colours and every fourth grey."""
    steps = np.arange(0, 256, 51)
    colours = np.array([(r, g, b) for r in steps for g in steps for b in steps], dtype=np.uint8)
    greys = np.repeat(np.arange(0, 256, 4, dtype=np.uint8)[:, None], 3, axis=1)
    found = {}
    for name, flat in (("colours", colours), ("greys", greys)):
        scores = predict(np.tile(flat[:, None, None, :], (1, 128, 128, 1)))
        least = float(scores[:, NO_OBJECT].min())
        found[name] = {"nothing": share(scores.argmax(axis=1) == NO_OBJECT), "least_confidence": round(least, 5)}
    return found


def measure_explanations(spec: str, predict: Predict, count: int, method: str) -> dict[str, Any]:
    """Where explanations lie, for correctly classified scenes with 10 to 40 % of the object covered."""
    from becausal import BecausalError, explain, load_model

    classifier = load_model(spec)
    rows: list[dict[str, float]] = []
    seed, tried = FIRST_SEED, 0
    while tried < count:
        scene = make_scene(seed, cover=(0.1, 0.4))
        seed += 1
        if scene.label == NOTHING or int(predict(scene.image[None]).argmax()) != scene.label_index:
            continue
        tried += 1
        try:
            explanation = explain(scene.image, classifier, method=method)
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
    """Dilate a mask, (h, w), by `reach` pixels in all directions, including diagonals."""
    for axis in (0, 1):
        padded = np.pad(mask, [(reach, reach) if k == axis else (0, 0) for k in (0, 1)])
        mask = np.asarray(np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1, axis=axis).any(axis=-1))
    return mask
