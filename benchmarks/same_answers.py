"""Whether two versions of the code give the same answers: the same arrays, with the same model calls.

    python benchmarks/same_answers.py --out before.json          20 scenes, every method, every option, 3 boxes
    python benchmarks/same_answers.py --out after.json --data ../shared    5 photographs too, by a real network
    python benchmarks/same_answers.py --compare before.json after.json

An answer is its sets, the map and its zones, what speaks against, the checks, the notes and the model calls. Arrays are
compared to the bit, but for maps, whose last digits may depend on the order of additions. `--compare` exits with status 1
where anything differs, and names each case.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import becausal
from becausal.methods import METHODS
from becausal.scenes import make_scene

SCENES = range(100, 120)
OPTIONS: dict[str, dict[str, Any]] = {
    "smallest": {"smallest": True},
    "confidence": {"confidence": 0.7},
    "holds": {"holds": 0.8},
    "contrast": {"contrast": True},
    "several": {"several": 3},
    "seeds": {"seeds": 2},
    "two fills": {"fills": ("grey", "blur")},
    "fill": {"fills": ("noise",)},
    "grain": {"grain": 3},
    "no grain": {"grain": None},
    "top": {"top": 2},
    "max calls": {"max_calls": 150},
    "few calls": {"max_calls": 12},
    "seed": {"seed": 5},
}
FEW = {"rise": {"masks": 200}, "extremal": {"steps": 20}}  # options that keep a method short


def digest(array: Any, digits: int | None = None) -> str:
    """A short hash of an array; of floats after rounding."""
    values = np.asarray(array)
    if digits is not None:
        values = np.round(values.astype(np.float64), digits) + 0.0
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()[:16]


def answer_of(explanation: Any) -> dict[str, Any]:
    """What an explanation says, as JSON can hold it."""
    return {
        "label": explanation.label,
        "calls": explanation.stats.calls,
        "stopped_by": explanation.stopped_by,
        "visible": digest(explanation.visible),
        "map": digest(explanation.responsibility, 9),
        "levels": [[level.name, digest(level.visible), str(level.checks)] for level in explanation.levels],
        "others": [digest(other.visible) for other in explanation.others],
        "zones": None if explanation.zones is None else digest(explanation.zones),
        "against": None if explanation.against is None else digest(explanation.against.visible),
        "notes": list(explanation.notes),
    }


def cases(data: Path | None) -> Iterator[tuple[str, Any, Any, dict[str, Any]]]:
    """Name, image, model and request of each case."""
    scenes = {seed: make_scene(seed).image for seed in SCENES}
    for seed, image in scenes.items():
        yield f"scene {seed}", image, "bundled", {}
    for name, options in OPTIONS.items():
        for seed in SCENES[:3]:
            yield f"{name}, scene {seed}", scenes[seed], "bundled", options
    for method in METHODS:
        model = "bundled:detector" if method == "d-rise" else "bundled"
        for seed in SCENES[:2]:
            yield f"{method}, scene {seed}", scenes[seed], model, {"method": method, "options": FEW.get(method)}
    for seed in SCENES[:3]:
        yield f"box, scene {seed}", scenes[seed], "bundled:detector", {"box": 1}
    yield "box, smallest", scenes[101], "bundled:detector", {"smallest": True}
    if data is not None:
        for path in sorted((data / "data" / "imagenet-samples").iterdir())[::20][:5]:
            yield path.stem, path, data / "models" / "mobilenet_v2.onnx", {}


def run(data: Path | None) -> dict[str, Any]:
    """The answer of every case; an error is its message."""
    found: dict[str, Any] = {}
    models: dict[str, Any] = {}
    for name, image, model, options in cases(data):
        if str(model) not in models:
            how = {"preprocess": "tf", "resize": 256} if isinstance(model, Path) else {}
            models[str(model)] = becausal.load_model(model, **how)
        try:
            request = becausal.Request(**options)
            answer = next(becausal.explain_many([image], models[str(model)], request=request))
            found[name] = {"error": str(answer.error)} if isinstance(answer, becausal.Failure) else answer_of(answer)
        except becausal.BecausalError as error:
            found[name] = {"error": str(error)}
        print(f"{name}: {found[name].get('calls', found[name].get('error'))}", flush=True)
    return found


def compare(before: dict[str, Any], after: dict[str, Any]) -> int:
    """Print what differs; how many cases do."""
    differing = [name for name in before | after if before.get(name) != after.get(name)]
    for name in differing:
        old, new = before.get(name) or {}, after.get(name) or {}
        parts = [key for key in old | new if old.get(key) != new.get(key)]
        print(f"{name}: {', '.join(f'{key} {old.get(key)} -> {new.get(key)}' for key in parts)}"[:400])
    print(f"{len(differing)} of {len(before | after)} cases differ")
    return len(differing)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("answers.json"))
    parser.add_argument("--data", type=Path, help="a folder with data/imagenet-samples and models/mobilenet_v2.onnx")
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("BEFORE", "AFTER"))
    options = parser.parse_args()
    if options.compare:
        before, after = (json.loads(path.read_text()) for path in options.compare)
        sys.exit(compare(before, after) > 0)
    options.out.write_text(json.dumps(run(options.data), indent=1))


if __name__ == "__main__":
    main()
