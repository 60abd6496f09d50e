"""Finds the same images in two runs, by path or by content."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing

from becausal.batch.reading import BatchRun, IndexRow

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

    That is the image with the same path, else one with the same content; of duplicates the nth with the nth. Paths and
    hashes are compared in a temporary database on disk, so that memory does not grow with the runs.
    """
    with closing(sqlite3.connect("", isolation_level=None)) as index:
        index.execute("CREATE TABLE images (side INTEGER, id INTEGER, image TEXT, sha256 TEXT)")
        index.execute("CREATE TABLE pairs (ours INTEGER PRIMARY KEY, theirs INTEGER UNIQUE)")
        index.execute("BEGIN")
        for side, run in enumerate((left, right)):
            keys = ((side, row["id"], row["image"], row["sha256"]) for row in run.rows())
            index.executemany("INSERT INTO images VALUES (?, ?, ?, ?)", keys)
        for key in ("image", "sha256"):
            index.execute(_PAIR.format(key=key))
        index.execute("COMMIT")
        for row in left.rows():
            found = index.execute("SELECT theirs FROM pairs WHERE ours = ?", (row["id"],)).fetchone()
            yield row, None if found is None else next(right.rows("id = ?", found[0]))
