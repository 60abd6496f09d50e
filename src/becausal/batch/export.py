"""Exports a run as one CSV, Parquet or COCO file, written row by row, or as a folder for FiftyOne."""

import csv
import json
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.batch.fiftyone import write_fiftyone
from becausal.batch.index import COLUMNS, KINDS, IndexRow, corners_of
from becausal.batch.reading import BatchRun
from becausal.core.errors import BecausalError, MissingExtraError, OptionError, OutputError
from becausal.core.files import write_file
from becausal.core.text import to_cell
from becausal.scenes.dataset import encode_box, encode_mask
from becausal.scenes.scene import box_of

PAGE = 4096  # rows per row group of a Parquet file
FOLDER = "fiftyone"  # the format that is a folder
_TYPES = {"TEXT": "string", "INTEGER": "int64", "REAL": "float64"}


def export_run(run: BatchRun, path: Path, form: str) -> int:
    """Write a run as csv, parquet, coco or fiftyone; returns the number of rows. Raises OptionError and OutputError.

    Explanations that cannot be read are left out, and noted in `run.unreadable`. path: a folder for fiftyone, else a file.
    """
    if form == FOLDER:
        return write_fiftyone(run, path)
    if form not in WRITERS:
        raise OptionError(f"unknown format {form!r}: use one of {', '.join((*WRITERS, FOLDER))}")
    counts: list[int] = []
    write_output(path, lambda part: counts.append(WRITERS[form](run, part)))
    return counts[0]


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
    rows, count = run.rows(), 0
    with parquet.ParquetWriter(path, schema) as writer:
        while page := list(islice(rows, PAGE)):
            writer.write_table(pyarrow.Table.from_pylist(page, schema))
            count += len(page)
    return count


def write_coco(run: BatchRun, path: Path) -> int:
    """Each explanation as an annotation on its original image (run lengths, box, area, confidence); returns their number."""
    found = {(row["label_id"], row["label"]) for row in run.rows("state = 'done'")}
    ids = Counter(number for number, _ in found)
    if None not in ids and all(count == 1 for count in ids.values()):
        categories = {(number, label): number for number, label in found}
    else:  # some label has no id, or two share one: names are the identity, numbered in alphabetical order
        numbers = {label: number for number, label in enumerate(sorted({label for _, label in found}), start=1)}
        categories = {key: numbers[key[1]] for key in found}
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


def _annotate(row: IndexRow, image: int, category: int, mask: NDArray[np.bool_]) -> dict[str, Any]:
    """The annotation: `bbox` is that of the mask, as COCO demands; the explained box of a detector is in `detection`."""
    detection: dict[str, Any] = {}
    if (corners := corners_of(row)) is not None:
        number = {} if row["box"] is None else {"number": row["box"]}
        place = {"bbox": encode_box(corners), "label": row["label"], "score": row["confidence"]}
        detection = {"detection": number | place}
    return {
        "id": row["id"] + 1,
        "image_id": image,
        "category_id": category,
        "iscrowd": 0,
        "score": row["confidence"],
        "level": row["level"],
        "area": int(mask.sum()),
        "bbox": encode_box(box_of(mask)),
        "segmentation": encode_mask(mask),
        **detection,
    }


def _to_json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


WRITERS: dict[str, Callable[[BatchRun, Path], int]] = {"csv": write_csv, "parquet": write_parquet, "coco": write_coco}
