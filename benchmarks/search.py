"""Every search method on the same pictures, each followed by the same extraction and minimising; one row per picture.

    python benchmarks/search.py --data DIR --model MODEL --methods causal,dc-causal,rise,sbfl --fills grey,black

Rows go to --out as CSV as they come; the table at the end has, per method, calls in all, the explanation's size, the
share of explanations without one occluder pixel, and how many were verified sufficient and minimal.
"""

import argparse
import csv
import time
from pathlib import Path
from typing import Any

import numpy as np
from photobombing import Photobomb, choose, read_photobombs

import becausal
from becausal.contracts import Classifier

COLUMNS = [
    "model",
    "set",
    "method",
    "options",
    "fill",
    "share",
    "name",
    "calls",
    "size",
    "pixels",
    "overlap",
    "pieces",
    "confidence",
    "original",
    "sufficient",
    "minimal",
]


def right_ones(photos: list[Photobomb], model: Classifier) -> list[Photobomb]:
    """Those whose label the model gets right as they are."""
    answers: list[int] = []
    size = model.batch_size
    for start in range(0, len(photos), size):
        batch = np.stack([p.pixels for p in photos[start : start + size]])
        padded = np.concatenate([batch, np.repeat(batch[:1], size - len(batch), axis=0)])
        answers += model.classify(padded)[: len(batch)].argmax(axis=1).tolist()
    return [p for p, label in zip(photos, answers, strict=True) if p.label_id == label]


def run(photos: list[Photobomb], model: Classifier, request: becausal.Request, width: int) -> list[dict[str, Any]]:
    """One row per picture."""
    rows: list[dict[str, Any]] = []
    by_hash = {}
    from becausal.images import load_image

    pictures = [load_image(p.pixels) for p in photos]
    by_hash = {picture.sha256: p for picture, p in zip(pictures, photos, strict=True)}
    for answer in becausal.explain_many(pictures, model, request=request, width=width):
        if isinstance(answer, becausal.Failure):
            print("failed:", answer.image, answer.error)
            continue
        photo = by_hash[answer.origin.image_sha256]
        rows.append(
            {
                "name": photo.name,
                "calls": answer.calls,
                "size": round(answer.size, 6),
                "pixels": answer.pixels,
                "overlap": int((answer.visible & photo.occluder).sum()),
                "pieces": answer.pieces,
                "confidence": round(answer.checks.confidence, 5),
                "original": round(answer.confidence, 5),
                "sufficient": int(answer.checks.sufficient),
                "minimal": answer.checks.minimal_grain or "",
            }
        )
    return rows


def show(title: str, rows: list[dict[str, Any]], seconds: float) -> None:
    size = np.array([r["size"] for r in rows]) * 100
    clear = np.mean([r["overlap"] == 0 for r in rows]) * 100
    print(
        f"{title:44s} n {len(rows):3d}  calls {np.mean([r['calls'] for r in rows]):6.0f}  size {size.mean():5.2f} / "
        f"{np.median(size):5.2f} %  clear {clear:3.0f} %  sufficient {sum(r['sufficient'] for r in rows):3d}  "
        f"minimal {sum(bool(r['minimal']) for r in rows):3d}  pieces {np.median([r['pieces'] for r in rows]):.0f}  "
        f"{seconds:.0f} s",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with photobombing_groundtruth.txt")
    parser.add_argument("--model", required=True)
    parser.add_argument("--preprocess", default="tf")
    parser.add_argument("--resize")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--methods", default="causal,dc-causal,rise,sbfl", help="name or name:key=value:key=value, with commas"
    )
    parser.add_argument("--fills", default="grey,black")
    parser.add_argument("--shares", default="none", help="shares of the original confidence to keep: none,0.5,1")
    parser.add_argument("--set", default="report", choices=("report", "tune"))
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--grain", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--width", type=int, default=1, help="pictures side by side; 64 on a GPU")
    parser.add_argument("--cap", type=float, default=1e9, help="begin nothing new after so many seconds")
    parser.add_argument("--out", type=Path, default=Path("search.csv"))
    options = parser.parse_args()
    model = becausal.load_model(options.model, preprocess=options.preprocess, resize=options.resize, device=options.device)
    eligible = right_ones(read_photobombs(options.data), model)
    photos = choose(eligible, reported=options.set == "report", count=options.count)
    print(f"{len(eligible)} eligible pictures, {len(photos)} of the {options.set} set", flush=True)
    begun = time.time()
    is_new = not options.out.exists()
    with options.out.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if is_new:
            writer.writeheader()
        for share in options.shares.split(","):
            for fill in options.fills.split(","):
                for text in options.methods.split(","):
                    if time.time() - begun > options.cap:
                        return
                    name, *pairs = text.split(":")
                    start = time.time()
                    request = becausal.Request(
                        method=name,
                        options=dict(pair.split("=") for pair in pairs),
                        fills=(fill,),
                        grain=options.grain,
                        seed=options.seed,
                        confidence=None if share == "none" else float(share),
                    )
                    rows = run(photos, model, request, options.width)
                    common = {
                        "model": options.model,
                        "set": options.set,
                        "method": name,
                        "options": " ".join(pairs),
                        "fill": fill,
                        "share": share,
                    }
                    writer.writerows(common | row for row in rows)
                    file.flush()
                    show(f"{text} {fill} {share}", rows, time.time() - start)


if __name__ == "__main__":
    main()
