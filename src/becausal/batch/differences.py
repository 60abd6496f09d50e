"""Two runs on the same images, side by side: two models, two versions, two ways of asking."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from becausal.batch.overview import OUTSIDE, Histogram, histogram
from becausal.batch.reading import Row, Run
from becausal.core.errors import InputError


@dataclass(frozen=True)
class Pair:
    """One image in both runs; overlap: what both explanations share of what either has (intersection over union)."""

    left: Row
    right: Row
    overlap: float | None

    @property
    def is_relabelled(self) -> bool:
        return bool(self.left["label"] != self.right["label"])


@dataclass(frozen=True)
class Difference:
    """What changed from one run to another. pairs: images explained in both, those that changed most first."""

    names: tuple[str, str]
    changes: tuple[str, ...]
    pairs: tuple[Pair, ...]
    only: tuple[int, int]
    failed: tuple[int, int]
    overlaps: Histogram

    @property
    def relabelled(self) -> int:
        return sum(pair.is_relabelled for pair in self.pairs)

    def medians(self, column: str) -> tuple[float | None, float | None]:
        """A column's median in both runs, over the shared images."""
        return histogram(p.left[column] for p in self.pairs).middle, histogram(p.right[column] for p in self.pairs).middle

    def outside(self, below: float = OUTSIDE) -> tuple[int, int] | None:
        """How many explanations lie outside of their object in both; None where there is no truth."""
        if all(pair.left["inside"] is None and pair.right["inside"] is None for pair in self.pairs):
            return None
        counts = [sum((row["inside"] or 0) < below for row in side if row["inside"] is not None) for side in self._sides()]
        return counts[0], counts[1]

    def record(self) -> dict[str, Any]:
        """What `--json` prints."""
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

    def _sides(self) -> tuple[list[Row], list[Row]]:
        return [pair.left for pair in self.pairs], [pair.right for pair in self.pairs]


def compare_runs(left: Run, right: Run) -> Difference:
    """Match the images of two runs and compare what was found. Raises InputError if they share none."""
    ours, theirs = list(left.rows()), list(right.rows())
    matched = list(match_rows(ours, theirs))
    if not matched:
        raise InputError(f"{left.folder} and {right.folder} have no image in common, by path or by content")
    pairs = [Pair(a, b, overlap_of(left, a, right, b)) for a, b in matched if a["state"] == "done" and b["state"] == "done"]
    pairs.sort(key=lambda p: (not p.is_relabelled, 1.0 if p.overlap is None else p.overlap, p.left["id"]))
    return Difference(
        (left.folder.name, right.folder.name),
        tuple(left.changes(right)),
        tuple(pairs),
        (len(ours) - len(matched), len(theirs) - len(matched)),
        (sum(a["state"] == "failed" for a, _ in matched), sum(b["state"] == "failed" for _, b in matched)),
        histogram(pair.overlap for pair in pairs),
    )


def match_rows(ours: list[Row], theirs: list[Row]) -> Iterator[tuple[Row, Row]]:
    """Pairs of rows of the same image: of the same path, else of the same content; the nth of several with the nth."""
    rest = theirs
    for key in ("image", "sha256"):
        places: dict[str, list[Row]] = {}
        for row in rest:
            if row[key] is not None:
                places.setdefault(row[key], []).append(row)
        unmatched = []
        taken: set[int] = set()
        for row in ours:
            found = places.get(row[key]) if row[key] is not None else None
            if found:
                other = found.pop(0)
                taken.add(other["id"])
                yield row, other
            else:
                unmatched.append(row)
        ours, rest = unmatched, [row for row in rest if row["id"] not in taken]


def overlap_of(left: Run, ours: Row, right: Run, theirs: Row) -> float | None:
    """What two explanations of one image share, on the view where both have the same, else on the original."""
    (a, here), (b, there) = left.load_visible(ours["id"]), right.load_visible(theirs["id"])
    if here != there:
        if here.original != there.original:
            return None
        a, b = here.to_original(a), there.to_original(b)
    either = int(np.count_nonzero(a | b))
    return int(np.count_nonzero(a & b)) / either if either else None
