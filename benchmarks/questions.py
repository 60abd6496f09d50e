"""Texts, answers, similarity and pixels on generated scenes: how much of what is shown lies on the object in question?

    python benchmarks/questions.py run --scenes 100 --out rows.csv
    python benchmarks/questions.py table rows.csv

Each question is asked of the same scenes by `causal`, and by `rise` and the control `centre` with as many calls. The truth
is the visible part of the object: the one that the text names, that the question is about, that both images show, or that
the pixel lies on. Scenes that the model gets wrong are left out, and counted. `classifier` is the bundled classifier, for
comparison of the calls. Rows are written as they come, and the same command goes on where it was stopped.
"""

import argparse
import csv
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, median
from threading import Thread
from typing import Any

import numpy as np

import becausal
from becausal.api.jobs import view_of
from becausal.core.errors import BecausalError
from becausal.images.loading import load_image
from becausal.models import Loading, open_embedder
from becausal.models.similarity import compare_with_image
from becausal.scenes import LABELS, NOTHING, Scene, make_scene

sys.path.append(str(Path(__file__).parents[1] / "examples"))

FIRST = 140_000_000  # seed of the first scene; no network was trained on these
SECOND = 500_000  # further on are the second images of pairs
QUESTIONS = ("classifier", "text", "prompt", "answer", "similarity", "pixel", "segment")
METHODS = ("causal", "rise", "centre")
COLUMNS = ["question", "method", "seed", "label", "set", "calls", "size", "on_object", "certified", "backgrounds", "error"]


@dataclass(frozen=True)
class Asked:
    """A model, what is asked of it, and whether it answers the whole image as the truth says."""

    model: Any
    options: dict[str, Any]
    is_right: bool


class Questions:
    """The models of one process, loaded when they are needed."""

    def __init__(self) -> None:
        self.known: dict[str, Any] = {}

    def load(self, spec: str, **options: Any) -> Any:
        key = json.dumps([spec, options], default=str)
        if key not in self.known:
            self.known[key] = becausal.load_model(spec, threads=1, **options)
        return self.known[key]

    def ask(self, question: str, scene: Scene) -> Asked:
        """What is asked about a scene."""
        match question:
            case "classifier":
                model = self.load("bundled")
                return Asked(model, {}, top_of(scene, model) == scene.label)
            case "text":
                prompts = [*(f"a photo of a {label}" for label in LABELS if label != NOTHING), "an empty scene"]
                model = self.load("bundled:clip", labels=prompts)
                return Asked(model, {}, top_of(scene, model) == f"a photo of a {scene.label}")
            case "prompt":
                return Asked(self.load("bundled:clip", text=f"a photo of a {scene.label}"), {}, True)
            case "answer":
                model = self.load(self.server(), ask="Which object is it?", labels=list(LABELS), endpoint=("cache=none",))
                return Asked(model, {}, top_of(scene, model) == scene.label)
            case "similarity":
                other = make_scene(scene.seed + SECOND, label=scene.label, size=scene.size)
                network = self.known.setdefault("network", open_embedder("bundled:clip", Loading(threads=1)))
                return Asked(compare_with_image(network, load_image(other.image), Loading()), {}, True)
            case "pixel":
                rows, columns = np.nonzero(scene.visible)
                middle = np.argmin(np.hypot(rows - rows.mean(), columns - columns.mean()))
                at = int(columns[middle]), int(rows[middle])
                model = self.load("bundled:segmenter")
                return Asked(model, {"at": at}, class_at(scene, model, at) == scene.label)
            case _:
                model = self.load("bundled:segmenter")
                found = {name for _, name, _ in becausal.classify(scene.image, model, top=14)}
                return Asked(model, {"target": scene.label}, scene.label in found)

    def server(self) -> str:
        """The address of a chat server of this process, which the bundled classifier answers for."""
        if "server" not in self.known:
            from http.server import ThreadingHTTPServer

            import chat

            server = ThreadingHTTPServer(("127.0.0.1", 0), chat.Handler)
            Thread(target=server.serve_forever, daemon=True).start()
            self.known["server"] = f"chat:http://127.0.0.1:{server.server_port}/v1"
        return str(self.known["server"])


def top_of(scene: Scene, model: Any) -> str:
    return becausal.classify(scene.image, model, top=1)[0][1]


def class_at(scene: Scene, model: Any, at: tuple[int, int]) -> str:
    """The class of a pixel of the image."""
    maps = model.classify(view_of(load_image(scene.image), model).pixels[None])[0]
    row, column = (int((place + 0.5) / scene.size * side) for place, side in zip(at[::-1], maps.shape[1:], strict=True))
    return str(model.info.name_of(int(maps[:, row, column].argmax())))


def rows_of(task: tuple[str, int]) -> list[dict[str, Any]]:
    """The rows of one question about one scene: `causal` first, the others with as many calls."""
    question, seed = task
    scene = make_scene(seed)
    head = {"question": question, "seed": seed, "label": scene.label}
    if scene.label == NOTHING:
        return [head | {"error": "nothing there"}]
    try:
        asked = _QUESTIONS.ask(question, scene)
        if not asked.is_right:
            return [head | {"error": "the model is wrong"}]
        rows, calls = [], None
        for method in METHODS:
            given = {} if calls is None else {"method": method, "max_calls": calls}
            found = becausal.explain(scene.image, asked.model, seed=0, **asked.options, **given)
            calls = found.calls if calls is None else calls
            rows += [head | {"method": method, "calls": found.calls} | own for own in sets_of(found, scene)]
        return rows
    except BecausalError as error:
        return [head | {"error": str(error)}]


def sets_of(found: becausal.Explanation, scene: Scene) -> Iterator[dict[str, Any]]:
    for level in found.levels:
        visible = found.on_original(level.visible)
        kept = level.checks.transfer
        yield {
            "set": level.name, "size": round(level.size, 5),
            "on_object": round(float(scene.visible[visible].mean()), 5) if visible.any() else "",
            "certified": int(level.certificate is not None and level.certificate.holds),
            "backgrounds": "" if kept is None else round(kept.share, 4),
        }  # fmt: skip


_QUESTIONS = Questions()


def run(options: argparse.Namespace) -> None:
    known = read(options.out) if options.out.exists() else []
    done = {(row["question"], int(row["seed"])) for row in known}
    tasks = [(question, FIRST + i) for i in range(options.scenes) for question in options.questions]
    tasks = [task for task in tasks if task not in done]
    with options.out.open("a", newline="") as file, get_context("spawn").Pool(options.processes) as pool:
        writer = csv.DictWriter(file, COLUMNS)
        if not known:
            writer.writeheader()
        for rows in pool.imap_unordered(rows_of, tasks):
            writer.writerows(rows)
            file.flush()


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def print_table(rows: list[dict[str, str]]) -> None:
    print("| question | method | images | calls | set | size, median | on the object, mean | certified |")
    print("|---|---|--:|--:|---|--:|--:|--:|")
    for question in QUESTIONS:
        images = {row["seed"] for row in rows if row["question"] == question and not row["error"]}
        for method in METHODS:
            of_method = [row for row in rows if (row["question"], row["method"]) == (question, method)]
            for name in dict.fromkeys(row["set"] for row in of_method):
                own = [row for row in of_method if row["set"] == name]
                certified = sum(row["certified"] == "1" for row in own) if name == "enough" else None
                print(
                    f"| {question} | {method} | {len(own)} | {mean(float(row['calls']) for row in own):,.0f} | {name} "
                    f"| {100 * median(float(row['size']) for row in own):.1f} % "
                    f"| {100 * mean(float(row['on_object']) for row in own if row['on_object']):.0f} % "
                    f"| {'' if certified is None else f'{certified} of {len(images)}'} |"
                )
    errors = [row for row in rows if row["error"]]
    for question in QUESTIONS:
        own = [row["error"] for row in errors if row["question"] == question]
        print(f"{question}: left out", ", ".join(f"{own.count(one)} ({one})" for one in dict.fromkeys(own)) or "none")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("run", "table"))
    parser.add_argument("files", type=Path, nargs="*", help="files for `table`")
    parser.add_argument("--scenes", type=int, default=100)
    parser.add_argument("--questions", nargs="+", default=list(QUESTIONS), choices=QUESTIONS)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("questions.csv"), help="rows are appended")
    options = parser.parse_args()
    if options.kind == "run":
        run(options)
    print_table([row for path in options.files or [options.out] for row in read(path)])


if __name__ == "__main__":
    main()
