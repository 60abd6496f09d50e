"""The default answer and that of --smallest, measured on photobombed photographs or generated scenes.

    python benchmarks/answer.py run --data DIR --others DIR --model FILE --preprocess tf --out rows.csv
    python benchmarks/answer.py run --scenes 20 --out rows.csv
    python benchmarks/answer.py table rows.csv

A row for each image, answer, seed and set; values of a whole answer are in each of its rows. Rows are written as they come,
and the same command goes on where it was stopped. The columns:

- batches: those that depend on the answers of others before, however many images an engine takes at a time.
- flat, noise, tiles, photographs, own: the share of backgrounds on which the set keeps the label. They are plain colours,
  uniform noise, the image's own tiles in random order, the images of --others (or other scenes), and --fresh random
  backgrounds of those that certificates are about. `bound` is the certificate's bound; `over` says whether it is above
  the share on the fresh ones.
- gain: what masking the set `against` adds to the confidence; on_occluder: its share on the occluder; chance: the
  occluder's share of the image.
- iou, ranks: overlap of the last set, and rank correlation of the map, with those of the first seed.
"""

import argparse
import csv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from photobombing import Photobomb, choose, read_photobombs
from search import correct_ones, make_scenes

import becausal
from becausal.api import jobs
from becausal.core.contracts import Classifier, Done, Pixels, Question, Search, Stop, Visible, step
from becausal.core.errors import BecausalError
from becausal.core.metrics import iou, overlap, rank_agreement
from becausal.core.problem import Problem
from becausal.engine.engine import Engine
from becausal.images.backgrounds import FunctionBackgrounds, RandomBackgrounds
from becausal.images.loading import list_images, read_like
from becausal.lab.paste import OTHERS, paste
from becausal.lab.rows import Row, finite_values, group_rows, read_table, rounded
from becausal.lab.selection import take_evenly
from becausal.lab.tables import Measure, format_cell
from becausal.search.pipeline import trace_curves

ASKED: dict[str, dict[str, Any]] = {"default": {}, "smallest": {"smallest": True}}
FRESH = 5_000_000  # number of the first background that is evaluated here; no search draws it
DRAWS = 40  # backgrounds of each family
WAVE = 25  # backgrounds at a time
TILES = 8  # along each side
MEASURES = (
    Measure("calls", "calls", "count"),
    Measure("batches", "batches", "count"),
    Measure("size", "size", "share"),
    Measure("pieces", "pieces", "count"),
    Measure("clear", "clear of the occluder", "share", is_flag=True),
    Measure("confidence", "confidence, of the original", "share"),
    Measure("sufficient", "keeps the label", "share", is_flag=True),
    Measure("minimal", "minimal", "share", is_flag=True),
    *(Measure(name, f"kept: {name}", "share") for name in ("flat", "noise", "tiles", "photographs", "own")),
    Measure("bound", "bound of the certificate", "share"),
    Measure("over", "bound above the share on fresh ones", "share", is_flag=True),
    Measure("has_against", "something against", "share", is_flag=True),
    Measure("gain", "gain of against", "number"),
    Measure("on_occluder", "against, on the occluder", "share"),
    Measure("chance", "occluder, of the image", "share"),
    Measure("insertion", "insertion", "number"),
    Measure("deletion", "deletion", "number"),
    Measure("iou", "IoU of seeds", "share"),
    Measure("ranks", "rank correlation of seeds", "number"),
)
COLUMNS = ["model", "image", "asked", "seed", "set", *(m.key for m in MEASURES), "error"]
MEDIANS = ("calls", "batches", "size", "pieces")


def flat(view: Pixels, rng: np.random.Generator) -> NDArray[Any]:
    """One colour, uniform over all colours."""
    return np.broadcast_to(rng.integers(0, 256, view.shape[-1]), view.shape)


def noise(view: Pixels, rng: np.random.Generator) -> NDArray[Any]:
    """Every value of every pixel uniform."""
    return rng.integers(0, 256, view.shape)


def tiles(view: Pixels, rng: np.random.Generator) -> NDArray[Any]:
    """The view cut into 8 x 8 tiles, in random order; rows and columns that are left over stay."""
    height, width = (side // TILES for side in view.shape[:2])
    made = view.copy()
    cuts = [(slice(r * height, (r + 1) * height), slice(c * width, (c + 1) * width)) for r, c in np.ndindex(TILES, TILES)]
    for place, source in zip(cuts, rng.permutation(len(cuts)), strict=True):
        made[place] = view[cuts[source]]
    return made


FAMILIES = {"flat": flat, "noise": noise, "tiles": tiles}


def keep_shares(sets: Visible, count: int) -> Search[NDArray[np.float64]]:
    """The share of backgrounds, from number `FRESH` on, on which each set, (n, *grid), keeps the label."""
    kept = np.zeros(len(sets))
    for start in range(0, count, WAVE):
        draws = FRESH + np.arange(start, min(start + WAVE, count))
        answers = yield Question(np.repeat(sets, len(draws), axis=0), draws=np.tile(draws, len(sets)))
        kept += answers.holds.reshape(len(sets), -1).sum(axis=1)
    return kept / max(1, count)


@contextmanager
def counted_batches() -> Iterator[list[int]]:
    """Counts, of each explanation, the questions that took a model call: they depend on each other."""
    counts: list[int] = []
    before = jobs.search_explanation

    def count(plan: Any) -> Search[Any]:
        counts.append(0)
        spent, state = 0, step(search := before(plan), None)
        while not isinstance(state, Done):
            try:
                message = yield state
            except Stop as stop:
                message = stop
            else:
                counts[-1] += message.spent > spent
                spent = message.spent
            state = step(search, message)
        return state.result

    jobs.search_explanation = count
    try:
        yield counts
    finally:
        jobs.search_explanation = before


class Measuring:
    """What one process measures with: a model, and photographs to paste sets on."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.model = load(options)
        if options.others is None:
            self.others: list[Any] = [photo.pixels for photo in make_scenes(2 * OTHERS)[OTHERS:]]
        else:
            self.others = take_evenly(list(list_images(options.others)), OTHERS)

    def rows(self, photo: Photobomb, asked: str) -> list[Row]:
        """The rows of one image and answer, seed by seed."""
        head = {"model": Path(self.options.model).stem, "image": photo.name, "asked": asked}
        rows: list[Row] = []
        found: list[becausal.Explanation] = []
        for seed in range(self.options.seeds):
            try:
                with counted_batches() as batches:
                    answer = becausal.explain(photo.pixels, self.model, seed=seed, **ASKED[asked])
            except BecausalError as error:
                return [head | {"seed": seed, "error": str(error)}]
            common = head | {"seed": seed, "batches": sum(batches)} | self.of_answer(answer, photo)
            if found:
                common["iou"] = iou(found[0].visible, answer.visible)
                common["ranks"] = rank_agreement(found[0].responsibility, answer.responsibility)
            found.append(answer)
            rows += [rounded(common | own) for own in self.of_sets(answer, photo)]
        return rows

    def of_answer(self, answer: becausal.Explanation, photo: Photobomb) -> Row:
        """Its calls, its map, and what speaks against the label."""
        problem = Problem(answer.view, answer.backgrounds, answer.target)
        curves = Engine(self.model).run(problem, trace_curves(answer.responsibility, np.random.default_rng(0))).result
        occluder, against = answer.frame.from_original(photo.occluder), answer.against
        row: Row = {"calls": answer.calls, "insertion": curves.insertion_area, "deletion": curves.deletion_area}
        if answer.origin.request.share_held is None:  # nobody asked what speaks against the label
            return row
        row |= {"chance": float(occluder.mean()), "has_against": int(against is not None)}
        return row if against is None else row | {"gain": against.gain, "on_occluder": overlap(against.visible, occluder)}

    def of_sets(self, answer: becausal.Explanation, photo: Photobomb) -> Iterator[Row]:
        """Each set, and how far it holds."""
        sets, info = np.stack([level.visible for level in answer.levels]), self.model.info
        target, view = replace(answer.target, floor=0.0), answer.view
        samplers = {name: FunctionBackgrounds(view, 0, draw) for name, draw in FAMILIES.items()}
        kept = {}
        for name, sampler in (samplers | {"own": RandomBackgrounds(view, 0)}).items():
            problem = Problem(view, answer.backgrounds, target, sampler=sampler)
            search = keep_shares(sets, self.options.fresh if name == "own" else DRAWS)
            kept[name] = Engine(self.model).run(problem, search).result
        others = [read_like(view, other, geometry=info.geometry, channels=info.channels) for other in self.others]
        kept["photographs"], _ = paste(answer, self.model, sets, others)
        occluder = answer.frame.from_original(photo.occluder)
        for number, level in enumerate(answer.levels):
            shares = {name: float(values[number]) for name, values in kept.items()}
            row = {
                "set": level.name, "size": level.size, "pieces": level.pieces,
                "clear": int(not (level.visible & occluder).any()), "sufficient": int(level.checks.sufficient),
                "confidence": level.checks.confidence / answer.confidence,
                "minimal": int(level.checks.minimal_grain is not None),
            }  # fmt: skip
            if level.certificate is not None:
                bound = level.certificate.bound
                row |= {"bound": bound, "over": int(bound > shares["own"])}
            yield row | shares


def load(options: argparse.Namespace) -> Classifier:
    given = {name: value for name in ("preprocess", "resize", "device") if (value := getattr(options, name)) is not None}
    return becausal.load_model(options.model, threads=1, **given)


_MEASURING: list[Measuring] = []  # of this process


def begin(options: argparse.Namespace) -> None:
    _MEASURING.append(Measuring(options))


def work(task: tuple[Photobomb, str]) -> list[Row]:
    return _MEASURING[0].rows(*task)


def run(options: argparse.Namespace) -> None:
    if options.scenes:
        photos = correct_ones(make_scenes(options.scenes), load(options))
    else:
        eligible = correct_ones(read_photobombs(options.data), load(options))
        photos = choose(eligible, reported=options.set == "report", count=128)
    known = read_table(options.out) if options.out.exists() else []
    done = {(row["image"], row["asked"]) for row in known if row["model"] == Path(options.model).stem}
    images = take_evenly(photos, options.count)
    tasks = [task for task in product(images, options.asked) if (task[0].name, task[1]) not in done]
    with options.out.open("a", newline="") as file, get_context("spawn").Pool(options.processes, begin, (options,)) as pool:
        writer = csv.DictWriter(file, COLUMNS)
        if not known:
            writer.writeheader()
        for number, rows in enumerate(pool.imap_unordered(work, tasks), start=1):
            writer.writerows(rows)
            file.flush()
            print(f"{number} of {len(tasks)}: {rows[0]['image']}, {rows[0]['asked']}", flush=True)


def format_mean(measure: Measure, rows: list[Row]) -> str:
    """The mean of a measure with its interval."""
    found = measure.estimate(rows)
    if measure.kind != "count" or found.n < 2:
        return format_cell(found, measure.column)
    return f"{found.mean:,.1f} ({found.low:,.1f} to {found.high:,.1f})"


def print_table(rows: list[Row]) -> None:
    """A column for each model, answer and set: means with 95 % intervals, and medians."""
    groups = group_rows([row for row in rows if not row["error"]], "model", "asked", "set")
    print("| |", *(f"{' '.join(map(str, key))} |" for key in groups))
    print("|---|" + "---:|" * len(groups))
    print("| images |", *(f"{len({row['image'] for row in own})} |" for own in groups.values()))
    for measure in MEASURES:
        cells = [format_mean(measure, own) for own in groups.values()]
        print(f"| {measure.name} |", *(f"{cell} |" for cell in cells))
        if measure.key in MEDIANS:
            middles = [median(finite_values(own, measure.key)) for own in groups.values()]
            print(f"| {measure.name}, median |", *(f"{format_cell(middle, measure.column)} |" for middle in middles))
    failed = [f"{row['image']}, {row['asked']}: {row['error']}" for row in rows if row["error"]]
    print(*failed, sep="\n", end="")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("run", "table"))
    parser.add_argument("files", type=Path, nargs="*", help="files for `table`")
    parser.add_argument("--data", type=Path, help="folder with photobombing_groundtruth.txt")
    parser.add_argument("--others", type=Path, help="folder of photographs to paste sets on")
    parser.add_argument("--scenes", type=int, default=0, help="use this number of generated scenes instead")
    parser.add_argument("--model", default="bundled")
    parser.add_argument("--preprocess")
    parser.add_argument("--resize")
    parser.add_argument("--device")
    parser.add_argument("--set", default="report", choices=("report", "tune"))
    parser.add_argument("--count", type=int, default=100, help="number of images, evenly spaced")
    parser.add_argument("--asked", nargs="+", default=list(ASKED), choices=ASKED)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--fresh", type=int, default=1000, help="fresh random backgrounds of each set")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("answer.csv"), help="rows are appended")
    options = parser.parse_args()
    if options.kind == "run" and not options.scenes and None in (options.data, options.others):
        parser.error("run needs --data and --others, or --scenes")
    if options.kind == "run":
        run(options)
    print_table([row for path in options.files or [options.out] for row in read_table(path)])


if __name__ == "__main__":
    main()
