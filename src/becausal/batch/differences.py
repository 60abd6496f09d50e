"""Compares two runs on the same images, e.g. of two models, two versions or two sets of options."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from becausal.batch.overview import OUTSIDE, Histogram, histogram
from becausal.batch.reading import BatchRun, IndexRow
from becausal.core.errors import InputError, OutputError


@dataclass(frozen=True)
class ImagePair:
    """One image in both runs; overlap: intersection over union of the two explanations, None if not comparable."""

    left: IndexRow
    right: IndexRow
    overlap: float | None

    @property
    def is_relabelled(self) -> bool:
        return bool(self.left["label"] != self.right["label"])


@dataclass(frozen=True)
class RunDifference:
    """What changed from one run to another.

    names: of the two runs. changes: options that differ. pairs: images explained in both, those that changed most first.
    only: number of images in one run only. failed: number of shared images that failed.
    """

    names: tuple[str, str]
    changes: tuple[str, ...]
    pairs: tuple[ImagePair, ...]
    only: tuple[int, int]
    failed: tuple[int, int]
    overlaps: Histogram

    @property
    def relabelled(self) -> int:
        return sum(pair.is_relabelled for pair in self.pairs)

    def medians(self, column: str) -> tuple[float | None, float | None]:
        """The median of a column in each run, over the shared images."""
        return histogram(p.left[column] for p in self.pairs).middle, histogram(p.right[column] for p in self.pairs).middle

    def outside(self, below: float = OUTSIDE) -> tuple[int, int] | None:
        """How many explanations lie outside their object, in each run; None without ground truth."""
        if all(pair.left["inside"] is None and pair.right["inside"] is None for pair in self.pairs):
            return None
        counts = [sum((row["inside"] or 0) < below for row in side if row["inside"] is not None) for side in self._sides()]
        return counts[0], counts[1]

    def record(self) -> dict[str, Any]:
        """The comparison as JSON can hold it."""
        return {
            "runs": list(self.names),
            "changes": list(self.changes),
            "shared": len(self.pairs),
            "only": list(self.only),
            "failed": list(self.failed),
            "relabelled": self.relabelled,
            "overlap": self.overlaps.middle,
            "medians": {name: list(self.medians(name)) for name in ("size", "confidence", "calls", "inside")},
            "outside": self.outside(),
            "pictures": [
                {
                    "image": pair.left["image"],
                    "ids": [pair.left["id"], pair.right["id"]],
                    "labels": [pair.left["label"], pair.right["label"]],
                    "sizes": [pair.left["size"], pair.right["size"]],
                    "overlap": pair.overlap,
                }
                for pair in self.pairs
            ],
        }

    def _sides(self) -> tuple[list[IndexRow], list[IndexRow]]:
        return [pair.left for pair in self.pairs], [pair.right for pair in self.pairs]


def compare_runs(left: BatchRun, right: BatchRun) -> RunDifference:
    """Match the images of two runs and compare their explanations. Raises InputError if they share no image."""
    ours, theirs = list(left.rows()), list(right.rows())
    matched = list(match_rows(ours, theirs))
    if not matched:
        raise InputError(f"{left.folder} and {right.folder} have no image in common, by path or by content")
    explained = [(a, b) for a, b in matched if a["state"] == b["state"] == "done"]
    pairs = [ImagePair(a, b, overlap_of(left, a, right, b)) for a, b in explained]
    pairs.sort(key=lambda p: (not p.is_relabelled, 1.0 if p.overlap is None else p.overlap, p.left["id"]))
    return RunDifference(
        (left.folder.name, right.folder.name),
        tuple(left.changes(right)),
        tuple(pairs),
        (len(ours) - len(matched), len(theirs) - len(matched)),
        (sum(a["state"] == "failed" for a, _ in matched), sum(b["state"] == "failed" for _, b in matched)),
        histogram(pair.overlap for pair in pairs),
    )


def match_rows(ours: list[IndexRow], theirs: list[IndexRow]) -> Iterator[tuple[IndexRow, IndexRow]]:
    """Pairs of rows of the same image: same path, else same content; of duplicates the nth with the nth."""
    rest = theirs
    for key in ("image", "sha256"):
        by_key: dict[str, list[IndexRow]] = {}
        for row in rest:
            if row[key] is not None:
                by_key.setdefault(row[key], []).append(row)
        unmatched = []
        taken: set[int] = set()
        for row in ours:
            found = by_key.get(row[key]) if row[key] is not None else None
            if found:
                other = found.pop(0)
                taken.add(other["id"])
                yield row, other
            else:
                unmatched.append(row)
        ours, rest = unmatched, [row for row in rest if row["id"] not in taken]


def overlap_of(left: BatchRun, ours: IndexRow, right: BatchRun, theirs: IndexRow) -> float | None:
    """Intersection over union of two explanations, on the view if both runs have the same one, else on the original.

    None where they cannot be compared, e.g. because one cannot be read; see `BatchRun.unreadable`.
    """
    sides = []
    for run, row in ((left, ours), (right, theirs)):
        try:
            sides.append(run.load_visible(row["id"]))
        except OutputError as error:
            run.skip(row["id"], error)
    if len(sides) < 2:
        return None
    (a, frame_a), (b, frame_b) = sides
    if frame_a != frame_b:
        if frame_a.original != frame_b.original:
            return None
        a, b = frame_a.to_original(a), frame_b.to_original(b)
    either = int(np.count_nonzero(a | b))
    return int(np.count_nonzero(a & b)) / either if either else None
