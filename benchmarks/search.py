"""The search `causal` compared with other methods: same images, same extraction and minimisation, all calls counted.

    python benchmarks/search.py table   --data DIR --model MODEL --preprocess tf --methods causal,dc-causal,rise,sbfl
    python benchmarks/search.py anytime --data DIR --model MODEL --preprocess tf
    python benchmarks/search.py maps    --data DIR --model MODEL --preprocess tf --methods causal,rise:masks=700
    python benchmarks/search.py table   --scenes 200 --model bundled
    python benchmarks/search.py print   benchmarks/results/search-*.csv

`table` writes a row for each image, method, fill and share of the confidence (none: the label alone; enough: a set that
holds on random backgrounds); `anytime` the smallest verified set after
80, 150, ... calls; `maps` the areas under the insertion and deletion curves. Rows are written to --out one by one; `print`
summarises files. The images for tuning and for reporting are disjoint (--set).
"""

import argparse
import csv
import time
from ast import literal_eval
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from photobombing import Photobomb, choose, read_photobombs

import becausal
from becausal.core.contracts import Classifier
from becausal.core.request import SHARE
from becausal.images.loading import load_image
from becausal.search.descent import Tuning

MILESTONES = (80, 150, 300, 600, 1200, 2400, 10000)
RUN = ["kind", "model", "set", "method", "options", "fill", "share", "grain", "seed", "name"]
COLUMNS = {
    "table": [
        "calls",
        "size",
        "pixels",
        "overlap",
        "precision",
        "pieces",
        "confidence",
        "original",
        "sufficient",
        "minimal",
    ],
    "anytime": ["milestone", "calls", "size", "overlap"],
    "maps": ["calls", "insertion", "deletion"],
}


def correct_ones(photos: list[Photobomb], model: Classifier) -> list[Photobomb]:
    """The images with a correct prediction."""
    return [p for p in photos if becausal.classify(p.pixels, model, top=1)[0][0] == p.label_id]


def make_scenes(count: int) -> list[Photobomb]:
    """Scenes with 10 to 40 % of the object covered; the mask of the object is its visible part."""
    from becausal.scenes import make_scene

    found: list[Photobomb] = []
    seed = 900_000
    while len(found) < count:
        scene = make_scene(seed, cover=(0.1, 0.4))
        if scene.object.any():
            found.append(Photobomb(str(seed), scene.image, scene.label_index, scene.occluder, scene.visible))
        seed += 1
    return found


def resized(mask: Any, grid: tuple[int, ...]) -> Any:
    """A mask on the grid of the view, by nearest neighbour."""
    at = [
        np.minimum((np.arange(side) + 0.5) * old / side, old - 1).astype(int)
        for side, old in zip(grid, mask.shape, strict=True)
    ]
    return mask[np.ix_(*at)]


class SearchRun:
    """Explains all images for one request after another; `kept` has explanations by request and image."""

    def __init__(self, photos: list[Photobomb], model: Classifier, width: int) -> None:
        self.kept: dict[str, Any] = {}
        self.inspected = {p.name for p in photos[:30]}
        self.model = model
        self.width = width
        self.images = [replace(load_image(p.pixels), name=p.name) for p in photos]
        self.photos = {p.name: p for p in photos}

    def answers(
        self, request: becausal.Request, watch: Callable[[becausal.Status], None] | None = None
    ) -> Iterable[tuple[Photobomb, becausal.Explanation]]:
        workers = None if watch is None else 0  # in this process, to see every step
        found = becausal.explain_many(
            self.images, self.model, request=request, width=self.width, workers=workers, progress=watch
        )
        for answer in found:
            if isinstance(answer, becausal.Failure):
                print("failed:", answer.error, flush=True)
                continue
            photo = self.photos[answer.origin.image]
            if photo.name in self.inspected:
                key = f"{request.method}|{request.fills[0]}|{request.confidence}|{photo.name}"
                self.kept[key] = np.packbits(answer.visible)
            yield photo, answer


def table_rows(run: SearchRun, request: becausal.Request) -> Iterable[dict[str, Any]]:
    for photo, answer in run.answers(request):
        grid = answer.visible.shape
        inside = (
            ""
            if photo.object is None
            else round(float((answer.visible & resized(photo.object, grid)).sum() / answer.pixels), 5)
        )
        yield {
            "name": photo.name,
            "calls": answer.calls,
            "size": round(answer.size, 6),
            "pixels": answer.pixels,
            "overlap": int((answer.visible & resized(photo.occluder, grid)).sum()),
            "precision": inside,
            "pieces": answer.pieces,
            "confidence": round(answer.checks.confidence, 5),
            "original": round(answer.confidence, 5),
            "sufficient": int(answer.checks.sufficient),
            "minimal": answer.checks.minimal_grain or "",
        }


def anytime_rows(run: SearchRun, request: becausal.Request) -> Iterable[dict[str, Any]]:
    """The smallest set known to be sufficient after each milestone."""
    best: dict[str, list[tuple[int, Any]]] = defaultdict(list)

    def watch(status: becausal.Status) -> None:
        known = best[status.image]
        if not known or known[-1][1] is not status.visible:
            known.append((status.calls, status.visible))

    for photo, answer in run.answers(request, watch):
        steps = best.pop(photo.name)
        steps.append((answer.calls, answer.visible))
        occluder = resized(photo.occluder, answer.visible.shape)
        for milestone in MILESTONES:
            calls, visible = [(0, np.ones_like(answer.visible)), *(s for s in steps if s[0] <= milestone)][-1]
            yield {
                "name": photo.name,
                "milestone": milestone,
                "calls": min(calls, answer.calls),
                "size": round(float(visible.mean()), 6),
                "overlap": int((visible & occluder).sum()),
            }


def map_rows(run: SearchRun, request: becausal.Request) -> Iterable[dict[str, Any]]:
    from becausal.core.problem import Problem
    from becausal.engine.engine import Engine
    from becausal.search.pipeline import trace_curves

    engine = Engine(run.model)
    found = list(run.answers(request))
    items = [
        (Problem(a.view, a.backgrounds, a.target), trace_curves(a.responsibility, np.random.default_rng(0)))
        for _, a in found
    ]
    for outcome in engine.run_many(items, width=run.width):
        photo, answer = found[outcome.index]
        curves = outcome.result
        yield {
            "name": photo.name,
            "calls": answer.calls,
            "insertion": round(curves.insertion_area, 5),
            "deletion": round(curves.deletion_area, 5),
        }


MAKE = {"table": table_rows, "anytime": anytime_rows, "maps": map_rows}


def summary(rows: list[dict[str, Any]]) -> str:
    """A line about the rows of one request."""

    def column(name: str) -> Any:
        return np.array([float(r[name]) for r in rows if r[name] != ""])

    text = f"n {len(rows):3d}  calls {column('calls').mean():6.0f}"
    if rows[0]["kind"] == "maps":
        return f"{text}  insertion {column('insertion').mean():.4f}  deletion {column('deletion').mean():.4f}"
    size, clear = column("size") * 100, (column("overlap") == 0).mean() * 100
    text += f"  size {size.mean():5.2f} / {np.median(size):5.2f} %  clear {clear:3.0f} %"
    if rows[0]["kind"] == "anytime":
        return text
    grains = defaultdict(int)
    for row in rows:
        grains[str(row["minimal"] or "none")] += 1
    minimal = ", ".join(f"{count} at {grain}" for grain, count in sorted(grains.items()))
    inside = f"  inside {column('precision').mean() * 100:.0f} %" if len(column("precision")) else ""
    return (
        f"{text}{inside}  sufficient {column('sufficient').sum():.0f}  minimal {minimal}  "
        f"confidence {np.median(column('confidence')):.2f}  pieces {np.median(column('pieces')):.0f}"
    )


def print_summary(rows: list[dict[str, Any]]) -> None:
    """Print a line for each request."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        key = ("kind", "model", "method", "options", "fill", "share", "milestone")
        groups[tuple(str(row.get(name, "")) for name in key)].append(row)
    for key, own in groups.items():
        print(f"{' '.join(part for part in key if part):56s} {summary(own)}", flush=True)


def read_options(method: str, pairs: list[str]) -> dict[str, Any]:
    """Options of a method from key=value words; constants of the search `causal` become its tuning."""
    chosen: dict[str, Any] = dict(pair.split("=") for pair in pairs)
    names = {f.name for f in fields(Tuning)} if method == "causal" else set()
    tuning = {name: literal_eval(chosen.pop(name)) for name in sorted(names & chosen.keys())}
    return chosen | ({"tuning": tuning} if tuning else {})


DEFAULT_METHODS = {
    "table": "causal,dc-causal,rise,sbfl",
    "anytime": "causal:runs=16",
    "maps": "causal,rise:masks=740,lime:samples=740,sbfl:mutants=740,occlusion:stride=0.04,dc-causal:partitions=16",
}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=(*COLUMNS, "print"))
    parser.add_argument("files", type=Path, nargs="*", help="files for `print`")
    parser.add_argument("--data", type=Path, help="folder with photobombing_groundtruth.txt")
    parser.add_argument("--scenes", type=int, default=0, help="use this number of generated scenes instead")
    parser.add_argument("--model", default="bundled")
    parser.add_argument("--title", help="name of the model in the rows")
    parser.add_argument("--preprocess")
    parser.add_argument("--resize")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--methods", help="name or name:key=value, separated by commas; +grain=none to skip minimisation")
    parser.add_argument("--fills", default="grey")
    parser.add_argument("--shares", default="none", help="shares of the original confidence to keep, e.g. none,0.5,1,enough")
    parser.add_argument("--set", default="report", choices=("report", "tune"))
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--first", type=int, help="use only the first N of these images")
    parser.add_argument("--grain", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--width", type=int, default=1, help="number of images explained in parallel, e.g. 100 on a GPU")
    parser.add_argument("--cap", type=float, default=1e9, help="start no further request after this number of seconds")
    parser.add_argument("--keep", type=Path, help="store the explanations of the first 30 images in this file (.npz)")
    parser.add_argument("--out", type=Path, default=Path("search.csv"))
    return parser.parse_args()


def select_images(options: argparse.Namespace, model: Classifier) -> list[Photobomb]:
    if options.scenes:
        photos = correct_ones(make_scenes(options.scenes), model)
    else:
        eligible = correct_ones(read_photobombs(options.data), model)
        photos = choose(eligible, reported=options.set == "report", count=options.count)
        print(f"{len(eligible)} eligible images", flush=True)
    photos = photos[: options.first]
    print(f"{len(photos)} images", flush=True)
    return photos


def make_request(options: argparse.Namespace, share: str, fill: str, text: str) -> tuple[becausal.Request, dict[str, Any]]:
    """The request for a method written as name:key=value, and the common columns of its rows."""
    name, *pairs = text.split(":")
    chosen = read_options(name, pairs)
    plain = chosen.pop("+grain", None) == "none" or (options.kind == "maps" and name != "causal")
    request = becausal.Request(
        method=name,
        options=chosen,
        fills=(fill,),
        grain=None if plain else options.grain,
        seed=options.seed,
        confidence=None if share in ("none", "enough") else float(share),
        smallest=share == "none",
        holds=SHARE if share == "enough" else None,
        max_calls=MILESTONES[-1] if options.kind == "anytime" else None,
    )
    return request, {
        "kind": options.kind,
        "model": options.title or Path(options.model).stem,
        "set": "scenes" if options.scenes else options.set,
        "method": name,
        "options": " ".join(pairs),
        "fill": fill,
        "share": share,
        "grain": "" if plain else options.grain,
        "seed": options.seed,
    }


def main() -> None:
    options = parse_arguments()
    if options.kind == "print":
        print_summary([row for path in options.files for row in csv.DictReader(path.open())])
        return
    model = becausal.load_model(options.model, preprocess=options.preprocess, resize=options.resize, device=options.device)
    run, begin = SearchRun(select_images(options, model), model, options.width), time.time()
    methods = (options.methods or DEFAULT_METHODS[options.kind]).split(",")
    is_new = not options.out.exists()
    with options.out.open("a", newline="") as file:
        writer = csv.DictWriter(file, RUN + COLUMNS[options.kind])
        if is_new:
            writer.writeheader()
        for share, fill, text in product(options.shares.split(","), options.fills.split(","), methods):
            if time.time() - begin > options.cap:
                print("not started:", share, fill, text, flush=True)
                continue
            request, common = make_request(options, share, fill, text)
            start, rows = time.time(), []
            for row in MAKE[options.kind](run, request):
                rows.append(common | row)
                writer.writerow(rows[-1])
                file.flush()
            print_summary(rows)
            print(f"  {time.time() - start:.0f} s", flush=True)
    if options.keep is not None:
        np.savez_compressed(options.keep, **run.kept)


if __name__ == "__main__":
    main()
