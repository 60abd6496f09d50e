"""Compares two runs on the same images, e.g. of two models; finds the images by path or content, boxes by their overlap."""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby, product
from typing import Any

import numpy as np

from becausal.batch.overview import OUTSIDE, Histogram, histogram
from becausal.batch.reading import BatchRun, IndexRow
from becausal.batch.rows import corners_of
from becausal.core.boxes import overlaps
from becausal.core.contracts import Visible
from becausal.core.errors import InputError, OutputError
from becausal.core.frames import Frame
from becausal.core.targets import OVERLAP

#: Pairs the images of two runs that have no partner yet, by one column; of duplicates the nth with the nth.
_PAIR = """
INSERT INTO pairs
WITH free AS (
    SELECT side, id, {key} AS key, row_number() OVER (PARTITION BY side, {key} ORDER BY id) AS nth
    FROM images
    WHERE {key} IS NOT NULL
    AND NOT CASE side WHEN 0 THEN id IN (SELECT ours FROM pairs) ELSE id IN (SELECT theirs FROM pairs) END
)
SELECT a.id, b.id FROM free AS a JOIN free AS b ON a.key = b.key AND a.nth = b.nth WHERE a.side = 0 AND b.side = 1
"""


@dataclass(frozen=True)
class ImagePair:
    """One image, or box, in both runs; overlap: intersection over union of the two explanations, None if not comparable."""

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
    only: number of images in one run only. failed: number of shared images that failed. unit: image, or box where a run
    has all boxes; then all of these are boxes.
    """

    names: tuple[str, str]
    changes: tuple[str, ...]
    pairs: tuple[ImagePair, ...]
    only: tuple[int, int]
    failed: tuple[int, int]
    overlaps: Histogram
    unit: str = "image"

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
        return _count_outside((p.left for p in self.pairs), below), _count_outside((p.right for p in self.pairs), below)

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
                    **({"boxes": boxes} if any(boxes := [corners_of(pair.left), corners_of(pair.right)]) else {}),
                    "labels": [pair.left["label"], pair.right["label"]],
                    "sizes": [pair.left["size"], pair.right["size"]],
                    "overlap": pair.overlap,
                }
                for pair in self.pairs
            ],
        }


def _count_outside(rows: Iterable[IndexRow], below: float) -> int:
    return sum(row["inside"] is not None and row["inside"] < below for row in rows)


def compare_runs(left: BatchRun, right: BatchRun) -> RunDifference:
    """Match the images of two runs and compare their explanations. Raises InputError if they share no image."""
    totals = [run.count_rows() for run in (left, right)]
    matched = [(a, b) for a, b in match_runs(left, right) if b is not None]
    if not matched:
        raise InputError(f"{left.folder} and {right.folder} have no image in common, by path or by content")
    explained = [(a, b) for a, b in matched if a["state"] == b["state"] == "done"]
    pairs = [ImagePair(a, b, overlap_of(left, a, right, b)) for a, b in explained]
    pairs.sort(key=lambda p: (not p.is_relabelled, 1.0 if p.overlap is None else p.overlap, p.left["id"]))
    return RunDifference(
        (left.folder.name, right.folder.name),
        tuple(left.changes(right)),
        tuple(pairs),
        (totals[0] - len(matched), totals[1] - len(matched)),
        (sum(a["state"] == "failed" for a, _ in matched), sum(b["state"] == "failed" for _, b in matched)),
        histogram(pair.overlap for pair in pairs),
        "box" if "box" in (left.unit, right.unit) else "image",
    )


def overlap_of(left: BatchRun, ours: IndexRow, right: BatchRun, theirs: IndexRow) -> float | None:
    """The overlap of two explanations; None where one cannot be read (see `BatchRun.unreadable`), or they do not compare."""
    sides = []
    for run, row in ((left, ours), (right, theirs)):
        try:
            sides.append(run.load_visible(row["id"]))
        except OutputError as error:
            run.skip(row["id"], error)
    return overlap_between(*sides) if len(sides) == 2 else None


def overlap_between(ours: tuple[Visible, Frame], theirs: tuple[Visible, Frame]) -> float | None:
    """Intersection over union of two explanations, on the view if both have the same frame, else on the original.

    None where the originals have different sizes, or both explanations are empty.
    """
    (a, frame_a), (b, frame_b) = ours, theirs
    if frame_a != frame_b:
        if frame_a.original != frame_b.original:
            return None
        a, b = frame_a.to_original(a), frame_b.to_original(b)
    either = int(np.count_nonzero(a | b))
    return int(np.count_nonzero(a & b)) / either if either else None


def match_runs(left: BatchRun, right: BatchRun) -> Iterator[tuple[IndexRow, IndexRow | None]]:
    """Every row of `left`, in its order, with the row of the same image in `right`, None if it has none.

    That is the image with the same path, else one with the same content; of duplicates the nth with the nth. Where a run
    has all boxes of an image, the same box: see `pair_boxes`. Paths and hashes are compared in a temporary database on
    disk, so that memory does not grow with the runs.
    """
    with closing(sqlite3.connect("", isolation_level=None)) as index:
        index.execute("CREATE TABLE images (side INTEGER, id INTEGER, image TEXT, sha256 TEXT)")
        index.execute("CREATE TABLE pairs (ours INTEGER PRIMARY KEY, theirs INTEGER UNIQUE)")
        index.execute("BEGIN")
        for side, run in enumerate((left, right)):
            keys = ((side, number, rows[0]["image"], rows[0]["sha256"]) for number, rows in _by_image(run))
            index.executemany("INSERT INTO images VALUES (?, ?, ?, ?)", keys)
        for key in ("image", "sha256"):
            index.execute(_PAIR.format(key=key))
        index.execute("COMMIT")
        for number, ours in _by_image(left):
            found = index.execute("SELECT theirs FROM pairs WHERE ours = ?", (number,)).fetchone()
            first = 0 if found is None else found[0] * right.per_image
            theirs = [] if found is None else list(right.rows("id >= ? AND id < ?", first, first + right.per_image))
            if theirs and all(row["box"] is None for row in (*ours, *theirs)):
                yield ours[0], theirs[0]
            else:
                yield from zip(ours, pair_boxes(ours, theirs), strict=True)


def _by_image(run: BatchRun) -> Iterator[tuple[int, list[IndexRow]]]:
    """The images of a run by number, each with its rows."""
    for number, rows in groupby(run.rows(), lambda row: row["id"] // run.per_image):
        yield number, list(rows)


def pair_boxes(ours: Sequence[IndexRow], theirs: Sequence[IndexRow]) -> list[IndexRow | None]:
    """For each of our boxes the same one among theirs, None if there is none.

    Two boxes can be the same if their intersection over union is at least 0.5. Pairs of one label come first, then those
    that overlap most. Each box is used once.
    """
    pairs = []
    for (i, one), (j, other) in product(enumerate(ours), enumerate(theirs)):
        box, its = corners_of(one), corners_of(other)
        overlap = 0.0 if box is None or its is None else float(overlaps(np.array(its), box))
        if overlap >= OVERLAP:
            pairs.append((one["label"] != other["label"], -overlap, i, j))
    found: list[IndexRow | None] = [None] * len(ours)
    taken: set[int] = set()
    for *_, i, j in sorted(pairs):
        if found[i] is None and j not in taken:
            found[i] = theirs[j]
            taken.add(j)
    return found
