"""Exports a run as one CSV, Parquet or COCO file, written row by row."""

import csv
import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.batch.reading import BatchRun, IndexRow
from becausal.batch.store import COLUMNS, RESULTS
from becausal.core.errors import MissingExtraError, OptionError, OutputError
from becausal.core.files import write_file
from becausal.scenes import encode_mask

PAGE = 4096  # rows per row group of a Parquet file
_KINDS = {"TEXT": "string", "INTEGER": "int64", "REAL": "float64"}
_OTHER_KINDS = {"id": "INTEGER", "tries": "INTEGER"}


def export_run(run: BatchRun, path: Path, form: str) -> int:
    """Write a run as csv, parquet or coco; returns the number of rows. Raises OptionError and OutputError."""
    if form not in WRITERS:
        raise OptionError(f"unknown format {form!r}: use one of {', '.join(WRITERS)}")
    count = 0

    def write(part: Path) -> None:
        nonlocal count
        count = WRITERS[form](run, part)

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error
    write_file(path, write)
    return count


def write_csv(run: BatchRun, path: Path) -> int:
    """All columns of the index, one line per image; returns the number of rows."""
    count = 0
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for row in run.rows():
            writer.writerow(row)
            count += 1
    return count


def write_parquet(run: BatchRun, path: Path) -> int:
    """All columns of the index with their types; returns the number of rows. Raises MissingExtraError without pyarrow."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise MissingExtraError("pyarrow", "parquet", "the format parquet") from None
    kinds = {name: _KINDS[RESULTS.get(name) or _OTHER_KINDS.get(name, "TEXT")] for name in COLUMNS}
    schema = pyarrow.schema([(name, getattr(pyarrow, kind)()) for name, kind in kinds.items()])
    count = 0
    with parquet.ParquetWriter(path, schema) as writer:
        for page in _pages(run):
            writer.write_table(pyarrow.Table.from_pylist(page, schema))
            count += len(page)
    return count


def write_coco(run: BatchRun, path: Path) -> int:
    """Each explanation as an annotation on its original image (run lengths, box, area, confidence); returns their number."""
    categories = {row["label_id"]: row["label"] for row in run.rows("state = 'done'", order="label_id")}
    images: list[dict[str, Any]] = []
    with path.open("w", encoding="utf-8") as file:
        file.write('{"info": ' + json.dumps({"description": "explanations by becausal", "run": run.settings}))
        file.write(', "categories": ' + json.dumps([{"id": key, "name": name} for key, name in categories.items()]))
        file.write(', "annotations": [')
        for row in run.rows("state = 'done'"):
            visible, frame = run.load_visible(row["id"])
            if visible.ndim != 2:
                raise OptionError("the format coco is for images only: export signals and volumes as csv or parquet")
            mask = frame.to_original(visible)
            file.write((",\n" if images else "\n") + json.dumps(_annotate(row, mask), separators=(",", ":")))
            height, width = mask.shape
            images.append({"id": row["id"], "file_name": row["image"], "width": width, "height": height})
        file.write('], "images": ' + json.dumps(images) + "}\n")
    return len(images)


def _annotate(row: IndexRow, mask: NDArray[np.bool_]) -> dict[str, Any]:
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    box = [0, 0, 0, 0]
    if rows.size:
        left, top = int(columns[0]), int(rows[0])
        box = [left, top, int(columns[-1]) - left + 1, int(rows[-1]) - top + 1]
    return {
        "id": row["id"] + 1,
        "image_id": row["id"],
        "category_id": row["label_id"],
        "iscrowd": 0,
        "score": row["confidence"],
        "area": int(mask.sum()),
        "bbox": box,
        "segmentation": encode_mask(mask),
    }


def _pages(run: BatchRun) -> Iterator[list[IndexRow]]:
    rows = run.rows()
    while page := list(islice(rows, PAGE)):
        yield page


WRITERS: dict[str, Callable[[BatchRun, Path], int]] = {"csv": write_csv, "parquet": write_parquet, "coco": write_coco}
