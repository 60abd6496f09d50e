"""The search against its rivals: the same images, the same extraction and minimising, calls counted in all.

    python benchmarks/search.py table   --data DIR --model MODEL --preprocess tf --methods causal,dc-causal,rise,sbfl
    python benchmarks/search.py anytime --data DIR --model MODEL --preprocess tf
    python benchmarks/search.py maps    --data DIR --model MODEL --preprocess tf --methods causal,rise:masks=700
    python benchmarks/search.py table   --scenes 200 --model bundled
    python benchmarks/search.py print   benchmarks/results/search-*.csv

`table` writes one row per image, method, fill and share of the confidence; `anytime` the smallest verified set after
80, 150, ... calls; `maps` the areas under the insertion and deletion curves. Rows go to --out as they come; `print` makes
the tables again from the files. Images that are tuned on and images that are reported are disjoint (--set).
"""

import argparse
import csv
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from photobombing import Photobomb, choose, read_photobombs

import becausal
from becausal.core.contracts import Classifier
from becausal.images.loading import load_image

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


def right_ones(photos: list[Photobomb], model: Classifier) -> list[Photobomb]:
    """Those whose label the model gets right as they are, at the model's own size."""
    return [p for p in photos if becausal.classify(p.pixels, model, top=1)[0][0] == p.label_id]


def make_scenes(count: int) -> list[Photobomb]:
    """Scenes with an object of which a photobomber covers 10 to 40 %; the truth is the part that can be seen."""
    from becausal.scenes import make_scene

    found: list[Photobomb] = []
    seed = 900_000
    while len(found) < count:
        scene = make_scene(seed, cover=(0.1, 0.4))
        if scene.object.any():
            found.append(Photobomb(str(seed), scene.picture, scene.label_index, scene.occluder, scene.visible))
        seed += 1
    return found


def resized(truth: Any, grid: tuple[int, ...]) -> Any:
    """A set of pixels on the model's own grid, by the nearest pixel."""
    at = [
        np.minimum((np.arange(side) + 0.5) * old / side, old - 1).astype(int)
        for side, old in zip(grid, truth.shape, strict=True)
    ]
    return truth[np.ix_(*at)]


class Run:
    """One request after the other on all images, side by side. kept: explanations to look at, by request and image."""

    def __init__(self, photos: list[Photobomb], model: Classifier, width: int) -> None:
        self.kept: dict[str, Any] = {}
        self.looked = {p.name for p in photos[:30]}
        self.model = model
        self.width = width
        self.pictures = [replace(load_image(p.pixels), name=p.name) for p in photos]
        self.photos = {p.name: p for p in photos}

    def answers(
        self, request: becausal.Request, watch: Callable[[becausal.Status], None] | None = None
    ) -> Iterable[tuple[Photobomb, becausal.Explanation]]:
        workers = None if watch is None else 0  # those who watch want every step
        found = becausal.explain_many(
            self.pictures, self.model, request=request, width=self.width, workers=workers, progress=watch
        )
        for answer in found:
            if isinstance(answer, becausal.Failure):
                print("left out:", answer.error, flush=True)
                continue
            photo = self.photos[answer.origin.image]
            if photo.name in self.looked:
                key = f"{request.method}|{request.fills[0]}|{request.confidence}|{photo.name}"
                self.kept[key] = np.packbits(answer.visible)
            yield photo, answer


def table_rows(run: Run, request: becausal.Request) -> Iterable[dict[str, Any]]:
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


def anytime_rows(run: Run, request: becausal.Request) -> Iterable[dict[str, Any]]:
    """The smallest set known to be sufficient when each milestone was passed."""
    best: dict[str, list[tuple[int, Any]]] = defaultdict(list)

    def watch(status: becausal.Status) -> None:
        known = best[status.image]
        if not known or known[-1][1] is not status.visible:
            known.append((status.calls, status.visible))

    for photo, answer in run.answers(request, watch):
        steps = best.pop(photo.name)
        steps.append((answer.calls, answer.visible))
        truth = resized(photo.occluder, answer.visible.shape)
        for milestone in MILESTONES:
            calls, visible = [(0, np.ones_like(answer.visible)), *(s for s in steps if s[0] <= milestone)][-1]
            yield {
                "name": photo.name,
                "milestone": milestone,
                "calls": min(calls, answer.calls),
                "size": round(float(visible.mean()), 6),
                "overlap": int((visible & truth).sum()),
            }


def map_rows(run: Run, request: becausal.Request) -> Iterable[dict[str, Any]]:
    from becausal.core.metrics import trace_curves
    from becausal.core.problem import Problem
    from becausal.engine.engine import Engine

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
    """One line about the rows of one request."""

    def column(name: str) -> Any:
        return np.array([float(r[name]) for r in rows if r[name] != ""])

    said = f"n {len(rows):3d}  calls {column('calls').mean():6.0f}"
    if rows[0]["kind"] == "maps":
        return f"{said}  insertion {column('insertion').mean():.4f}  deletion {column('deletion').mean():.4f}"
    size, clear = column("size") * 100, (column("overlap") == 0).mean() * 100
    said += f"  size {size.mean():5.2f} / {np.median(size):5.2f} %  clear {clear:3.0f} %"
    if rows[0]["kind"] == "anytime":
        return said
    grains = defaultdict(int)
    for row in rows:
        grains[str(row["minimal"] or "none")] += 1
    minimal = ", ".join(f"{count} at {grain}" for grain, count in sorted(grains.items()))
    inside = f"  inside {column('precision').mean() * 100:.0f} %" if len(column("precision")) else ""
    return (
        f"{said}{inside}  sufficient {column('sufficient').sum():.0f}  minimal {minimal}  "
        f"confidence {np.median(column('confidence')):.2f}  pieces {np.median(column('pieces')):.0f}"
    )


def show(rows: list[dict[str, Any]]) -> None:
    """All requests of the rows, one line each."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        key = ("kind", "model", "method", "options", "fill", "share", "milestone")
        groups[tuple(str(row.get(name, "")) for name in key)].append(row)
    for key, own in groups.items():
        print(f"{' '.join(part for part in key if part):56s} {summary(own)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=(*COLUMNS, "print"))
    parser.add_argument("files", type=Path, nargs="*", help="of `print`")
    parser.add_argument("--data", type=Path, help="folder with photobombing_groundtruth.txt")
    parser.add_argument("--scenes", type=int, default=0, help="so many generated scenes instead")
    parser.add_argument("--model", default="bundled")
    parser.add_argument("--title", help="the model's name in the rows")
    parser.add_argument("--preprocess")
    parser.add_argument("--resize")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--methods", help="name or name:key=value:key=value, with commas; +grain=none not to minimise")
    parser.add_argument("--fills", default="grey")
    parser.add_argument("--shares", default="none", help="shares of the original confidence to keep: none,0.5,1")
    parser.add_argument("--set", default="report", choices=("report", "tune"))
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--first", type=int, help="only the first so many of these")
    parser.add_argument("--grain", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--width", type=int, default=1, help="images side by side; 100 on a GPU")
    parser.add_argument("--cap", type=float, default=1e9, help="begin nothing new after so many seconds")
    parser.add_argument("--keep", type=Path, help="also keep the explanations of the first 30 images (.npz)")
    parser.add_argument("--out", type=Path, default=Path("search.csv"))
    options = parser.parse_args()
    if options.kind == "print":
        show([row for path in options.files for row in csv.DictReader(path.open())])
        return
    defaults = {
        "table": "causal,dc-causal,rise,sbfl",
        "anytime": "causal:runs=16:effort=none",
        "maps": "causal,rise:masks=740,lime:samples=740,sbfl:mutants=740,occlusion:stride=0.04,dc-causal:partitions=16",
    }
    model = becausal.load_model(options.model, preprocess=options.preprocess, resize=options.resize, device=options.device)
    if options.scenes:
        photos = right_ones(make_scenes(options.scenes), model)
    else:
        eligible = right_ones(read_photobombs(options.data), model)
        photos = choose(eligible, reported=options.set == "report", count=options.count)
        print(f"{len(eligible)} eligible images", flush=True)
    photos = photos[: options.first]
    print(f"{len(photos)} images", flush=True)
    run, begun = Run(photos, model, options.width), time.time()
    is_new = not options.out.exists()
    with options.out.open("a", newline="") as file:
        writer = csv.DictWriter(file, RUN + COLUMNS[options.kind])
        if is_new:
            writer.writeheader()
        for share in options.shares.split(","):
            for fill in options.fills.split(","):
                for text in (options.methods or defaults[options.kind]).split(","):
                    if time.time() - begun > options.cap:
                        print("not begun:", share, fill, text, flush=True)
                        continue
                    name, *pairs = text.split(":")
                    chosen = dict(pair.split("=") for pair in pairs)
                    plain = chosen.pop("+grain", None) == "none" or (options.kind == "maps" and name != "causal")
                    request = becausal.Request(
                        method=name,
                        options=chosen,
                        fills=(fill,),
                        grain=None if plain else options.grain,
                        seed=options.seed,
                        confidence=None if share == "none" else float(share),
                        max_calls=MILESTONES[-1] if options.kind == "anytime" else None,
                    )
                    common = {
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
                    start, rows = time.time(), []
                    for row in MAKE[options.kind](run, request):
                        rows.append(common | row)
                        writer.writerow(rows[-1])
                        file.flush()
                    show(rows)
                    print(f"  {time.time() - start:.0f} s", flush=True)
    if options.keep is not None:
        np.savez_compressed(options.keep, **run.kept)


if __name__ == "__main__":
    main()
