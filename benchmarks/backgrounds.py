"""How often a set of pixels keeps its label on backgrounds that no search has seen.

    python benchmarks/backgrounds.py run --data DIR --model FILE --preprocess tf --out rows.csv
    python benchmarks/backgrounds.py run --scenes 20 --out rows.csv
    python benchmarks/backgrounds.py print rows.csv

Arms: the levels "label" and "most" under grey, the level "most" under the four fills of --robust, the level "any" of
--holds, the prefix of RISE's map that keeps most of the confidence, and nothing at all for comparison. Each set is evaluated
on --draws backgrounds of each held-out family: random flat colours, uniform noise, the mean colour of the image, its own
tiles in random order; and of the distribution of --holds itself, with numbers that no search uses. Rows: one for each image
and arm. Images are those of `benchmarks/levels.py`.
"""

import argparse
import csv
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from levels import select
from numpy.typing import NDArray
from photobombing import Photobomb

import becausal
from becausal.core.checks import ANY, Level
from becausal.core.contracts import Classifier, Pixels
from becausal.core.metrics import HELD_OUT, HELD_OUT_COUNT
from becausal.core.problem import Problem
from becausal.engine.engine import Engine
from becausal.images.backgrounds import FunctionBackgrounds, RandomBackgrounds
from becausal.images.loading import load_image
from becausal.search.certifying import transfer

ROBUST = ("grey", "black", "white", "blur")
TILES = 8  # along each side
SEED = 0


def flat(view: Pixels, rng: np.random.Generator) -> NDArray[Any]:
    """One colour, uniform over all colours."""
    return np.broadcast_to(rng.integers(0, 256, view.shape[-1]), view.shape)


def noise(view: Pixels, rng: np.random.Generator) -> NDArray[Any]:
    """Every value of every pixel uniform."""
    return rng.integers(0, 256, view.shape)


def mean(view: Pixels, rng: np.random.Generator) -> NDArray[Any]:
    """The mean colour of the view; always the same."""
    return np.broadcast_to(view.reshape(-1, view.shape[-1]).mean(axis=0), view.shape)


def tiles(view: Pixels, rng: np.random.Generator) -> NDArray[Any]:
    """The view cut into 8 x 8 tiles, in random order; rows and columns that are left over stay."""
    height, width = (side // TILES for side in view.shape[:2])
    made = view.copy()
    cuts = [(slice(r * height, (r + 1) * height), slice(c * width, (c + 1) * width)) for r, c in np.ndindex(TILES, TILES)]
    for place, source in zip(cuts, rng.permutation(len(cuts)), strict=True):
        made[place] = view[cuts[source]]
    return made


FAMILIES: dict[str, Callable[[Pixels, np.random.Generator], NDArray[Any]]] = {
    "flat": flat, "noise": noise, "mean": mean, "tiles": tiles,
}  # fmt: skip


def arms(holds: float) -> dict[str, tuple[becausal.Request, dict[str, str]]]:
    """What is asked of every image, and the arms that come of it: the name of the level of each."""
    return {
        "grey": (becausal.Request(seed=SEED), {"grey label": "label", "grey most": "most"}),
        "robust": (becausal.Request(seed=SEED, fills=ROBUST), {"robust most": "most"}),
        "holds": (becausal.Request(seed=SEED, holds=holds), {f"holds {holds:g}": ANY}),
        "rise": (becausal.Request(seed=SEED, method="rise"), {"rise most": "most"}),
    }


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("run", "print"))
    parser.add_argument("files", type=Path, nargs="*", help="files for `print`")
    parser.add_argument("--data", type=Path, help="folder with photobombing_groundtruth.txt")
    parser.add_argument("--scenes", type=int, default=0, help="use this number of generated scenes instead")
    parser.add_argument("--model", default="bundled")
    parser.add_argument("--preprocess")
    parser.add_argument("--resize")
    parser.add_argument("--set", default="report", choices=("report", "tune"))
    parser.add_argument("--count", type=int, default=100, help="number of images, evenly spaced")
    parser.add_argument("--holds", type=float, default=0.9)
    parser.add_argument("--arms", nargs="+", choices=("grey", "robust", "holds", "rise"), help="only these; default: all")
    parser.add_argument(
        "--part", type=int, nargs=2, default=(0, 1), metavar=("K", "N"), help="every n-th image from the k-th on"
    )
    parser.add_argument("--draws", type=int, default=HELD_OUT_COUNT, help="held-out backgrounds of each family")
    parser.add_argument("--own", type=int, help="held-out backgrounds of the distribution itself; default: as --draws")
    parser.add_argument("--out", type=Path, default=Path("backgrounds.csv"))
    return parser.parse_args()


def run(options: argparse.Namespace, photos: list[Photobomb], model: Classifier) -> Iterator[dict[str, Any]]:
    """The rows of all images, arm by arm."""
    images = [replace(load_image(photo.pixels), name=photo.name) for photo in photos]
    for name, (request, levels) in arms(options.holds).items():
        if options.arms and name not in options.arms:
            continue
        for answer in becausal.explain_many(images, model, request=request):
            if isinstance(answer, becausal.Failure):
                print(f"{answer.image}: {answer.error}", flush=True)
                continue
            sets = {arm: next((one for one in answer.levels if one.name == name), None) for arm, name in levels.items()}
            if "grey label" in sets:
                sets["nothing"] = replace(answer.level, visible=np.zeros_like(answer.visible))
            for arm, level in sets.items():
                common = {"model": Path(options.model).stem, "arm": arm, "image": answer.origin.image}
                yield common | measure(answer, level, model, options.draws, options.own or options.draws)


def measure(answer: becausal.Explanation, level: Level | None, model: Classifier, draws: int, own: int) -> dict[str, Any]:
    """The size of a set, what it cost, and the share of backgrounds of each family on which it keeps the label."""
    row: dict[str, Any] = {"calls": answer.calls, "found": int(level is not None), "size": "", "pieces": "", "bound": ""}
    row |= dict.fromkeys(("own", *FAMILIES), "")
    if level is None:
        return row
    samplers: dict[str, Any] = {"own": RandomBackgrounds(answer.view, SEED)}
    samplers |= {name: FunctionBackgrounds(answer.view, SEED, make) for name, make in FAMILIES.items()}
    label = replace(answer.target, floor=0.0)
    for name, sampler in samplers.items():
        problem = Problem(answer.view, answer.backgrounds, label, sampler=sampler)
        search = transfer(level.visible, first=HELD_OUT, count={"mean": 1, "own": own}.get(name, draws))
        row[name] = Engine(model).run(problem, search).result.share
    bound = "" if level.certificate is None else level.certificate.bound
    return row | {"size": level.size, "pieces": level.pieces, "bound": bound}


def print_summary(rows: Iterable[dict[str, Any]]) -> None:
    """One line for each model and arm; sizes and shares are those of the images with such a set."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["model"], row["arm"]].append(row)
    print(
        "model | arm | images | found | calls | median size | own | flat | noise | mean | tiles | own >= 0.9 | bound > own"
    )
    for key, every in groups.items():
        own = [row for row in every if int(row["found"])]
        if not own:
            print(*key, len(every), 0, sep=" | ")
            continue
        shares = {name: np.array([float(row[name]) for row in own]) for name in ("own", *FAMILIES)}
        bounds = np.array([float(row["bound"] or 0) for row in own])
        print(
            *key, len(every), len(own), f"{np.mean([float(row['calls']) for row in every]):.0f}",
            f"{np.median([float(row['size']) for row in own]):.2%}", *(f"{values.mean():.0%}" for values in shares.values()),
            f"{(shares['own'] >= 0.9).mean():.0%}", f"{(bounds > shares['own']).mean():.0%}", sep=" | ",
        )  # fmt: skip


def main() -> None:
    options = parse_arguments()
    if options.kind == "print":
        print_summary([row for path in options.files for row in csv.DictReader(path.open())])
        return
    extra = {name: value for name in ("preprocess", "resize") if (value := getattr(options, name)) is not None}
    model = becausal.load_model(options.model, **extra)
    with options.out.open("w", newline="") as file:
        writer = None
        for row in run(options, select(options, model)[options.part[0] :: options.part[1]], model):
            if writer is None:
                writer = csv.DictWriter(file, list(row))
                writer.writeheader()
            writer.writerow(row)
            file.flush()
    print_summary(list(csv.DictReader(options.out.open())))


if __name__ == "__main__":
    main()
