"""Exports a run as one CSV, Parquet or COCO file, written row by row."""

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.batch.index import COLUMNS, KINDS
from becausal.batch.reading import BatchRun, IndexRow
from becausal.batch.rows import corners_of
from becausal.core.errors import BecausalError, MissingExtraError, OptionError, OutputError
from becausal.core.files import write_file
from becausal.core.text import to_cell
from becausal.scenes import encode_mask

PAGE = 4096  # rows per row group of a Parquet file
_TYPES = {"TEXT": "string", "INTEGER": "int64", "REAL": "float64"}


def export_run(run: BatchRun, path: Path, form: str) -> int:
    """Write a run as csv, parquet or coco; returns the number of rows. Raises OptionError and OutputError.

    Explanations that cannot be read are left out, and noted in `run.unreadable`.
    """
    if form not in WRITERS:
        raise OptionError(f"unknown format {form!r}: use one of {', '.join(WRITERS)}")
    count = 0

    def write(part: Path) -> None:
        nonlocal count
        count = WRITERS[form](run, part)

    write_output(path, write)
    return count


def write_output(path: Path, content: bytes | Callable[[Path], None]) -> None:
    """Write a file that the user named, and make its folder. Raises OutputError where there can be no such file."""
    try:
        if not path.name or path.is_dir():
            raise OutputError(f"cannot write {path}: it is a folder; give the name of a file")
        path.parent.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise OutputError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}") from error
    write_file(path, content)


def write_csv(run: BatchRun, path: Path) -> int:
    """All columns of the index, one line per image or box; returns the number of rows."""
    count = 0
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for row in run.rows():
            writer.writerow({name: to_cell(value) for name, value in row.items()})
            count += 1
    return count


def write_parquet(run: BatchRun, path: Path) -> int:
    """All columns of the index with their types; returns the number of rows. Raises MissingExtraError without pyarrow."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise MissingExtraError("pyarrow", "parquet", "the format parquet") from None
    schema = pyarrow.schema([(name, getattr(pyarrow, _TYPES[KINDS[name]])()) for name in COLUMNS])
    count = 0
    with parquet.ParquetWriter(path, schema) as writer:
        for page in _pages(run):
            writer.write_table(pyarrow.Table.from_pylist(page, schema))
            count += len(page)
    return count


def write_coco(run: BatchRun, path: Path) -> int:
    """Each explanation as an annotation on its original image (run lengths, box, area, confidence); returns their number."""
    categories = number_categories(run)
    images: dict[int, dict[str, Any]] = {}
    count = others = 0
    with path.open("w", encoding="utf-8") as file:
        file.write('{"info": ' + _to_json({"description": "explanations by becausal", "run": run.settings}))
        names = {category: label for (_, label), category in categories.items()}
        file.write(', "categories": ' + _to_json([{"id": key, "name": names[key]} for key in sorted(names)]))
        file.write(', "annotations": [')
        for row in run.rows("state = 'done'"):
            try:
                visible, frame = run.load_visible(row["id"])
                if visible.ndim != 2:
                    others += 1
                    continue
                mask = frame.to_original(visible)
            except BecausalError as error:
                run.skip(row["id"], error)
                continue
            number, (height, width) = row["id"] // run.per_image, mask.shape
            annotation = _annotate(row, number, categories[row["label_id"], row["label"]], mask)
            file.write((",\n" if count else "\n") + _to_json(annotation))
            images[number] = {"id": number, "file_name": row["image"], "width": width, "height": height}
            count += 1
        file.write('], "images": ' + _to_json(list(images.values())) + "}\n")
    if others and not images:
        raise OptionError("the format coco is for images only: export signals and volumes as csv or parquet")
    return count


def number_categories(run: BatchRun) -> dict[tuple[int | None, str], int]:
    """The COCO category of each (label_id, label) of a run.

    That is the label's id where every label has one and no two labels share one. Otherwise names are the identity, and
    are numbered from 1 in alphabetical order.
    """
    found = {(row["label_id"], row["label"]) for row in run.rows("state = 'done'")}
    ids = Counter(number for number, _ in found)
    if None not in ids and all(count == 1 for count in ids.values()):
        return {(number, label): number for number, label in found if number is not None}
    numbers = {label: number for number, label in enumerate(sorted({label for _, label in found}), start=1)}
    return {key: numbers[key[1]] for key in found}


def _annotate(row: IndexRow, image: int, category: int, mask: NDArray[np.bool_]) -> dict[str, Any]:
    """The annotation: `bbox` is that of the mask, as COCO demands; the explained box of a detector is in `detection`."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    box = [0, 0, 0, 0]
    if rows.size:
        left, top = int(columns[0]), int(rows[0])
        box = [left, top, int(columns[-1]) - left + 1, int(rows[-1]) - top + 1]
    return {
        "id": row["id"] + 1,
        "image_id": image,
        "category_id": category,
        "iscrowd": 0,
        "score": row["confidence"],
        "area": int(mask.sum()),
        "bbox": box,
        "segmentation": encode_mask(mask),
        **_describe_detection(row),
    }


def _describe_detection(row: IndexRow) -> dict[str, Any]:
    """The box of a detector that was explained, with left, top, width and height as everywhere in COCO files."""
    if (found := corners_of(row)) is None:
        return {}
    left, top, right, bottom = found
    box = [left, top, right - left, bottom - top]
    number = {} if row["box"] is None else {"number": row["box"]}
    return {"detection": {**number, "bbox": box, "label": row["label"], "score": row["confidence"]}}


def _to_json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _pages(run: BatchRun) -> Iterator[list[IndexRow]]:
    rows = run.rows()
    while page := list(islice(rows, PAGE)):
        yield page


WRITERS: dict[str, Callable[[BatchRun, Path], int]] = {"csv": write_csv, "parquet": write_parquet, "coco": write_coco}
