"""Finds the same images in two runs, by path or by content, and the same boxes in them, by their overlap."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import groupby, product

import numpy as np

from becausal.batch.reading import BatchRun, IndexRow
from becausal.batch.rows import corners_of
from becausal.core.boxes import overlaps
from becausal.core.targets import OVERLAP

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
