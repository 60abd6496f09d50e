"""Runs in numbers: of one run for its page, and what differs between two, e.g. of two models."""

import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby, product
from statistics import median
from typing import Any

import numpy as np

from becausal.batch.index import IndexRow, corners_of, count_reasons
from becausal.batch.reading import BatchRun
from becausal.core.boxes import overlaps
from becausal.core.checks import ENOUGH
from becausal.core.contracts import Visible
from becausal.core.errors import InputError, OptionError, OutputError
from becausal.core.frames import Frame
from becausal.core.request import Request
from becausal.core.targets import OVERLAP
from becausal.render.wording import FRAGILE

OUTSIDE = 0.5  # an explanation with a smaller share of its pixels on the object counts as outside
BINS = 24
MEASURES = ("size", "core_size", "backgrounds", "core_backgrounds", "confidence", "calls", "inside")  # as distributions
EXTREMES = 8  # of the largest, the smallest, the least sure explanations; at most half of all
MAX_OUTSIDE = 40  # explanations outside their object that are shown
MAX_ROWS = 20_000  # in the table of a page

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
class Histogram:
    """Counts between edges, one more edge than counts, and the median (`middle`); empty if there are no values."""

    counts: tuple[int, ...] = ()
    edges: tuple[float, ...] = ()
    middle: float | None = None


class Overview:
    """Summary of a run, for its page.

    thumbs: images in the evenly spaced sample. below: explanations with a smaller share of their pixels on the object
    count as outside.
    """

    def __init__(self, run: BatchRun, *, thumbs: int = 120, below: float = OUTSIDE) -> None:
        counts = run.count()
        limit = None if run.limit is None or run.count(run.limit)["waiting"] else run.limit
        done = list(run.rows("state = 'done'"))
        # What is said of sizes is about sets of one kind: where any is certified, about these.
        certified = [row for row in done if row["level"] == ENOUGH]
        self.has_enough, self.sized = bool(certified), certified or done
        self.lacking = [row for row in done if row["level"] not in (ENOUGH, None)] if _asks_for_enough(run) else []
        by_size = sorted(self.sized, key=lambda row: (row["size"], row["id"]))
        few, half = min(EXTREMES, len(done) // 2), min(EXTREMES, len(by_size) // 2)
        judged = [row for row in done if row["inside"] is not None]
        missed = sorted((row for row in judged if row["inside"] < below), key=lambda row: (row["inside"], -row["size"]))
        self.name, self.settings, self.started, self.notes = run.folder.name, run.options, run.started, run.notes
        self.unit, self.per_image, self.below = run.unit, run.per_image, below
        self.counts, self.total = counts, sum(counts.values())  # of images
        self.completion = describe_completion(counts, limit)
        self.is_limited = limit is not None and counts["waiting"] > 0  # all images of the last start's --limit were tried
        self.explained, self.explained_images = len(done), len({row["id"] // run.per_image for row in done})
        self.is_detector = any(corners_of(row) is not None for row in done)
        self.known = {name for name in MEASURES if any(row[name] is not None for row in done)}
        self.fragile = sum(row["backgrounds"] is not None and row["backgrounds"] < FRAGILE for row in done)
        self.calls = sum(row["calls"] for row in done)
        self.cut_short = sum(row["stopped_by"] != "finished" for row in done)
        self.histograms = {name: histogram(row[name] for row in done) for name in MEASURES}
        self.histograms["size"] = histogram(row["size"] for row in self.sized)
        alone = self.lacking if self.has_enough else []  # their core is the explanation itself
        for name, own in (("core_size", "size"), ("core_backgrounds", "backgrounds")):
            self.histograms[name] = histogram([row[name] for row in done] + [row[own] for row in alone])
        self.lacking_middle = histogram(row["size"] for row in self.lacking).middle
        self.classes = _summarise_labels(done, below)
        self.reasons = count_reasons((row["error"], row["image"]) for row in run.rows("state = 'failed'"))
        self.largest, self.smallest = by_size[::-1][:half], by_size[:half]
        scored = [row for row in done if row["confidence"] is not None]
        self.least_sure = sorted(scored, key=lambda row: (row["confidence"], row["id"]))[:few]
        held = [row for row in done if row["backgrounds"] is not None]
        self.least_held = sorted(held, key=lambda row: (row["backgrounds"], row["id"]))[:few]
        self.sample = take_evenly(done, thumbs)
        self.judged = len(judged)  # explanations with boxes of their label
        self.outside, self.outside_count = missed[:MAX_OUTSIDE], len(missed)
        self.wrong_count = sum(row["note_code"] == "label_without_box" for row in done)
        self.mean_inside = _mean(row["inside"] for row in judged)
        self.mean_by_chance = _mean(row["by_chance"] for row in judged)
        self.rows, self.row_count = list(run.rows(limit=MAX_ROWS)), run.count_rows()


def describe_completion(counts: Mapping[str, int], limit: int | None = None) -> str:
    """E.g. `complete`, `1 of 8 images explained, limited to the first 1`, `3 of 8 images explained, 5 waiting`.

    counts: of all images of the run. limit: of the last start, None for none or if images within it are waiting.
    """
    if not counts["waiting"]:
        return "complete"
    text = f"{counts['done']:,} of {sum(counts.values()):,} images explained"
    return f"{text}, {counts['waiting']:,} waiting" if limit is None else f"{text}, limited to the first {limit:,}"


def histogram(values: Iterable[float | None]) -> Histogram:
    """The distribution of the values that are not None."""
    known = np.array([value for value in values if value is not None], float)
    if not known.size:
        return Histogram()
    high = float(known.max())
    counts, edges = np.histogram(known, bins=BINS, range=(0.0, high if high > 0 else 1.0))
    return Histogram(tuple(counts.tolist()), tuple(edges.tolist()), float(np.median(known)))


def _summarise_labels(rows: Sequence[IndexRow], below: float) -> list[dict[str, Any]]:
    """The explanations of each label, the most frequent first: medians, the mean share inside the boxes; None: unknown."""
    groups: dict[str, list[IndexRow]] = {}
    for row in rows:
        groups.setdefault(row["label"], []).append(row)
    classes: list[dict[str, Any]] = []
    for label, group in groups.items():
        inside = [row["inside"] for row in group if row["inside"] is not None]
        confidence = [row["confidence"] for row in group if row["confidence"] is not None]
        classes.append(
            {"label": label, "number": len(group)}
            | {"calls": median(row["calls"] for row in group), **_typical_size(group)}
            | {"confidence": median(confidence) if confidence else None, "inside": _mean(inside)}
            | {"outside": sum(share < below for share in inside)}
        )
    return sorted(classes, key=lambda each: (-each["number"], each["label"]))


def _asks_for_enough(run: BatchRun) -> bool:
    """Whether sets that hold on random backgrounds were asked for."""
    try:
        return Request.from_record(run.settings["request"]).share_held is not None
    except OptionError:  # of another version
        return False


def _typical_size(group: Sequence[IndexRow]) -> dict[str, Any]:
    """The median size of the explanations that are `enough`, or else of all; level: which set it is of, if of one."""
    own = [row for row in group if row["level"] == ENOUGH] or group
    levels = {row["level"] for row in own}
    return {"size": median(row["size"] for row in own), "level": levels.pop() if len(levels) == 1 else None}


def take_evenly(rows: Sequence[IndexRow], count: int) -> list[IndexRow]:
    """At most `count` rows, evenly spaced from the first to the last."""
    if len(rows) <= count:
        return list(rows)
    return [rows[round(i * (len(rows) - 1) / (count - 1))] for i in range(count)] if count > 1 else list(rows[:count])


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


@dataclass(frozen=True)
class ImagePair:
    """One image, or box, in both runs."""

    left: IndexRow
    right: IndexRow
    overlap: float | None  # intersection over union of the two explanations, None if not comparable

    @property
    def is_relabelled(self) -> bool:
        return bool(self.left["label"] != self.right["label"])

    @property
    def sets(self) -> str:
        """Which sets their sizes are of, where these differ: `core, then enough`; else empty."""
        left, right = self.left["level"], self.right["level"]
        return "" if left == right else f"{left or 'unknown'}, then {right or 'unknown'}"


@dataclass(frozen=True)
class RunDifference:
    """What changed from one run to another."""

    names: tuple[str, str]
    changes: tuple[str, ...]  # options that differ
    pairs: tuple[ImagePair, ...]  # images explained in both, those that changed most first
    only: tuple[int, int]  # number of images in one run only
    failed: tuple[int, int]  # number of shared images that failed
    overlaps: Histogram
    unit: str = "image"  # or box where a run has all boxes; then all of these are boxes

    @property
    def relabelled(self) -> int:
        return sum(pair.is_relabelled for pair in self.pairs)

    def levels(self) -> tuple[dict[str, int], dict[str, int]]:
        """Which sets the explanations are, in each run, with their numbers: {"enough": 10, "core": 2}."""
        left, right = (Counter(row["level"] or "" for row in side) for side in self._sides())
        return dict(left.most_common()), dict(right.most_common())

    def describe_levels(self) -> tuple[str, str] | None:
        """The same in words; None where all explanations are sets of one kind."""
        left, right = self.levels()
        if len({*left, *right}) < 2:
            return None
        texts = (", ".join(f"{count:,} {name or 'unknown'}" for name, count in side.items()) for side in (left, right))
        return next(texts), next(texts)

    def _sides(self) -> tuple[list[IndexRow], list[IndexRow]]:
        return [pair.left for pair in self.pairs], [pair.right for pair in self.pairs]

    def medians(self, column: str) -> tuple[float | None, float | None]:
        """The median of a column in each run, over the shared images."""
        return histogram(p.left[column] for p in self.pairs).middle, histogram(p.right[column] for p in self.pairs).middle

    def outside(self) -> tuple[int, int] | None:
        """How many explanations lie outside their object, in each run; None without ground truth."""
        if all(pair.left["inside"] is None and pair.right["inside"] is None for pair in self.pairs):
            return None
        sides = zip(*((pair.left["inside"], pair.right["inside"]) for pair in self.pairs), strict=True)
        left, right = (sum(share is not None and share < OUTSIDE for share in side) for side in sides)
        return left, right

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
            "levels": list(self.levels()),
            "medians": {name: list(self.medians(name)) for name in ("size", "confidence", "calls", "inside")},
            "outside": self.outside(),
            "pictures": [
                {
                    "image": pair.left["image"],
                    "ids": [pair.left["id"], pair.right["id"]],
                    **({"boxes": boxes} if any(boxes := [corners_of(pair.left), corners_of(pair.right)]) else {}),
                    "labels": [pair.left["label"], pair.right["label"]],
                    "levels": [pair.left["level"], pair.right["level"]],
                    "sizes": [pair.left["size"], pair.right["size"]],
                    "overlap": pair.overlap,
                }
                for pair in self.pairs
            ],
        }


def compare_runs(left: BatchRun, right: BatchRun) -> RunDifference:
    """Match the images of two runs and compare their explanations. Raises InputError if they share no image."""
    totals = [run.count_rows() for run in (left, right)]
    matched = [(a, b) for a, b in match_runs(left, right) if b is not None]
    if not matched:
        raise InputError(f"{left.folder} and {right.folder} have no image in common, by path or by content")
    explained = [(a, b) for a, b in matched if a["state"] == b["state"] == "done"]
    pairs = []
    for ours, theirs in explained:
        sides = []
        for run, row in ((left, ours), (right, theirs)):
            try:
                sides.append(run.load_visible(row["id"]))
            except OutputError as error:
                run.skip(row["id"], error)
        pairs.append(ImagePair(ours, theirs, overlap_between(*sides) if len(sides) == 2 else None))
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
